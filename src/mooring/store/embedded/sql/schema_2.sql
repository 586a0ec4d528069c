-- Schema 2: a commit may change a key more than once (delete it, and put it again), so that an
-- entry's place within its commit is a part of its key.

CREATE TABLE entries_2 (
    revision INTEGER NOT NULL,
    key BLOB NOT NULL,
    number INTEGER NOT NULL,    -- the place within its commit
    value BLOB NOT NULL,
    created INTEGER NOT NULL,
    version INTEGER NOT NULL,
    lease INTEGER NOT NULL,
    PRIMARY KEY (revision, key, number)
) WITHOUT ROWID;

INSERT INTO entries_2 (revision, key, number, value, created, version, lease)
SELECT revision, key, number, value, created, version, lease FROM entries ORDER BY revision, key;

DROP TABLE entries;

ALTER TABLE entries_2 RENAME TO entries;
