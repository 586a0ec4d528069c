"""The changes of the past, one batch a revision, and how much old each of them left behind."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice

from mooring.store.contract import Batch, Entry, Event

_AROUND = 320
"""What a version costs in memory beside its key and its value, about."""


def size(entry: Entry) -> int:
    """The bytes that a version takes."""
    return len(entry.key) + len(entry.value) + _AROUND


def left_behind(replaced: Entry | None, entry: Entry) -> int:
    """The bytes that a change makes old: what it replaced, and itself where it is a tombstone."""
    before = size(replaced) if replaced is not None and replaced.version else 0
    return before if entry.version else before + size(entry)


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
