"""The policy `random`, and the weighted sampling that it shares with `p2c`."""

from __future__ import annotations

import math
import random
from array import array
from operator import attrgetter

from mooring.discovery.balance.picker import (
    Counting,
    Node,
    check_new,
    check_present,
    effective_weight,
    no_node,
)


class WeightedSampler(Counting):
    """Samples nodes by weight, in O(1) on average; changes take O(1).

    Nodes are grouped by the power of two in their weight. A group is drawn by what it would weigh
    if all its nodes were as heavy as the heaviest, then a position in it. A lighter node is
    rejected in proportion: never in a group of equal weights, and never more than half of the time.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._random = (rng or random.Random()).random
        self._classes: list[WeightClass] = []
        self._width = 0.0
        self._size = 0
        self._weights: dict[float, int] = {}
        self._equal: WeightClass | None = None
        """The only group, if all weights are equal."""
        self._mean_weight = 1.0
        """The weight of all nodes if they are equal, otherwise about the mean."""

    def __len__(self) -> int:
        return self._size

    def add(self, node: Node) -> None:
        check_new(node, present=node.weight_class is not None)
        exponent = math.frexp(node.weight)[1]
        for group in self._classes:
            if group.exponent == exponent:
                break
        else:
            group = WeightClass(exponent)
            self._classes.append(group)
        group.append(node)
        self._size += 1
        self._count(node.weight, +1)
        self._changed()

    def remove(self, node: Node) -> None:
        check_present(node, present=node.weight_class is not None)
        group = node.weight_class
        group.remove(node)
        if not group.nodes:
            self._classes.remove(group)
        self._size -= 1
        self._count(node.weight, -1)
        self._changed()

    def reweight(self, node: Node, weight: float) -> None:
        check_present(node, present=node.weight_class is not None)
        weight = effective_weight(weight, node.id)
        if weight == node.weight:
            return
        if math.frexp(weight)[1] != node.weight_class.exponent:
            self.remove(node)
            node.weight = weight
            self.add(node)
            return
        self._count(node.weight, -1)
        self._count(weight, +1)
        node.weight = weight
        node.weight_class.reweighted(node)
        self._changed()

    def _count(self, weight: float, by: int) -> None:
        count = self._weights.get(weight, 0) + by
        if count:
            self._weights[weight] = count
        else:
            del self._weights[weight]

    def _changed(self) -> None:
        classes = self._classes
        if len(self._weights) == 1:
            self._equal = group = classes[0]
            self._mean_weight = group.top = next(iter(self._weights))  # heavier nodes may have left
            self._width = group.width = group.top * len(group.nodes)
            return
        self._equal = None
        classes.sort(key=_width, reverse=True)  # only a few; the first is drawn most often
        self._width = sum(map(_width, classes))
        self._mean_weight = self._width / max(self._size, 1)

    def _sample(self) -> tuple[WeightClass, int]:
        """A group and a position in it."""
        random, width, classes = self._random, self._width, self._classes
        while classes:
            at = random() * width
            for group in classes:
                if at < group.width:
                    break
                at -= group.width
            at /= group.top
            place = int(at)
            # The fraction of the random number decides whether the node is rejected.
            if place < len(group.weights) and (at - place) * group.top < group.weights[place]:
                return group, place
        raise no_node()


class WeightClass:
    """Nodes of similar weight: none is twice as heavy as another, none heavier than `top`.

    The values that a pick reads lie beside the nodes in arrays. With 10,000 nodes scattered over
    memory, reading two of them would take as long as all the rest of a pick.
    """

    __slots__ = ("exponent", "load", "nodes", "slowness", "top", "weights", "width")

    def __init__(self, exponent: int) -> None:
        self.exponent = exponent
        self.top = 0.0
        self.width = 0.0
        self.nodes: list[Node] = []
        self.weights = array("d")
        self.load = array("d")
        """Requests in flight divided by weight; like `slowness`, only for P2C."""
        self.slowness = array("d")

    def append(self, node: Node) -> None:
        node.weight_class, node.place = self, len(self.nodes)
        self.nodes.append(node)
        self.weights.append(node.weight)
        self.load.append(0.0)
        self.slowness.append(0.0)
        self.top = max(self.top, node.weight)
        self.width = self.top * len(self.nodes)

    def remove(self, node: Node) -> None:
        """Move the last node into its place."""
        at, last = node.place, self.nodes.pop()
        weight, load, slowness = self.weights.pop(), self.load.pop(), self.slowness.pop()
        if last is not node:
            last.place, self.nodes[at] = at, last
            self.weights[at], self.load[at], self.slowness[at] = weight, load, slowness
        node.weight_class = None
        self.width = self.top * len(self.nodes)

    def reweighted(self, node: Node) -> None:
        """Take over the new weight of a node, which belongs in this group too."""
        self.weights[node.place] = node.weight
        self.load[node.place] = node.active / node.weight
        self.top = max(self.top, node.weight)
        self.width = self.top * len(self.nodes)


_width = attrgetter("width")


class Random(WeightedSampler):
    """A random node, with a probability in proportion to its weight."""

    def pick(self, key: str | bytes | None = None) -> Node:
        if (group := self._equal) is not None:
            return group.nodes[int(self._random() * len(group.nodes))]
        group, place = self._sample()
        return group.nodes[place]
