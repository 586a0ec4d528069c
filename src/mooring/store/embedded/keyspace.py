"""All keys with their versions since the last compaction, and the changes of one revision."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter

from sortedcontainers import SortedList

from mooring.store.contract import Batch, Entry, Event, Range
from mooring.store.embedded.leases import LeaseTable, Undo

_AROUND = 320
"""What a version costs in memory beside its key and its value, about."""


def size(entry: Entry) -> int:
    """The bytes that a version takes."""
    return len(entry.key) + len(entry.value) + _AROUND


def left_behind(replaced: Entry | None, entry: Entry) -> int:
    """The bytes that a change makes old: what it replaced, and itself where it is a tombstone."""
    before = size(replaced) if replaced is not None and replaced.version else 0
    return before if entry.version else before + size(entry)


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


class RevisionHistory:
    """Every batch after `floor`, without gaps.

    A batch *leaves behind* the versions that it replaces or deletes, and its tombstones: what can
    be dropped once its revision is compacted.
    """

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self._batches: list[Batch] = []
        self._left: list[int] = []  # bytes that were left behind up to each batch, since ever
        self._left_before = 0  # …up to the floor
        self._total = 0  # …up to now
        self._done = 0  # events of the first batch that `take_oldest` has given out

    def append(self, batch: Batch, left: int) -> None:
        """The next batch, and the bytes that it leaves behind."""
        self._batches.append(batch)
        self._total += left
        self._left.append(self._total)

    def pop(self) -> None:
        """Take back the newest batch."""
        self._batches.pop()
        self._left.pop()
        self._total = self._left[-1] if self._left else self._left_before

    def since(self, revision: int, upto: int | None = None) -> list[Batch]:
        """The batches after a revision, up to another one or to the end."""
        end = None if upto is None else upto - self.floor
        return self._batches[revision - self.floor : end]

    def left_since(self, revision: int) -> int:
        """The bytes that the batches after a revision have left behind."""
        position = revision - self.floor
        return self._total - (self._left[position - 1] if position else self._left_before)

    def lightened(self, most: int) -> int:
        """The lowest revision since which no more than `most` bytes were left behind."""
        if self._total - self._left_before <= most:
            return self.floor
        return self.floor + 1 + bisect_left(self._left, self._total - most)

    def take_oldest(self, upto: int, events: int, left: int) -> tuple[int, Sequence[Event]]:
        """Some of the oldest changes up to a revision, to be forgotten: at most about `events`,
        which left behind at most about `left` bytes; and the revision up to which they are all.

        Whole batches are dropped from here; one of very many changes is given out in parts.
        """
        if self.floor >= upto:
            return upto, ()
        first = self._batches[0]
        rest = len(first.events) - self._done
        if rest > events:
            part = first.events[self._done : self._done + events]
            self._done += events
            return first.revision, part
        most = bisect_right(self._left, self._left_before + left, hi=upto - self.floor)
        count, taken = 1, list(first.events[self._done :])
        for batch in islice(self._batches, 1, most):
            if len(taken) + len(batch.events) > events:
                break
            taken += batch.events
            count += 1
        self._drop(count)
        return self.floor, taken

    def _drop(self, count: int) -> None:
        self._left_before = self._left[count - 1]
        del self._batches[:count], self._left[:count]
        self.floor += count
        self._done = 0


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
