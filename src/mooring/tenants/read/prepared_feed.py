"""What a store that is read anew leads to, found out before it is shown: in slices, so that others
have their turn, and then shown at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from mooring.mirror import RangeFeed, Steps, Update
from mooring.store.contract import Entry
from mooring.tenants.cooperative import in_turns, slices
from mooring.tenants.read.parser import KeyChange, Outcome, Reading
from mooring.tenants.read.snapshot import Snapshot
from mooring.tenants.read.tenants import Tenants


class PreparedFeed(msgspec.Struct, frozen=True):
    """What an update will lead to that is not told yet."""

    base: Snapshot
    """What was shown when it was found out."""
    mark: int
    outcome: Outcome

    def fits(self, update: Update[bytes, Entry], snapshot: Snapshot) -> bool:
        return update.resync and update.mark == self.mark and self.stands(snapshot)

    def stands(self, snapshot: Snapshot) -> bool:
        """Whether the tenants are those of then; all else may have changed."""
        base = self.base
        return snapshot.tenants is base.tenants and snapshot.revision == base.revision


class Prepared:
    """A feed that finds out in slices what its snapshot leads to, so that it is shown at once."""

    def __init__(
        self,
        feed: RangeFeed,
        reading: Reading,
        tenants: Tenants,
        held: Callable[[], Mapping[bytes, Entry]],
    ) -> None:
        self.name = feed.name
        self.prepared: PreparedFeed | None = None
        self._feed, self._reading, self._tenants, self._held = feed, reading, tenants, held

    async def snapshot(self) -> tuple[dict[bytes, Entry], int]:
        items, mark = await self._feed.snapshot()
        while True:
            base = self._tenants.snapshot
            changes = _differences(self._held(), items)
            outcome = await in_turns(self._reading.applying(base, changes))
            self.prepared = PreparedFeed(base, mark, outcome)
            if self.prepared.stands(self._tenants.snapshot):  # else the file stands in by now
                return items, mark

    def follow(
        self, mark: int, held: Mapping[bytes, Entry], *, known: float
    ) -> AbstractAsyncContextManager[Steps[bytes, Entry]]:
        return self._feed.follow(mark, held, known=known)


def _differences(
    held: Mapping[bytes, Entry], items: Mapping[bytes, Entry]
) -> Iterator[Sequence[KeyChange]]:
    for keys in slices(held):
        yield [(key, None) for key in keys if key not in items]
    for some in slices(items.items()):
        yield [(key, entry) for key, entry in some if held.get(key) != entry]
