"""A pool of leases for contenders: each contender has a lease of its own while it contends.

Granting and revoking a lease takes as many round trips as acquiring and releasing a lock, so leases
are reused. A lease is reused only if no key can be attached to it; otherwise it is revoked.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from mooring.durations import format_duration
from mooring.errors import Closed, InvalidRequest, LeaseNotFound, MooringError, StoreError
from mooring.messages import Message, message, verbatim
from mooring.session import Session
from mooring.store.contract import Store
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

IDLE = 64
"""The maximum number of idle leases for each time-to-live."""
IDLE_FOR = 10.0
"""Seconds for which an idle lease is kept."""

GRACE = 1.0
"""Seconds to wait for cleanup after a timeout or cancellation. Then it runs in the background."""

_REVOKE_WITHIN = 3.0


async def wait_up_to(task: asyncio.Task[object], *, within: float) -> None:
    """Wait for a task, which continues after that. Cancellation is delayed by up to `GRACE`."""
    try:
        await asyncio.wait([task], timeout=within)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=min(within, GRACE))
        raise


@dataclass(slots=True, eq=False)
class PooledLease:
    """A session, with the callback for its loss."""

    session: Session
    asked: float
    idle_since: float = 0.0
    used: bool = False
    """Whether another contender used it before."""
    taken: bool = False
    """Whether a key may be attached to it: set before writing one."""
    lost: Callable[[Message], None] | None = None
    watch: asyncio.Task[object] | None = None
    end: asyncio.Task[object] | None = None
    """Revokes the lease; None until that has begun."""

    @property
    def id(self) -> int:
        return self.session.lease

    @property
    def leaves_key(self) -> bool:
        """Whether a key may remain in the store until the TTL of this lease ends."""
        return self.taken and not self.session.revoked

    @property
    def certain(self) -> bool:
        """Whether the lease is certainly active."""
        return self.end is None and self.session.state in ("alive", "suspended")


class LeasePool:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._idle: dict[float, list[PooledLease]] = {}
        self._all: set[PooledLease] = set()
        """Leases that may exist in the store, including those that are being revoked."""
        self._tasks, self._ends = Tasks(), Tasks()
        self._sweeping: asyncio.TimerHandle | None = None
        self.closed = False
        self._process = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is a forked child: the leases belong to its parent."""
        return os.getpid() != self._process

    async def take(self, ttl: float) -> PooledLease:
        """A lease for one contender. Raises the errors of `Store.grant`, and `InvalidRequest` if
        the store grants only longer leases. A cancelled call leaves no lease behind."""
        if self.closed:
            raise Closed(message("store_closed", store=verbatim(self._store.url)))
        idle = self._idle.get(ttl, [])
        while idle:
            lease = idle.pop()
            lease.used = True
            if not lease.session.lost.is_set():  # `certain` is checked after joining the queue
                return lease
            self.discard_soon(lease)
        task = self._tasks.start(self._open(ttl), name="grant of a lease for a lock")
        try:
            opened = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by the pool, not by the caller
                raise self._closed_meanwhile() from None
            task.add_done_callback(self._return_unclaimed)
            raise
        if isinstance(opened, PooledLease):
            return opened
        assert isinstance(opened, MooringError)
        raise opened

    async def _open(self, ttl: float) -> PooledLease | MooringError:
        """A new lease, or the error for the caller to raise: it does not crash the task."""
        try:
            if self.closed:
                raise self._closed_meanwhile()
            session = await Session(self._store, ttl=ttl).__aenter__()
            lease = PooledLease(session, ttl)
            self._all.add(lease)
            if self.closed:
                raise self._closed_meanwhile()
            if session.ttl > math.ceil(ttl):
                await self.discard(lease)
                raise InvalidRequest(
                    message(
                        "ttl_too_short",
                        ttl=format_duration(ttl),
                        store=verbatim(self._store.url),
                        least=format_duration(session.ttl),
                    )
                )
        except MooringError as error:
            return error
        lease.watch = self._tasks.start(
            self._await_loss(lease), name=f"lease {lease.id:x} of a lock"
        )
        return lease

    def _closed_meanwhile(self) -> Closed:
        return Closed(message("store_closed_meanwhile", store=verbatim(self._store.url)))

    def _return_unclaimed(self, task: asyncio.Task[object]) -> None:
        if not task.cancelled() and isinstance(lease := task.result(), PooledLease):
            self.give(lease)

    async def _await_loss(self, lease: PooledLease) -> None:
        await lease.session.lost.wait()
        if lease.lost is not None:
            lease.lost(message("lease_lost"))

    def give(self, lease: PooledLease) -> None:
        """Return a lease to which no key is attached to the pool."""
        lease.lost, lease.taken = None, False
        idle = self._idle.setdefault(lease.asked, [])
        if self.closed or len(idle) >= IDLE:
            self.discard_soon(lease)
            return
        lease.idle_since = time.monotonic()
        idle.append(lease)
        if self._sweeping is None:
            self._sweep_later()

    def _sweep_later(self) -> None:
        self._sweeping = asyncio.get_running_loop().call_later(IDLE_FOR / 4, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        old = time.monotonic() - IDLE_FOR
        for idle in self._idle.values():
            while idle and idle[0].idle_since < old:
                self.discard_soon(idle.pop(0))
        if any(self._idle.values()):
            self._sweep_later()

    async def discard(self, lease: PooledLease, *, within: float = 2 * _REVOKE_WITHIN) -> None:
        """Revoke a lease, and with it all keys attached to it. Writes that are still on their way
        to the store cannot attach a key after that. After `within`, or if the caller is cancelled,
        it continues in the background. If the store is unavailable, the lease expires."""
        self.discard_soon(lease)
        if lease.end is not None:
            await wait_up_to(lease.end, within=within)

    def discard_soon(self, lease: PooledLease) -> None:
        """`discard` without waiting."""
        lease.lost = None
        if lease.end is None and not self.forked:
            lease.end = self._ends.start(self._end(lease), name=f"end of lease {lease.id:x}")

    async def _end(self, lease: PooledLease) -> None:
        if lease.watch is not None:
            lease.watch.cancel()
        lost = lease.session.state == "lost"
        await lease.session.aclose(within=_REVOKE_WITHIN)
        if lost:
            # A session that is lost for this process may still exist in the store and block others.
            try:
                async with asyncio.timeout(_REVOKE_WITHIN):
                    await self._store.revoke(lease.id)
                lease.session.revoked = True
            except LeaseNotFound:
                lease.session.revoked = True
            except (StoreError, TimeoutError) as error:
                log.debug("lease %x was not revoked and will expire: %s", lease.id, error)
        self._all.discard(lease)

    async def aclose(self) -> None:
        """Revoke all leases within 3 s, also those being granted. Their contenders see a loss."""
        self.closed = True
        for lease in tuple(self._all):
            if lease.lost is not None:
                lease.lost(message("hub_closed"))
            self.discard_soon(lease)
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self._tasks.aclose()  # a session that is cancelled during its grant is revoked
        if ends := [lease.end for lease in self._all if lease.end is not None]:
            await asyncio.wait(ends)
