"""A queue that is followed by a watch, and the waiters of this process in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from sortedcontainers import SortedDict

from mooring.errors import InvalidRequest, LockLost
from mooring.locks.admission_rules import Position, QueueOrder, Rule, misfit
from mooring.messages import Message, message
from mooring.mirror import Mirror, RangeFeed, RangeSteps, Steps, Update
from mooring.store.contract import Check, Entry, Range, Store, Watch, created_at, prefix


class Waiter:
    """A contender of this process in a queue. Created by `Queue.join`."""

    def __init__(
        self, start: bytes, created: int, lease: int, rule: Rule, *, fresh: bool = True
    ) -> None:
        self.start = start
        """The prefix of the keys of the queue."""
        self.key = start + b"%x" % lease
        self.token, self.lease = created, lease
        self.rule = rule
        self.fresh = fresh
        """Whether joining created the key; else it already existed, with the same lease."""
        self.gone: Message | None = None
        """Why the key is gone; None while it exists."""
        self.rejection: Message | None = None
        """Why it cannot be in this queue; None if it can."""
        self.on_gone: Callable[[Message], None] | None = None
        self._turn: asyncio.Future[None] | None = None
        self.admitted = False

    @property
    def position(self) -> Position:
        return (self.token, self.key)

    @property
    def check(self) -> Check:
        """Holds as long as the key exists."""
        return created_at(self.key, self.token)

    async def turn(self) -> None:
        """Wait for admission. Raises `LockLost`, and `InvalidRequest` for another kind of queue."""
        if not (self.admitted or self.gone or self.rejection):
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn
        if self.gone:
            raise LockLost(message("queue_entry_gone", key=self.key, reason=self.gone))
        if self.rejection:
            raise InvalidRequest(self.rejection)

    def admit(self) -> None:
        self.admitted = True
        self._wake()

    def reject(self, reason: Message) -> None:
        self.rejection = reason
        self._wake()

    def lose(self, reason: Message) -> None:
        if not self.gone:
            self.gone = reason
            self._wake()
            if self.on_gone is not None:
                self.on_gone(reason)

    def _wake(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


LINGER = 10.0
"""Seconds for which a watch stays open after the last contender of this process has left."""

CROWD = 8
"""The length of a queue from which newcomers do not ask the store for the first contender."""


class WatchedQueue:
    """A queue that is followed, with the waiters of this process."""

    def __init__(self, store: Store, start: bytes, ended: Callable[[WatchedQueue], None]) -> None:
        self.start = start
        self.order = QueueOrder(start)
        self.closed = False
        self._ended = ended
        self._ours: dict[Position, set[Waiter]] = {}
        """Several waiters may share a position: callers that join twice with one lease."""
        self._waiting: SortedDict[tuple[Position, int], Waiter] = SortedDict()
        self._unconfirmed: set[Waiter] = set()
        self._subscribers: list[Callable[[], None]] = []
        self._lingering: asyncio.TimerHandle | None = None
        self.mirror: Mirror[bytes, Entry] = Mirror(
            StandingFeed(store, prefix(start)), wait=False, quiet=True
        )
        self.mirror.subscribe(self._apply)
        self.mirror.start()

    @property
    def crowded(self) -> bool:
        """Whether a newcomer will have to wait, so that it need not ask the store."""
        return self.mirror.error is None and len(self.order) >= CROWD

    def add(self, waiter: Waiter) -> None:
        """Notify a waiter when it is admitted and when its key is gone."""
        self._keep_watch()
        self._ours.setdefault(waiter.position, set()).add(waiter)
        if not waiter.admitted:
            self._waiting[waiter.position, id(waiter)] = waiter
        self._unconfirmed.add(waiter)
        self._notify_waiters()

    def forget(self, waiter: Waiter) -> None:
        together = self._ours.get(waiter.position, set())
        together.discard(waiter)
        if not together:
            self._ours.pop(waiter.position, None)
        self._waiting.pop((waiter.position, id(waiter)), None)
        self._unconfirmed.discard(waiter)
        self._linger()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after each change of the queue. Call the returned function to unsubscribe."""
        self._keep_watch()
        self._subscribers.append(callback)

        def end() -> None:
            self._subscribers.remove(callback)
            self._linger()

        return end

    def _keep_watch(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    def _linger(self) -> None:
        """Keep the watch for a while after the last one left: the next contender may come soon."""
        if not self.closed and not self._ours and not self._subscribers and self._lingering is None:
            loop = asyncio.get_running_loop()
            self._lingering = loop.call_later(LINGER, self._ended, self)

    def close(self) -> None:
        self.closed = True
        if self._lingering is not None:
            self._lingering.cancel()
        for callback in tuple(self._subscribers):
            callback()

    def _apply(self, update: Update[bytes, Entry]) -> None:
        for change in update.changes:
            if change.after is None:
                gone = self.order.remove(change.key)
            else:
                gone = self.order.put(change.after)
            if gone is not None:
                for waiter in tuple(self._ours.get(gone, ())):
                    self._lose(waiter)
        self._notify_waiters()
        for callback in tuple(self._subscribers):
            callback()

    def _notify_waiters(self) -> None:
        """Admit the waiters at the head of the queue, and report those whose key is gone."""
        for waiter in tuple(self._unconfirmed):
            if waiter.position in self.order:
                self._unconfirmed.discard(waiter)
                self._reject_misfit(waiter)
            elif self.mirror.mark >= waiter.token:
                self._lose(waiter)
        while self._waiting:
            at, waiter = self._waiting.peekitem(0)
            if waiter.position not in self.order or not waiter.rule.admits(
                self.order, waiter.position
            ):
                return
            del self._waiting[at]
            if self._reject_misfit(waiter):
                continue
            waiter.admit()

    def _reject_misfit(self, waiter: Waiter) -> bool:
        """Whether a waiter does not fit, which `join` did not check in a crowded queue."""
        first = self.order.first
        if waiter.admitted or first is None:
            return False
        if problem := misfit(self.start, first, waiter.key, waiter.rule):
            self.forget(waiter)
            waiter.reject(problem)
        return problem is not None

    def _lose(self, waiter: Waiter) -> None:
        self.forget(waiter)
        waiter.lose(message("key_deleted"))


class StandingFeed(RangeFeed):
    """A range whose watch is opened before it is read, so that changes arrive without delay."""

    def __init__(self, store: Store, range: Range) -> None:
        super().__init__(store, range)
        self._watch: Watch | None = None

    async def snapshot(self) -> tuple[dict[bytes, Entry], int]:
        async with AsyncExitStack() as stack:
            watch = await stack.enter_async_context(self._store.watch(self._range))
            snapshot = await super().snapshot()
            stack.pop_all()
        self._watch = watch
        return snapshot

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[bytes, Entry], *, known: float
    ) -> AsyncIterator[Steps[bytes, Entry]]:
        watch, self._watch = self._watch, None
        if watch is None:  # the watch broke: resume after the mark
            async with super().follow(mark, held, known=known) as steps:
                yield steps
            return
        async with AsyncExitStack() as stack:
            stack.push_async_exit(watch)
            yield RangeSteps(watch, after=mark)  # earlier changes are in the snapshot
