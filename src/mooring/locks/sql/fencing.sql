-- The newest fencing token that each resource has seen. The same for SQLite (3.24 and later) and
-- PostgreSQL (9.5 and later).
--
-- The parameters of `admit` are the resource and the token. It changes one row if the token is at
-- least as new as the newest one seen, and no row if it is older. In PostgreSQL the row stays locked
-- until the transaction ends, so the later of two concurrent writers sees the token of the other.

-- table
CREATE TABLE IF NOT EXISTS mooring_fencing (
    resource TEXT PRIMARY KEY,
    token BIGINT NOT NULL
);

-- admit
INSERT INTO mooring_fencing (resource, token) VALUES (?, ?)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token
WHERE excluded.token >= mooring_fencing.token;
