"""The SQLite file of a durable store: its contents, its owner, and schema upgrades.

One process owns a file at a time. A write is one SQLite transaction in WAL mode with full
synchronisation: when it returns, it is on disk.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from tempfile import mkstemp

from mooring import file_lock
from mooring.errors import InvalidRequest, InvalidURL, StoreError, misplaced
from mooring.formatting import readable
from mooring.messages import Message, message, verbatim
from mooring.store.contract import Batch, Entry
from mooring.store.embedded.keyspace import tombstone
from mooring.store.embedded.store import new_cluster_id

SCHEMA = 2
"""The schema version of this code. Older files are upgraded step by step."""

_SQL = resources.files("mooring.store.embedded") / "sql"


def _statements() -> dict[str, str]:
    parts = re.split(r"^-- name: (\w+).*$", (_SQL / "journal.sql").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


SQL = _statements()


@dataclass(slots=True)
class JournalState:
    revision: int
    compacted: int
    uptime: float
    cluster_id: int
    """0 in a backup: a store that is started from it gets a new one."""
    leases: list[tuple[int, int, float]]
    """(id, ttl, deadline)"""
    entries: list[Entry]


class CommitFailed(sqlite3.OperationalError):
    """COMMIT failed: when the file is reopened, SQLite may or may not find the transaction. The
    contents of the file are unknown until `Journal.recover` returns."""


class NotWritable(sqlite3.OperationalError):
    """The file was opened for reading and cannot be opened for writing."""

    sqlite_errorcode = sqlite3.SQLITE_READONLY

    def __init__(self, message: Message) -> None:
        super().__init__(message.text)
        self.message = message


@dataclass(slots=True)
class JournalWrite:
    revision: int
    compacted: int
    uptime: float
    batches: Iterable[Batch]
    leases: Iterable[tuple[int, int, float]]
    ended: Iterable[int]


class Journal:
    """Opening locks the file for this process, creates it if it does not exist, and upgrades it. A
    read-only file is opened for reading, and each write tries to open it for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process = os.getpid()
        if path.is_dir():
            raise InvalidURL(message("file_is_folder", path=str(path)))
        self.writable = not os.path.isfile(path) or _may_write(path)
        self._owner, self._database = (_open if self.writable else _open_for_reading)(path)
        self._loaded = 0
        self.cluster_id = 0
        """The cluster id; 0 before `load`, and for a read-only file without one."""
        self._synchronised = "FULL"

    def load(self) -> JournalState:
        try:
            kept = _load(self._database)
        except _DAMAGE as error:
            raise self.damaged(error) from error
        self._loaded, self.cluster_id = kept.revision, kept.cluster_id
        return kept

    def damaged(self, error: Exception) -> StoreError:
        path = str(self.path)
        return StoreError(message("file_damaged", path=path, problem=_problem(error)))

    def write(self, changes: JournalWrite) -> None:
        """Write the changes; they are on disk when this returns. Raises `CommitFailed`; after any
        other `sqlite3.Error` nothing was written."""
        if not self.writable:
            self._take_over()
        self._synchronise("FULL")
        with _transaction(self._database) as database:
            database.executemany(SQL["put_entry"], _rows(changes.batches))
            database.executemany(SQL["put_lease"], changes.leases)
            database.executemany(SQL["drop_lease"], ((lease,) for lease in changes.ended))
            meta = ("revision", "compacted", "uptime")
            database.executemany(SQL["put_meta"], ((name, getattr(changes, name)) for name in meta))

    def recover(self, after: int) -> JournalState:
        """After `CommitFailed`: reopen the file, write what it contains to disk, and return its
        leases and the entries after a revision. Raises `sqlite3.Error` while the disk fails.

        A sync that succeeds after one that failed proves nothing: the kernel drops pages that it
        could not write. So everything in SQLite's log is written again, into the database file.
        """
        self._database.close()
        self._database = _connect(self.path)
        self._synchronised = "FULL"
        (busy, *_) = self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise sqlite3.OperationalError("another process is reading it")
        return _load(self._database, after)

    def forget(self, entries: Iterable[Entry], *, compacted: int) -> None:
        """Delete compacted versions, those of one key in their order, without waiting for the disk:
        versions that a crash leaves behind are found when the file is opened again."""
        self._synchronise("NORMAL")
        with _transaction(self._database) as database:
            database.execute(SQL["put_meta"], ("compacted", compacted))
            database.executemany(SQL["drop_entry"], ((e.modified, e.key) for e in entries))

    def space(self) -> tuple[int, int]:
        """The bytes of the files, and the bytes in use once SQLite has merged them."""
        files = (self.path, _log_of(self.path))
        taken = sum(file.stat().st_size for file in files if file.exists())
        with _reading(self.path) as database:
            (size,), (pages,), (free,) = (
                database.execute(f"PRAGMA {name}").fetchone()
                for name in ("page_size", "page_count", "freelist_count")
            )
        return taken, size * (pages - free)

    def _synchronise(self, how: str) -> None:
        if self._synchronised != how:
            self._database.execute(f"PRAGMA synchronous = {how}")
            self._synchronised = how

    def _take_over(self) -> None:
        if not _may_write(self.path):
            raise NotWritable(message("file_read_only"))
        self.close()
        try:
            self._owner, self._database = _open(self.path)
        except (StoreError, InvalidURL) as error:
            self._owner, self._database = _open_for_reading(self.path)
            raise NotWritable(error.message) from error
        meta = dict(self._database.execute(SQL["get_meta"]))
        if meta["revision"] != self._loaded:
            raise NotWritable(message("file_written_by_another"))
        self.cluster_id = meta["cluster_id"]
        self.writable, self._synchronised = True, "FULL"

    def close(self) -> None:
        """Does nothing in a forked child: SQLite must not close files that the parent has open."""
        if self._process == os.getpid():
            self._database.close()
            file_lock.release(self._owner)


# What reading a damaged or foreign file raises.
_DAMAGE = (sqlite3.Error, KeyError, TypeError, ValueError)


def _problem(error: Exception) -> Message:
    if isinstance(error, KeyError):
        return message("value_missing", name=error.args[0])
    return error.message if isinstance(error, StoreError) else verbatim(str(error))


def _may_write(path: Path) -> bool:
    """Whether the file and its directory (for SQLite's log) are writable."""
    effective = os.access in os.supports_effective_ids
    return all(os.access(p, os.W_OK, effective_ids=effective) for p in (path, path.parent))


def _open(path: Path) -> tuple[int, sqlite3.Connection]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = file_lock.acquire(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if misplaced(error):
            raise InvalidURL(message("file_outside_folder", path=str(path))) from error
        raise StoreError(message("file_not_opened", path=str(path), problem=error)) from error
    with _closing_on_error(path, owner) as opened:
        path.touch(mode=0o600)
        database = _connect(path)
        opened.callback(database.close)
        _upgrade(database, path)
    return owner, database


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        # Overwriting deleted content would take longer than anything else here.
        database.execute("PRAGMA secure_delete = OFF")
    except BaseException:
        database.close()
        raise
    return database


def _open_for_reading(path: Path) -> tuple[int, sqlite3.Connection]:
    owner = file_lock.acquire_for_reading(path)
    with _closing_on_error(path, owner) as opened:
        database = _connect_for_reading(path)
        opened.callback(database.close)
        if (version := _version(database, path)) != SCHEMA:
            raise StoreError(
                message(
                    "file_needs_upgrade",
                    path=str(path),
                    version=version,
                    schema=SCHEMA,
                )
            )
    return owner, database


@contextmanager
def _closing_on_error(path: Path, owner: int) -> Iterator[ExitStack]:
    """If opening a file fails, close everything and raise a `StoreError`."""
    with ExitStack() as opened:
        opened.callback(file_lock.release, owner)
        try:
            yield opened
        except (*_DAMAGE, OSError) as error:
            raise StoreError(
                message("file_no_store", path=str(path), problem=_problem(error))
            ) from error
        opened.pop_all()


def _rows(batches: Iterable[Batch]) -> Iterator[tuple[int, bytes, int, bytes, int, int, int]]:
    for batch in batches:
        for number, event in enumerate(batch.events):
            e = event.entry or tombstone(event.key, batch.revision)
            yield batch.revision, e.key, number, e.value, e.created, e.version, e.lease


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield database
        _commit(database)
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _commit(database: sqlite3.Connection) -> None:
    try:
        database.execute("COMMIT")
    except sqlite3.Error as error:
        # SQLite writes and syncs the record that makes a transaction valid last. If the disk is
        # full, or another process holds a lock, it does not get that far.
        if _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
            raise
        raise CommitFailed(str(error)) from error


def refuses_writes(error: Exception) -> bool:
    """Whether an error of `Journal.write` means that the disk is full or the file read-only."""
    return _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY)


def _code(error: Exception) -> int:
    """SQLite's primary result code; 0 if the error has none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _load(database: sqlite3.Connection, after: int = 0) -> JournalState:
    meta = dict(database.execute(SQL["get_meta"]))
    return JournalState(
        revision=meta["revision"],
        compacted=meta["compacted"],
        uptime=meta["uptime"],
        cluster_id=meta.get("cluster_id", 0),
        leases=database.execute(SQL["get_leases"]).fetchall(),
        entries=[Entry(*row) for row in database.execute(SQL["get_entries"], (after,))],
    )


def _upgrade(database: sqlite3.Connection, path: Path) -> None:
    """Upgrade a file to the current schema, one step after another, each in a transaction."""
    for step in range(_version(database, path) + 1, SCHEMA + 1):
        with _transaction(database):
            for statement in _split((_SQL / f"schema_{step}.sql").read_text()):
                database.execute(statement)
            fresh = [("revision", 1), ("compacted", 1), ("uptime", 0.0)] if step == 1 else []
            database.executemany(SQL["put_meta"], [*fresh, ("schema", step)])
    if "cluster_id" not in dict(database.execute(SQL["get_meta"])):
        database.execute(SQL["put_meta"], ("cluster_id", new_cluster_id()))


def _version(database: sqlite3.Connection, path: Path) -> int:
    """The schema version of a file; 0 for an empty one. Raises `StoreError` for an unknown one."""
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if tables and "meta" not in tables:
        raise StoreError(message("file_foreign", path=str(path)))
    version = int(dict(database.execute(SQL["get_meta"]))["schema"]) if tables else 0
    if version > SCHEMA:
        raise StoreError(message("file_too_new", path=str(path), version=version, schema=SCHEMA))
    return version


def _split(script: str) -> Iterator[str]:
    """The statements of a script. (`executescript` would end our transaction.)"""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _connect_for_reading(path: Path) -> sqlite3.Connection:
    """A connection that writes nothing, not even next to a file whose directory is read-only."""
    # Without a log of SQLite, and without permission to create one, the file cannot change.
    mode = "mode=ro" if _log_of(path).exists() or _may_write(path) else "mode=ro&immutable=1"
    address = f"{path.absolute().as_uri()}?{mode}"
    return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def check(path: Path) -> list[str]:
    """The problems of a file as text; empty if it is valid. It may be in use."""
    with _reading(path) as database:
        database.execute("BEGIN")  # a consistent snapshot
        problems = [text for (text,) in database.execute("PRAGMA integrity_check") if text != "ok"]
        if problems:
            return problems
        kept = _load(database)
    return list(_inconsistencies(kept))


def _inconsistencies(kept: JournalState) -> Iterator[str]:
    """Gaps in the history, and keys on leases that do not exist."""
    history = {entry.modified for entry in kept.entries if entry.modified > kept.compacted}
    expected = set(range(kept.compacted + 1, kept.revision + 1))
    if missing := sorted(expected - history):
        yield f"revisions are missing from the history, the first is {missing[0]}"
    if surplus := sorted(history - expected):
        yield f"revisions beyond the newest ({kept.revision}), the first is {surplus[0]}"
    newest = {entry.key: entry for entry in kept.entries}
    leases = {lease for lease, _, _ in kept.leases}
    for name, entry in newest.items():
        if entry.version and entry.lease and entry.lease not in leases:
            yield f"{readable(name)} is attached to lease {entry.lease:x}, which does not exist"


def backup(path: Path, target: Path) -> None:
    """Copy a consistent snapshot of a file, which may be in use. The copy contains no free space.
    If the call fails, there is no copy.

    The copy has no cluster id, so that a store started from it gets a new one, as in etcd: after a
    restore the same revisions stand for other changes, and one backup may become several stores.
    """
    with _reading(path) as database:
        if not _version(database, path):
            raise StoreError(message("file_empty", path=str(path)))
        try:
            file, name = mkstemp(".unfinished", f"{target.name}.", target.parent)
        except OSError as error:
            if misplaced(error):
                raise InvalidRequest(message("file_outside_folder", path=str(target))) from error
            raise StoreError(
                message("file_not_written", path=str(target), problem=error)
            ) from error
        try:
            # As a URL, which can name any file: SQLite's paths must be valid text.
            address = Path(name).absolute().as_uri()
            database.execute("VACUUM INTO ?", (address,))
            with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as copy:
                copy.execute("PRAGMA journal_mode = MEMORY")
                copy.execute(SQL["drop_meta"], ("cluster_id",))
            os.fsync(file)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
        finally:
            os.close(file)
        _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Write the renames in a directory to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for reading to an existing file. Raises `StoreError` if it cannot be read."""
    if not os.path.isfile(path):
        raise InvalidRequest(message("file_missing", path=str(path)))
    database = None
    try:
        database = _connect_for_reading(path)
        yield database
    except InvalidRequest:
        raise
    except (*_DAMAGE, OSError) as error:
        raise StoreError(
            message("file_not_read", path=str(path), problem=_problem(error))
        ) from error
    finally:
        if database is not None:
            database.close()
