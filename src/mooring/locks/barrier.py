"""A barrier: nobody goes on before everybody is there."""

from __future__ import annotations

import asyncio

from mooring.locks.held import Held
from mooring.locks.lease_pool import GRACE
from mooring.locks.lock import Lock, check_size
from mooring.locks.ordering import PARTY, BarrierRule, ContenderValue, encode_value
from mooring.locks.queue import Queue
from mooring.store.contract import Put


class Barrier:
    """`wait` returns once `parties` wait at the same time. It may be used again and again: who
    comes for the next round waits for the others of that round."""

    def __init__(
        self, queue: Queue, name: str, parties: int, *, ttl: float, timeout: float | None
    ) -> None:
        check_size("parties", parties)
        self.name: str = name
        self.parties: int = parties
        self._queue, self._timeout = queue, timeout
        self._rule = BarrierRule(parties)
        self._line = Lock(queue, name, ttl=ttl, timeout=timeout, kind=PARTY, size=parties)

    async def wait(self) -> int:
        """Wait for the others; the number of this party in the round, from 0.

        Raises `LockTimeout` where too few come in time, or one of them does not go on in that time,
        and what the store raises. A party that is cancelled or dies while it waits does not count.
        One that dies while it goes on may leave others to wait for their timeout: they cannot know
        that it was open.
        """
        deadline = None
        if self._timeout is not None:  # who waits for nobody to come needs a moment to pass
            deadline = asyncio.get_running_loop().time() + (self._timeout or GRACE)
        async with await self._line.acquire() as held:
            timer = asyncio.timeout_at(deadline)
            try:
                async with timer:
                    return await self._pass(held)
            except TimeoutError:
                if not timer.expired():
                    raise
                raise self._line._late() from None

    async def _pass(self, held: Held) -> int:
        """Say that it was seen open, and stay until everybody has."""
        view = self._queue.view(held._start)
        mark = held._waiter.mark
        changed = asyncio.Event()
        unsubscribe = view.subscribe(changed.set)
        self._queue.watch_over(held._waiter, held._start)
        try:
            while not (bound := self._rule.opened(view.order, mark)):
                held.ensure()
                await changed.wait()
                changed.clear()
            number = self._rule.number(view.order, mark)
            card = ContenderValue(PARTY, self._queue.by, self.parties, bound)
            await self._queue.store.commit(
                Put(held.key, encode_value(card), held._waiter.lease), require=[held.check]
            )
            while not self._rule.all_passed(view.order, bound):
                changed.clear()
                await changed.wait()
            return number
        finally:
            unsubscribe()
