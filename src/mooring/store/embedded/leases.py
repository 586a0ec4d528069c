"""The leases of the engine: who hangs on which, and which are due. It is told the time."""

from __future__ import annotations

import heapq
import itertools
import random

from mooring.errors import LeaseNotFound


class HeldLease:
    """A lease that lives: its time-to-live, when it is due, and the keys that hang on it."""

    __slots__ = ("deadline", "keys", "ttl")

    def __init__(self, ttl: int, deadline: float) -> None:
        self.ttl = ttl
        self.deadline = deadline
        self.keys: set[bytes] = set()


class Leases:
    def __init__(self) -> None:
        self._held: dict[int, HeldLease] = {}
        # A renewal leaves its old deadline here; it is put right when it comes up.
        self._due: list[tuple[float, int]] = []
        self._ids = itertools.count(random.getrandbits(62) | 1)

    def __contains__(self, lease: int) -> bool:
        return lease in self._held

    def __getitem__(self, lease: int) -> HeldLease:
        try:
            return self._held[lease]
        except KeyError:
            raise LeaseNotFound(lease) from None

    def grant(self, ttl: int, now: float) -> int:
        lease = next(self._ids)
        self._held[lease] = HeldLease(ttl, now + ttl)
        heapq.heappush(self._due, (now + ttl, lease))
        return lease

    def renew(self, lease: int, now: float) -> int:
        held = self[lease]
        held.deadline = now + held.ttl
        return held.ttl

    def end(self, lease: int) -> list[bytes]:
        """Forget a lease; its keys, in order, are the caller's to delete."""
        keys = self[lease].keys
        del self._held[lease]
        return sorted(keys)

    def attach(self, name: bytes, lease: int) -> None:
        self[lease].keys.add(name)

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
            elif held.deadline != deadline:
                heapq.heapreplace(self._due, (held.deadline, lease))
            else:
                return deadline
        return None

    def due(self, now: float) -> int | None:
        """A lease that has run out, if there is one."""
        deadline = self.next_deadline()
        return self._due[0][1] if deadline is not None and deadline <= now else None
