"""Exclusive locks by name."""

from __future__ import annotations

import asyncio
import logging
import unicodedata
from collections.abc import Iterable
from types import TracebackType
from typing import cast

from mooring.durations import format_duration
from mooring.errors import (
    InvalidName,
    InvalidRequest,
    LeaseNotFound,
    LockLost,
    LockTimeout,
    NotHeld,
    OutcomeUnknown,
    Reentered,
    StoreError,
    Unavailable,
)
from mooring.locks.admission_rules import (
    EXCLUSIVE,
    ContenderValue,
    decode_value,
    encode_value,
    rule_of,
)
from mooring.locks.held import Held, caller, has_ended
from mooring.locks.lease_pool import GRACE, PooledLease, wait_up_to
from mooring.locks.queue import Queue
from mooring.locks.watched_queue import Waiter
from mooring.messages import Message, message
from mooring.store.validation import check_ttl
from mooring.tasks import Backoff

log = logging.getLogger(__name__)

TRY_WITHIN = 3.0
"""Seconds for a whole attempt that does not wait: grant, commit, revocation and retries."""


def check_name(name: str) -> bytes:
    """The prefix of the keys of a lock's contenders. Raises `InvalidName`. A name may contain
    slashes, but not end with one."""
    problem = ""
    if not isinstance(name, str):
        problem = "name_not_text"
    elif not name:
        problem = "name_empty"
    elif name.endswith("/"):
        problem = "name_ends_with_slash"
    elif any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        problem = "name_has_control"
    if problem:
        what = message("what_lock")
        raise InvalidName(message("name_invalid", what=what, name=name, problem=message(problem)))
    return name.encode() + b"/"


def check_times(ttl: float, timeout: float | None) -> None:
    """Raise `InvalidRequest` for an invalid TTL or timeout."""
    if isinstance(ttl, bool):
        raise InvalidRequest(message("ttl_not_a_number", ttl=ttl))
    check_ttl(ttl)
    if ttl < 1:
        raise InvalidRequest(
            message("ttl_too_short", ttl=format_duration(ttl), store=None, least="1s")
        )
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and timeout >= 0):
        raise InvalidRequest(message("timeout_invalid", timeout=timeout))


class Lock:
    """An exclusive lock. Many tasks may use one object, each as a contender of its own.

    ```python
    async with hub.lock("reindex", ttl=10) as held:
        await hub.store.commit(Put(b"/index", b"…"), require=[held.check])
    ```

    Entering waits for the lock for at most `timeout` seconds (None: without limit; 0: not at all).
    It raises `LockTimeout`, `Reentered` if the same task already contends for the lock, and the
    errors of the store. One deadline covers all requests to the store: `timeout`, or 3 s if that is
    0, and a second of cleanup. Timeouts and cancellation leave no key behind; if the store does not
    confirm that, the error says so. Leaving releases the lock. If the lock is lost, the body is
    cancelled, and leaving raises `LockLost`.
    """

    _held_type = Held

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
        """The name of the lock, semaphore or election."""
        self._start = check_name(name)
        contender = ContenderValue(kind, queue.by, size)
        self._queue, self._rule, self._value = queue, rule_of(contender), encode_value(contender)
        self._ttl, self._timeout = ttl, timeout
        self._reentrant = size > 0
        self._entered: list[Held] = []
        self._backoff = Backoff()

    async def acquire(self) -> Held:
        """Acquire the lock until it is released: for code that cannot use a `with` block."""
        if self._timeout == 0:
            if (held := await self.try_acquire()) is None:
                raise self._timed_out()
            return held
        used: list[PooledLease] = []
        timer = asyncio.timeout(self._timeout)
        try:
            async with timer:
                return cast("Held", await self._acquire(wait=True, used=used))
        except TimeoutError:
            if not timer.expired():
                raise
            raise self._timed_out(used) from None

    async def try_acquire(self) -> Held | None:
        """Acquire the lock if it is free, else return None. It waits only for the store: at most 3
        s and a second of cleanup, whatever the timeout of the store is.

        Raises the errors of the store, `Unavailable` if it does not answer in time, and
        `OutcomeUnknown` if a key may then remain until its TTL ends.
        """
        used: list[PooledLease] = []
        timer = asyncio.timeout(TRY_WITHIN)
        try:
            async with timer:
                return await self._acquire(wait=False, used=used)
        except TimeoutError:
            if not timer.expired():
                raise
            reason = message("store_silent", seconds=format_duration(TRY_WITHIN))
            raise self._not_held(reason, used) from None

    def _not_held(self, reason: Message, used: Iterable[PooledLease]) -> StoreError:
        """The error for a store that does not answer."""
        if remains := self._remaining_key(used):
            return OutcomeUnknown(
                message("lock_not_held", name=self.name, reason=reason, remains=remains)
            )
        return Unavailable(message("lock_not_held_without_key", name=self.name, reason=reason))

    def _remaining_key(self, used: Iterable[PooledLease]) -> Message | None:
        """A note for an error if a key of ours may still be in the store."""
        if not any(lease.leaves_key for lease in used):
            return None
        return message("lock_key_remains", ttl=format_duration(self._ttl))

    def _timed_out(self, used: Iterable[PooledLease] = ()) -> LockTimeout:
        """The error after a timeout. It names the holder if it is known."""
        order = self._queue.known(self._start)
        first = order.first if order is not None else None
        holder = token = others = None
        if order is not None and first is not None:
            holder = decode_value(first.value).by or message("the_key", key=first.key)
            token, others = str(first.created), len(order) - 1 or None
        when = message("immediately")
        if self._timeout:
            when = message("within_time", seconds=format_duration(self._timeout))
        return LockTimeout(
            message(
                "lock_timeout",
                name=self.name,
                when=when,
                holder=holder,
                token=token,
                others=others,
                remains=self._remaining_key(used),
            )
        )

    async def _acquire(self, *, wait: bool, used: list[PooledLease]) -> Held | None:
        """None if it is not free and must not be waited for. `used` collects the leases of all
        attempts, to report keys that may remain."""
        by = caller()
        if self._reentrant:
            return await self._contend(by, wait, used)
        if (self._start, by) in self._queue.owners:
            raise Reentered(message("lock_reentered", name=self.name))
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
        was_queued, backoff = False, self._backoff
        while True:
            try:
                lease, waiter = await self._join(used, certain=not wait)
            except (Unavailable, OutcomeUnknown, LockLost):
                # After it was queued once, it retries: the store was available.
                if not was_queued:
                    raise
                await asyncio.sleep(backoff.next())
                continue
            was_queued = True
            if not waiter.admitted and not wait:
                await self._withdraw(waiter, lease)
                return None
            if not waiter.admitted and lease.certain:
                await self._wait_for_turn(waiter, lease)
            if lease.certain and not waiter.gone and not self._queue.closed:
                backoff.reset()
                return self._held_type(self._queue, waiter, lease, by)
            self._queue.forget(waiter)
            await self._queue.leases.discard(lease)
            if waiter.gone:
                await asyncio.sleep(backoff.next())

    async def _wait_for_turn(self, waiter: Waiter, lease: PooledLease) -> None:
        """Wait until the waiter is admitted, or until its key is gone."""
        lease.lost = waiter.lose
        try:
            await waiter.turn()
        except LockLost as error:
            log.info("%s; joining the queue again", error)
        except BaseException:
            await self._withdraw(waiter, lease)
            raise

    async def _join(self, used: list[PooledLease], *, certain: bool) -> tuple[PooledLease, Waiter]:
        """Join the queue. If the outcome is unknown, the lease is revoked, and with it the key."""
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
                if unknown:
                    raise self._not_held(error.message, used) from error
                unknown = True
            except LeaseNotFound:
                await self._queue.leases.discard(lease)
                # A lease that was revoked while it was idle: use another one. Also if the hub was
                # closed meanwhile: the next attempt raises that.
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

    async def _withdraw(self, waiter: Waiter, lease: PooledLease) -> None:
        """Leave the queue. If that takes long, it continues in the background."""
        lease.lost = None
        if not self._queue.leases.forked:
            deadline = asyncio.get_running_loop().time() + GRACE
            await wait_up_to(self._queue.withdraw(waiter, lease), within=GRACE)
            left = deadline - asyncio.get_running_loop().time()
            if lease.end is not None and left > 0:
                await wait_up_to(lease.end, within=left)

    async def __aenter__(self) -> Held:
        held = await self.acquire()
        self._entered.append(held)
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
            raise NotHeld(message("lock_not_entered", name=self.name))
        held = self._entered.pop(self._leaving() if len(self._entered) > 1 else 0)
        await held.__aexit__(kind, error, trace)

    def _leaving(self) -> int:
        """The index of the caller, or of the only one that has ended and so passed the lock on."""
        by = caller()
        if own := [n for n, held in enumerate(self._entered) if held._by is by]:
            return own[-1]
        ended = [n for n, held in enumerate(self._entered) if has_ended(held._by)]
        if len(ended) != 1:
            raise NotHeld(message("lock_left_unclearly", name=self.name))
        return ended[0]
