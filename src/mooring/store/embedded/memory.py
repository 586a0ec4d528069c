"""`memory://`: the engine as a store, in this process and gone with it.

Stores of one name share one engine while at least one of them is open; a store without a name has
an engine of its own. They may be used from event loops in different threads.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from mooring.errors import Closed
from mooring.store.contract import (
    Batch,
    Check,
    Committed,
    Guarantees,
    Lease,
    Member,
    Order,
    Query,
    Range,
    Snapshot,
    Status,
    Store,
    Watch,
    Write,
    check_commit,
    check_query,
    check_ttl,
)
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.watchers import Watcher
from mooring.tasks import Tasks


class SharedEngine:
    """An engine with the lock that all its users take."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.lock = threading.Lock()


_named: weakref.WeakValueDictionary[str, SharedEngine] = weakref.WeakValueDictionary()
_naming = threading.Lock()


def shared_engine(name: str, make: Callable[[], Engine]) -> SharedEngine:
    """The engine of that name, made where there is none; without a name always a new one."""
    with _naming:
        shared = _named.get(name) if name else None
        if shared is None:
            shared = SharedEngine(make())
            if name:
                _named[name] = shared
        return shared


class MemoryStore(Store):
    guarantees = Guarantees(durable=False, replicated=False, shared=False)

    def __init__(
        self,
        shared: SharedEngine,
        *,
        url: str = "memory://",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self._shared = shared
        self._engine, self._lock = shared.engine, shared.lock
        self._clock = clock
        self._closed = False
        self._watches: set[_MemoryWatch] = set()
        self._tasks = Tasks()
        self._expiring: asyncio.Task[object] | None = None

    async def read(
        self,
        range: Range,
        *,
        keys_only: bool = False,
        limit: int = 0,
        order: Order = "key",
        created_before: int | None = None,
        at: int | None = None,
    ) -> Snapshot:
        query = Query(range, keys_only, limit, order, created_before)
        check_query(query, at)
        with self._lock:
            self._advance()
            return self._engine.read(query, at)

    async def commit(
        self, *writes: Write, require: Sequence[Check] = (), read: Sequence[Query] = ()
    ) -> Committed:
        check_commit(writes, require, read)
        with self._lock:
            return self._engine.commit(writes, require, read, self._advance())

    def watch(self, range: Range, *, after: int | None = None) -> Watch:
        return _MemoryWatch(self, range, after)

    async def grant(self, ttl: float) -> Lease:
        seconds = check_ttl(ttl)
        with self._lock:
            lease = self._engine.grant(seconds, self._advance())
        if self._expiring is None:
            self._expiring = self._tasks.start(self._expire(), name=f"{self.url} expires leases")
        return Lease(lease, float(seconds))

    async def renew(self, lease: int) -> float:
        with self._lock:
            return float(self._engine.renew(lease, self._advance()))

    async def revoke(self, lease: int) -> None:
        with self._lock:
            self._engine.revoke(lease, self._advance())

    async def compact(self, revision: int) -> None:
        with self._lock:
            self._advance()
            self._engine.compact(revision)

    async def status(self) -> Status:
        with self._lock:
            self._advance()
            revision = self._engine.revision
        here = Member("this process", latency=0.0, leader=True, clock_ahead=(0.0, 0.0))
        return Status("embedded, in memory", revision, (here,))

    async def aclose(self) -> None:
        self._closed = True
        for watch in list(self._watches):
            watch.end()
        await self._tasks.aclose()

    def _advance(self) -> float:
        """What every call does first: nothing that is over is ever seen."""
        if self._closed:
            raise Closed(f"{self.url} is closed")
        now = self._clock()
        self._engine.advance(now)
        return now

    async def _expire(self) -> None:
        """Let leases run out, and their watchers know, though nobody calls."""
        while True:
            with self._lock:
                now = self._advance()
                deadline = self._engine.next_deadline()
            # A lease granted meanwhile lives for a second at least, so a second is soon enough.
            await asyncio.sleep(1.0 if deadline is None else min(deadline - now, 1.0))


class _MemoryWatch(Watch):
    def __init__(self, store: MemoryStore, range: Range, after: int | None) -> None:
        self._store = store
        self._range, self._after = range, after
        self._watcher: Watcher | None = None
        self._ready: deque[Batch] = deque()
        self._woken = asyncio.Event()

    @property
    def heard(self) -> float:
        return time.monotonic()  # it is in this process: it cannot be silent

    async def __aenter__(self) -> _MemoryWatch:
        self._loop = asyncio.get_running_loop()
        with self._store._lock:
            self._store._advance()
            self._watcher = self._store._engine.watch(self._range, self._after, self._wake)
        self._store._watches.add(self)
        return self

    async def __anext__(self) -> Batch:
        watcher = self._watcher
        if watcher is None:
            raise RuntimeError("enter a watch before iterating it: `async with store.watch(…)`")
        while not self._ready:
            self._woken.clear()
            with self._store._lock:
                self._store._advance()
                self._ready.extend(self._store._engine.take(watcher))
            if not self._ready:
                await self._woken.wait()
        return self._ready.popleft()

    def _wake(self) -> None:
        """Called by the engine, in whichever thread wrote."""
        if asyncio._get_running_loop() is self._loop:
            self._woken.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    def end(self) -> None:
        if self._watcher is not None:
            with self._store._lock:
                self._store._engine.unwatch(self._watcher)
            self._store._watches.discard(self)
            self._wake()

    async def __aexit__(self, *_: object) -> None:
        self.end()
