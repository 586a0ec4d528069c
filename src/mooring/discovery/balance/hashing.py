"""Multi-probe consistent hashing: keys keep their owners while owners come and go.

Every owner has a few points on a circle of 2**64. A key is hashed to 21 places, its probes, and
belongs to the owner of the point that is nearest after any of them (Appleton and O'Reilly, 2015).
So the fullest owner has about 1.05 times the mean, which on an ordinary circle takes hundreds of
points an owner. One point an owner would do for that, but where there are few owners two points may
fall together, and one owner then has twice its share; with eight points it stays below 1.2 times.

**Weights.** Owners of about the same weight, in steps of √2, share a circle. A key takes its
nearest distance on every circle, divided by that circle's weight, and the least one wins: a race in
which each owner's chance is its weight. To multiply points by weight instead would cost 800 points
an owner where all have weight 100.

**What moves.** When an owner goes, distances can only grow, and only on the way to its own points:
its keys move, no others. When one comes, the only moves are towards it. A changed weight moves keys
to or from that owner alone. The answer depends on the owners' names, their weights and the key, not
on the process, the order of arrival or `PYTHONHASHSEED`.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left, insort
from collections.abc import Hashable
from hashlib import blake2b, shake_128
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_SPACE = 1 << 64
_MASK = _SPACE - 1

# A circle is kept in arcs, so that a search stays within a few kilobytes and an insertion shifts
# only those: one long list of 80,000 points costs twice the time of a search, 20 times of a change.
_ARCS = 64
_SHIFT = 58

_points = struct.Struct("<8Q").unpack
_probes = struct.Struct("<21Q").unpack  # 168 bytes: just one block of SHAKE128, made in one go


class Ring(Generic[T]):
    """Owners by name and weight, and whom a key belongs to. All changes cost O(log n)."""

    def __init__(self) -> None:
        self._circles: dict[int, _Circle[T]] = {}
        self._places: dict[T, tuple[int, list[int]]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, owner: T, name: str, weight: float = 1.0) -> None:
        step = _step(weight)
        circle = self._circles.get(step)
        if circle is None:
            circle = self._circles[step] = _Circle(_divided_by(step))
        self._places[owner] = (
            step,
            [
                circle.insert(point, owner)
                for point in _points(blake2b(name.encode("utf-8", "surrogatepass")).digest())
            ],
        )

    def remove(self, owner: T) -> None:
        step, points = self._places.pop(owner)
        circle = self._circles[step]
        for point in points:
            circle.delete(point)
        if not circle.owners:
            del self._circles[step]

    def reweight(self, owner: T, name: str, weight: float) -> None:
        if self._places[owner][0] != _step(weight):
            self.remove(owner)
            self.add(owner, name, weight)

    def find(self, key: bytes) -> T:
        """Whom `key` belongs to. `LookupError` where there is nobody."""
        probes = _probes(shake_128(key).digest(168))
        best, nearest, owner = math.inf, 0, None
        for circle in self._circles.values():
            arcs, least = circle.arcs, 2 * _SPACE
            for probe in probes:
                points = arcs[probe >> _SHIFT]
                point = points[bisect_left(points, probe)]
                if point - probe < least:
                    least, nearest = point - probe, point
            if least * circle.scale < best:
                best, owner = least * circle.scale, circle.owners[nearest & _MASK]
        if owner is None:
            raise LookupError("there is nobody on the ring")
        return owner


class _Circle(Generic[T]):
    """The points of all owners of one weight.

    Every arc ends with one point that is not its own: the next one after it, around the circle,
    plus 2**64 where it lies past zero. So a search always finds something, in one step.
    """

    __slots__ = ("arcs", "owners", "scale")

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.owners: dict[int, T] = {}
        self.arcs: list[list[int]] = [[] for _ in range(_ARCS)]

    def insert(self, point: int, owner: T) -> int:
        """Where the point came to lie: one further where the place was taken."""
        while point in self.owners:
            point = (point + 1) & _MASK
        if not self.owners:
            for arc in self.arcs:
                arc[:] = (point,)  # put right below, all the way round
        self.owners[point] = owner
        number = point >> _SHIFT
        insort(self.arcs[number], point, hi=len(self.arcs[number]) - 1)
        if self.arcs[number][0] == point:
            self._tell_those_before(number)
        return point

    def delete(self, point: int) -> None:
        del self.owners[point]
        number = point >> _SHIFT
        at = bisect_left(self.arcs[number], point)
        del self.arcs[number][at]
        if at == 0 and self.owners:
            self._tell_those_before(number)

    def _tell_those_before(self, number: int) -> None:
        """The first point from arc `number` on is another one: so end all arcs that lead to it."""
        first = self.arcs[number][0] & _MASK
        home = first >> _SHIFT
        for step in range(1, _ARCS + 1):
            before = (number - step) % _ARCS
            arc = self.arcs[before]
            arc[-1] = first if home > before else first + _SPACE
            if len(arc) > 1:
                return


def _step(weight: float) -> int:
    """Which circle a weight belongs to: the nearest power of √2."""
    return round(2 * math.log2(weight))


def _divided_by(step: int) -> float:
    """√2 to the power of -step, alike on every machine: `pow` need not be."""
    half, odd = divmod(-step, 2)
    return math.ldexp(math.sqrt(2) if odd else 1.0, half)
