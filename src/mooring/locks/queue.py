"""The one fair queue under all locks.

Contenders for a name are keys `{name}/{lease in hex}`, as those of etcd's own recipes: created once
in a transaction, and in line by the revision of their creation. One watch stands for each name that
somebody here waits for, opened before the line is read, and goes on from hand-off to hand-off: a
watch from a past revision would wait for etcd's sync loop, 100 ms. It keeps a copy of the line in
order, so that a change costs no question, whatever the number of contenders, and wakes nobody but
those whose turn has come.

What makes a turn certain: revisions only grow, so nobody can come in before a place that stands;
and a copy that is behind shows some who are gone, never lacks one who is there.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import time

from mooring.errors import Closed, Conflict, InvalidRequest, LockLost, StoreError
from mooring.formatting import readable
from mooring.locks.lease_pool import LeasePool, PooledLease
from mooring.locks.ordering import QueueOrder, Rule, misfit
from mooring.locks.watched_queue import CROWD, Waiter, WatchedQueue
from mooring.store.contract import Delete, Entry, Put, Query, Store, absent, created_at, key, prefix
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

_LEAVE_WITHIN = 5.0
_BRIEF = 1.0  # seconds after which a holder's key is watched, though nobody waits


class Queue:
    """The lines of one store. Close it with `aclose`: its leases are revoked."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.leases = LeasePool(store)
        self.owners: set[tuple[bytes, object]] = set()
        """Who here contends for what: nobody may do so twice."""
        self.closed = False
        self.by = f"{socket.gethostname()}:{os.getpid()}"
        self._views: dict[bytes, WatchedQueue] = {}
        self._joining: dict[bytes, int] = {}
        self._held: dict[Waiter, tuple[bytes, float]] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._tasks = Tasks()

    async def join(
        self, start: bytes, lease: int, rule: Rule, value: bytes, *, certain: bool = False
    ) -> Waiter:
        """Take a place in the line of the keys below `start`, which ends with a slash. `certain`:
        it is known at once whether it may go ahead.

        Raises `InvalidRequest` where the line is one of another kind, `Closed` where this queue is,
        and what `Store.commit` raises; after `OutcomeUnknown` and cancellation the caller revokes
        the lease.
        """
        name = start + b"%x" % lease
        view = self._views.get(start)
        asks = certain or not self._crowded(start)
        head = _head(start, 0 if certain and rule.head > 1 else rule.head) if asks else ()
        entries: tuple[Entry, ...] = ()
        more = False
        self._joining[start] = self._joining.get(start, 0) + 1
        try:
            done = await self.store.commit(
                Put(name, value, lease), require=[absent(name)], read=head
            )
            waiter = Waiter(name, done.revision, lease, rule)
            if asks:
                entries, more = done.reads[0].entries, done.reads[0].more
        except Conflict:
            # It stands there already, for the same lease: whoever asks twice has one place.
            waiter = await self._standing(name, lease, rule, value)
        finally:
            self._joining[start] -= 1
            if not self._joining[start]:
                del self._joining[start]
        if self.closed:  # meanwhile: the lease is being revoked
            raise Closed(f"{self.store.url} was closed meanwhile")
        if entries and entries[0].key == name and rule.head:
            waiter.admit()  # alone, or first: the same in every rule
        else:
            order = QueueOrder(start, entries)
            if certain and more and not len(order):  # hidden behind those of names below this one
                order = QueueOrder(start, (await self.store.read(prefix(start))).entries)
            if waiter.mark in order and rule.admits(order, waiter.mark):
                waiter.admit()
            first = order.first or (view.order.first if view is not None else None)
            if first is not None and (problem := misfit(start, first, waiter.key, rule)):
                await self.leave(waiter, start)
                raise InvalidRequest(problem)
        if view is not None or not waiter.admitted:
            self.view(start).add(waiter)
        return waiter

    def _crowded(self, start: bytes) -> bool:
        """Whether a newcomer will wait in any case, and need not ask the store who is first: to
        find that out costs the store the more the longer the line is."""
        view = self._views.get(start)
        return (view is not None and view.crowded) or self._joining.get(start, 0) >= CROWD

    async def _standing(self, name: bytes, lease: int, rule: Rule, value: bytes) -> Waiter:
        entry = (await self.store.read(key(name))).first
        if entry is None:
            raise LockLost(f"the place {readable(name)} in the line was given up meanwhile")
        if entry.value != value:
            await self.store.commit(
                Put(name, value, lease), require=[created_at(name, entry.created)]
            )
        return Waiter(name, entry.created, lease, rule, fresh=False)

    async def leave(self, waiter: Waiter, start: bytes) -> bool:
        """Give a place up; whether it stood until now. Raises what `Store.commit` raises."""
        if (view := self._views.get(start)) is not None:
            view.forget(waiter)
        try:
            await self.store.commit(Delete(key(waiter.key)), require=[waiter.check])
        except Conflict:
            return False
        return True

    def withdraw(self, waiter: Waiter, start: bytes, lease: PooledLease) -> asyncio.Task[object]:
        """Give a place up, and its lease back; in doubt the lease is revoked."""
        return self._tasks.start(
            self._withdraw(waiter, start, lease), name=f"end of a place in {readable(start)}"
        )

    async def _withdraw(self, waiter: Waiter, start: bytes, lease: PooledLease) -> None:
        clean = False
        try:
            async with asyncio.timeout(_LEAVE_WITHIN):
                clean = await self.leave(waiter, start)
        except (StoreError, TimeoutError) as error:
            log.debug("%s is left by revoking its lease: %s", readable(waiter.key), error)
        finally:
            if clean:
                self.leases.give(lease)
            else:
                self.leases.discard_soon(lease)

    def watch_over(self, waiter: Waiter, start: bytes) -> None:
        """Have a place told when it is gone, though nobody waits for its name."""
        self._held.pop(waiter, None)
        self.view(start).add(waiter)

    def holds(self, waiter: Waiter, start: bytes) -> None:
        """A place is held from now on. If that takes longer, it is watched over."""
        self._held[waiter] = (start, time.monotonic())
        if self._looking is None:
            self._look_later()

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(_BRIEF / 2, self._look)

    def _look(self) -> None:
        self._looking = None
        since = time.monotonic() - _BRIEF
        for waiter, (start, held) in tuple(self._held.items()):
            if held > since:
                self._look_later()
                return
            self.watch_over(waiter, start)

    def forget(self, waiter: Waiter, start: bytes) -> None:
        """Nobody is interested in a place any more."""
        self._held.pop(waiter, None)
        if (view := self._views.get(start)) is not None:
            view.forget(waiter)

    def view(self, start: bytes) -> WatchedQueue:
        """The line of a name, as seen from here."""
        if (view := self._views.get(start)) is None:
            if self.closed:
                raise Closed(f"{self.store.url} is closed")
            view = self._views[start] = WatchedQueue(self.store, start, self._end)
        return view

    def known(self, start: bytes) -> QueueOrder | None:
        """The line of a name where it is followed already."""
        view = self._views.get(start)
        return view.order if view is not None and view.mirror.loaded else None

    def _end(self, view: WatchedQueue) -> None:
        if self._views.get(view.start) is view:
            del self._views[view.start]
            self._tasks.start(view.mirror.aclose(), name="end of a line's watch")

    async def aclose(self) -> None:
        if self.leases.forked:
            return
        self.closed = True
        if self._looking is not None:
            self._looking.cancel()
        await self.leases.aclose()
        for view in tuple(self._views.values()):
            view.close()
        await asyncio.gather(*(view.mirror.aclose() for view in self._views.values()))
        self._views.clear()
        await self._tasks.aclose()


@functools.lru_cache(maxsize=1024)
def _head(start: bytes, limit: int) -> tuple[Query]:
    """To read with a commit: the first of a line."""
    return (Query(prefix(start), limit=limit, order="created"),)
