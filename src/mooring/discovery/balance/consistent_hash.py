"""Sticking to keys: consistent hashing."""

from __future__ import annotations

import math
import random
import struct
from bisect import bisect_left, insort
from collections.abc import Hashable
from hashlib import blake2b, shake_128
from typing import Generic, TypeVar

from mooring.discovery.balance.picker import Counting, Node, admit, effective, must_be_there, nobody

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


class ConsistentHash(Counting):
    """The same key to the same node; see `mooring.discovery.hashing` for what moves, and when."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._ring: Ring[Node] = Ring()
        self._nodes: dict[Node, None] = {}

    def add(self, node: Node) -> None:
        admit(node, there=node in self._nodes)
        self._nodes[node] = None
        self._ring.add(node, node.id, node.weight)

    def remove(self, node: Node) -> None:
        del self._nodes[node]
        self._ring.remove(node)

    def reweight(self, node: Node, weight: float) -> None:
        must_be_there(node, there=node in self._nodes)
        node.weight = effective(weight, node.id)
        self._ring.reweight(node, node.id, node.weight)

    def pick(self, key: str | bytes | None = None) -> Node:
        if not self._nodes:
            raise nobody()
        if key is None:
            key = self._rng.randbytes(16)
        elif isinstance(key, str):
            key = key.encode("utf-8", "surrogatepass")
        return self._ring.find(key)

    def __len__(self) -> int:
        return len(self._nodes)
