"""A barrier: each party waits until all parties are waiting."""

from __future__ import annotations

import asyncio

from mooring.locks.admission_rules import PARTY, BarrierRule, ContenderValue, encode_value
from mooring.locks.held import Held
from mooring.locks.lease_pool import GRACE
from mooring.locks.lock import Lock
from mooring.locks.queue import Queue
from mooring.locks.semaphore import check_size
from mooring.store.contract import Put


class Barrier:
    """`wait` returns once `parties` callers wait at the same time. It is reusable: further callers
    wait for the next round."""

    def __init__(
        self, queue: Queue, name: str, parties: int, *, ttl: float, timeout: float | None
    ) -> None:
        check_size("parties", parties)
        self.name: str = name
        """The name of the barrier."""
        self.parties: int = parties
        """The number of participants that the barrier waits for."""
        self._queue, self._timeout = queue, timeout
        self._rule = BarrierRule(parties)
        self._lock = Lock(queue, name, ttl=ttl, timeout=timeout, kind=PARTY, size=parties)

    async def wait(self) -> int:
        """Wait for the other parties. Returns the number of this party in the round, from 0.

        Raises `LockTimeout` if too few parties arrive in time or one of them does not pass in time,
        and the errors of the store. A party that is cancelled or dies while it waits does not
        count. One that dies while it passes may make the others wait until their timeout: they
        cannot know that the barrier opened.
        """
        deadline = None
        if self._timeout is not None:  # with a timeout of 0, passing still takes a moment
            deadline = asyncio.get_running_loop().time() + (self._timeout or GRACE)
        async with await self._lock.acquire() as held:
            timer = asyncio.timeout_at(deadline)
            try:
                async with timer:
                    return await self._pass(held)
            except TimeoutError:
                if not timer.expired():
                    raise
                raise self._lock._timed_out() from None

    async def _pass(self, held: Held) -> int:
        """Record that this party passed, and stay until all parties of the round have passed."""
        view = self._queue.view(held._waiter.start)
        position = held._waiter.position
        changed = asyncio.Event()
        unsubscribe = view.subscribe(changed.set)
        self._queue.watch_holder(held._waiter)
        try:
            while not (bound := self._rule.opened(view.order, position)):
                held.ensure()
                await changed.wait()
                changed.clear()
            number = self._rule.number(view.order, position)
            passed = ContenderValue(PARTY, self._queue.by, self.parties, bound)
            await self._queue.store.commit(
                Put(held.key, encode_value(passed), held._waiter.lease), require=[held.check]
            )
            while not self._rule.all_passed(view.order, bound):
                changed.clear()
                await changed.wait()
            return number
        finally:
            unsubscribe()
