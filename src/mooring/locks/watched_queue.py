"""A line as it is seen from here: followed by a watch that stands, and told to those in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from sortedcontainers import SortedDict

from mooring.errors import InvalidRequest, LockLost
from mooring.formatting import readable
from mooring.locks.ordering import Mark, QueueOrder, Rule, misfit
from mooring.mirror import Mirror, RangeFeed, Step, Steps, Update
from mooring.store.contract import Check, Entry, Range, Store, Watch, created_at, prefix


class Waiter:
    """One contender's place in a line. Made by `Queue.join`."""

    def __init__(
        self, key: bytes, created: int, lease: int, rule: Rule, *, fresh: bool = True
    ) -> None:
        self.key, self.token, self.lease = key, created, lease
        self.rule = rule
        self.fresh = fresh
        """Whether it was taken just now; else it stood already, for the same lease."""
        self.gone = ""
        """Why it is gone, where it is."""
        self.refused = ""
        """Why it cannot stand in this line, where it cannot."""
        self.on_gone: Callable[[str], None] | None = None
        self._turn: asyncio.Future[None] | None = None
        self._admitted = False

    @property
    def mark(self) -> Mark:
        return (self.token, self.key)

    @property
    def check(self) -> Check:
        """Holds for as long as the place stands."""
        return created_at(self.key, self.token)

    @property
    def admitted(self) -> bool:
        return self._admitted

    async def turn(self) -> None:
        """Wait until it may go ahead. Raises `LockLost` where the place is gone, and
        `InvalidRequest` where the line is one of another kind."""
        if not (self._admitted or self.gone or self.refused):
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn
        if self.gone:
            raise LockLost(f"the place {readable(self.key)} in the line is gone: {self.gone}")
        if self.refused:
            raise InvalidRequest(self.refused)

    def admit(self) -> None:
        self._admitted = True
        self._wake()

    def refuse(self, reason: str) -> None:
        self.refused = reason
        self._wake()

    def lose(self, reason: str) -> None:
        if not self.gone:
            self.gone = reason
            self._wake()
            if self.on_gone is not None:
                self.on_gone(reason)

    def _wake(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


LINGER = 10.0
"""Seconds that a watch stands after the last contender here has left."""

CROWD = 8
"""Contenders in a line from which on a newcomer does not ask the store who is first."""


class WatchedQueue:
    """A line that is followed, and who of this process stands in it."""

    def __init__(self, store: Store, start: bytes, ended: Callable[[WatchedQueue], None]) -> None:
        self.start = start
        self.order = QueueOrder(start)
        self.closed = False
        self.woken = 0
        """How often a contender was told that its turn has come."""
        self._ended = ended
        self._ours: dict[Mark, set[Waiter]] = {}
        """Several may stand on one mark: who asks twice with one lease."""
        self._waiting: SortedDict[tuple[Mark, int], Waiter] = SortedDict()
        self._unseen: set[Waiter] = set()
        self._subscribers: list[Callable[[], None]] = []
        self._lingering: asyncio.TimerHandle | None = None
        self.mirror: Mirror[bytes, Entry] = Mirror(
            StandingFeed(store, prefix(start)), wait=False, quiet=True
        )
        self.mirror.subscribe(self._hear)
        self.mirror.start()

    @property
    def crowded(self) -> bool:
        """Whether a newcomer will have to wait, and need not ask the store."""
        return self.mirror.error is None and len(self.order) >= CROWD

    def add(self, waiter: Waiter) -> None:
        """Tell a place when its turn comes, and when it is gone."""
        self._stay()
        self._ours.setdefault(waiter.mark, set()).add(waiter)
        if not waiter.admitted:
            self._waiting[waiter.mark, id(waiter)] = waiter
        self._unseen.add(waiter)
        self._look()

    def forget(self, waiter: Waiter) -> None:
        together = self._ours.get(waiter.mark, set())
        together.discard(waiter)
        if not together:
            self._ours.pop(waiter.mark, None)
        self._waiting.pop((waiter.mark, id(waiter)), None)
        self._unseen.discard(waiter)
        self._go()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after each change of the line. What is returned ends it."""
        self._stay()
        self._subscribers.append(callback)

        def end() -> None:
            self._subscribers.remove(callback)
            self._go()

        return end

    def _stay(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    def _go(self) -> None:
        """The last to leave keeps the watch for a while: the next contender may be near."""
        if not self.closed and not self._ours and not self._subscribers and self._lingering is None:
            loop = asyncio.get_running_loop()
            self._lingering = loop.call_later(LINGER, self._ended, self)

    def close(self) -> None:
        """Its queue is closed: whoever follows it hears of that."""
        self.closed = True
        if self._lingering is not None:
            self._lingering.cancel()
        for callback in tuple(self._subscribers):
            callback()

    def _hear(self, update: Update[bytes, Entry]) -> None:
        for change in update.changes:
            if change.after is None:
                gone = self.order.remove(change.key)
            else:
                gone = self.order.put(change.after)
            if gone is not None:
                for waiter in tuple(self._ours.get(gone, ())):
                    self._lose(waiter)
        self._look()
        for callback in tuple(self._subscribers):
            callback()

    def _look(self) -> None:
        """Whose turn has come?"""
        if self._unseen:
            for waiter in tuple(self._unseen):
                if waiter.mark in self.order:
                    self._unseen.discard(waiter)
                    self._refuse_misfit(waiter)
                elif self.mirror.mark >= waiter.token:
                    self._lose(waiter)
        while self._waiting:
            at, waiter = self._waiting.peekitem(0)
            if waiter.mark not in self.order or not waiter.rule.admits(self.order, waiter.mark):
                return
            del self._waiting[at]
            if self._refuse_misfit(waiter):
                continue
            self.woken += 1
            waiter.admit()

    def _refuse_misfit(self, waiter: Waiter) -> bool:
        """Whether one who waits cannot stand in this line. Who came in a crowd did not ask."""
        first = self.order.first
        if waiter.admitted or first is None:
            return False
        if problem := misfit(self.start, first, waiter.key, waiter.rule):
            self.forget(waiter)
            waiter.refuse(problem)
        return bool(problem)

    def _lose(self, waiter: Waiter) -> None:
        self.forget(waiter)
        waiter.lose("its key was deleted")


class StandingFeed(RangeFeed):
    """A range whose watch stands before it is read, and so tells of changes at once."""

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
        if watch is None:  # it broke: go on from where it was
            async with super().follow(mark, held, known=known) as steps:
                yield steps
            return
        async with AsyncExitStack() as stack:
            stack.push_async_exit(watch)
            yield _StandingSteps(watch, mark)


class _StandingSteps(AsyncIterator[Step[bytes, Entry]]):
    """The steps of a watch after a mark; what was before it was read already."""

    def __init__(self, watch: Watch, mark: int) -> None:
        self._watch, self._mark = watch, mark

    @property
    def heard(self) -> float:
        return self._watch.heard

    async def __anext__(self) -> Step[bytes, Entry]:
        while True:
            batch = await anext(self._watch)
            if batch.revision > self._mark:
                return Step(batch.revision, [(event.key, event.entry) for event in batch.events])
