"""Who drives an engine: its clock, its lock, and when what was written may be seen.

`MemoryHost` confirms at once; `durable.DurableHost` once it is on disk. Stores and servers of one
process that name the same engine share its host, also from event loops in different threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from mooring.store.contract import Batch, Guarantees, Range
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.watchers import Watcher

T = TypeVar("T")


class Host(ABC):
    guarantees: Guarantees
    kind: str
    """For people: what kind of store this is."""
    problem = ""
    """For people: what is wrong with it at present."""

    def __init__(self, engine: Engine) -> None:
        self.lock = threading.Lock()
        self._engine = engine

    @property
    @abstractmethod
    def cluster_id(self) -> int:
        """The id that etcd's API answers; 0 if there is none."""

    @abstractmethod
    def read(self, operation: Callable[[Engine], T]) -> T:
        """Look at the engine."""

    @abstractmethod
    async def write(self, operation: Callable[[Engine, float], T]) -> T:
        """Change the engine; the answer comes when the change may be seen by everybody.

        An operation that raises must have changed nothing.
        """

    @abstractmethod
    def now(self) -> float:
        """What time it is for the engine and its leases."""

    @abstractmethod
    def space(self) -> tuple[int, int]:
        """The bytes that the store takes, on disk if it is there, and those that are in use."""

    @abstractmethod
    def tick(self) -> float:
        """Let time pass; seconds until it must be called again. For stores, about once a second."""

    @abstractmethod
    def release(self) -> None:
        """One user less. The last one ends it."""

    def watch(self, range: Range, after: int | None, wake: Callable[[], None]) -> Watcher:
        return self.read(lambda engine: engine.watch(range, after, wake))

    def take(self, watcher: Watcher) -> list[Batch]:
        return self.read(lambda engine: engine.take(watcher))

    def unwatch(self, watcher: Watcher) -> None:
        with self.lock:
            self._engine.unwatch(watcher)


class MemoryHost(Host):
    """Everything is seen as soon as it is written, and gone with the process."""

    guarantees = Guarantees(durable=False, replicated=False, shared=False)
    kind = "embedded, in memory"

    def __init__(
        self, engine: Engine, *, name: str = "", clock: Callable[[], float] | None = None
    ) -> None:
        super().__init__(engine)
        self._name, self._clock = name, clock or time.monotonic
        self.users = 0
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
            deadline = self._engine.next_deadline()
        # A lease granted meanwhile lives for a second at least, so a second is soon enough.
        return 1.0 if deadline is None else min(deadline - now, 1.0)

    def release(self) -> None:
        with _naming:
            self.users -= 1
            if self.users == 0:
                _named.pop(self._name, None)

    def _advance(self) -> float:
        """What every call does first: nothing that is over is ever seen."""
        now = self._clock()
        if now >= self._engine.quiet_until:
            self._engine.advance(now)
            self._engine.confirm()
        return now


def new_cluster_id() -> int:
    """Random, as etcd's ids are; it fits an integer of SQLite."""
    return secrets.randbits(62) + 1


_named: dict[str, MemoryHost] = {}
_naming = threading.Lock()


def memory_host(name: str, make: Callable[[], Engine]) -> MemoryHost:
    """The host of that name, made where there is none; without a name always a new one.

    Release it after use: a name is forgotten with its last user.
    """
    with _naming:
        host = _named.get(name) if name else None
        if host is None:
            host = MemoryHost(make(), name=name)
            if name:
                _named[name] = host
        host.users += 1
        return host


def waker(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> Callable[[], None]:
    """Sets an event of a loop, from whichever thread."""

    def wake() -> None:
        if running_loop() is loop:
            event.set()
        else:
            call_in(loop, event.set)

    return wake


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Call back in another thread's loop; one that is closed has nobody left to tell."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if it has one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
