"""The audit of all servers of a store, in that store.

Each server first writes an entry into its own files (see `audit`), then puts it here, as soon as
the store takes it. What was not put here before a server stopped is put here when it starts again.

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
from mooring.tasks import Backoff, Tasks

log = logging.getLogger(__name__)

KEPT = 5_000
"""Entries of a kind that the store keeps."""
_SLACK = 250
"""More than that, for a while: to count them is work."""
_WAITING = 2_000
"""Entries that wait for the store in memory; of more, those in the files are read again."""
_AT_ONCE = 100
_BYTES = 512 * 1024
_PAGE = 200
_ROOT = f"{ROOT}audit/".encode()

_decoder = msgspec.json.Decoder(AuditEntry)


class AuditStore:
    """Puts what the audit of this server writes into a store, and reads what all wrote there."""

    def __init__(self, store: Store, audit: Audit) -> None:
        self._store, self._audit = store, audit
        self._waiting: deque[AuditEntry] = deque()
        self._behind = True
        """Whether the files may hold what is neither in the store nor in memory."""
        self._more = asyncio.Event()
        self._more.set()
        self._put = Counter[str]()
        """Entries of each kind since they were last counted."""
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        self._audit.appended = self._appended
        self._tasks.start(self._run(), name="audit")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._audit.appended = None
        await self._tasks.aclose()

    async def read(
        self, *, limit: int, before: str = "", matches: Callable[[AuditEntry], bool]
    ) -> list[AuditEntry]:
        """The newest first, and of those older than `before`, the id of an entry. Raises what the
        store raises."""
        ahead = {entry.id: entry for entry in self._waiting}
        names = {_id(name): name for name in await self._names(_ROOT)}
        ids = sorted({*ahead, *names}, reverse=True)
        if before:
            ids = [id for id in ids if id < before]
        found: list[AuditEntry] = []
        for start in range(0, len(ids), _PAGE):
            page = ids[start : start + _PAGE]
            entries = ahead | await self._fetch([names[id] for id in page if id in names])
            found += [entries[id] for id in page if id in entries and matches(entries[id])]
            if len(found) >= limit:
                break
        return found[:limit]

    async def _fetch(self, names: Sequence[bytes]) -> dict[str, AuditEntry]:
        """Entries by id. Those of one kind lie side by side."""
        by_kind: dict[str, list[bytes]] = {}
        for name in names:
            by_kind.setdefault(_kind(name), []).append(name)
        found: dict[str, AuditEntry] = {}
        for same in by_kind.values():
            stretch = between(min(same), max(same) + b"\0")
            for stored in (await self._store.read(stretch)).entries:
                try:
                    entry = _decoder.decode(stored.value)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue  # somebody else wrote it
                found[entry.id] = entry
        return found

    async def _names(self, root: bytes) -> list[bytes]:
        snapshot = await self._store.read(prefix(root), keys_only=True)
        return [entry.key for entry in snapshot.entries if entry.key.count(b"/") == 5]

    def _appended(self, entry: AuditEntry) -> None:
        if len(self._waiting) >= _WAITING:
            self._behind = True
        else:
            self._waiting.append(entry)
        self._more.set()

    async def _run(self) -> None:
        backoff, failing = Backoff(0.1, 5.0), False
        while True:
            await self._more.wait()
            self._more.clear()
            try:
                await self._catch_up()
                while self._waiting or self._behind:
                    await self._put_some()
                    await self._catch_up()
                failing = False
                backoff.reset()
            except StoreError as error:
                if not failing:
                    log.warning("the audit stays in the files of this server: %s", error)
                failing = True
                self._more.set()
                await asyncio.sleep(backoff.next())

    async def _put_some(self) -> None:
        puts: list[Put] = []
        size = 0
        for entry in list(self._waiting)[:_AT_ONCE]:
            put = Put(_name(entry), msgspec.json.encode(entry))
            size += len(put.value)
            if puts and size > _BYTES:
                break
            puts.append(put)
        if not puts:
            return
        await self._store.commit(*puts)
        for put in puts:
            self._waiting.popleft()
            self._put[_kind(put.key)] += 1
        for kind in [kind for kind, put_since in self._put.items() if put_since >= _SLACK]:
            await self._trim(kind)

    async def _catch_up(self) -> None:
        """Put what the files hold and the store does not, but for what it no longer keeps."""
        if not self._behind or self._waiting:
            return
        self._behind = False
        try:
            names = await self._names(_ROOT)
            kinds = Counter(map(_kind, names))
            known = {_id(name) for name in names}
            oldest = {
                kind: min(_id(name) for name in names if _kind(name) == kind)
                for kind, number in kinds.items()
                if number >= KEPT
            }
            mine = await asyncio.to_thread(self._audit.read, limit=KEPT)
        except (StoreError, OSError) as error:
            self._behind = True
            raise error if isinstance(error, StoreError) else StoreError(str(error)) from error
        missing = [
            entry
            for entry in mine
            if entry.id not in known and entry.id > oldest.get(entry.kind, "")
        ]
        self._waiting.extendleft(missing)  # the newest came first
        for kind in {entry.kind for entry in missing}:
            self._put[kind] += _SLACK  # they may be many

    async def _trim(self, kind: str) -> None:
        names = await self._names(_ROOT + kind.encode() + b"/")
        gone = surplus(names, KEPT)
        for start in range(0, len(gone), _AT_ONCE):
            deletes = [Delete(key(name)) for name in gone[start : start + _AT_ONCE]]
            await self._store.commit(*deletes)
        self._put[kind] = 0


def surplus(names: Iterable[bytes], most: int) -> list[bytes]:
    """Which keys to delete so that no more than `most` remain: the oldest of those tokens that have
    the most entries, so that one which writes much removes nothing but its own."""
    by_token: dict[bytes, deque[bytes]] = {}
    for name in sorted(names):
        by_token.setdefault(name.rpartition(b"/")[2], deque()).append(name)
    heap = [(-len(own), own[0], own) for own in by_token.values()]
    heapq.heapify(heap)
    gone: list[bytes] = []
    for _ in range(sum(map(len, by_token.values())) - most):
        own = heapq.heappop(heap)[2]
        gone.append(own.popleft())
        if own:
            heapq.heappush(heap, (-len(own), own[0], own))
    return gone


def _name(entry: AuditEntry) -> bytes:
    return f"{ROOT}audit/{entry.kind}/{entry.id}/{entry.token or '-'}".encode()


def _kind(name: bytes) -> str:
    return name.split(b"/")[3].decode(errors="replace")


def _id(name: bytes) -> str:
    return name.split(b"/")[4].decode(errors="replace")
