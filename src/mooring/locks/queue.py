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
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from mooring.errors import Conflict, InvalidRequest, LockLost
from mooring.locks.leases import Leases
from mooring.locks.line import Line, Mark, Rule, read
from mooring.mirror import Mirror, RangeFeed, Step, Steps, Update
from mooring.store.contract import (
    Check,
    Delete,
    Entry,
    Put,
    Query,
    Store,
    Watch,
    absent,
    created_at,
    key,
    prefix,
)
from mooring.tasks import Tasks

if TYPE_CHECKING:
    from mooring.store.contract import Range

log = logging.getLogger(__name__)

LINGER = 10.0
"""Seconds that a watch stands after the last contender here has left."""

_BRIEF = 1.0  # seconds after which a holder's key is watched, though nobody waits
_CROWD = 8  # contenders in a known line from which a newcomer does not ask the store who is first


class Place:
    """One contender's place in a line. Made by `Queue.join`."""

    def __init__(self, key: bytes, created: int, lease: int, rule: Rule) -> None:
        self.key, self.token, self.lease = key, created, lease
        self.rule = rule
        self.gone = ""
        """Why it is gone, where it is."""
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
        """Wait until it may go ahead. Raises `LockLost` where the place is gone."""
        if not self._admitted and not self.gone:
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn
        if self.gone:
            raise LockLost(f"the place {self.key!r} in the line is gone: {self.gone}")

    def admit(self) -> None:
        self._admitted = True
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


class Queue:
    """The lines of one store. Close it with `aclose`: its leases are revoked."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.leases = Leases(store)
        self.owners: set[tuple[bytes, object]] = set()
        """Who here contends for what: nobody may do so twice."""
        self.by = f"{socket.gethostname()}:{os.getpid()}"
        self._views: dict[bytes, LineView] = {}
        self._held: dict[Place, tuple[bytes, float]] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._tasks = Tasks()

    async def join(
        self, start: bytes, lease: int, rule: Rule, value: bytes, *, certain: bool = False
    ) -> Place:
        """Take a place in the line of the keys below `start`, which ends with a slash. `certain`:
        it is known at once whether it may go ahead.

        Raises `InvalidRequest` where the line is one of another kind, and what `Store.commit`
        raises; after `OutcomeUnknown` and cancellation the caller revokes the lease.
        """
        name = start + b"%x" % lease
        view = self._views.get(start)
        asks = certain or view is None or not view.crowded
        head = _head(start, 0 if certain and rule.head > 1 else rule.head) if asks else ()
        entries: tuple[Entry, ...] = ()
        try:
            done = await self.store.commit(
                Put(name, value, lease), require=[absent(name)], read=head
            )
            place = Place(name, done.revision, lease, rule)
            entries = done.reads[0].entries if asks else ()
        except Conflict:
            # It stands there already, for the same lease: whoever asks twice has one place.
            place = await self._standing(name, lease, rule, value)
        if entries and entries[0].key == name and rule.head:
            place.admit()  # alone, or first: the same in every rule
        elif entries:
            line = Line(start, entries)
            if place.mark in line and rule.admits(line, place.mark):
                place.admit()
        try:
            self._check_kind(start, place, entries)
        except InvalidRequest:
            await self.leave(place, start)
            raise
        if view is not None or not place.admitted:
            self.view(start).add(place)
        return place

    async def _standing(self, name: bytes, lease: int, rule: Rule, value: bytes) -> Place:
        entry = (await self.store.read(key(name))).first
        if entry is None:
            raise LockLost(f"the place {name!r} in the line was given up meanwhile")
        if entry.value != value:
            await self.store.commit(
                Put(name, value, lease), require=[created_at(name, entry.created)]
            )
        return Place(name, entry.created, lease, rule)

    def _check_kind(self, start: bytes, place: Place, entries: tuple[Entry, ...]) -> None:
        view = self._views.get(start)
        first = entries[0] if entries else view.line.first if view is not None else None
        if first is None or first.key == place.key:
            return
        card = read(first.value)
        if card.kind not in place.rule.kinds:
            raise InvalidRequest(
                f"{start[:-1].decode()!r} is in use as another kind of lock, by "
                f"{card.by or first.key!r}: choose another name"
            )
        size = getattr(place.rule, "size", card.size)
        if card.size != size:
            raise InvalidRequest(
                f"{start[:-1].decode()!r} has size {card.size} for {card.by}, not {size}: all "
                "must agree"
            )

    async def leave(self, place: Place, start: bytes) -> bool:
        """Give a place up; whether it stood until now. Raises what `Store.commit` raises."""
        if (view := self._views.get(start)) is not None:
            view.forget(place)
        try:
            await self.store.commit(Delete(key(place.key)), require=[place.check])
        except Conflict:
            return False
        return True

    def watch_over(self, place: Place, start: bytes) -> None:
        """Have a place told when it is gone, though nobody waits for its name."""
        self._held.pop(place, None)
        self.view(start).add(place)

    def holds(self, place: Place, start: bytes) -> None:
        """A place is held from now on. If that takes longer, it is watched over."""
        self._held[place] = (start, time.monotonic())
        if self._looking is None:
            self._look_later()

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(_BRIEF / 2, self._look)

    def _look(self) -> None:
        self._looking = None
        since = time.monotonic() - _BRIEF
        for place, (start, held) in tuple(self._held.items()):
            if held > since:
                self._look_later()
                return
            self.watch_over(place, start)

    def forget(self, place: Place, start: bytes) -> None:
        """Nobody is interested in a place any more."""
        self._held.pop(place, None)
        if (view := self._views.get(start)) is not None:
            view.forget(place)

    def view(self, start: bytes) -> LineView:
        """The line of a name, as seen from here."""
        if (view := self._views.get(start)) is None:
            view = self._views[start] = LineView(self, start)
        return view

    def known(self, start: bytes) -> Line | None:
        """The line of a name where it is followed already."""
        view = self._views.get(start)
        return view.line if view is not None and view.mirror.loaded else None

    def end(self, view: LineView) -> None:
        if self._views.get(view.start) is view:
            del self._views[view.start]
            self._tasks.start(view.mirror.aclose(), name="end of a line's watch")

    async def aclose(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        for view in tuple(self._views.values()):
            view.close()
        await asyncio.gather(*(view.mirror.aclose() for view in self._views.values()))
        self._views.clear()
        await self.leases.aclose()
        await self._tasks.aclose()


@functools.lru_cache(maxsize=1024)
def _head(start: bytes, limit: int) -> tuple[Query]:
    """To read with a commit: the first of a line."""
    return (Query(prefix(start), limit=limit, order="created"),)


class LineView:
    """A line that is followed, and who of this process stands in it."""

    def __init__(self, queue: Queue, start: bytes) -> None:
        self.start = start
        self.line = Line(start)
        self.closed = False
        self.woken = 0
        """How often a contender was told that its turn has come."""
        self._queue = queue
        self._ours: dict[bytes, Place] = {}
        self._waiting: SortedDict[Mark, Place] = SortedDict()
        self._unseen: set[Place] = set()
        self._subscribers: list[Callable[[], None]] = []
        self._lingering: asyncio.TimerHandle | None = None
        self.mirror: Mirror[bytes, Entry] = Mirror(
            StandingFeed(queue.store, prefix(start)), wait=False, quiet=True
        )
        self.mirror.subscribe(self._hear)
        self.mirror.start()

    @property
    def crowded(self) -> bool:
        """Whether a newcomer will have to wait, and need not ask the store."""
        return self.mirror.error is None and len(self.line) >= _CROWD

    def add(self, place: Place) -> None:
        """Tell a place when its turn comes, and when it is gone."""
        self._stay()
        self._ours[place.key] = place
        if not place.admitted:
            self._waiting[place.mark] = place
        self._unseen.add(place)
        self._look()

    def forget(self, place: Place) -> None:
        if self._ours.get(place.key) is place:
            del self._ours[place.key]
        self._waiting.pop(place.mark, None)
        self._unseen.discard(place)
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
            self._lingering = loop.call_later(LINGER, self._queue.end, self)

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
                gone = self.line.remove(change.key)
            else:
                gone = self.line.put(change.after)
            if gone is not None and (place := self._ours.get(gone[1])) and place.mark == gone:
                self._lose(place)
        self._look()
        for callback in tuple(self._subscribers):
            callback()

    def _look(self) -> None:
        """Whose turn has come?"""
        if self._unseen:
            for place in tuple(self._unseen):
                if place.mark in self.line:
                    self._unseen.discard(place)
                elif self.mirror.mark >= place.token:
                    self._lose(place)
        while self._waiting:
            mark, place = self._waiting.peekitem(0)
            if mark not in self.line or not place.rule.admits(self.line, mark):
                return
            del self._waiting[mark]
            self.woken += 1
            place.admit()

    def _lose(self, place: Place) -> None:
        self.forget(place)
        place.lose("its key was deleted")


class StandingFeed(RangeFeed):
    """A range whose watch stands before it is read, and so tells of changes at once."""

    def __init__(self, store: Store, range: Range) -> None:
        super().__init__(store, range)
        self._watch: Watch | None = None

    async def snapshot(self) -> tuple[dict[bytes, Entry], int]:
        watch = await self._store.watch(self._range).__aenter__()
        try:
            found = await super().snapshot()
        except BaseException:
            await watch.__aexit__(None, None, None)
            raise
        self._watch = watch
        return found

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[bytes, Entry], *, known: float
    ) -> AsyncIterator[Steps[bytes, Entry]]:
        watch, self._watch = self._watch, None
        if watch is None:  # it broke: go on from where it was
            async with super().follow(mark, held, known=known) as steps:
                yield steps
            return
        async with _leaving(watch):
            yield _StandingSteps(watch, mark)


@asynccontextmanager
async def _leaving(watch: Watch) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await watch.__aexit__(None, None, None)


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
