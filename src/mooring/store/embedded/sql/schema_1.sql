-- The file of a durable store, schema 1.

-- Single values: schema, revision, compacted, uptime (seconds that the store has been up).
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;

-- Every version of every key that is not compacted. Version 0 is a deletion.
-- Revisions only grow, so that a commit appends at the end.
CREATE TABLE entries (
    revision INTEGER NOT NULL,
    key BLOB NOT NULL,
    number INTEGER NOT NULL,    -- the place within its commit
    value BLOB NOT NULL,
    created INTEGER NOT NULL,
    version INTEGER NOT NULL,
    lease INTEGER NOT NULL,
    PRIMARY KEY (revision, key)
) WITHOUT ROWID;

-- The active leases. Deadlines count uptime, so downtime does not shorten a lease.
CREATE TABLE leases (
    id INTEGER PRIMARY KEY,
    ttl INTEGER NOT NULL,
    deadline REAL NOT NULL
);
