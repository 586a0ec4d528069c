"""An election: one leader at a time, who says something of itself, and others who follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Self

import msgspec

from mooring.errors import Conflict, InvalidRequest
from mooring.locks.held import Held
from mooring.locks.lease_pool import PooledLease
from mooring.locks.lock import Lock, check_name, check_times
from mooring.locks.ordering import ELECTION_RULE, QueueOrder
from mooring.locks.queue import Queue
from mooring.locks.watched_queue import Waiter
from mooring.store.contract import Entry, Put, prefix


class Leader(msgspec.Struct, frozen=True):
    """Who leads, and what it says of itself."""

    value: bytes
    key: bytes
    token: int
    """Its fencing token: higher than that of every leader before."""
    lease: int

    @property
    def text(self) -> str:
        return self.value.decode(errors="replace")


class Leadership(Held):
    """An election that is won. See `Held`: a loss cancels the body."""

    async def proclaim(self, value: str | bytes) -> None:
        """Say something else of itself. Raises `LockLost` where it leads no more."""
        self.ensure()
        put = Put(self.key, as_value(value), self._waiter.lease)
        try:
            await self._queue.store.commit(put, require=[self.check])
        except Conflict:
            self._lose("its key was deleted")
            raise self._error() from None

    async def resign(self) -> None:
        """Let the next candidate lead."""
        await self.release()


class Campaign(Lock):
    """A candidate: entering waits until it leads, leaving resigns."""

    def __init__(
        self, queue: Queue, name: str, value: str | bytes, *, ttl: float, timeout: float | None
    ) -> None:
        super().__init__(queue, name, ttl=ttl, timeout=timeout)
        self._rule, self._value = ELECTION_RULE, as_value(value)

    async def __aenter__(self) -> Leadership:
        held = await super().__aenter__()
        assert isinstance(held, Leadership)
        return held

    def _hold(self, waiter: Waiter, lease: PooledLease, by: object) -> Leadership:
        return Leadership(self._queue, self._start, waiter, lease, by)


class Election:
    """An election by name, the same as `etcdctl elect NAME` and Go's `concurrency.Election`."""

    def __init__(self, queue: Queue, name: str, *, ttl: float, timeout: float | None) -> None:
        check_times(ttl, timeout)
        self.name: str = name
        self._start = check_name(name)
        self._queue, self._ttl, self._timeout = queue, ttl, timeout

    def campaign(self, value: str | bytes = b"") -> Campaign:
        """Stand for it, saying `value` of itself.

        async with election.campaign("10.0.0.1:8080") as leadership: ...
        """
        return Campaign(self._queue, self.name, value, ttl=self._ttl, timeout=self._timeout)

    async def leader(self) -> Leader | None:
        """Who leads now; None where nobody does."""
        found = await self._queue.store.read(prefix(self._start), limit=8, order="created")
        order = QueueOrder(self._start, found.entries)
        if not len(order) and found.more:  # hidden behind those of names below this one
            whole = await self._queue.store.read(prefix(self._start))
            order = QueueOrder(self._start, whole.entries)
        return leader_of(order.first)

    def observe(self) -> Leaders:
        """Follow who leads, from now on.

        async with election.observe() as leaders:
            async for leader in leaders: ...
        """
        return Leaders(self._queue, self._start)


class Leaders(AsyncIterator[Leader | None]):
    """Who leads, and each time that this changes who does then; None for nobody. Who does not keep
    up is told the newest alone. It ends when it is left, or the hub is closed."""

    def __init__(self, queue: Queue, start: bytes) -> None:
        self._queue, self._start = queue, start
        self._told: Leader | None = None
        self._first = True
        self._changed = asyncio.Event()
        self._left = True

    async def __aenter__(self) -> Self:
        self._view = self._queue.view(self._start)
        self._unsubscribe = self._view.subscribe(self._changed.set)
        self._left = False
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._left:
            self._left = True
            self._unsubscribe()
            self._changed.set()

    async def __anext__(self) -> Leader | None:
        while not (self._left or self._view.closed):
            leader = leader_of(self._view.order.first)
            if self._view.mirror.loaded and (self._first or leader != self._told):
                self._first, self._told = False, leader
                return leader
            self._changed.clear()
            await self._changed.wait()
        raise StopAsyncIteration


def leader_of(entry: Entry | None) -> Leader | None:
    if entry is None:
        return None
    return Leader(entry.value, entry.key, entry.created, entry.lease)


def as_value(value: str | bytes) -> bytes:
    if not isinstance(value, str | bytes):
        raise InvalidRequest(f"a candidate's value is text or bytes, not {type(value).__name__}")
    return value.encode() if isinstance(value, str) else value
