"""A held lock: its fencing token, its check, and the detection of its loss."""

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
from mooring.messages import Message, message
from mooring.store.contract import Check

log = logging.getLogger(__name__)

LockState = Literal["held", "suspended", "lost", "released"]
"""The state of a held lock. `suspended`: its lease was not renewed in time, so it may be lost."""


class Held:
    """A lock that this process holds, from `async with lock` or from `acquire`.

    `async with held` makes it a scope: a loss cancels the body, and leaving raises `LockLost`.
    """

    def __init__(self, queue: Queue, waiter: Waiter, lease: PooledLease, by: object) -> None:
        self.key: bytes = waiter.key
        """The key that holds the lock. It exists while the lock is held."""
        self.token: int = waiter.token
        """The fencing token: higher than that of every earlier holder."""
        self.lost: asyncio.Event = asyncio.Event()
        """Set when the lock is lost without having been released."""
        self._queue, self._waiter, self._lease, self._by = queue, waiter, lease, by
        self._guarded = False
        """Whether its owner is recorded, so that it cannot deadlock by entering the lock again."""
        self._reason: Message | None = None
        self._released = False
        self._scope: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._cancelled = False
        queue.add_holder(waiter)
        self._watch_loss()

    def _watch_loss(self) -> None:
        self._lease.lost = self._waiter.on_gone = self._lose

    @property
    def name(self) -> str:
        """The name of the lock, semaphore or election."""
        return self._waiter.start[:-1].decode()

    @property
    def check(self) -> Check:
        """For `commit(…, require=[held.check])`: the commit fails unless the lock is still held."""
        return self._waiter.check

    @property
    def suspended(self) -> bool:
        """Whether the lease could not be renewed recently, so that the lock may be lost soon."""
        return self.state == "suspended"

    @property
    def remaining(self) -> float:
        """Seconds for which the lock is certainly held, whatever happens to the store."""
        return 0.0 if self.state in ("lost", "released") else self._lease.session.remaining

    @property
    def state(self) -> LockState:
        """By this machine's clock, so it is correct even if the event loop was blocked."""
        if self._reason:
            return "lost"
        if self._released or self._forked:
            return "released"
        if not self._lease.certain:
            return "lost"
        return "suspended" if self._lease.session.state == "suspended" else "held"

    def ensure(self) -> None:
        """Raise `LockLost` or `NotHeld` unless the lock is held as far as this process knows."""
        state = self.state
        if state == "lost":
            raise self._error()
        if state == "released":
            raise self._not_held()

    @property
    def _forked(self) -> bool:
        return self._queue.leases.forked

    def _not_held(self) -> NotHeld:
        kind = "lock_of_parent" if self._forked else "lock_released"
        return NotHeld(message(kind, name=self.name))

    def _error(self) -> LockLost:
        reason = self._reason or message("lease_late")
        return LockLost(message("lock_lost", name=self.name, reason=reason))

    def _lose(self, reason: Message) -> None:
        if self._reason or self._released:
            return
        self._reason = reason
        log.warning("the lock %s (token %d) is lost: %s", quoted(self.name), self.token, reason)
        self.lost.set()
        self._stop_watching()
        task = self._scope
        if task is not None and not task.done() and task is not asyncio.current_task():
            self._cancelled = True
            task.cancel(f"the lock {quoted(self.name)} is lost")

    def _stop_watching(self) -> None:
        self._waiter.on_gone = self._lease.lost = None
        self._queue.forget(self._waiter)
        if self._guarded:
            self._queue.owners.discard((self._waiter.start, self._by))

    async def release(self) -> None:
        """Release the lock, or revoke its lease if cancelled. Raises `LockLost` if it was lost, and
        `NotHeld` if it was released. If the store cannot be reached, the lease expires."""
        if self._released or self._forked:
            raise self._not_held()
        existed = False
        lost = self.state == "lost"
        self._released = True
        self._stop_watching()
        if lost:
            self._reason = self._reason or message("lease_late")
            self.lost.set()
            self._queue.leases.discard_soon(self._lease)
            raise self._error()
        try:
            existed = await self._queue.leave(self._waiter)
        except StoreError as error:
            log.info(
                "the lock %s was not released; its lease will expire: %s", quoted(self.name), error
            )
            await self._queue.leases.discard(self._lease, within=GRACE)
            return
        except BaseException:
            await self._queue.leases.discard(self._lease)
            raise
        if not existed:
            self._reason = message("key_gone_at_release")
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
        if self._forked:  # a forked child leaves the body too, but does not hold the lock
            return
        task, self._scope = self._scope, None
        # As in `asyncio.timeout`: our own cancellation ends here, that of others is passed on.
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
        """Release the lock unless it was released. Losing it is not an error."""
        if not (self._released or self._forked):
            try:
                await self.release()
            except LockLost as error:
                log.debug("%s", error)


CALLING_THREAD: ContextVar[threading.Thread | None] = ContextVar(
    "the thread that calls the blocking API", default=None
)
"""Set by the portal of the blocking API, in which every call is a task of its own."""


def caller() -> object:
    return CALLING_THREAD.get() or asyncio.current_task()


def has_ended(owner: object) -> bool:
    """Whether a task or thread has ended."""
    if isinstance(owner, threading.Thread):
        return not owner.is_alive()
    return not isinstance(owner, asyncio.Task) or owner.done()
