"""A mirror: a live copy of remote data, which stays correct through faults.

This is the only follow loop in the code. It is generic over a *feed*, such as a range of a store
(`RangeFeed`). It reads a snapshot, follows from there, and applies whole steps. After a break it
resumes if possible; otherwise (the history was compacted, or the store was restored from a backup)
it reads again and reports the difference, removals first. No failure removes data: the mirror keeps
the last state and is `stale`.
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
from mooring.messages import Message, message, verbatim
from mooring.store.contract import Entry, Range, Store, Watch
from mooring.tasks import Backoff, Tasks

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

STALE_AFTER = 4.0
"""Seconds without contact after which a mirror is stale."""

AFRESH = 1800.0
"""Seconds after which a mirror reads everything again, even without a known fault."""

_MAX_PENDING = 1000  # updates for one reader, above which they are merged into one…
_MAX_PENDING_BYTES = 16 * 1024 * 1024  # …or bytes of values in them


class Step(msgspec.Struct, Generic[K, V], frozen=True):
    """Changes that belong together, and the mark to resume from. None: the item was removed."""

    mark: int
    changes: Sequence[tuple[K, V | None]]
    heard: bool = True
    """Whether the source sent it. Changes caused by the passage of time are not sent."""


class Steps(Protocol[K, V]):
    """The steps of a feed while it is followed."""

    @property
    def heard(self) -> float:
        """The time of the last contact with the source, on the monotonic clock."""

    def __aiter__(self) -> AsyncIterator[Step[K, V]]: ...


class Feed(Protocol[K, V]):
    """A source that can be read as a whole and then followed."""

    name: Message

    async def snapshot(self) -> tuple[dict[K, V], int]:
        """All items, and the mark to follow from."""

    def follow(
        self, mark: int, held: Mapping[K, V], *, known: float
    ) -> AbstractAsyncContextManager[Steps[K, V]]:
        """The steps after a mark, at which the items were those in `held`, as known at the time
        `known` on the monotonic clock. Raises `CannotResume` if these steps are not available."""


class Change(msgspec.Struct, Generic[K, V], frozen=True, gc=False):
    """A change of one item. `before` is None if it was added, `after` if it was removed."""

    key: K
    before: V | None
    after: V | None


class Update(msgspec.Struct, Generic[K, V], frozen=True):
    """Changes that were applied in one step. `resync`: they result from reading again."""

    mark: int
    changes: tuple[Change[K, V], ...]
    resync: bool = False


def difference(before: Mapping[K, V], after: Mapping[K, V]) -> list[tuple[K, V | None]]:
    """The changes from one state to the other, removals first."""
    removed: list[tuple[K, V | None]] = [(key, None) for key in before if key not in after]
    return removed + [(key, new) for key, new in after.items() if before.get(key) != new]


class Mirror(Generic[K, V]):
    """A live copy of a feed, such as a range of keys. Use it as an async context manager.

    Entering waits for the first snapshot (unless `wait=False`) and raises if that fails.

    `quiet`: do not log breaks, because the owner does. `returned` is called when the mirror follows
    again after a break. Every `afresh` seconds it reads everything again, to repair what no known
    fault explains.
    """

    def __init__(
        self,
        feed: Feed[K, V],
        *,
        wait: bool = True,
        quiet: bool = False,
        returned: Callable[[], None] = lambda: None,
        afresh: float = AFRESH,
    ) -> None:
        self.mark: int = 0
        """The mark of the last step that was applied; 0 before the first snapshot."""
        self.resyncs: int = 0
        """How often the mirror read everything again."""
        self.error: StoreError | None = None
        """Why the mirror does not follow now; None if it does."""
        self.loaded: bool = False
        """Whether there has been a snapshot."""
        self.closed: bool = False
        """Whether the mirror has ended, because it or its store is closed."""
        self._feed = feed
        self._level = logging.DEBUG if quiet else logging.WARNING
        self._wait, self._afresh = wait, afresh
        self._items: dict[K, V] = {}
        self._steps: Steps[K, V] | None = None
        self._heard = self._known = 0.0
        self._started = self._followed = False
        self._unreadable = False
        """Whether the source responds, but with an error."""
        self._returned = returned
        self._state_changed = asyncio.Event()
        self._readers: set[_UpdateReader[K, V]] = set()
        self._callbacks: dict[object, Callable[[Update[K, V]], None]] = {}
        self._last_crash = ""
        """The unexpected error that was logged last."""
        self._tasks = Tasks()

    @property
    def items(self) -> Mapping[K, V]:
        """The current state: a live, read-only view."""
        return MappingProxyType(self._items)

    def stand_in(self, items: Mapping[K, V]) -> None:
        """Use these items until there is a snapshot, whose update is the difference to them. They
        replace the current items, and the mirror stays `stale`. Only before the first snapshot."""
        assert not self.loaded
        self._items.clear()
        self._items.update(items)

    async def ready(self, *, or_failing: bool = False) -> None:
        """Wait for the first snapshot, or with `or_failing` for a failure. Raises `Closed`."""
        while not (self.loaded or (or_failing and self.error is not None)):
            self._check_open()
            self._state_changed.clear()
            await self._state_changed.wait()

    @property
    def age(self) -> float:
        """Seconds since the last contact with the source; infinite before the first snapshot."""
        if not self.loaded:
            return float("inf")
        steps = self._steps  # read once, since this may run in another thread
        heard = max(self._heard, steps.heard) if steps else self._heard
        return max(time.monotonic() - heard, 0.0)

    @property
    def stale(self) -> bool:
        """Whether there was no contact for too long, or the source responds with an error."""
        return self._unreadable or self.age > STALE_AFTER

    def subscribe(self, callback: Callable[[Update[K, V]], None]) -> Callable[[], None]:
        """Call `callback` after each update was applied. It must not block. The returned function
        unsubscribes it, and is idempotent."""
        subscription = object()
        self._callbacks[subscription] = callback

        def end() -> None:
            self._callbacks.pop(subscription, None)

        return end

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[Update[K, V]]]:
        """Updates from now on, until the mirror or its store is closed. A reader that does not
        keep up receives several updates merged into one."""
        reader = _UpdateReader[K, V]()
        self._readers.add(reader)
        if self.closed:
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
        """Start to follow, without waiting, unless it was started. Raises `Closed`."""
        self._check_open()
        if self._started:
            return
        self._started = True
        self._tasks.start(self._run(), name=f"mirror of {self._feed.name}")

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(message("mirror_closed", name=self._feed.name))

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop following, and end the iterators of `changes`."""
        self._end()
        await self._tasks.aclose()

    def _end(self) -> None:
        self.closed = True
        self._state_changed.set()
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
                    self._on_following()
                    await self._follow(steps, backoff)
            except CannotResume as error:
                log.info("%s: reading everything again: %s", self._feed.name, error)
                self.mark = 0
            except Closed:
                return self._end()
            except StoreError as error:
                self._on_break(error)
            except Exception as error:  # noqa: BLE001 - no error may stop the mirror
                self._on_crash(error)
                self.mark = 0
            finally:
                if self._steps is not None:
                    self._heard = max(self._heard, self._steps.heard)
                    self._steps = None
                    self._known = 0.0
            await asyncio.sleep(backoff.next())

    async def _follow(self, steps: Steps[K, V], backoff: Backoff) -> None:
        """Apply steps until the feed breaks, or until it is time to read everything again."""
        due = asyncio.timeout(self._afresh * random.uniform(0.8, 1.0))  # not all mirrors at once
        try:
            async with due:
                async for step in steps:
                    self._apply(step)
                    backoff.reset()
                    self._last_crash = ""
        except TimeoutError:
            if not due.expired():
                raise
            self.mark, self._followed = 0, False  # this is not a break

    def _on_following(self) -> None:
        self._heard = time.monotonic()
        self._unreadable = False
        if self.error is not None:
            self.error = None
            log.log(self._level, "%s: followed again", self._feed.name)
        if self._followed:
            self._returned()
        self._followed = True

    def _on_break(self, error: StoreError) -> None:
        if self.error is None:
            log.log(
                self._level,
                "%s: no longer followed, the last state is kept: %s",
                self._feed.name,
                error,
            )
        self.error, self._followed = error, self.loaded
        self._unreadable = not isinstance(error, Unavailable | OutcomeUnknown)
        self._state_changed.set()

    def _on_crash(self, error: Exception) -> None:
        if self._last_crash != describe(error):
            self._last_crash = describe(error)
            log.exception(
                "%s: failed; keeping the last state and reading everything again", self._feed.name
            )
        self.error = StoreError(message("not_followed", name=self._feed.name, problem=error))
        self._followed = self.loaded
        self._state_changed.set()

    async def _load(self) -> None:
        """Read everything and report the difference to the previous state, removals first."""
        began = time.monotonic()
        items, mark = await self._feed.snapshot()
        changes = [Change(k, self._items.get(k), v) for k, v in difference(self._items, items)]
        first = not self.loaded
        self._items.clear()  # in place, since `items` returned a view of it
        self._items.update(items)
        self.mark, self._heard = mark, began
        self._known = time.monotonic()
        self.loaded = True
        self._state_changed.set()
        if not first:
            self.resyncs += 1
        if changes or first:
            self._notify(Update(mark, tuple(changes), resync=True))

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
            self._notify(Update(step.mark, tuple(changes)))

    def _notify(self, update: Update[K, V]) -> None:
        for reader in self._readers:
            reader.put(update)
        for callback in tuple(self._callbacks.values()):
            try:
                callback(update)
            except Exception:
                log.exception("%s: a subscriber failed", self._feed.name)


class _UpdateReader(AsyncIterator[Update[K, V]]):
    def __init__(self) -> None:
        self._updates: deque[Update[K, V]] = deque()
        self._bytes, self._most = 0, _MAX_PENDING_BYTES
        self._more = asyncio.Event()
        self._ended = False

    def end(self) -> None:
        self._ended = True
        self._more.set()

    def put(self, update: Update[K, V]) -> None:
        self._updates.append(update)
        self._bytes += _size(update)
        if len(self._updates) > _MAX_PENDING or self._bytes > self._most:
            merged = merge(self._updates)
            self._updates, self._bytes = deque([merged]), _size(merged)
            self._most = max(
                _MAX_PENDING_BYTES, 2 * self._bytes
            )  # so that it does not merge at each further update
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
    """The bytes of the values in an update of a range. Other items are small."""
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


_MIN_RESTORE_TIME = 0.1  # seconds; stopping, restoring and starting a store takes at least 0.6 s


class RangeFeed:
    """A range of a store, by key. The mark is the store's revision.

    Once it watches again after a break, it compares its items with the store's at that revision. A
    store restored from a backup has either not reached that revision, or reached it with other
    content. Without the comparison, the watch would miss changes.
    """

    def __init__(self, store: Store, range: Range) -> None:
        self.name = verbatim(f"{store.url} {range.start.decode(errors='replace')}")
        self._store, self._range = store, range

    async def snapshot(self) -> tuple[dict[bytes, Entry], int]:
        snapshot = await self._store.read(self._range)
        return {entry.key: entry for entry in snapshot.entries}, snapshot.revision

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[bytes, Entry], *, known: float
    ) -> AsyncIterator[Steps[bytes, Entry]]:
        async with self._store.watch(self._range, after=mark) as watch:
            if time.monotonic() - known > _MIN_RESTORE_TIME:
                snapshot = await self._store.read(self._range, at=mark)
                if {entry.key: entry for entry in snapshot.entries} != held:
                    raise FutureRevision(mark)
            yield RangeSteps(watch)


class RangeSteps(AsyncIterator[Step[bytes, Entry]]):
    """The steps of a watch, without those up to the revision `after`."""

    def __init__(self, watch: Watch, *, after: int = 0) -> None:
        self._watch, self._after = watch, after

    @property
    def heard(self) -> float:
        return self._watch.heard

    async def __anext__(self) -> Step[bytes, Entry]:
        while (batch := await anext(self._watch)).revision <= self._after:
            pass
        return Step(batch.revision, [(event.key, event.entry) for event in batch.events])
