"""An election: one leader at a time, with a value, and observers of the leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Self

import msgspec

from mooring.errors import Conflict, InvalidRequest
from mooring.locks.admission_rules import ELECTION_RULE
from mooring.locks.held import Held
from mooring.locks.lock import Lock, check_name, check_times
from mooring.locks.queue import Queue
from mooring.messages import message
from mooring.store.contract import Entry, Put


class Leader(msgspec.Struct, frozen=True):
    """The leader of an election, and its value."""

    value: bytes
    key: bytes
    token: int
    """The fencing token: higher than that of every earlier leader."""
    lease: int

    @property
    def text(self) -> str:
        """The value as text."""
        return self.value.decode(errors="replace")


class Leadership(Held):
    """A won election. As with `Held`, a loss cancels the body."""

    async def proclaim(self, value: str | bytes) -> None:
        """Change the value of the leader. Raises `LockLost` if it no longer leads."""
        self.ensure()
        put = Put(self.key, as_value(value), self._waiter.lease)
        try:
            await self._queue.store.commit(put, require=[self.check])
        except Conflict:
            self._lose(message("key_deleted"))
            raise self._error() from None

    async def resign(self) -> None:
        """Give up the leadership; the next candidate leads."""
        await self.release()


class Campaign(Lock):
    """A candidate: entering waits until it leads, leaving resigns."""

    _held_type = Leadership

    def __init__(
        self, queue: Queue, name: str, value: str | bytes, *, ttl: float, timeout: float | None
    ) -> None:
        super().__init__(queue, name, ttl=ttl, timeout=timeout)
        self._rule, self._value = ELECTION_RULE, as_value(value)

    async def __aenter__(self) -> Leadership:
        held = await super().__aenter__()
        assert isinstance(held, Leadership)
        return held


class Election:
    """An election by name, the same as `etcdctl elect NAME` and Go's `concurrency.Election`."""

    def __init__(self, queue: Queue, name: str, *, ttl: float, timeout: float | None) -> None:
        check_times(ttl, timeout)
        self.name: str = name
        """The name of the election."""
        self._start = check_name(name)
        self._queue, self._ttl, self._timeout = queue, ttl, timeout

    def campaign(self, value: str | bytes = b"") -> Campaign:
        """Become a candidate with a value.

        ```python
        async with election.campaign("10.0.0.1:8080") as leadership: ...
        ```
        """
        return Campaign(self._queue, self.name, value, ttl=self._ttl, timeout=self._timeout)

    async def leader(self) -> Leader | None:
        """The current leader; None if there is none."""
        return leader_of(await self._queue.first(self._start))

    def observe(self) -> Leaders:
        """Follow the leader from now on.

        ```python
        async with election.observe() as leaders:
            async for leader in leaders: ...
        ```
        """
        return Leaders(self._queue, self._start)


class Leaders(AsyncIterator[Leader | None]):
    """Yields the current leader and every new one; None if there is none. A slow consumer gets only
    the newest. It ends when it is closed, or the hub is."""

    def __init__(self, queue: Queue, start: bytes) -> None:
        self._queue, self._start = queue, start
        self._last: object = self  # equal to no leader, and not to None
        self._changed = asyncio.Event()
        self._closed = True

    async def __aenter__(self) -> Self:
        self._view = self._queue.view(self._start)
        self._unsubscribe = self._view.subscribe(self._changed.set)
        self._closed = False
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._closed:
            self._closed = True
            self._unsubscribe()
            self._changed.set()

    async def __anext__(self) -> Leader | None:
        while not (self._closed or self._view.closed):
            leader = leader_of(self._view.order.first)
            if self._view.mirror.loaded and leader != self._last:
                self._last = leader
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
