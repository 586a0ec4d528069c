"""Records that grant rights: kept in a store, and authenticated with a key that the store does not
hold.

Every server that has the key shares them. A client that can only write to the store can delete a
record, which takes rights away, but can neither make one nor bring an old one back. The HMAC covers
the identity of the store, the record's key, its content, and two numbers that the store itself
counts: the revision at which the key was created, and how often it was written since. A copy under
another key, a copy in another store and an older version all fail one of them. `ended` says what an
etcd needs that was made again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
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
"""Everything that servers keep for themselves lies below it, with one root for each purpose."""
_MARK = f"{ROOT}server-key".encode()
"""Says which key the records of a store are authenticated with."""
_MAX_LOGGED = 1000
"""Keys that are not authentic of which the log tells."""
_RESERVED = b"{}"
"""The value of a key whose record is about to be written."""


class ServerKey:
    """The key that the servers of one store share."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @property
    def fingerprint(self) -> str:
        """Tells this key from another, and does not help to guess it."""
        return self._hmac(b"mooring server key")[:16]

    def mac(self, store: str, name: bytes, created: int, version: int, content: bytes) -> str:
        """`store` is the identity of the store."""
        where = store.encode()
        numbers = b"%d %d %d %d\n" % (created, version, len(where), len(name))
        return self._hmac(numbers + where + name + content)

    def _hmac(self, message: bytes) -> str:
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()


async def is_key_of(store: Store, server_key: ServerKey) -> bool:
    """Whether the records of a store are authenticated with this key. A store without records takes
    it from now on. Raises what the store raises."""
    mine = server_key.fingerprint.encode()
    try:
        await store.commit(Put(_MARK, mine), require=[absent(_MARK)])
    except Conflict:
        found = (await store.read(key(_MARK))).first
        return found is not None and hmac.compare_digest(found.value, mine)
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
    """The content of an authentic record of this store, and its MAC. Raises `ValueError`, which
    says what is wrong."""
    try:
        sealed = msgspec.json.decode(entry.value, type=_SealedRecord)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ValueError("it is not a record") from None
    content = bytes(sealed.content)
    mac = server_key.mac(store, entry.key, sealed.created, sealed.version, content)
    if not hmac.compare_digest(mac, sealed.mac):
        raise ValueError("it was not written to this store by a server with this key")
    if (sealed.created, sealed.version) != (entry.created, entry.version):
        raise ValueError("it is an old version or a copy that a client of the store wrote")
    return content, mac


MAX_ENDED = 100_000
"""EndedRecords tokens of a store that are remembered; of more, the oldest are forgotten."""
_LONGER = 7 * 86400
"""Seconds for which a token is remembered after it has expired, in case that a clock is wrong."""


class RecordVersion(msgspec.Struct, frozen=True, array_like=True):
    """What identifies a record."""

    mac: str
    created: int
    """The revision at which its key was created."""
    version: int
    until: float | None = None
    """From when on it grants nothing, in seconds since 1970; None: never."""


class _StoreRecords(msgspec.Struct):
    live: dict[str, RecordVersion] = {}
    """The valid record that was last found, by id."""
    ended: dict[str, float | None] = {}
    """`until` of those that ended, by their MACs, the oldest first."""

    def without_expired(self) -> _StoreRecords:
        now = time.time() - _LONGER
        return _StoreRecords(
            {id: it for id, it in self.live.items() if it.until is None or it.until > now},
            {mac: until for mac, until in self.ended.items() if until is None or until > now},
        )


class EndedRecords:
    """What this server knows of the records of each store, by the store's identity. It is written
    in the background; `aclose` waits for that."""

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
                "which forgets the tokens that ended"
            ) from None
        self._stores = {store: seen.without_expired() for store, seen in stores.items()}

    def has(self, store: str, mac: str) -> bool:
        return store in self._stores and mac in self._stores[store].ended

    def add_valid(self, store: str, id: str, record: RecordVersion) -> None:
        """A record is valid. An older one of its id has ended."""
        live = self._stores.setdefault(store, _StoreRecords()).live
        before = live.get(id)
        if before == record:
            return
        if before and (before.created, before.version) < (record.created, record.version):
            self.add_ended(store, id)
        live[id] = record
        self._save()

    def add_ended(self, store: str, id: str) -> None:
        """A record was deleted or replaced, so it has ended."""
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
            self._writing = self._tasks.start(self._write_all(), name="memory of ended tokens")

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
                log.error("which tokens ended is not remembered: %s", self._folder.unusable(error))

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

    Entering does not wait for the store: `loaded` says whether they were read. If the store is
    away, what is known stays. What this server writes it knows at once, the others within the
    moment that the store needs to tell them.
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
        """`ended` remembers those that ended, which are not accepted again; `until` says when a
        record grants nothing any more, in seconds since 1970."""
        self._store, self._key, self._changed = store, server_key, changed
        self._ended, self._until = ended, until
        self._root = f"{ROOT}{purpose}/".encode()
        self._decoder = msgspec.json.Decoder(type)
        self._records: dict[str, _Record[T]] = {}
        self._rejected: set[str] = set()
        self._mirror = Mirror(RangeFeed(store, prefix(self._root)), wait=False)
        self._mirror.subscribe(self._apply)

    async def __aenter__(self) -> Self:
        self._mirror.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._mirror.aclose()

    @property
    def loaded(self) -> bool:
        return self._mirror.loaded

    @property
    def age(self) -> float:
        """Seconds since the store was last heard."""
        return self._mirror.age

    async def ready(self) -> None:
        await self._mirror.ready()

    def get(self, id: str) -> T | None:
        held = self._records.get(id)
        return None if held is None else held.content

    async def find(self, id: str) -> T | None:
        """As `get`; asks the store for one that is unknown here, as it may be a moment old. Raises
        what the store raises."""
        if id not in self._records:
            entry = (await self._store.read(key(self._name(id)))).first
            found = None if entry is None else self._unsealed(id, entry)
            if found is not None:
                self._records[id] = found
        return self.get(id)

    def all(self) -> Mapping[str, T]:
        return MappingProxyType({id: held.content for id, held in self._records.items()})

    def __len__(self) -> int:
        return len(self._records)

    async def create(self, id: str, content: T, *, ttl: float | None = None) -> None:
        """Write a new record; after `ttl` seconds the store deletes it. Raises `Conflict` if there
        is one, and what the store raises."""
        name = self._name(id)
        lease = 0 if ttl is None else (await self._store.grant(ttl)).id
        # Only once the key exists is it known when it was created.
        reserved = await self._store.commit(Put(name, _RESERVED, lease), require=[absent(name)])
        await self._put(id, content, reserved.revision, 2, lease, reserved.revision)

    async def change(self, id: str, edit: Callable[[T], T]) -> T | None:
        """Replace a record by what `edit` makes of it, which is returned; None if there is none."""
        while True:
            entry = (await self._store.read(key(self._name(id)))).first
            found = None if entry is None else self._unsealed(id, entry)
            if entry is None or found is None:
                return None
            after = edit(found.content)
            try:
                version, lease = entry.version + 1, entry.lease
                await self._put(id, after, entry.created, version, lease, entry.modified)
            except Conflict:
                continue
            return after

    async def revoke(self, id: str) -> T | None:
        """Delete a record, whatever version it has; the record, None if there is none."""
        name = self._name(id)
        entry = (await self._store.read(key(name))).first
        found = None if entry is None else self._unsealed(id, entry)
        if found is None:
            return None
        await self._store.commit(Delete(key(name)))
        self._records.pop(id, None)
        self._changed()
        return found.content

    async def remove(self, id: str) -> bool:
        """Delete a record; whether this call did. Of several servers, one does, but for a record
        without a `ttl` in a store that is out of space."""
        held = self._records.get(id)
        if held is None:
            return False
        name, removed = self._name(id), True
        try:
            if held.lease:  # a full etcd refuses transactions, but not this
                await self._store.revoke(held.lease)
            else:
                checks = [unchanged(name, held.modified)]
                await self._store.commit(Delete(key(name)), require=checks)
        except (Conflict, LeaseNotFound):
            removed = False
        except OutOfSpace:
            removed = await self.revoke(id) is not None
        if self._records.get(id) is held:
            del self._records[id]
            self._changed()
        return removed

    async def discard(self, id: str) -> bool:
        """Delete what is in the place of a record and is not authentic; whether there was any."""
        entry = (await self._store.read(key(self._name(id)))).first
        if entry is None or self._unsealed(id, entry) is not None:
            return False
        try:
            checks = [unchanged(entry.key, entry.modified)]
            await self._store.commit(Delete(key(entry.key)), require=checks)
        except Conflict:
            return False
        log.warning("%s is deleted: it is not an authentic record", entry.key.decode())
        return True

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
            held = self._records.get(id)
            modified = update.mark if change.after is None else change.after.modified
            if held is not None and modified < held.modified and not update.resync:
                continue  # we know of a later write of our own
            if after is None:
                self._records.pop(id, None)
            else:
                self._records[id] = after
        self._changed()

    def _update_ended(
        self, id: str, entry: Entry | None, opened: _Record[T] | None, *, deleted: bool
    ) -> None:
        """`deleted`: whether one that is not there was deleted, for all that is known."""
        if self._ended is None:
            return
        if entry is None and deleted:
            self._ended.add_ended(self._store.identity, id)
        elif entry is not None and opened is not None:
            until = self._until(opened.content)
            found = RecordVersion(opened.mac, entry.created, entry.version, until)
            self._ended.add_valid(self._store.identity, id, found)

    def _unsealed(self, id: str, entry: Entry) -> _Record[T] | None:
        if entry.value == _RESERVED:
            return None
        store = self._store.identity
        try:
            encoded, mac = unseal(self._key, store, entry)
            if self._ended is not None and self._ended.has(store, mac):
                raise ValueError("it ended before, so the store was made again or restored")
            content = self._decoder.decode(encoded)
        except (ValueError, msgspec.DecodeError) as error:
            if id not in self._rejected and len(self._rejected) < _MAX_LOGGED:
                self._rejected.add(id)
                log.error("%s grants nothing: %s", entry.key.decode(errors="replace"), error)
            return None
        self._rejected.discard(id)
        return _Record(content, entry.modified, entry.lease, mac)
