"""A mirror: a live copy of something remote, kept equal to it through every fault.

This is the only follow loop in the code. It is generic over a *feed*; a range of a store is one
(`RangeFeed`). It takes a snapshot, follows from there, and applies whole steps. Where a break can
be resumed it resumes; where it cannot (the history was compacted, or the store was restored from
a backup) it reads again and tells the difference, removals first. It never forgets what it has
because of a failure: it keeps the last state and says that it is `stale`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from mooring.errors import (
    CannotResume,
    Closed,
    FutureRevision,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from mooring.formatting import describe
from mooring.store.contract import Entry, Range, Store, Watch
from mooring.tasks import Backoff, Tasks

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

STALE_AFTER = 4.0
"""Seconds of silence after which a mirror calls itself stale."""

AFRESH = 1800.0
"""Seconds after which a mirror reads everything anew, whether or not anything seems wrong."""

_PENDING = 1000  # updates that wait for one reader before they are merged into one, or…
_PENDING_BYTES = 16 * 1024 * 1024  # …bytes of values in them


class Step(msgspec.Struct, Generic[K, V], frozen=True):
    """Changes that belong together, and the mark to resume after them. None: it is gone."""

    mark: int
    changes: Sequence[tuple[K, V | None]]
    heard: bool = True
    """Whether the other side sent it. A change that only time causes was not sent."""


class Steps(Protocol[K, V]):
    """What a feed gives while it is followed."""

    @property
    def heard(self) -> float:
        """When the other side was last heard, on the monotonic clock."""

    def __aiter__(self) -> AsyncIterator[Step[K, V]]: ...


class Feed(Protocol[K, V]):
    """Something that can be read whole and then followed."""

    name: str
    """For people: what is mirrored."""

    async def snapshot(self) -> tuple[dict[K, V], int]:
        """Everything, and the mark to follow from."""

    def follow(
        self, mark: int, held: Mapping[K, V], *, known: float
    ) -> AbstractAsyncContextManager[Steps[K, V]]:
        """What comes after a mark, at which there was what is `held`, as was known `known` on the
        monotonic clock.

        Raises `CannotResume` where that cannot be told.
        """


class Change(msgspec.Struct, Generic[K, V], frozen=True, gc=False):
    """One item changed. `before` is None for a new one, `after` for one that is gone."""

    key: K
    before: V | None
    after: V | None


class Update(msgspec.Struct, Generic[K, V], frozen=True):
    """Changes that were applied in one step. `resync`: found by reading again, removals first."""

    mark: int
    changes: tuple[Change[K, V], ...]
    resync: bool = False


class Mirror(Generic[K, V]):
    """Entering waits for the first snapshot (unless `wait=False`) and raises if that fails.

    `quiet`: its owner tells of breaks, and it does not. `returned` is called when it follows again
    after a break. Every `afresh` seconds everything is read anew, in case that a change was missed
    which nobody knows of.
    """

    def __init__(
        self,
        feed: Feed[K, V],
        *,
        wait: bool = True,
        stale_after: float = STALE_AFTER,
        quiet: bool = False,
        returned: Callable[[], None] = lambda: None,
        afresh: float = AFRESH,
    ) -> None:
        self.mark = 0
        """The mark of the newest step that was applied; 0 before the first snapshot."""
        self.resyncs = 0
        """How often it read again."""
        self.error: StoreError | None = None
        """Why it does not follow at present."""
        self._feed = feed
        self._level = logging.DEBUG if quiet else logging.WARNING
        self._wait, self._stale_after, self._afresh = wait, stale_after, afresh
        self._items: dict[K, V] = {}
        self._steps: Steps[K, V] | None = None
        self._heard = self._known = 0.0
        self._loaded = self._started = self._followed = False
        self._unreadable = False
        """The other side answers, but the answer is an error."""
        self._returned = returned
        self._turn = asyncio.Event()
        self._readers: set[_Reader[K, V]] = set()
        self._callbacks: dict[object, Callable[[Update[K, V]], None]] = {}
        self._closed = False
        self._mistake = ""
        """What went wrong that should not, and was told."""
        self._tasks = Tasks()

    @property
    def items(self) -> Mapping[K, V]:
        """The present state, live and read-only."""
        return MappingProxyType(self._items)

    @property
    def loaded(self) -> bool:
        """Whether there ever was a snapshot."""
        return self._loaded

    @property
    def closed(self) -> bool:
        """Whether it will not follow any more: it or its store is closed."""
        return self._closed

    def stand_in(self, items: Mapping[K, V]) -> None:
        """What was known before, until there is a snapshot: that tells the difference to it. It is
        not what is there, and the mirror stays `stale`. It replaces what stood in before. Only
        before the first snapshot."""
        assert not self._loaded
        self._items.clear()
        self._items.update(items)

    async def ready(self, *, or_failing: bool = False) -> None:
        """Wait for the first snapshot, or until it is clear that there is none for now. Raises
        `Closed` where there will be none any more."""
        while not (self._loaded or (or_failing and self.error is not None)):
            self._check_open()
            self._turn.clear()
            await self._turn.wait()

    @property
    def age(self) -> float:
        """Seconds since the other side was last heard; infinite before the first snapshot."""
        if not self.loaded:
            return float("inf")
        steps = self._steps  # once: this may be another thread
        heard = max(self._heard, steps.heard) if steps else self._heard
        return max(time.monotonic() - heard, 0.0)

    @property
    def stale(self) -> bool:
        """Whether the state may be old: nothing was heard for too long, or the other side answers
        that it cannot be read."""
        return self._unreadable or self.age > self._stale_after

    def subscribe(self, callback: Callable[[Update[K, V]], None]) -> Callable[[], None]:
        """Call back at each update, after it was applied. It must not block. What is returned
        ends it, and does nothing more when it is called again."""
        subscription = object()
        self._callbacks[subscription] = callback

        def end() -> None:
            self._callbacks.pop(subscription, None)

        return end

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[Update[K, V]]]:
        """Updates from now on, until the mirror or its store is closed. A reader that does not
        keep up gets several merged into one."""
        reader = _Reader[K, V]()
        self._readers.add(reader)
        if self._closed:
            reader.end()
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    async def __aenter__(self) -> Self:
        if self._wait:
            await self._load()
        self.start()
        return self

    def start(self) -> None:
        """Follow, without waiting for anything. Nothing happens where it does already. Raises
        `Closed` where it will not any more."""
        self._check_open()
        if self._started:
            return
        self._started = True
        self._tasks.start(self._run(), name=f"mirror of {self._feed.name}")

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the mirror of {self._feed.name} is closed: make another")

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop following. Those who read its changes come to an end."""
        self._end()
        await self._tasks.aclose()

    def _end(self) -> None:
        self._closed = True
        self._turn.set()
        for reader in self._readers:
            reader.end()

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                if not self.mark:
                    await self._load()
                following = self._feed.follow(self.mark, self._items, known=self._known)
                async with following as steps:
                    self._steps = steps
                    self._follows()
                    await self._follow(steps, backoff)
            except CannotResume as error:
                log.info("%s: reads again: %s", self._feed.name, error)
                self.mark = 0
            except Closed:
                return self._end()
            except StoreError as error:
                self._breaks(error)
            except Exception as error:  # noqa: BLE001 - no mistake may leave a copy to stand still
                self._stumbles(error)
                self.mark = 0
            finally:
                if self._steps is not None:
                    self._heard = max(self._heard, self._steps.heard)
                    self._steps = None
                    self._known = 0.0
            await asyncio.sleep(backoff.next())

    async def _follow(self, steps: Steps[K, V], backoff: Backoff) -> None:
        """Until it breaks, or until it is time to read everything anew."""
        due = asyncio.timeout(self._afresh * random.uniform(0.8, 1.0))  # not all at once
        try:
            async with due:
                async for step in steps:
                    self._apply(step)
                    backoff.reset()
                    self._mistake = ""
        except TimeoutError:
            if not due.expired():
                raise
            self.mark, self._followed = 0, False  # nothing broke

    def _follows(self) -> None:
        self._heard = time.monotonic()
        self._unreadable = False
        if self.error is not None:
            self.error = None
            log.log(self._level, "%s: followed again", self._feed.name)
        if self._followed:
            self._returned()
        self._followed = True

    def _breaks(self, error: StoreError) -> None:
        if self.error is None:
            log.log(
                self._level,
                "%s: no longer followed, the last state is kept: %s",
                self._feed.name,
                error,
            )
        self.error, self._followed = error, self._loaded
        self._unreadable = not isinstance(error, Unavailable | OutcomeUnknown)
        self._turn.set()

    def _stumbles(self, error: Exception) -> None:
        if self._mistake != describe(error):
            self._mistake = describe(error)
            log.exception("%s: failed, reads again; the last state is kept", self._feed.name)
        self.error = StoreError(f"{self._feed.name} cannot be followed: {describe(error)}")
        self._followed = self._loaded
        self._turn.set()

    async def _load(self) -> None:
        """Read everything and tell the difference to what was there, removals first."""
        asked = time.monotonic()
        items, mark = await self._feed.snapshot()
        gone = [Change(k, v, None) for k, v in self._items.items() if k not in items]
        news = [
            Change(k, before, v) for k, v in items.items() if (before := self._items.get(k)) != v
        ]
        first = not self.loaded
        self._items.clear()  # in place: somebody may hold the view of it
        self._items.update(items)
        self.mark, self._heard = mark, asked
        self._known = time.monotonic()
        self._loaded = True
        self._turn.set()
        if not first:
            self.resyncs += 1
        if gone or news or first:
            self._tell(Update(mark, (*gone, *news), resync=True))

    def _apply(self, step: Step[K, V]) -> None:
        changes = []
        for name, after in step.changes:
            before = self._items.get(name)
            if after is None:
                self._items.pop(name, None)
            else:
                self._items[name] = after
            if before is not None or after is not None:
                changes.append(Change(name, before, after))
        self.mark = step.mark
        if step.heard:
            self._heard = time.monotonic()
        if changes:
            self._tell(Update(step.mark, tuple(changes)))

    def _tell(self, update: Update[K, V]) -> None:
        for reader in self._readers:
            reader.put(update)
        for callback in tuple(self._callbacks.values()):
            try:
                callback(update)
            except Exception:
                log.exception("%s: a subscriber failed", self._feed.name)


class _Reader(AsyncIterator[Update[K, V]]):
    """The updates that wait for one reader."""

    def __init__(self) -> None:
        self._updates: deque[Update[K, V]] = deque()
        self._bytes, self._most = 0, _PENDING_BYTES
        self._more = asyncio.Event()
        self._ended = False

    def end(self) -> None:
        self._ended = True
        self._more.set()

    def put(self, update: Update[K, V]) -> None:
        self._updates.append(update)
        self._bytes += _size(update)
        if len(self._updates) > _PENDING or self._bytes > self._most:
            merged = merge(self._updates)
            self._updates, self._bytes = deque([merged]), _size(merged)
            self._most = max(_PENDING_BYTES, 2 * self._bytes)  # not at each update from now on
        self._more.set()

    async def __anext__(self) -> Update[K, V]:
        while not self._updates:
            if self._ended:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        update = self._updates.popleft()
        self._bytes -= _size(update)
        return update


def _size(update: Update[K, V]) -> int:
    """The bytes of the values in an update of a range; other items are small."""
    return sum(
        len(item.value)
        for change in update.changes
        for item in (change.before, change.after)
        if isinstance(item, Entry)
    )


def merge(updates: Sequence[Update[K, V]]) -> Update[K, V]:
    """One update with the effect of several, removals first."""
    net: dict[K, Change[K, V]] = {}
    for update in updates:
        for change in update.changes:
            first = net.get(change.key, change)
            net[change.key] = Change(change.key, first.before, change.after)
    changes = [change for change in net.values() if change.before != change.after]
    changes.sort(key=lambda change: change.after is not None)
    return Update(updates[-1].mark, tuple(changes), any(update.resync for update in updates))


_RESTORED = 0.1  # seconds: to stop, restore and start a store took six times as long at best


class RangeFeed:
    """A range of a store, by key. The mark is the store's revision.

    Once it watches again after a break, it compares what is held with what the store has at that
    revision. A store restored from a backup has not got there yet, or
    got there by another way: without that look, a watch would wait in silence for revisions that
    mean something else, or miss those that were made anew.
    """

    def __init__(self, store: Store, range: Range) -> None:
        self.name = f"{store.url} {range.start.decode(errors='replace')}"
        self._store, self._range = store, range

    async def snapshot(self) -> tuple[dict[bytes, Entry], int]:
        found = await self._store.read(self._range)
        return {entry.key: entry for entry in found.entries}, found.revision

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[bytes, Entry], *, known: float
    ) -> AsyncIterator[Steps[bytes, Entry]]:
        async with self._store.watch(self._range, after=mark) as watch:
            if time.monotonic() - known > _RESTORED:
                there = await self._store.read(self._range, at=mark)
                if {entry.key: entry for entry in there.entries} != held:
                    raise FutureRevision(mark)
            yield _RangeSteps(watch)


class _RangeSteps(AsyncIterator[Step[bytes, Entry]]):
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    @property
    def heard(self) -> float:
        return self._watch.heard

    async def __anext__(self) -> Step[bytes, Entry]:
        batch = await anext(self._watch)
        return Step(batch.revision, [(event.key, event.entry) for event in batch.events])
