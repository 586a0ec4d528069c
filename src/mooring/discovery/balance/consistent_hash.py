"""The policy `consistent_hash`: the same key goes to the same node."""

from __future__ import annotations

import math
import random
import struct
from bisect import bisect_left, insort
from hashlib import blake2b, shake_128

from mooring.discovery.balance.picker import (
    Counting,
    Node,
    check_new,
    check_present,
    effective_weight,
    no_node,
)

_SPACE = 1 << 64
_MASK = _SPACE - 1

# A circle is split into arcs, so that a search stays within a few kilobytes and an insertion shifts
# only one arc: with one list of 80,000 points a search takes twice the time, a change 20 times.
_ARCS = 64
_SHIFT = 58

_points = struct.Struct("<8Q").unpack
_probes = struct.Struct("<21Q").unpack  # 168 bytes: one block of SHAKE128


class _Circle:
    """The points of all nodes of one weight.

    Every arc ends with one point that is not its own: the next one around the circle, plus 2**64 if
    it lies past zero. So a search always succeeds in one step.
    """

    __slots__ = ("arcs", "owners", "scale")

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.owners: dict[int, Node] = {}
        self.arcs: list[list[int]] = [[] for _ in range(_ARCS)]

    def insert(self, point: int, owner: Node) -> int:
        """Insert a point; its final position, which is one further if the position was taken."""
        while point in self.owners:
            point = (point + 1) & _MASK
        if not self.owners:
            for arc in self.arcs:
                arc[:] = (point,)  # corrected below for the whole circle
        self.owners[point] = owner
        number = point >> _SHIFT
        insort(self.arcs[number], point, hi=len(self.arcs[number]) - 1)
        if self.arcs[number][0] == point:
            self._update_arcs_before(number)
        return point

    def delete(self, point: int) -> None:
        del self.owners[point]
        number = point >> _SHIFT
        at = bisect_left(self.arcs[number], point)
        del self.arcs[number][at]
        if at == 0 and self.owners:
            self._update_arcs_before(number)

    def _update_arcs_before(self, number: int) -> None:
        """The first point from arc `number` on has changed: update the arcs that end with it."""
        first = self.arcs[number][0] & _MASK
        home = first >> _SHIFT
        for step in range(1, _ARCS + 1):
            before = (number - step) % _ARCS
            arc = self.arcs[before]
            arc[-1] = first if home > before else first + _SPACE
            if len(arc) > 1:
                return


def _step(weight: float) -> int:
    """The circle that a weight belongs to: the nearest power of √2."""
    return round(2 * math.log2(weight))


def _divided_by(step: int) -> float:
    """√2 to the power of -step, identical on every machine, which `pow` does not guarantee."""
    half, odd = divmod(-step, 2)
    return math.ldexp(math.sqrt(2) if odd else 1.0, half)


class ConsistentHash(Counting):
    """The same key goes to the same node while the set of nodes does not change. All changes cost
    O(log n)."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._circles: dict[int, _Circle] = {}
        self._places: dict[Node, tuple[int, list[int]]] = {}
        """The circle of each node, and its points there."""

    def add(self, node: Node) -> None:
        check_new(node, present=node in self._places)
        self._insert(node)

    def _insert(self, node: Node) -> None:
        step = _step(node.weight)
        circle = self._circles.get(step)
        if circle is None:
            circle = self._circles[step] = _Circle(_divided_by(step))
        points = _points(blake2b(node.id.encode("utf-8", "surrogatepass")).digest())
        self._places[node] = step, [circle.insert(point, node) for point in points]

    def remove(self, node: Node) -> None:
        step, points = self._places.pop(node)
        circle = self._circles[step]
        for point in points:
            circle.delete(point)
        if not circle.owners:
            del self._circles[step]

    def reweight(self, node: Node, weight: float) -> None:
        check_present(node, present=node in self._places)
        node.weight = effective_weight(weight, node.id)
        if self._places[node][0] != _step(node.weight):
            self.remove(node)
            self._insert(node)

    def pick(self, key: str | bytes | None = None) -> Node:
        if key is None:
            key = self._rng.randbytes(16)
        elif isinstance(key, str):
            key = key.encode("utf-8", "surrogatepass")
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
            raise no_node()
        return owner

    def __len__(self) -> int:
        return len(self._places)
