-- name: get_meta
SELECT name, value FROM meta;

-- name: put_meta (name, value)
INSERT INTO meta (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: drop_meta (name)
DELETE FROM meta WHERE name = ?;

-- name: get_entries (revision): those after it
SELECT key, value, created, revision, version, lease FROM entries
WHERE revision > ? ORDER BY revision, number;

-- name: put_entry (revision, key, number, value, created, version, lease)
INSERT INTO entries (revision, key, number, value, created, version, lease)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: drop_entry (revision, key): the first of that key in that revision
DELETE FROM entries WHERE revision = ?1 AND key = ?2
AND number = (SELECT min(number) FROM entries WHERE revision = ?1 AND key = ?2);

-- name: get_leases
SELECT id, ttl, deadline FROM leases;

-- name: put_lease (id, ttl, deadline)
INSERT INTO leases (id, ttl, deadline) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET ttl = excluded.ttl, deadline = excluded.deadline;

-- name: drop_lease (id)
DELETE FROM leases WHERE id = ?;
