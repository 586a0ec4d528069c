"""A lock: ours from when it is entered until it is left, or until it says that it is not.

async with hub.lock("reindex", ttl=10) as held:
    await hub.store.commit(Put(b"/index", b"…"), require=[held.check])
"""

from __future__ import annotations

import asyncio
import logging
import unicodedata
from collections.abc import Iterable
from types import TracebackType

from mooring import durations
from mooring.errors import (
    InvalidName,
    InvalidRequest,
    LeaseNotFound,
    LockLost,
    LockTimeout,
    NotHeld,
    OutcomeUnknown,
    Reentered,
    Unavailable,
)
from mooring.formatting import quoted
from mooring.locks.held import Held, caller, has_ended
from mooring.locks.lease_pool import GRACE, PooledLease, patiently
from mooring.locks.ordering import (
    EXCLUSIVE,
    PLACE,
    SHARED,
    ContenderValue,
    decode_value,
    encode_value,
    rule_of,
)
from mooring.locks.queue import Queue
from mooring.locks.watched_queue import Waiter
from mooring.store.validation import check_ttl
from mooring.tasks import Backoff

log = logging.getLogger(__name__)

TRY_WITHIN = 3.0
"""Seconds for the whole of a try that waits for nobody: grant, commit, revocation and retries."""


def check_name(name: str) -> bytes:
    """The start of the keys of a lock's contenders, or `InvalidName`. Slashes may be in a name, but
    not at its end."""
    if not isinstance(name, str):
        raise InvalidName(f"a lock's name must be text, not {type(name).__name__}")
    problem = ""
    if not name:
        problem = "is empty"
    elif name.endswith("/"):
        problem = "ends with a slash: the slash before the contenders' keys is added to it"
    elif any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        problem = "contains a control character"
    if problem:
        raise InvalidName(f"the lock's name {quoted(name)} {problem}")
    return name.encode() + b"/"


def check_times(ttl: float, timeout: float | None) -> None:
    """Raise `InvalidRequest` for times that cannot be."""
    if isinstance(ttl, bool):
        raise InvalidRequest(f"a TTL of {ttl} is not possible: it is a number of seconds")
    check_ttl(ttl)
    if ttl < 1:
        raise InvalidRequest(f"a TTL of {ttl} s is less than any store can keep: at least 1 s")
    if timeout is not None and not _is_timeout(timeout):
        raise InvalidRequest(
            f"timeout={quoted(timeout)} is not possible: seconds, 0 or more, or None"
        )


def _is_timeout(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and given >= 0


class Lock:
    """A lock by name. One object may be used by many tasks, each a contender of its own.

    Entering waits for it, for `timeout` seconds at most (None: as long as it takes; 0: not at all).
    It raises `LockTimeout`, `Reentered` where the same task contends for it already, and what the
    store raises where it cannot be reached. One deadline covers all that entering does at the
    store: `timeout`, or 3 s if that is 0, and a second of cleanup. Timeouts and cancellation leave
    nothing behind; if the store does not confirm that, the error says so. Leaving releases it.
    Losing it meanwhile cancels the body, and leaving raises `LockLost`.
    """

    def __init__(
        self,
        queue: Queue,
        name: str,
        *,
        ttl: float,
        timeout: float | None,
        kind: str = EXCLUSIVE,
        size: int = 0,
    ) -> None:
        check_times(ttl, timeout)
        self.name: str = name
        self._start = check_name(name)
        contender = ContenderValue(kind, queue.by, size)
        self._queue, self._rule, self._value = queue, rule_of(contender), encode_value(contender)
        self._ttl, self._timeout = ttl, timeout
        self._reentrant = size > 0
        self._entered: list[tuple[object, Held]] = []
        self._backoff = Backoff()

    async def acquire(self) -> Held:
        """Wait for it, and hold it until it is released: for code where a block does not fit."""
        used: list[PooledLease] = []
        if self._timeout is None:
            return self._had(await self._own(wait=True, used=used))
        if self._timeout == 0:
            if (held := await self.try_acquire()) is None:
                raise self._late()
            return held
        timer = asyncio.timeout(self._timeout)
        try:
            async with timer:
                return self._had(await self._own(wait=True, used=used))
        except TimeoutError:
            if not timer.expired():
                raise
            raise self._late(used) from None

    async def try_acquire(self) -> Held | None:
        """Hold it if it is free, else return None. It waits for the store only: at most 3 s, and a
        second of cleanup, whatever the store's own timeout is.

        Raises what the store raises, `Unavailable` if it does not answer in time, and
        `OutcomeUnknown` if a key may then remain until its TTL.
        """
        used: list[PooledLease] = []
        timer = asyncio.timeout(TRY_WITHIN)
        try:
            async with timer:
                return await self._own(wait=False, used=used)
        except TimeoutError:
            if not timer.expired():
                raise
            problem = (
                f"the lock {quoted(self.name)} is not held: the store did not answer within "
                f"{durations.show(TRY_WITHIN)}"
            )
            if remains := self._remains(used):
                raise OutcomeUnknown(problem + remains) from None
            raise Unavailable(problem) from None

    def _remains(self, used: Iterable[PooledLease]) -> str:
        """What to add to an error if a key of ours may still be in the store."""
        if not any(lease.leaves_key for lease in used):
            return ""
        return (
            "; the store did not confirm that its key is gone, which may keep others waiting until "
            f"its TTL of {durations.show(self._ttl)} is over"
        )

    def _late(self, used: Iterable[PooledLease] = ()) -> LockTimeout:
        """What to raise where its time is over; it names the holder where that is known."""
        order = self._queue.known(self._start)
        holder = order.first if order is not None else None
        by = ""
        if order is not None and holder is not None:
            who = decode_value(holder.value).by or f"the key {quoted(holder.key)}"
            others = f", {len(order) - 1} more wait" if len(order) > 1 else ""
            by = f": held by {who} (token {holder.created}){others}"
        return LockTimeout(
            f"the lock {quoted(self.name)} was not to be had within "
            f"{durations.show(self._timeout or 0)}"
            f"{by}{self._remains(used)}"
        )

    @staticmethod
    def _had(held: Held | None) -> Held:
        assert held is not None, "who waits gets it, or an error"
        return held

    async def _own(self, *, wait: bool, used: list[PooledLease]) -> Held | None:
        """`used` collects the leases with which it was tried, to tell what they leave behind."""
        by = caller()
        if self._reentrant:
            return await self._contend(by, wait, used)
        if (self._start, by) in self._queue.owners:
            raise Reentered(
                f"the lock {quoted(self.name)} is held or waited for by this very task: it would "
                "wait for itself for ever; pass what is held on instead"
            )
        self._queue.owners.add((self._start, by))
        held = None
        try:
            held = await self._contend(by, wait, used)
        finally:
            if held is None:
                self._queue.owners.discard((self._start, by))
            else:
                held._guarded = True
        return held

    async def _contend(self, by: object, wait: bool, used: list[PooledLease]) -> Held | None:
        stood, backoff = False, self._backoff
        while True:
            try:
                lease, waiter = await self._join(used, certain=not wait)
            except (Unavailable, OutcomeUnknown, LockLost):
                # Who has stood in line once goes on trying: the store was there.
                if not stood:
                    raise
                await asyncio.sleep(backoff.next())
                continue
            stood = True
            if not waiter.admitted and not wait:
                await self._withdraw(waiter, lease)
                return None
            if not waiter.admitted and lease.certain:
                lease.lost = waiter.lose
                try:
                    await waiter.turn()
                except LockLost as error:
                    log.info("%s; it gets in line again", error)
                    self._queue.forget(waiter, self._start)
                    await self._queue.leases.discard(lease)
                    await asyncio.sleep(backoff.next())
                    continue
                except BaseException:
                    await self._withdraw(waiter, lease)
                    raise
            if lease.certain and not waiter.gone and not self._queue.closed:
                backoff.reset()
                return self._hold(waiter, lease, by)
            self._queue.forget(waiter, self._start)
            await self._queue.leases.discard(lease)

    async def _join(self, used: list[PooledLease], *, certain: bool) -> tuple[PooledLease, Waiter]:
        """A place in the line. Where it is not known whether it was taken, the lease is revoked:
        it is not taken then, nor later."""
        unknown = False
        while True:
            lease = await self._queue.leases.take(self._ttl)
            lease.taken = True
            used.append(lease)
            try:
                waiter = await self._queue.join(
                    self._start, lease.id, self._rule, self._value, certain=certain
                )
            except OutcomeUnknown as error:
                await self._queue.leases.discard(lease)
                if unknown and (remains := self._remains(used)):
                    raise OutcomeUnknown(
                        f"the lock {quoted(self.name)} is not held: {error}{remains}"
                    ) from error
                if unknown:
                    raise Unavailable(
                        f"the lock {quoted(self.name)} is not held, and nothing is left behind: "
                        f"{error}"
                    ) from error
                unknown = True
            except LeaseNotFound:
                await self._queue.leases.discard(lease)
                # One that was revoked while nobody used it: take another. As is told where the
                # hub was closed meanwhile.
                if not (lease.used or self._queue.closed):
                    raise
            except asyncio.CancelledError:
                await self._queue.leases.discard(lease, within=GRACE)
                raise
            except BaseException:
                await self._queue.leases.discard(lease)
                raise
            else:
                return lease, waiter

    def _hold(self, waiter: Waiter, lease: PooledLease, by: object) -> Held:
        return Held(self._queue, self._start, waiter, lease, by)

    async def _withdraw(self, waiter: Waiter, lease: PooledLease) -> None:
        """Leave the line. Where that takes longer, it goes on without the caller."""
        lease.lost = None
        if not self._queue.leases.forked:
            deadline = asyncio.get_running_loop().time() + GRACE
            await patiently(self._queue.withdraw(waiter, self._start, lease), within=GRACE)
            left = deadline - asyncio.get_running_loop().time()
            if lease.end is not None and left > 0:
                await patiently(lease.end, within=left)

    async def __aenter__(self) -> Held:
        held = await self.acquire()
        self._entered.append((held._by, held))
        held._enter()
        return held

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        if self._queue.leases.forked:
            return
        if not self._entered:
            raise NotHeld(f"the lock {quoted(self.name)} was not entered")
        _, held = self._entered.pop(self._mine() if len(self._entered) > 1 else 0)
        await held.__aexit__(kind, error, trace)

    def _mine(self) -> int:
        """Which of those who entered it leaves now: whoever is here, or else the one who has ended
        since, and so must leave it to another."""
        by = caller()
        if mine := [n for n, (who, _) in enumerate(self._entered) if who is by]:
            return mine[-1]
        left = [n for n, (who, _) in enumerate(self._entered) if has_ended(who)]
        if len(left) != 1:
            raise NotHeld(
                f"the lock {quoted(self.name)} was entered by several, and nobody can say which "
                "of them leaves it here: leave it where it was entered, or use `acquire` and "
                "`release`"
            )
        return left[0]


class ReadWriteLock:
    """Its two sides, `read()` and `write()`, are locks to be entered.

    Fair: a reader who comes after a writer waits for that writer, so that none starves. The
    writers' side is the plain lock of the same name, also for `etcdctl lock`.
    """

    def __init__(self, queue: Queue, name: str, *, ttl: float, timeout: float | None) -> None:
        check_name(name)
        check_times(ttl, timeout)
        self.name: str = name
        self._queue, self._ttl, self._timeout = queue, ttl, timeout

    def read(self) -> Lock:
        """Shared with other readers."""
        return Lock(self._queue, self.name, ttl=self._ttl, timeout=self._timeout, kind=SHARED)

    def write(self) -> Lock:
        """Shared with nobody."""
        return Lock(self._queue, self.name, ttl=self._ttl, timeout=self._timeout)


class Semaphore(Lock):
    """A lock that `places` contenders may hold at a time. All must agree on their number; who asks
    for another raises `InvalidRequest`. One task may hold several places."""

    def __init__(
        self, queue: Queue, name: str, places: int, *, ttl: float, timeout: float | None
    ) -> None:
        check_size("places", places)
        super().__init__(queue, name, ttl=ttl, timeout=timeout, kind=PLACE, size=places)


def check_size(what: str, size: object) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InvalidRequest(f"{what}={quoted(size)} is not possible: a number from 1 up")
