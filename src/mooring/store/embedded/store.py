"""The embedded store: the store contract on an engine, and the in-memory engine runner."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from mooring.errors import Closed
from mooring.messages import Message, message, named, verbatim
from mooring.store.contract import (
    Batch,
    Check,
    Committed,
    Guarantees,
    Lease,
    LeaseTime,
    Member,
    Query,
    Range,
    Snapshot,
    Store,
    StoreStatus,
    Watch,
    Write,
)
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.watchers import Watcher
from mooring.store.validation import check_commit, check_number, check_query, check_ttl, check_watch
from mooring.tasks import Tasks

T = TypeVar("T")
R = TypeVar("R", bound="EngineRunner")


class EngineRunner(ABC):
    """Serialises access to an engine and drives its clock."""

    guarantees: Guarantees
    kind: str
    """A description of the store, for people."""
    survives_fork = True
    """Whether the runner works in a forked child."""
    problem: Message | None = None
    """The current problem of the store."""

    def __init__(self, engine: Engine) -> None:
        self.lock = threading.Lock()
        self._engine = engine
        self._key: object = None
        self._users = 0

    @property
    def revision(self) -> int:
        """The newest confirmed revision."""
        return self.read(lambda engine: engine.confirmed)

    @property
    @abstractmethod
    def cluster_id(self) -> int:
        """The cluster id in etcd's API; 0 if there is none."""

    @abstractmethod
    def read(self, operation: Callable[[Engine], T]) -> T:
        """Run an operation that only reads the engine."""

    @abstractmethod
    async def write(self, operation: Callable[[Engine, float], T]) -> T:
        """Run an operation that changes the engine, unless it raises. Returns once the change is
        visible to reads."""

    @abstractmethod
    def now(self) -> float:
        """The time of the engine and its leases."""

    @abstractmethod
    def space(self) -> tuple[int, int]:
        """The bytes that the store occupies (on disk, if it has files), and those in use."""

    @abstractmethod
    def tick(self) -> float:
        """Expire what is due. Returns the seconds until the next call."""

    def release(self) -> None:
        """Give up one use of the runner. The last one closes it."""
        with _opening:
            self._users -= 1
            if self._users > 0:
                return
            _open.pop(self._key, None)
        self._close()

    def _close(self) -> None:  # noqa: B027 - a runner in memory has nothing to close
        """Called after the last release."""

    def unwatch(self, watcher: Watcher) -> None:
        with self.lock:
            self._engine.unwatch(watcher)


class MemoryRunner(EngineRunner):
    """Writes are visible immediately and lost when the process ends."""

    guarantees = Guarantees(durable=False, replicated=False, shared=False)
    kind = "embedded, in memory"

    def __init__(self, engine: Engine, *, clock: Callable[[], float] | None = None) -> None:
        super().__init__(engine)
        self._clock = clock or time.monotonic
        self._cluster_id = new_cluster_id()

    @property
    def cluster_id(self) -> int:
        return self._cluster_id

    def read(self, operation: Callable[[Engine], T]) -> T:
        with self.lock:
            self._advance()
            return operation(self._engine)

    async def write(self, operation: Callable[[Engine, float], T]) -> T:
        with self.lock:
            now = self._advance()
            try:
                answer = operation(self._engine, now)
            except BaseException:
                self._engine.undo()
                raise
            self._engine.confirm()
            self._engine.forget()
            return answer

    def now(self) -> float:
        return self._clock()

    def space(self) -> tuple[int, int]:
        return self._engine.size, self._engine.size

    def tick(self) -> float:
        with self.lock:
            now = self._advance()
            self._engine.forget()
            if self._engine.forgetting:
                return 0.0
            deadline = self._engine.leases.next_deadline()
        # A lease that is granted meanwhile lives for at least a second, so a second is enough.
        return 1.0 if deadline is None else min(deadline - now, 1.0)

    def _advance(self) -> float:
        """Every call expires first what is due, so that no call sees it."""
        now = self._clock()
        if now >= self._engine.quiet_until:
            self._engine.advance(now)
            self._engine.confirm()
        return now


def new_cluster_id() -> int:
    """A random id, as in etcd; it fits into an integer of SQLite."""
    return secrets.randbits(62) + 1


_open: dict[object, Any] = {}
_opening = threading.Lock()
_inherited: list[EngineRunner] = []


def shared_runner(key: object, make: Callable[[], R]) -> R:
    """The runner with this key, created if it is not open. Release it after use."""
    with _opening:
        runner: R | None = _open.get(key)
        if runner is None:
            runner = _open[key] = make()
            runner._key = key
        runner._users += 1
        return runner


def memory_runner(name: str, make: Callable[[], Engine]) -> MemoryRunner:
    """The runner with this name, or a new one without a name. Release it after use."""
    return shared_runner(name or object(), lambda: MemoryRunner(make()))


def _forget_runners() -> None:
    """In a forked child. Not closed: SQLite must not close files that the parent has open."""
    global _opening
    _opening = threading.Lock()
    for key, runner in list(_open.items()):
        if not runner.survives_fork:
            _inherited.append(_open.pop(key))


os.register_at_fork(after_in_child=_forget_runners)


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Call a function in a loop: at once in its own thread, else soon, unless it is closed."""
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = False
    if here:
        callback(*args)
    else:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback, *args)


_YIELD_EVERY = 100  # calls


class EmbeddedStore(Store):
    def __init__(self, runner: EngineRunner, *, url: str) -> None:
        self.url, self.guarantees = url, runner.guarantees
        self._runner = runner
        self._closed = False
        self._calls = 0
        self._watches: set[_EmbeddedWatch] = set()
        self._tasks = Tasks()
        self._ticking: asyncio.Task[object] | None = None

    @property
    def identity(self) -> str:
        return f"{self._runner.cluster_id:016x}" if self._runner.cluster_id else ""

    async def _read(self, query: Query, at: int | None = None) -> Snapshot:
        check_query(query, at)
        await self._yield_sometimes()
        return self._open().read(lambda engine: engine.read(query, at))

    async def commit(
        self, *writes: Write, require: Sequence[Check] = (), read: Sequence[Query] = ()
    ) -> Committed:
        check_commit(writes, require, read)
        await self._yield_sometimes()
        return await self._open().write(
            lambda engine, now: engine.commit(writes, require, read, now)
        )

    def watch(self, range: Range, *, after: int | None = None) -> Watch:
        check_watch(range, after)
        return _EmbeddedWatch(self, range, after)

    async def grant(self, ttl: float) -> Lease:
        seconds = check_ttl(ttl)
        lease = await self._open().write(lambda engine, now: engine.grant(seconds, now))
        self._keep_ticking()
        return Lease(lease, float(seconds))

    async def renew(self, lease: int) -> float:
        check_number("lease", lease)
        return float(await self._open().write(lambda engine, now: engine.renew(lease, now)))

    async def revoke(self, lease: int) -> None:
        check_number("lease", lease)
        await self._open().write(lambda engine, now: engine.revoke(lease, now))

    async def remaining(self, lease: int) -> LeaseTime | None:
        check_number("lease", lease)
        runner = self._open()
        active = runner.read(lambda engine: engine.leases.seen(lease))
        if active is None:
            return None
        left = min(max(active.deadline - runner.now(), 0.0), active.ttl)
        return LeaseTime(float(active.ttl), left)

    async def compact(self, revision: int) -> None:
        check_number("revision", revision)
        await self._open().write(lambda engine, _: engine.compact(revision))
        self._keep_ticking()

    async def status(self) -> StoreStatus:
        revision, full = self._open().read(lambda e: (e.confirmed, e.out_of_space))
        member = Member("this process", latency=0.0, leader=True, clock_ahead=(0.0, 0.0))
        no_space = message("alarm_quota") if full else None
        alarms = tuple(alarm for alarm in (self._runner.problem, no_space) if alarm)
        return StoreStatus(self._runner.kind, revision, (member,), alarms)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        for watch in list(self._watches):
            watch.end()
        self._runner.release()
        await self._tasks.aclose()

    async def _yield_sometimes(self) -> None:
        """A loop of calls, which never wait, would keep sessions from renewing their leases."""
        self._calls += 1
        if not self._calls % _YIELD_EVERY:
            await asyncio.sleep(0)

    def _open(self) -> EngineRunner:
        if self._closed:
            raise Closed(message("store_closed", store=verbatim(self.url)))
        return self._runner

    def _keep_ticking(self) -> None:
        """Tick after a grant, while watching (others' leases expire), and after a compaction."""
        if self._ticking is None:
            self._ticking = self._tasks.start(self._tick(), name=f"ticks of {self.url}")

    async def _tick(self) -> None:
        """Expire leases and notify their watchers even if there are no calls."""
        while True:
            pause = self._open().tick()
            await asyncio.sleep(pause)


class _EmbeddedWatch(Watch):
    def __init__(self, store: EmbeddedStore, range: Range, after: int | None) -> None:
        self._store = store
        self._range, self._after = range, after
        self._watcher: Watcher | None = None
        self._ready: deque[Batch] = deque()
        self._seen = after or 0
        self._left = False
        self._wakeup = asyncio.Event()

    @property
    def heard(self) -> float:
        return time.monotonic()  # the store is in this process: it cannot be silent

    @property
    def seen(self) -> int:
        return self._seen

    async def __aenter__(self) -> _EmbeddedWatch:
        wake = partial(call_in, asyncio.get_running_loop(), self._wakeup.set)
        self._watcher = self._store._open().read(
            lambda engine: engine.watch(self._range, self._after, wake)
        )
        self._seen = self._watcher.position
        self._store._watches.add(self)
        self._store._keep_ticking()
        return self

    async def __anext__(self) -> Batch:
        watcher = self._watcher
        if watcher is None:
            raise RuntimeError("enter a watch before iterating it: `async with store.watch(…)`")
        while not self._ready:
            if self._left:
                raise Closed(message("watch_closed", key=named(self._range.start)))
            self._wakeup.clear()
            self._ready.extend(self._store._open().read(lambda engine: engine.take(watcher)))
            if not self._ready:
                await self._wakeup.wait()
        batch = self._ready.popleft()
        self._seen = batch.revision
        return batch

    def end(self) -> None:
        if self._watcher is not None:
            self._store._runner.unwatch(self._watcher)
            self._store._watches.discard(self)
            self._watcher.wake()

    async def __aexit__(self, *_: object) -> None:
        self._left = True
        self.end()
