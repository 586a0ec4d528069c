"""The audit log of all servers, in their store.

Each server writes an entry to its own files first (see `audit`) and to the store as soon as the
store accepts it. A restarted server writes the entries that are missing from the store.

    /mooring/audit/{done|routine|refused}/{id}/{token}
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Self

import msgspec

from mooring.errors import StoreError
from mooring.server.auth.audit import Audit, AuditEntry
from mooring.server.auth.signed_records import ROOT
from mooring.store import Delete, Put, Store, between, key, prefix
from mooring.tasks import Backoff, Tasks, slices

log = logging.getLogger(__name__)

KEPT = 5_000
"""Entries of each kind that the store keeps."""
_SLACK = 250
"""Entries above `KEPT` that are tolerated, because counting them is expensive."""
_MAX_WAITING = 2_000
"""Entries that wait for the store in memory. Any more are read from the files again."""
_BATCH = 100
_BATCH_BYTES = 512 * 1024
_PAGE = 200
_ROOT = f"{ROOT}audit/".encode()

_decoder = msgspec.json.Decoder(AuditEntry)


class AuditStore:
    """Copies the audit log of this server to a store, and reads that of all servers."""

    def __init__(self, store: Store, audit: Audit) -> None:
        self._store, self._audit = store, audit
        self._waiting: deque[AuditEntry] = deque()
        self._incomplete = True
        """Whether the files may contain entries that are neither in the store nor in memory."""
        self._wake = asyncio.Event()
        self._wake.set()
        self._added = Counter[str]()
        """Entries of each kind since the last trim."""
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        self._audit.appended = self._append
        self._tasks.start(self._run(), name="audit")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._audit.appended = None
        await self._tasks.aclose()

    async def read(
        self, *, limit: int, before: str = "", matches: Callable[[AuditEntry], bool]
    ) -> list[AuditEntry]:
        """Entries, newest first, optionally only those before the id `before`. Raises what the
        store raises."""
        waiting = {entry.id: entry for entry in self._waiting}
        names = {_id(name): name for name in await self._names(_ROOT)}
        ids = sorted({*waiting, *names}, reverse=True)
        if before:
            ids = [id for id in ids if id < before]
        selected: list[AuditEntry] = []
        for page in slices(ids, _PAGE):
            entries = waiting | await self._fetch([names[id] for id in page if id in names])
            selected += [entries[id] for id in page if id in entries and matches(entries[id])]
            if len(selected) >= limit:
                break
        return selected[:limit]

    async def _fetch(self, names: Sequence[bytes]) -> dict[str, AuditEntry]:
        """Entries by id. Reads one range for each kind."""
        entries: dict[str, AuditEntry] = {}
        for same_kind in _by_kind(names).values():
            span = between(min(same_kind), max(same_kind) + b"\0")
            for stored in (await self._store.read(span)).entries:
                try:
                    entry = _decoder.decode(stored.value)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue  # not written by a server
                entries[entry.id] = entry
        return entries

    async def _names(self, root: bytes) -> list[bytes]:
        snapshot = await self._store.read(prefix(root), keys_only=True)
        return [entry.key for entry in snapshot.entries if entry.key.count(b"/") == 5]

    def _append(self, entry: AuditEntry) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self._incomplete = True
        else:
            self._waiting.append(entry)
        self._wake.set()

    async def _run(self) -> None:
        backoff, failing = Backoff(0.1, 5.0), False
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._catch_up()
                while self._waiting or self._incomplete:
                    await self._put_batch()
                    await self._catch_up()
                failing = False
                backoff.reset()
            except StoreError as error:
                if not failing:
                    log.warning("audit entries stay in the files of this server: %s", error)
                failing = True
                self._wake.set()
                await asyncio.sleep(backoff.next())

    async def _put_batch(self) -> None:
        puts: list[Put] = []
        size = 0
        for entry in list(self._waiting)[:_BATCH]:
            put = Put(_name(entry), msgspec.json.encode(entry))
            size += len(put.value)
            if puts and size > _BATCH_BYTES:
                break
            puts.append(put)
        if not puts:
            return
        await self._store.commit(*puts)
        for put in puts:
            self._waiting.popleft()
            self._added[_kind(put.key)] += 1
        for kind in [kind for kind, added in self._added.items() if added >= _SLACK]:
            await self._trim(kind)

    async def _catch_up(self) -> None:
        """Queue the entries that are in the files and not in the store, except for those that the
        store no longer keeps."""
        if not self._incomplete or self._waiting:
            return
        self._incomplete = False
        try:
            names = await self._names(_ROOT)
            own = await asyncio.to_thread(self._audit.read, limit=KEPT)
        except (StoreError, OSError) as error:
            self._incomplete = True
            raise error if isinstance(error, StoreError) else StoreError(str(error)) from error
        missing = _missing(own, names)
        self._waiting.extendleft(missing)  # newest first
        for kind in {entry.kind for entry in missing}:
            self._added[kind] += _SLACK  # trim soon: they may be many

    async def _trim(self, kind: str) -> None:
        names = await self._names(_ROOT + kind.encode() + b"/")
        excess = surplus(names, KEPT)
        for batch in slices(excess, _BATCH):
            await self._store.commit(*(Delete(key(name)) for name in batch))
        self._added[kind] = 0


def _missing(own: Iterable[AuditEntry], stored: Sequence[bytes]) -> list[AuditEntry]:
    """The entries that the store lacks, except for those older than what it keeps."""
    by_kind = {kind: set(map(_id, names)) for kind, names in _by_kind(stored).items()}
    oldest = {kind: min(ids) for kind, ids in by_kind.items() if len(ids) >= KEPT}
    known = set[str]().union(*by_kind.values())
    return [
        entry for entry in own if entry.id not in known and entry.id > oldest.get(entry.kind, "")
    ]


def _by_kind(names: Iterable[bytes]) -> dict[str, list[bytes]]:
    by_kind: dict[str, list[bytes]] = {}
    for name in names:
        by_kind.setdefault(_kind(name), []).append(name)
    return by_kind


def surplus(names: Iterable[bytes], most: int) -> list[bytes]:
    """The keys to delete so that `most` remain: the oldest ones of the tokens with the most
    entries, so that a token that writes much only displaces its own entries."""
    by_token: dict[bytes, deque[bytes]] = {}
    for name in sorted(names):
        by_token.setdefault(name.rpartition(b"/")[2], deque()).append(name)
    heap = [(-len(own), own[0], own) for own in by_token.values()]
    heapq.heapify(heap)
    excess: list[bytes] = []
    for _ in range(sum(map(len, by_token.values())) - most):
        own = heapq.heappop(heap)[2]
        excess.append(own.popleft())
        if own:
            heapq.heappush(heap, (-len(own), own[0], own))
    return excess


def _name(entry: AuditEntry) -> bytes:
    return f"{ROOT}audit/{entry.kind}/{entry.id}/{entry.token or '-'}".encode()


def _kind(name: bytes) -> str:
    return name.split(b"/")[3].decode(errors="replace")


def _id(name: bytes) -> str:
    return name.split(b"/")[4].decode(errors="replace")
