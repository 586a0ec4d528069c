"""Drawing by chance: the urn, and the policy that is nothing else."""

from __future__ import annotations

import math
import random
from array import array
from operator import attrgetter

from mooring.discovery.balance.picker import Counting, Node, admit, effective, must_be_there, nobody


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
        self._size = 0
        self._weights: dict[float, int] = {}
        self._even: Shelf | None = None
        """Where all nodes lie, if their weights are equal."""
        self._usual = 1.0
        """The weight of all nodes, or about the mean."""

    def __len__(self) -> int:
        return self._size

    def add(self, node: Node) -> None:
        admit(node, there=node.shelf is not None)
        exponent = math.frexp(node.weight)[1]
        for shelf in self._shelves:
            if shelf.exponent == exponent:
                break
        else:
            shelf = Shelf(exponent)
            self._shelves.append(shelf)
        shelf.append(node)
        self._size += 1
        self._count(node.weight, +1)
        self._changed()

    def remove(self, node: Node) -> None:
        must_be_there(node, there=node.shelf is not None)
        shelf = node.shelf
        shelf.remove(node)
        if not shelf.nodes:
            self._shelves.remove(shelf)
        self._size -= 1
        self._count(node.weight, -1)
        self._changed()

    def reweight(self, node: Node, weight: float) -> None:
        must_be_there(node, there=node.shelf is not None)
        weight = effective(weight, node.id)
        if weight == node.weight:
            return
        if math.frexp(weight)[1] != node.shelf.exponent:
            self.remove(node)
            node.weight = weight
            self.add(node)
            return
        self._count(node.weight, -1)
        self._count(weight, +1)
        node.weight = weight
        node.shelf.reweighted(node)
        self._changed()

    def _count(self, weight: float, by: int) -> None:
        count = self._weights.get(weight, 0) + by
        if count:
            self._weights[weight] = count
        else:
            del self._weights[weight]

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
        self._usual = self._width / max(self._size, 1)

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

    def append(self, node: Node) -> None:
        node.shelf, node.place = self, len(self.nodes)
        self.nodes.append(node)
        self.weights.append(node.weight)
        self.load.append(0.0)
        self.slowness.append(0.0)
        self.top = max(self.top, node.weight)
        self.width = self.top * len(self.nodes)

    def remove(self, node: Node) -> None:
        """Fill its place with the last one."""
        at, last = node.place, self.nodes.pop()
        weight, load, slowness = self.weights.pop(), self.load.pop(), self.slowness.pop()
        if last is not node:
            last.place, self.nodes[at] = at, last
            self.weights[at], self.load[at], self.slowness[at] = weight, load, slowness
        node.shelf = None
        self.width = self.top * len(self.nodes)

    def reweighted(self, node: Node) -> None:
        """It has another weight, which belongs on this shelf too."""
        self.weights[node.place] = node.weight
        self.load[node.place] = node.active / node.weight
        self.top = max(self.top, node.weight)
        self.width = self.top * len(self.nodes)


_width = attrgetter("width")


class Random(Urn):
    """Anyone, with a chance in proportion to the weight."""

    def pick(self, key: str | bytes | None = None) -> Node:
        if (shelf := self._even) is not None:
            return shelf.nodes[int(self._random() * len(shelf.nodes))]
        shelf, place = self._draw()
        return shelf.nodes[place]
