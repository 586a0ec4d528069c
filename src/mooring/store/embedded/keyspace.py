"""The keys with their versions, the history of changes, and the transaction that makes them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter

from sortedcontainers import SortedList

from mooring.store.contract import Batch, Entry, Event, Range
from mooring.store.embedded.leases import LeaseTable, Undo

_OVERHEAD = 320
"""The approximate memory of a version in addition to its key and value, in bytes."""


def size(entry: Entry) -> int:
    """The bytes of a version."""
    return len(entry.key) + len(entry.value) + _OVERHEAD


def obsolete_bytes(replaced: Entry | None, entry: Entry) -> int:
    """The bytes that a change makes obsolete: the version it replaced, and its own tombstone."""
    before = size(replaced) if replaced is not None and replaced.version else 0
    return before if entry.version else before + size(entry)


_modified = attrgetter("modified")


class VersionedKeyspace:
    """All versions since the last compaction. A deletion is an entry with version 0."""

    def __init__(self) -> None:
        self._versions: dict[bytes, list[Entry]] = {}
        self._order: SortedList[bytes] = SortedList()
        self._dead: SortedList[bytes] = SortedList()  # names whose newest version is a tombstone
        self.size = 0

    def get(self, name: bytes) -> Entry | None:
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
        """The entries of a range at a revision that is not compacted, by key."""
        for name in self._names(range):
            versions = self._versions[name]
            position = bisect_right(versions, revision, key=_modified)
            if position and versions[position - 1].version:
                yield versions[position - 1]

    def count(self, range: Range) -> int:
        """The current number of entries of a range, without visiting them."""
        return _within(self._order, range) - _within(self._dead, range)

    def existed(self, name: bytes, revision: int) -> bool:
        """Whether a key existed at a revision that is not compacted."""
        return any(True for _ in self.past(Range(name, name + b"\0"), revision))

    def put(self, name: bytes, value: bytes, lease: int, revision: int) -> Entry:
        versions = self._versions.setdefault(name, [])
        if not versions:
            self._order.add(name)
        elif not versions[-1].version:
            self._dead.remove(name)
        if versions and (last := versions[-1]).version:
            entry = Entry(name, value, last.created, revision, last.version + 1, lease)
        else:
            entry = Entry(name, value, revision, revision, 1, lease)
        versions.append(entry)
        self.size += size(entry)
        return entry

    def delete(self, name: bytes, revision: int) -> Entry:
        """Delete a key that exists. Returns its tombstone."""
        gone = tombstone(name, revision)
        self._versions[name].append(gone)
        self.size += size(gone)
        self._dead.add(name)
        return gone

    def undo(self, name: bytes) -> None:
        """Remove the newest version of a key."""
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
        """Drop and return the versions of a key that no read at `revision` or later can see."""
        versions = self._versions.get(name)
        if versions is None:
            return []
        count = bisect_right(versions, revision, key=_modified)
        if count and versions[count - 1].version:
            count -= 1  # the version at that revision is still visible
        gone = versions[:count]
        del versions[:count]
        self.size -= sum(map(size, gone))
        if not versions:
            self._drop(name)
        return gone

    def load(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Entry | None]]:
        """Load versions by revision. Yields each with the one it replaced. Readable at the end."""
        for entry in entries:
            versions = self._versions.setdefault(entry.key, [])
            replaced = versions[-1] if versions else None
            versions.append(entry)
            self.size += size(entry)
            yield entry, replaced
        self._order = SortedList(self._versions)
        self._dead = SortedList(name for name, v in self._versions.items() if not v[-1].version)

    def _drop(self, name: bytes) -> None:
        del self._versions[name]
        self._order.remove(name)
        self._dead.discard(name)

    def _names(self, range: Range) -> Iterator[bytes]:
        return iter(self._order.irange(range.start, range.end or None, (True, False)))


def _within(names: SortedList[bytes], range: Range) -> int:
    end = names.bisect_left(range.end) if range.end else len(names)
    return max(0, int(end - names.bisect_left(range.start)))


def tombstone(name: bytes, revision: int) -> Entry:
    return Entry(name, b"", 0, revision, 0)


class RevisionHistory:
    """All batches after `floor`, without gaps. A batch makes the versions obsolete that it replaces
    or deletes, and its tombstones. They can be dropped once its revision is compacted."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self._batches: list[Batch] = []
        self._obsolete: list[int] = []  # obsolete bytes up to each batch, in total
        self._obsolete_before = 0  # obsolete bytes up to the floor
        self._total = 0  # obsolete bytes up to now
        self._done = 0  # events of the first batch that `take_oldest` has returned

    def append(self, batch: Batch, obsolete: int) -> None:
        self._batches.append(batch)
        self._total += obsolete
        self._obsolete.append(self._total)

    def pop(self) -> None:
        self._batches.pop()
        self._obsolete.pop()
        self._total = self._obsolete[-1] if self._obsolete else self._obsolete_before

    def since(self, revision: int, upto: int | None = None) -> list[Batch]:
        """The batches after a revision, up to another one or to the end."""
        end = None if upto is None else upto - self.floor
        return self._batches[revision - self.floor : end]

    def obsolete_since(self, revision: int) -> int:
        """The bytes that the batches after a revision made obsolete."""
        position = revision - self.floor
        return self._total - (self._obsolete[position - 1] if position else self._obsolete_before)

    def compaction_for(self, most: int) -> int:
        """The lowest revision since which at most `most` bytes became obsolete."""
        if self._total - self._obsolete_before <= most:
            return self.floor
        return self.floor + 1 + bisect_left(self._obsolete, self._total - most)

    def take_oldest(self, upto: int, events: int, obsolete: int) -> tuple[int, Sequence[Event]]:
        """Remove some of the oldest changes up to a revision: at most about `events` of them, which
        made at most about `obsolete` bytes obsolete. Returns them, and the revision up to which
        they are complete. Only a batch with very many changes is returned in parts."""
        if self.floor >= upto:
            return upto, ()
        first = self._batches[0]
        rest = len(first.events) - self._done
        if rest > events:
            part = first.events[self._done : self._done + events]
            self._done += events
            return first.revision, part
        most = bisect_right(self._obsolete, self._obsolete_before + obsolete, hi=upto - self.floor)
        count, taken = 1, list(first.events[self._done :])
        for batch in islice(self._batches, 1, most):
            if len(taken) + len(batch.events) > events:
                break
            taken += batch.events
            count += 1
        self._obsolete_before = self._obsolete[count - 1]
        del self._batches[:count], self._obsolete[:count]
        self.floor += count
        self._done = 0
        return self.floor, taken


class Transaction:
    """The changes of one revision, from `Engine.begin` to `Engine.end`."""

    def __init__(
        self, keys: VersionedKeyspace, leases: LeaseTable, undo: list[Undo], revision: int
    ) -> None:
        self._keys, self._leases, self._undo = keys, leases, undo
        self.revision = revision
        self.events: list[Event] = []
        self.obsolete = 0
        """The bytes that its changes make obsolete."""

    def put(self, name: bytes, value: bytes, lease: int = 0) -> Entry | None:
        """Write a key. Returns the entry that it replaces."""
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
            self.obsolete += size(before)
        return before

    def delete(self, range: Range) -> list[Entry]:
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
        self.obsolete += obsolete_bytes(before, gone)
