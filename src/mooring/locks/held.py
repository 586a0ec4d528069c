"""What is held: its fencing token, its check, and its loss."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextvars import ContextVar
from types import TracebackType
from typing import Literal, Self

from mooring.errors import LockLost, NotHeld, StoreError
from mooring.formatting import quoted
from mooring.locks.lease_pool import GRACE, PooledLease
from mooring.locks.queue import Queue
from mooring.locks.watched_queue import Waiter
from mooring.store.contract import Check

log = logging.getLogger(__name__)

State = Literal["held", "suspended", "lost", "released"]

_LATE = "its lease was not renewed in time"


class Held:
    """A lock that is ours. Got from `async with lock`, or from `acquire` and then released.

    `async with held` makes it a scope: a loss cancels the body, and leaving raises `LockLost`.
    """

    def __init__(
        self, queue: Queue, start: bytes, waiter: Waiter, lease: PooledLease, by: object
    ) -> None:
        self.key: bytes = waiter.key
        self.token: int = waiter.token
        """The fencing token: higher than that of everybody who held it before."""
        self._lost: asyncio.Event | None = None
        self._queue, self._start = queue, start
        self._waiter, self._lease, self._by = waiter, lease, by
        self._guarded = False
        """Whether whom it is held by is marked, so that it cannot wait for itself."""
        self._reason = ""
        self._released = False
        self._scope: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._cancelled = False
        queue.holds(waiter, start)
        self._listen()

    def _listen(self) -> None:
        self._lease.lost = self._waiter.on_gone = self._lose

    @property
    def name(self) -> str:
        return self._start[:-1].decode()

    @property
    def lost(self) -> asyncio.Event:
        """Set when it is no longer ours though it was not released."""
        if self._lost is None:  # made when it is asked for: to hold a lock is often brief
            self._lost = asyncio.Event()
            if self._reason:
                self._lost.set()
        return self._lost

    @property
    def check(self) -> Check:
        """For `commit(…, require=[held.check])`: nothing is written unless it is still ours."""
        return self._waiter.check

    @property
    def suspended(self) -> bool:
        """Whether it is in doubt: its lease could not be renewed of late, and may be lost soon."""
        return self.state == "suspended"

    @property
    def remaining(self) -> float:
        """Seconds for which it is certain to be ours, whatever happens to the store."""
        return 0.0 if self.state in ("lost", "released") else self._lease.session.remaining

    @property
    def state(self) -> State:
        """By this machine's clock: right also where the event loop was held up."""
        if self._reason:
            return "lost"
        if self._released or self._forked:
            return "released"
        if not self._lease.certain:
            return "lost"
        return "suspended" if self._lease.session.state == "suspended" else "held"

    def ensure(self) -> None:
        """Raise `LockLost` or `NotHeld` unless it is ours as far as can be known here."""
        state = self.state
        if state == "lost":
            raise self._error()
        if state == "released":
            raise self._not_held()

    @property
    def _forked(self) -> bool:
        return self._queue.leases.forked

    def _not_held(self) -> NotHeld:
        why = "is that of the process that forked this one" if self._forked else "was released"
        return NotHeld(f"the lock {quoted(self.name)} {why}")

    def _error(self) -> LockLost:
        reason = self._reason or _LATE
        return LockLost(
            f"the lock {quoted(self.name)} is no longer ours: {reason}; somebody else may hold it"
        )

    def _lose(self, reason: str) -> None:
        if self._reason or self._released:
            return
        self._reason = reason
        log.warning("the lock %s (token %d) is lost: %s", quoted(self.name), self.token, reason)
        self.lost.set()
        self._settle()
        task = self._scope
        if task is not None and not task.done() and task is not _current_task():
            self._cancelled = True
            task.cancel(f"the lock {quoted(self.name)} is lost")

    def _settle(self) -> None:
        """It is ours no longer, one way or another."""
        self._waiter.on_gone = self._lease.lost = None
        self._queue.forget(self._waiter, self._start)
        if self._guarded:
            self._queue.owners.discard((self._start, self._by))

    async def release(self) -> None:
        """Give it back. Raises `LockLost` where it was not ours until now, and `NotHeld` where it
        was released before. Where the store cannot be reached, the lease runs out by itself.

        Cancellation does not keep it: the lease is revoked then.
        """
        if self._released or self._forked:
            raise self._not_held()
        stood = False
        lost = self.state == "lost"
        self._released = True
        self._settle()
        if lost:
            self._reason = self._reason or _LATE
            self.lost.set()
            self._queue.leases.discard_soon(self._lease)
            raise self._error()
        try:
            stood = await self._queue.leave(self._waiter, self._start)
        except StoreError as error:
            log.info("the lock %s is left to its lease: %s", quoted(self.name), error)
            await self._queue.leases.discard(self._lease, within=GRACE)
            return
        except BaseException:
            await self._queue.leases.discard(self._lease)
            raise
        if not stood:
            self._reason = "its key was gone when it was released"
            self.lost.set()
            await self._queue.leases.discard(self._lease)
            raise self._error()
        self._queue.leases.give(self._lease)

    async def __aenter__(self) -> Self:
        self.ensure()
        self._enter()
        return self

    def _enter(self) -> None:
        self._scope = asyncio.current_task()
        self._cancelling = self._scope.cancelling() if self._scope else 0

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._forked:  # the child of a fork leaves the body too, but holds nothing
            return
        task, self._scope = self._scope, None
        # As `asyncio.timeout` does it: what we cancelled ends here, what others cancelled goes on.
        ours = self._cancelled and task is not None and task.uncancel() <= self._cancelling
        ours = ours and isinstance(error, asyncio.CancelledError)
        if self._released:
            if ours:
                raise self._error() from error
            return
        try:
            await self.release()
        except LockLost as lost:
            if error is None or ours:
                raise lost from error
            error.add_note(str(lost))

    async def aclose(self) -> None:
        """Release it where that was not done yet; no error where it is lost."""
        if not (self._released or self._forked):
            try:
                await self.release()
            except LockLost as error:
                log.debug("%s", error)


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


BEHIND: ContextVar[threading.Thread | None] = ContextVar("thread behind a task", default=None)
"""Set by the portal of the blocking API, whose calls are tasks of their own."""


def caller() -> object:
    return BEHIND.get() or asyncio.current_task()


def has_ended(who: object) -> bool:
    """Whether a caller of before can do nothing any more."""
    if isinstance(who, threading.Thread):
        return not who.is_alive()
    return not isinstance(who, asyncio.Task) or who.done()
