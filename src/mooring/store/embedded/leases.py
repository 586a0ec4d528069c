"""The leases of the engine: who hangs on which, and which are due. It is told the time."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Iterator

from mooring.errors import LeaseNotFound

Undo = Callable[[], None]


class ActiveLease:
    """A lease that lives: its time-to-live, when it is due, and the keys that hang on it."""

    __slots__ = ("deadline", "keys", "ttl")

    def __init__(self, ttl: int, deadline: float) -> None:
        self.ttl = ttl
        self.deadline = deadline
        self.keys: set[bytes] = set()


class LeaseTable:
    """Every change returns how to take it back."""

    def __init__(self) -> None:
        self.changed: set[int] = set()
        """The leases that were granted, renewed or ended since `settle`."""
        self._held: dict[int, ActiveLease] = {}
        self._ended: dict[int, ActiveLease] = {}  # since then
        # A renewal leaves its old deadline here; it is put right when it comes up.
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
        """One that lives, or whose end may still be taken back."""
        return self._held.get(lease) or self._ended.get(lease)

    def settle(self) -> None:
        """What has changed is confirmed, or taken back."""
        self.changed.clear()
        self._ended.clear()

    def new_id(self) -> int:
        return next(lease for lease in self._ids if lease not in self._held)

    def grant(self, lease: int, ttl: int, deadline: float) -> Undo:
        self._hold(lease, ActiveLease(ttl, deadline))
        return lambda: self._release(lease)

    def restore(self, kept: Iterable[tuple[int, int, float]]) -> None:
        """Make these (id, ttl, deadline) the leases there are."""
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
        """Forget a lease; its keys are the caller's to delete, before."""
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
        """The earliest time at which one may be due; None without leases."""
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
        """A lease that has run out, if there is one."""
        deadline = self.next_deadline()
        return self._due[0][1] if deadline is not None and deadline <= now else None

    def _hold(self, lease: int, held: ActiveLease) -> None:
        self._held[lease] = held
        self.changed.add(lease)
        heapq.heappush(self._due, (held.deadline, lease))

    def _release(self, lease: int) -> None:
        del self._held[lease]
        self.changed.add(lease)
