"""Watchers, indexed by key: a change costs no more than the watchers that it concerns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from sortedcontainers import SortedDict

from mooring.store.contract import Batch, Event, Range

PENDING = 1000
"""The maximum number of batches that are pending for a watcher, before it has to read them from the
history instead, …"""
PENDING_BYTES = 64 * 1024 * 1024
"""…and the maximum bytes of their values."""


@dataclass(slots=True, eq=False)
class Watcher:
    """One watch, which holds at most `PENDING` batches and never slows others down. While live, it
    receives each batch; while lagging, it reads the history."""

    range: Range
    position: int
    wake: Callable[[], None]
    lagging: bool
    pending: deque[Batch] = field(default_factory=deque)
    size: int = 0
    """Bytes of the pending values."""

    def deliver(self, batch: Batch, size: int) -> None:
        """Add a batch, with the bytes of its values."""
        if batch.revision <= self.position:
            return  # it watches from a later revision
        if not self.lagging:
            self.pending.append(batch)
            self.size += size
            if len(self.pending) > PENDING or self.size > PENDING_BYTES:
                self.position = self.pending[0].revision - 1
                self.take()
                self.lagging = True
        self.wake()

    def take(self) -> list[Batch]:
        batches = list(self.pending)
        self.pending.clear()
        self.size = 0
        return batches


class Watchers:
    """An index from keys to watchers: the key space is cut at the bounds of all watched ranges.

    All keys between two cuts have the same watchers, so a lookup is one bisection. Watchers of
    equal ranges share one entry, which keeps wide ranges (many consoles on `/`) cheap.
    """

    def __init__(self) -> None:
        self._groups: dict[Range, dict[Watcher, None]] = {}
        self._cuts: SortedDict[bytes, set[Range]] = SortedDict({b"": set()})

    def add(self, watcher: Watcher) -> None:
        group = self._groups.get(watcher.range)
        if group is None:
            group = self._groups[watcher.range] = {}
            for cut in self._cut(watcher.range):
                self._cuts[cut].add(watcher.range)
        group[watcher] = None

    def remove(self, watcher: Watcher) -> None:
        group = self._groups.get(watcher.range)
        if group is None or watcher not in group:
            return
        del group[watcher]
        if not group:
            del self._groups[watcher.range]
            for cut in self._cut(watcher.range):
                self._cuts[cut].discard(watcher.range)
            self._join(watcher.range.start)
            self._join(watcher.range.end)

    def deliver(self, batch: Batch) -> None:
        """Deliver to each watcher the part of a batch that concerns it."""
        if not self._groups:
            return
        if len(batch.events) == 1:
            size = _size(batch.events)
            for range in self._covering(batch.events[0].key):
                for watcher in self._groups[range]:
                    watcher.deliver(batch, size)
            return
        parts: dict[Range, list[Event]] = {}
        for event in batch.events:
            for range in self._covering(event.key):
                parts.setdefault(range, []).append(event)
        for range, events in parts.items():
            part = batch if len(events) == len(batch.events) else Batch(batch.revision, (*events,))
            size = _size(events)
            for watcher in self._groups[range]:
                watcher.deliver(part, size)

    def _covering(self, name: bytes) -> set[Range]:
        covering: set[Range] = self._cuts.peekitem(self._cuts.bisect_right(name) - 1)[1]
        return covering

    def _cut(self, range: Range) -> list[bytes]:
        """The cuts within a range, after adding one at each of its bounds."""
        for bound in (range.start, range.end):
            if bound and bound not in self._cuts:
                self._cuts[bound] = set(self._covering(bound))
        return list(self._cuts.irange(range.start, range.end or None, (True, False)))

    def _join(self, bound: bytes) -> None:
        """Remove a cut that no longer separates anything."""
        if bound and bound in self._cuts:
            position = self._cuts.index(bound)
            if self._cuts.peekitem(position - 1)[1] == self._cuts[bound]:
                del self._cuts[bound]


def _size(events: Iterable[Event]) -> int:
    return sum(len(event.entry.value) for event in events if event.entry is not None)


def part_of(batches: Iterable[Batch], range: Range, limit: int) -> list[Batch]:
    """The parts of `batches` within a range, at most `limit` of them."""
    parts = (
        Batch(batch.revision, events)
        for batch in batches
        if (events := tuple(event for event in batch.events if event.key in range))
    )
    return list(islice(parts, limit))
