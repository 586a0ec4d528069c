"""Drawing by chance: the urn, and the policy that is nothing else."""

from __future__ import annotations

import math
import random
from array import array
from operator import attrgetter

from mooring.discovery.balance.contract import (
    Counting,
    Node,
    admit,
    effective,
    must_be_there,
    nobody,
)


class Urn(Counting):
    """Nodes to draw from by weight, in O(1) on average; changes in O(1).

    Nodes lie on shelves by the power of two in their weight. A shelf is drawn by what it would hold
    if all on it were as heavy as the heaviest, then a place on it, and a lighter node is put back
    as often as it is lighter: never on a shelf of like ones, and never more than half of the time.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._random = (rng or random.Random()).random
        self._shelves: list[Shelf] = []
        self._width = 0.0
        self._places: dict[Node, tuple[Shelf, int]] = {}
        self._weights: dict[float, int] = {}
        self._even: Shelf | None = None
        """Where all nodes lie, if their weights are equal."""
        self._usual = 1.0
        """The weight of all nodes, or about the mean."""

    def __len__(self) -> int:
        return len(self._places)

    def add(self, node: Node) -> None:
        admit(node, self._places)
        weight = node.weight
        exponent = math.frexp(weight)[1]
        for shelf in self._shelves:
            if shelf.exponent == exponent:
                break
        else:
            shelf = Shelf(exponent)
            self._shelves.append(shelf)
        self._places[node] = (shelf, shelf.append(node))
        self._weights[weight] = self._weights.get(weight, 0) + 1
        self._changed()

    def remove(self, node: Node) -> None:
        shelf, at = self._places.pop(node)
        moved = shelf.remove(at)
        if moved is not node:
            self._places[moved] = (shelf, at)
        if not shelf.nodes:
            self._shelves.remove(shelf)
        if self._weights[node.weight] > 1:
            self._weights[node.weight] -= 1
        else:
            del self._weights[node.weight]
        self._changed()

    def reweight(self, node: Node, weight: float) -> None:
        must_be_there(node, self._places)
        weight = effective(weight, node.id)
        if weight != node.weight:
            self.remove(node)
            node.weight = weight
            self.add(node)

    def _changed(self) -> None:
        shelves = self._shelves
        if len(self._weights) == 1:
            self._even = shelf = shelves[0]
            self._usual = shelf.top = next(iter(self._weights))  # heavier ones may have left it
            self._width = shelf.width = shelf.top * len(shelf.nodes)
            return
        self._even = None
        shelves.sort(key=_width, reverse=True)  # a handful, and the first is drawn most often
        self._width = sum(map(_width, shelves))
        self._usual = self._width / max(len(self._places), 1)

    def _draw(self) -> tuple[Shelf, int]:
        """A shelf and a place on it."""
        random, width, shelves = self._random, self._width, self._shelves
        while shelves:
            at = random() * width
            for shelf in shelves:
                if at < shelf.width:
                    break
                at -= shelf.width
            at /= shelf.top
            place = int(at)
            # What is left of the random number behind the point decides whether it is put back.
            if place < len(shelf.weights) and (at - place) * shelf.top < shelf.weights[place]:
                return shelf, place
        raise nobody()


class Shelf:
    """Nodes of an urn, none of them twice as heavy as another, and none heavier than `top`.

    What a pick looks at lies beside the nodes in arrays: with 10,000 nodes all over the memory, to
    look into two of them would take as long as all the rest.
    """

    __slots__ = ("exponent", "load", "nodes", "slowness", "top", "weights", "width")

    def __init__(self, exponent: int) -> None:
        self.exponent = exponent
        self.top = 0.0
        self.width = 0.0
        self.nodes: list[Node] = []
        self.weights = array("d")
        self.load = array("d")
        """Requests under way by weight; for P2C, like the next."""
        self.slowness = array("d")

    def append(self, node: Node) -> int:
        self.nodes.append(node)
        self.weights.append(node.weight)
        self.load.append(0.0)
        self.slowness.append(0.0)
        self.top = max(self.top, node.weight)
        self.width = self.top * len(self.nodes)
        return len(self.nodes) - 1

    def remove(self, at: int) -> Node:
        """Fill the place with the last one, and return that."""
        last = self.nodes.pop()
        columns = (self.weights, self.load, self.slowness)
        values = [column.pop() for column in columns]
        if at < len(self.nodes):
            self.nodes[at] = last
            for column, value in zip(columns, values, strict=True):
                column[at] = value
        self.width = self.top * len(self.nodes)
        return last


_width = attrgetter("width")


class Random(Urn):
    """Anyone, with a chance in proportion to the weight."""

    def pick(self, key: str | bytes | None = None) -> Node:
        if (shelf := self._even) is not None:
            return shelf.nodes[int(self._random() * len(shelf.nodes))]
        shelf, place = self._draw()
        return shelf.nodes[place]
