"""The fair queue behind all locks.

Contenders for a name are keys `{name}/{lease in hex}`, as in etcd's own recipes. A transaction
creates the key, and contenders are ordered by its creation revision. One watch serves each name
with waiters in this process. It is opened before the queue is read and stays open between
hand-overs: a watch from a past revision would wait for etcd's sync loop, 100 ms. It maintains a
copy of the queue, so a change causes no requests, however many contenders there are, and wakes only
those contenders that are admitted.

Admission is certain, because revisions only grow: no contender can get ahead of an existing key. A
copy that lags may contain keys that are gone, but never lacks one that exists.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import Counter

from mooring.errors import Closed, Conflict, InvalidRequest, LockLost, StoreError
from mooring.formatting import readable
from mooring.locks.admission_rules import QueueOrder, Rule, misfit
from mooring.locks.lease_pool import LeasePool, PooledLease
from mooring.locks.watched_queue import CROWD, Waiter, WatchedQueue
from mooring.messages import message, verbatim
from mooring.store.contract import (
    Delete,
    Entry,
    Put,
    Query,
    Snapshot,
    Store,
    absent,
    created_at,
    key,
    prefix,
)
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

_LEAVE_WITHIN = 5.0
_HEAD = 8  # contenders that are read to find the first one
_BRIEF = 1.0  # seconds after which the key of a holder is watched, even without waiters


class Queue:
    """The queues of one store. `aclose` revokes its leases."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.leases = LeasePool(store)
        self.owners: set[tuple[bytes, object]] = set()
        """The queues that each owner is in: an owner may be in a queue only once."""
        self.closed = False
        self.by = f"{socket.gethostname()}:{os.getpid()}"
        self._views: dict[bytes, WatchedQueue] = {}
        self._joining: Counter[bytes] = Counter()
        self._holders: dict[Waiter, float] = {}
        self._holder_timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()

    async def join(
        self, start: bytes, lease: int, rule: Rule, value: bytes, *, certain: bool = False
    ) -> Waiter:
        """Join the queue with the prefix `start`, which ends with a slash. With `certain` it is
        known immediately whether the contender is admitted.

        Raises `InvalidRequest` if the queue is of another kind, `Closed` if this object is closed,
        and the errors of `Store.commit`. After `OutcomeUnknown` and cancellation the caller revokes
        the lease.
        """
        name = start + b"%x" % lease
        reads: list[Query] = []
        if certain or not self._crowded(start):
            limit = 0 if certain and rule.head > 1 else rule.head
            reads.append(Query(prefix(start), limit=limit, order="created"))
        head: Snapshot | None = None
        self._joining[start] += 1
        try:
            done = await self.store.commit(
                Put(name, value, lease), require=[absent(name)], read=reads
            )
            waiter = Waiter(start, done.revision, lease, rule)
            head = done.reads[0] if reads else None
        except Conflict:
            # The key already exists with the same lease: joining twice takes one place.
            waiter = await self._standing(start, lease, rule, value)
        finally:
            self._joining[start] -= 1
            if not self._joining[start]:
                del self._joining[start]
        if self.closed:  # closed meanwhile: the lease is being revoked
            raise Closed(message("store_closed_meanwhile", store=verbatim(self.store.url)))
        await self._find_place(waiter, head, certain=certain)
        if start in self._views or not waiter.admitted:
            self.view(start).add(waiter)
        return waiter

    async def _find_place(self, waiter: Waiter, head: Snapshot | None, *, certain: bool) -> None:
        """Admit a newcomer if the rule admits it by the head of the queue that was read with its
        commit. If it does not fit behind the first contender, it leaves the queue again."""
        start, rule = waiter.start, waiter.rule
        first = head.first if head is not None else None
        if first is not None and first.key == waiter.key and rule.head:
            waiter.admit()  # alone, or first: every rule admits it
            return
        order = QueueOrder(start, head.entries if head is not None else ())
        if certain and head is not None and head.more and not len(order):
            order = await self._whole_order(start)  # only keys of nested names were read
        if waiter.position in order and rule.admits(order, waiter.position):
            waiter.admit()
        first = order.first
        if first is None and (view := self._views.get(start)) is not None:
            first = view.order.first
        if first is not None and (problem := misfit(start, first, waiter.key, rule)):
            await self.leave(waiter)
            raise InvalidRequest(problem)

    async def first(self, start: bytes) -> Entry | None:
        """The first contender of a queue: the holder or leader. Raises the errors of `read`."""
        snapshot = await self.store.read(prefix(start), limit=_HEAD, order="created")
        order = QueueOrder(start, snapshot.entries)
        if not len(order) and snapshot.more:  # only keys of nested names were read
            order = await self._whole_order(start)
        return order.first

    async def _whole_order(self, start: bytes) -> QueueOrder:
        return QueueOrder(start, (await self.store.read(prefix(start))).entries)

    def _crowded(self, start: bytes) -> bool:
        """Whether a newcomer will have to wait anyway, so that asking the store for the first
        contender is unnecessary. The longer the queue, the slower that query."""
        view = self._views.get(start)
        return (view is not None and view.crowded) or self._joining[start] >= CROWD

    async def _standing(self, start: bytes, lease: int, rule: Rule, value: bytes) -> Waiter:
        name = start + b"%x" % lease
        entry = (await self.store.read(key(name))).first
        if entry is None:
            raise LockLost(message("queue_entry_deleted", key=name))
        if entry.value != value:
            await self.store.commit(
                Put(name, value, lease), require=[created_at(name, entry.created)]
            )
        return Waiter(start, entry.created, lease, rule, fresh=False)

    async def leave(self, waiter: Waiter) -> bool:
        """Leave the queue. Returns whether the key still existed. Raises the errors of `commit`."""
        if (view := self._views.get(waiter.start)) is not None:
            view.forget(waiter)
        try:
            await self.store.commit(Delete(key(waiter.key)), require=[waiter.check])
        except Conflict:
            return False
        return True

    def withdraw(self, waiter: Waiter, lease: PooledLease) -> asyncio.Task[object]:
        """Leave the queue and release the lease, or revoke it if the outcome is unknown."""
        return self._tasks.start(
            self._withdraw(waiter, lease), name=f"leaving the queue {readable(waiter.start)}"
        )

    async def _withdraw(self, waiter: Waiter, lease: PooledLease) -> None:
        clean = False
        try:
            async with asyncio.timeout(_LEAVE_WITHIN):
                clean = await self.leave(waiter)
        except (StoreError, TimeoutError) as error:
            log.debug("leaving %s by revoking its lease: %s", readable(waiter.key), error)
        finally:
            if clean:
                self.leases.give(lease)
            else:
                self.leases.discard_soon(lease)

    def watch_holder(self, waiter: Waiter) -> None:
        """Report the loss of a key even if no contender of this process waits for its name."""
        self._holders.pop(waiter, None)
        self.view(waiter.start).add(waiter)

    def add_holder(self, waiter: Waiter) -> None:
        """Register a holder. If it holds the lock for longer, its key is watched."""
        self._holders[waiter] = time.monotonic()
        if self._holder_timer is None:
            self._watch_holders_later()

    def _watch_holders_later(self) -> None:
        self._holder_timer = asyncio.get_running_loop().call_later(_BRIEF / 2, self._watch_holders)

    def _watch_holders(self) -> None:
        self._holder_timer = None
        since = time.monotonic() - _BRIEF
        for waiter, held in tuple(self._holders.items()):
            if held > since:
                self._watch_holders_later()
                return
            self.watch_holder(waiter)

    def forget(self, waiter: Waiter) -> None:
        self._holders.pop(waiter, None)
        if (view := self._views.get(waiter.start)) is not None:
            view.forget(waiter)

    def view(self, start: bytes) -> WatchedQueue:
        if (view := self._views.get(start)) is None:
            if self.closed:
                raise Closed(message("store_closed", store=verbatim(self.store.url)))
            view = self._views[start] = WatchedQueue(self.store, start, self._end)
        return view

    def known(self, start: bytes) -> QueueOrder | None:
        """The order of the queue if it is already watched."""
        view = self._views.get(start)
        return view.order if view is not None and view.mirror.loaded else None

    def _end(self, view: WatchedQueue) -> None:
        if self._views.get(view.start) is view:
            del self._views[view.start]
            self._tasks.start(view.mirror.aclose(), name="end of the watch of a queue")

    async def aclose(self) -> None:
        if self.leases.forked:
            return
        self.closed = True
        if self._holder_timer is not None:
            self._holder_timer.cancel()
        await self.leases.aclose()
        for view in tuple(self._views.values()):
            view.close()
        await asyncio.gather(*(view.mirror.aclose() for view in self._views.values()))
        self._views.clear()
        await self._tasks.aclose()
