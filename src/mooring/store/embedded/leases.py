"""The leases of the engine: their keys and deadlines. The caller passes the time."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from mooring.errors import LeaseNotFound

Undo = Callable[[], None]


@dataclass(slots=True)
class ActiveLease:
    """A lease with its time-to-live, its deadline and the keys attached to it."""

    ttl: int
    deadline: float
    keys: set[bytes] = field(default_factory=set)


class LeaseTable:
    """Every change returns a function that undoes it."""

    def __init__(self) -> None:
        self.changed: set[int] = set()
        """The leases that were granted, renewed or ended since `settle`."""
        self._held: dict[int, ActiveLease] = {}
        self._ended: dict[int, ActiveLease] = {}  # since `settle`
        # A renewal leaves its old deadline here; `next_deadline` corrects it.
        self._due: list[tuple[float, int]] = []
        self._ids = itertools.count(random.getrandbits(62) | 1)

    def __contains__(self, lease: int) -> bool:
        return lease in self._held

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)

    def __getitem__(self, lease: int) -> ActiveLease:
        try:
            return self._held[lease]
        except KeyError:
            raise LeaseNotFound(lease) from None

    def get(self, lease: int) -> ActiveLease | None:
        return self._held.get(lease)

    def seen(self, lease: int) -> ActiveLease | None:
        """An active lease, or one that ended but whose end may still be undone."""
        return self._held.get(lease) or self._ended.get(lease)

    def settle(self) -> None:
        """The changes are confirmed, or undone."""
        self.changed.clear()
        self._ended.clear()

    def new_id(self) -> int:
        return next(lease for lease in self._ids if lease not in self._held)

    def grant(self, lease: int, ttl: int, deadline: float) -> Undo:
        self._hold(lease, ActiveLease(ttl, deadline))
        return lambda: self._release(lease)

    def restore(self, kept: Iterable[tuple[int, int, float]]) -> None:
        """Replace all leases by these (id, ttl, deadline)."""
        gone = set(self._held)
        for lease, ttl, deadline in kept:
            gone.discard(lease)
            held = self._held.get(lease) or ActiveLease(ttl, deadline)
            held.ttl, held.deadline = ttl, deadline
            self._hold(lease, held)
        for lease in gone:
            self._release(lease)

    def renew(self, lease: int, now: float) -> Undo:
        held = self[lease]
        before = held.deadline
        held.deadline = now + held.ttl
        self.changed.add(lease)

        def undo() -> None:
            held.deadline = before
            heapq.heappush(self._due, (before, lease))

        return undo

    def end(self, lease: int) -> Undo:
        """Remove a lease. The caller deletes its keys first."""
        held = self._ended[lease] = self[lease]
        self._release(lease)
        return lambda: self._hold(lease, held)

    def attach(self, name: bytes, lease: int) -> None:
        if held := self._held.get(lease):
            held.keys.add(name)

    def detach(self, name: bytes, lease: int) -> None:
        if held := self._held.get(lease):
            held.keys.discard(name)

    def next_deadline(self) -> float | None:
        """The earliest deadline; None without leases."""
        while self._due:
            deadline, lease = self._due[0]
            held = self._held.get(lease)
            if held is None:
                heapq.heappop(self._due)
            elif held.deadline > deadline:
                heapq.heapreplace(self._due, (held.deadline, lease))
            else:
                return deadline
        return None

    def due(self, now: float) -> int | None:
        """A lease that has expired, if there is one."""
        deadline = self.next_deadline()
        return self._due[0][1] if deadline is not None and deadline <= now else None

    def _hold(self, lease: int, held: ActiveLease) -> None:
        self._held[lease] = held
        self.changed.add(lease)
        heapq.heappush(self._due, (held.deadline, lease))

    def _release(self, lease: int) -> None:
        del self._held[lease]
        self.changed.add(lease)
