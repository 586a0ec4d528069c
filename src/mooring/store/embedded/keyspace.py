"""All keys with their versions since the last compaction, and the changes of one revision."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter

from sortedcontainers import SortedList

from mooring.store.contract import Entry, Event, Range
from mooring.store.embedded.history import left_behind, size
from mooring.store.embedded.leases import LeaseTable, Undo

_modified = attrgetter("modified")


class VersionedKeyspace:
    """A deletion is kept as a tombstone (an entry with version 0) until it is compacted."""

    def __init__(self) -> None:
        self._versions: dict[bytes, list[Entry]] = {}
        self._order: SortedList[bytes] = SortedList()
        self._dead: SortedList[bytes] = SortedList()  # names whose newest version is a tombstone
        self.size = 0
        """The bytes that all versions take."""

    def get(self, name: bytes) -> Entry | None:
        """The key's present entry."""
        versions = self._versions.get(name)
        if versions is None or not versions[-1].version:
            return None
        return versions[-1]

    def present(self, range: Range) -> Iterable[Entry]:
        """The entries of a range, by key."""
        if range.end == range.start + b"\0":
            entry = self.get(range.start)
            return () if entry is None else (entry,)
        newest = (self._versions[name][-1] for name in self._names(range))
        return (entry for entry in newest if entry.version)

    def past(self, range: Range, revision: int) -> Iterator[Entry]:
        """The entries of a range as they were at a revision that is not compacted, by key."""
        for name in self._names(range):
            versions = self._versions[name]
            position = bisect_right(versions, revision, key=_modified)
            if position and versions[position - 1].version:
                yield versions[position - 1]

    def count(self, range: Range) -> int:
        """How many entries a range has at present, without looking at them."""
        return _within(self._order, range) - _within(self._dead, range)

    def lived(self, name: bytes, revision: int) -> bool:
        """Whether a key existed at a revision that is not compacted."""
        return any(True for _ in self.past(Range(name, name + b"\0"), revision))

    def put(self, name: bytes, value: bytes, lease: int, revision: int) -> Entry:
        versions = self._versions.get(name)
        if versions is None:
            entry = Entry(name, value, revision, revision, 1, lease)
            self._versions[name] = [entry]
            self._order.add(name)
            self.size += size(entry)
            return entry
        last = versions[-1]
        if not last.version:
            self._dead.remove(name)
        created = last.created if last.version else revision
        entry = Entry(name, value, created, revision, last.version + 1, lease)
        versions.append(entry)
        self.size += size(entry)
        return entry

    def delete(self, name: bytes, revision: int) -> Entry:
        """Delete a key that exists at present; its tombstone."""
        gone = tombstone(name, revision)
        self._versions[name].append(gone)
        self.size += size(gone)
        self._dead.add(name)
        return gone

    def undo(self, name: bytes) -> None:
        """Take back the newest version of a key."""
        versions = self._versions[name]
        undone = versions.pop()
        self.size -= size(undone)
        if not undone.version:
            self._dead.remove(name)
        if not versions:
            self._drop(name)
        elif not versions[-1].version:
            self._dead.add(name)

    def forget(self, name: bytes, revision: int) -> list[Entry]:
        """Drop the versions of a key that cannot be seen at `revision` or later; which they are."""
        versions = self._versions.get(name)
        if versions is None:
            return []
        count = bisect_right(versions, revision, key=_modified)
        if count and versions[count - 1].version:
            count -= 1  # what it was at that revision can still be seen
        gone = versions[:count]
        del versions[:count]
        self.size -= sum(map(size, gone))
        if not versions:
            self._drop(name)
        return gone

    def load(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Entry | None]]:
        """Take up versions as they were, in the order of their revisions: each, and the one that
        it replaced. They can be read once all are through."""
        versions = self._versions
        for entry in entries:
            self.size += size(entry)
            if (before := versions.get(entry.key)) is None:
                versions[entry.key] = [entry]
                yield entry, None
            else:
                replaced = before[-1]
                before.append(entry)
                yield entry, replaced
        self._order = SortedList(self._versions)
        self._dead = SortedList(name for name, v in self._versions.items() if not v[-1].version)

    def _drop(self, name: bytes) -> None:
        del self._versions[name]
        self._order.remove(name)
        self._dead.discard(name)

    def _names(self, range: Range) -> Iterator[bytes]:
        if not range.end:
            return iter(self._order.irange(range.start))
        return iter(self._order.irange(range.start, range.end, (True, False)))


def _within(names: SortedList[bytes], range: Range) -> int:
    end = names.bisect_left(range.end) if range.end else len(names)
    return max(0, int(end - names.bisect_left(range.start)))


def tombstone(name: bytes, revision: int) -> Entry:
    return Entry(name, b"", 0, revision, 0)


class Transaction:
    """From `Engine.begin` to `Engine.end`, which makes it the newest revision."""

    def __init__(
        self, keys: VersionedKeyspace, leases: LeaseTable, undo: list[Undo], revision: int
    ) -> None:
        self._keys, self._leases, self._undo = keys, leases, undo
        self.revision = revision
        self.events: list[Event] = []
        self.left = 0
        """The bytes that are left behind by its changes."""

    def put(self, name: bytes, value: bytes, lease: int = 0) -> Entry | None:
        """Write a key; what it was before."""
        keys, leases = self._keys, self._leases
        before = keys.get(name)
        old = before.lease if before is not None else 0
        if old != lease:
            leases.detach(name, old)
            leases.attach(name, lease)
        entry = keys.put(name, value, lease, self.revision)

        def undo() -> None:
            keys.undo(name)
            leases.detach(name, lease)
            leases.attach(name, old)

        self._undo.append(undo)
        self.events.append(Event(name, entry))
        if before is not None:
            self.left += size(before)
        return before

    def delete(self, range: Range) -> list[Entry]:
        """Delete a range; what it held."""
        doomed = list(self._keys.present(range))
        for entry in doomed:
            self.delete_key(entry.key)
        return doomed

    def delete_key(self, name: bytes) -> None:
        """Delete a key that exists."""
        keys, leases = self._keys, self._leases
        before = keys.get(name)
        lease = before.lease if before is not None else 0
        leases.detach(name, lease)
        gone = keys.delete(name, self.revision)

        def undo() -> None:
            keys.undo(name)
            leases.attach(name, lease)

        self._undo.append(undo)
        self.events.append(Event(name, None))
        self.left += left_behind(before, gone)
