"""Records that grant rights, in a store, authenticated with a key that the store does not contain.

All servers with the key share them. A client that can only write to the store can delete a record,
which takes rights away, but can neither forge one nor restore an old one. The HMAC covers the
identity of the store, the key of the record, its content, and two numbers that the store counts:
the revision at which the key was created, and its version. A copy under another key, a copy in
another store and an older version all fail one of these checks.

These numbers start again if an etcd cluster is recreated, and with the same flags it even has the
same cluster id. So each server also remembers the ended records in its data folder, and never
accepts them again. A record has ended if the server saw the store delete it, or replace it with a
newer valid one. A record that is only missing when a server reads all records has not ended: the
etcd may be empty or outdated for a while before its data is restored.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, Self, TypeVar

import msgspec

from mooring.atomic_file import replacing
from mooring.errors import Conflict, InvalidRequest, LeaseNotFound, OutOfSpace
from mooring.mirror import Mirror, RangeFeed, Update
from mooring.server.auth.data_dir import ENDED_TOKENS, DataDir
from mooring.store import Delete, Entry, Put, Store, absent, created_at, key, prefix, unchanged
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

ROOT = "/mooring/"
"""The prefix of all keys that servers keep for themselves, with one root for each purpose."""
_MARK = f"{ROOT}server-key".encode()
"""The fingerprint of the key that authenticates the records of the store."""
_MAX_LOGGED = 1000
"""Invalid records that are logged."""
_RESERVED = b"{}"
"""The value of a key until its record is written."""


class ServerKey:
    """The key that the servers of one store share."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @property
    def fingerprint(self) -> str:
        """Identifies the key without revealing it."""
        return self._hmac(b"mooring server key")[:16]

    def mac(self, store: str, name: bytes, created: int, version: int, content: bytes) -> str:
        """`store` is the identity of the store."""
        identity = store.encode()
        numbers = b"%d %d %d %d\n" % (created, version, len(identity), len(name))
        return self._hmac(numbers + identity + name + content)

    def _hmac(self, message: bytes) -> str:
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()


async def is_key_of(store: Store, server_key: ServerKey) -> bool:
    """Whether the records of a store are authenticated with this key. A new store adopts it. Raises
    what the store raises."""
    own = server_key.fingerprint.encode()
    try:
        await store.commit(Put(_MARK, own), require=[absent(_MARK)])
    except Conflict:
        mark = (await store.read(key(_MARK))).first
        return mark is not None and hmac.compare_digest(mark.value, own)
    return True


class _SealedRecord(msgspec.Struct, frozen=True):
    content: msgspec.Raw
    created: int
    version: int
    mac: str


def seal(
    server_key: ServerKey, store: str, name: bytes, created: int, version: int, content: bytes
) -> bytes:
    mac = server_key.mac(store, name, created, version, content)
    return msgspec.json.encode(_SealedRecord(msgspec.Raw(content), created, version, mac))


def unseal(server_key: ServerKey, store: str, entry: Entry) -> tuple[bytes, str]:
    """The content of an authentic record of this store, and its MAC. Raises `ValueError`."""
    try:
        sealed = msgspec.json.decode(entry.value, type=_SealedRecord)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ValueError("it is not a record") from None
    content = bytes(sealed.content)
    mac = server_key.mac(store, entry.key, sealed.created, sealed.version, content)
    if not hmac.compare_digest(mac, sealed.mac):
        raise ValueError("it was not written to this store by a server with this key")
    if (sealed.created, sealed.version) != (entry.created, entry.version):
        raise ValueError("it is an old version or a copy, written by a client of the store")
    return content, mac


MAX_ENDED = 100_000
"""Ended records of a store that are remembered; beyond that, the oldest are forgotten."""
_CLOCK_MARGIN = 7 * 86400
"""Seconds for which a record is remembered after it has expired, in case a clock is wrong."""


class RecordVersion(msgspec.Struct, frozen=True, array_like=True):
    """What identifies a record."""

    mac: str
    created: int
    """The revision at which its key was created."""
    version: int
    until: float | None = None
    """When it expires, in seconds since 1970; None: never."""


class _StoreRecords(msgspec.Struct):
    live: dict[str, RecordVersion] = {}
    """The last valid record of each id."""
    ended: dict[str, float | None] = {}
    """`until` of the ended records by MAC, oldest first."""

    def without_expired(self) -> _StoreRecords:
        now = time.time() - _CLOCK_MARGIN
        return _StoreRecords(
            {id: r for id, r in self.live.items() if r.until is None or r.until > now},
            {mac: until for mac, until in self.ended.items() if until is None or until > now},
        )


class EndedRecords:
    """The ended records of each store, by its identity. Written in the background; `aclose` waits
    until they are on disk."""

    def __init__(self, folder: DataDir) -> None:
        """Raises `InvalidRequest` for a file that cannot be used."""
        self._folder, self._file = folder, folder.path / ENDED_TOKENS
        self._stores: dict[str, _StoreRecords] = {}
        self._tasks, self._changed = Tasks(), False
        self._writing: asyncio.Task[object] | None = None
        try:
            text = folder.read(self._file, closed=0o022)
            stores = msgspec.json.decode(text, type=dict[str, _StoreRecords])
        except FileNotFoundError:
            return
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidRequest(
                f"{self._file} is damaged: restore it from a backup of the folder, or remove it, "
                "which forgets the ended tokens"
            ) from None
        self._stores = {store: seen.without_expired() for store, seen in stores.items()}

    def has(self, store: str, mac: str) -> bool:
        return store in self._stores and mac in self._stores[store].ended

    def add_valid(self, store: str, id: str, record: RecordVersion) -> None:
        """Note a valid record, whose older versions have ended."""
        live = self._stores.setdefault(store, _StoreRecords()).live
        before = live.get(id)
        if before == record:
            return
        if before and (before.created, before.version) < (record.created, record.version):
            self.add_ended(store, id)
        live[id] = record
        self._save()

    def add_ended(self, store: str, id: str) -> None:
        """Note that the record of an id was deleted or replaced."""
        seen = self._stores.get(store)
        if seen is None or (before := seen.live.pop(id, None)) is None:
            return
        seen.ended[before.mac] = before.until
        if len(seen.ended) > MAX_ENDED:
            del seen.ended[next(iter(seen.ended))]
        self._save()

    async def aclose(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def _save(self) -> None:
        self._changed = True
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.start(self._write_all(), name="ended tokens")

    async def _write_all(self) -> None:
        while self._changed:
            self._changed = False
            stores = {
                store: _StoreRecords(seen.live.copy(), seen.ended.copy())
                for store, seen in self._stores.items()
            }
            try:
                await asyncio.to_thread(self._write, stores)
            except OSError as error:
                log.error("ended tokens are not remembered: %s", self._folder.unusable(error))

    def _write(self, stores: dict[str, _StoreRecords]) -> None:
        with replacing(self._file) as out:
            out.write(msgspec.json.encode(stores))


class _Record(NamedTuple, Generic[T]):
    content: T
    modified: int
    lease: int
    mac: str = ""


class SignedRecords(Generic[T]):
    """The authentic records of one purpose by id, live and in memory.

    Entering does not wait for the store: `mirror` shows whether they were read. They stay while the
    store is unavailable. A write is visible on this server at once, and on the others as soon as
    their watches report it.
    """

    def __init__(
        self,
        store: Store,
        server_key: ServerKey,
        purpose: str,
        type: type[T],
        *,
        changed: Callable[[], None] = lambda: None,
        ended: EndedRecords | None = None,
        until: Callable[[T], float | None] = lambda _: None,
    ) -> None:
        """`ended` remembers ended records, which are not accepted again; `until` returns when a
        record expires, in seconds since 1970."""
        self._store, self._key, self._changed = store, server_key, changed
        self._ended, self._until = ended, until
        self._root = f"{ROOT}{purpose}/".encode()
        self._decoder = msgspec.json.Decoder(type)
        self._records: dict[str, _Record[T]] = {}
        self._rejected: set[str] = set()
        self.mirror = Mirror(RangeFeed(store, prefix(self._root)), wait=False)
        self.mirror.subscribe(self._apply)

    async def __aenter__(self) -> Self:
        self.mirror.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.mirror.aclose()

    def get(self, id: str) -> T | None:
        record = self._records.get(id)
        return None if record is None else record.content

    async def find(self, id: str) -> T | None:
        """Like `get`, but reads an unknown record from the store, since another server may just
        have written it. Raises what the store raises."""
        if id not in self._records:
            _, record = await self._read(id)
            if record is not None:
                self._records[id] = record
        return self.get(id)

    def all(self) -> dict[str, T]:
        return {id: record.content for id, record in self._records.items()}

    def __len__(self) -> int:
        return len(self._records)

    async def create(self, id: str, content: T, *, ttl: float | None = None) -> None:
        """Write a new record, which the store deletes after `ttl` seconds. Raises `Conflict` if it
        exists, and what the store raises."""
        name = self._name(id)
        lease = 0 if ttl is None else (await self._store.grant(ttl)).id
        # The HMAC needs the creation revision, which is only known once the key exists.
        reserved = await self._store.commit(Put(name, _RESERVED, lease), require=[absent(name)])
        await self._put(id, content, reserved.revision, 2, lease, reserved.revision)

    async def change(self, id: str, edit: Callable[[T], T]) -> T | None:
        """Replace a record with the result of `edit`, which is returned; None if it is missing."""
        while True:
            entry, record = await self._read(id)
            if entry is None or record is None:
                return None
            after = edit(record.content)
            try:
                version, lease = entry.version + 1, entry.lease
                await self._put(id, after, entry.created, version, lease, entry.modified)
            except Conflict:
                continue
            return after

    async def revoke(self, id: str) -> T | None:
        """Delete a record, whatever its version. The record; None if it is missing."""
        _, record = await self._read(id)
        if record is None:
            return None
        await self._store.commit(Delete(key(self._name(id))))
        self._records.pop(id, None)
        self._changed()
        return record.content

    async def remove(self, id: str) -> bool:
        """Delete a record. Whether this call did: exactly one of several servers does, except for
        a record without a `ttl` in a store that is out of space."""
        record = self._records.get(id)
        if record is None:
            return False
        name, removed = self._name(id), True
        try:
            if record.lease:  # a full etcd refuses transactions, but revokes leases
                await self._store.revoke(record.lease)
            else:
                checks = [unchanged(name, record.modified)]
                await self._store.commit(Delete(key(name)), require=checks)
        except (Conflict, LeaseNotFound):
            removed = False
        except OutOfSpace:
            removed = await self.revoke(id) is not None
        if self._records.get(id) is record:
            del self._records[id]
            self._changed()
        return removed

    async def discard(self, id: str) -> bool:
        """Delete a record that is not authentic. Whether there was one."""
        entry, record = await self._read(id)
        if entry is None or record is not None:
            return False
        try:
            checks = [unchanged(entry.key, entry.modified)]
            await self._store.commit(Delete(key(entry.key)), require=checks)
        except Conflict:
            return False
        log.warning("deleted %s, which is not an authentic record", entry.key.decode())
        return True

    async def _read(self, id: str) -> tuple[Entry | None, _Record[T] | None]:
        entry = (await self._store.read(key(self._name(id)))).first
        return entry, None if entry is None else self._unsealed(id, entry)

    async def _put(
        self, id: str, content: T, created: int, version: int, lease: int, modified: int
    ) -> None:
        name, encoded = self._name(id), msgspec.json.encode(content)
        sealed = seal(self._key, self._store.identity, name, created, version, encoded)
        put = Put(name, sealed, lease)
        checks = [created_at(name, created), unchanged(name, modified)]
        committed = await self._store.commit(put, require=checks)
        self._records[id] = _Record(content, committed.revision, lease)
        self._changed()

    def _name(self, id: str) -> bytes:
        return self._root + id.encode()

    def _apply(self, update: Update[bytes, Entry]) -> None:
        for change in update.changes:
            id = change.key[len(self._root) :].decode(errors="replace")
            after = None if change.after is None else self._unsealed(id, change.after)
            self._update_ended(id, change.after, after, deleted=not update.resync)
            record = self._records.get(id)
            modified = update.mark if change.after is None else change.after.modified
            if record is not None and modified < record.modified and not update.resync:
                continue  # this server wrote a later version
            if after is None:
                self._records.pop(id, None)
            else:
                self._records[id] = after
        self._changed()

    def _update_ended(
        self, id: str, entry: Entry | None, unsealed: _Record[T] | None, *, deleted: bool
    ) -> None:
        """`deleted`: whether a missing entry is known to be deleted."""
        if self._ended is None:
            return
        if entry is None and deleted:
            self._ended.add_ended(self._store.identity, id)
        elif entry is not None and unsealed is not None:
            until = self._until(unsealed.content)
            record = RecordVersion(unsealed.mac, entry.created, entry.version, until)
            self._ended.add_valid(self._store.identity, id, record)

    def _unsealed(self, id: str, entry: Entry) -> _Record[T] | None:
        if entry.value == _RESERVED:
            return None
        store = self._store.identity
        try:
            encoded, mac = unseal(self._key, store, entry)
            if self._ended is not None and self._ended.has(store, mac):
                raise ValueError("it ended before, so the store was recreated or restored")
            content = self._decoder.decode(encoded)
        except (ValueError, msgspec.DecodeError) as error:
            if id not in self._rejected and len(self._rejected) < _MAX_LOGGED:
                self._rejected.add(id)
                name = entry.key.decode(errors="replace")
                log.error("the server ignores the record %s: %s", name, error)
            return None
        self._rejected.discard(id)
        return _Record(content, entry.modified, entry.lease, mac)
