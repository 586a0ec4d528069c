"""The policy `least_requests`: the fewest requests in flight relative to the weight."""

from __future__ import annotations

import random
from heapq import heappop, heappush
from math import frexp, inf, ldexp

from mooring.discovery.balance.picker import (
    SLACK,
    Node,
    check_new,
    check_present,
    effective_weight,
    no_node,
)


class LeastRequests:
    """The node with the fewest requests in flight relative to its weight: the least active/weight.

    Ties are broken at random by weight. So idle nodes share sequential calls in proportion to their
    weights, and a node in slow start is neither starved nor flooded.

    Nodes are grouped by the power of two in their weight. Among ties a group is drawn by what it
    would weigh if all its nodes weighed that power, then one of its nodes. A lighter node is
    rejected in proportion: never if all weights are equal, otherwise at most half of the time.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._random = (rng or random.Random()).random
        self._classes: dict[int, _LoadBuckets] = {}
        self._weights: dict[float, int] = {}
        self._size = 0

    def add(self, node: Node) -> None:
        check_new(node, present=node.weight_class is not None)
        exponent = frexp(node.weight)[1]
        if (group := self._classes.get(exponent)) is None:
            group = self._classes[exponent] = _LoadBuckets(exponent)
        node.weight_class = group
        group.put(node)
        self._weights[node.weight] = self._weights.get(node.weight, 0) + 1
        self._size += 1

    def remove(self, node: Node) -> None:
        check_present(node, present=node.weight_class is not None)
        group, node.weight_class = node.weight_class, None
        group.take(node)
        if not group.places:
            del self._classes[group.exponent]
        self._weights[node.weight] -= 1
        if not self._weights[node.weight]:
            del self._weights[node.weight]
        self._size -= 1

    def reweight(self, node: Node, weight: float) -> None:
        check_present(node, present=node.weight_class is not None)
        weight = effective_weight(weight, node.id)
        self.remove(node)
        node.weight = weight
        self.add(node)

    def pick(self, key: str | bytes | None = None) -> Node:
        if len(self._weights) > 1:
            return self._pick_by_weight()
        for group in self._classes.values():
            nodes = group.idlest()
            return nodes[int(self._random() * len(nodes))]
        raise no_node()

    def _pick_by_weight(self) -> Node:
        draw = self._random
        ties: list[tuple[float, float, list[Node]]] = []
        least, total = inf, 0.0
        for group in self._classes.values():
            nodes = group.idlest()
            load = group.heap[0]
            if load < least:
                least, ties, total = load, [], 0.0
            if load == least:
                width = group.top * len(nodes)
                ties.append((width, group.top, nodes))
                total += width
        while True:
            at = draw() * total
            for width, top, nodes in ties:
                if at < width:
                    at /= top
                    place = int(at)
                    # What is left of the random number decides whether the node is rejected.
                    if place < len(nodes) and (at - place) * top < nodes[place].weight:
                        return nodes[place]
                    break
                at -= width

    def started(self, node: Node) -> None:
        node.active += 1
        if (group := node.weight_class) is not None:
            group.take(node)
            group.put(node)

    def finished(self, node: Node, seconds: float, ok: bool) -> None:
        node.active -= 1
        if (group := node.weight_class) is not None:
            group.take(node)
            group.put(node)

    def __len__(self) -> int:
        return self._size


class _LoadBuckets:
    """Nodes of about the same weight, by load.

    Nodes of the same load share a bucket, and a heap holds the loads that occur; with equal weights
    there are only a few of these, and every operation is O(1) in effect.
    """

    __slots__ = ("buckets", "exponent", "heap", "places", "top")

    def __init__(self, exponent: int) -> None:
        self.exponent = exponent
        self.top = ldexp(1.0, exponent)
        """More than each of its nodes weighs, and at most twice as much."""
        self.buckets: dict[float, list[Node]] = {}
        self.heap: list[float] = []  # the keys of the buckets, empty ones too
        self.places: dict[Node, tuple[list[Node], int]] = {}

    def idlest(self) -> list[Node]:
        """The nodes of the least load, which is then the first in the heap. There must be one."""
        heap, buckets = self.heap, self.buckets
        while not (bucket := buckets[heap[0]]):
            del buckets[heappop(heap)]
        return bucket

    def put(self, node: Node) -> None:
        load = node.active / node.weight
        bucket = self.buckets.get(load)
        if bucket is None:
            if len(self.heap) > 2 * len(self.places) + SLACK:
                self.buckets = {key: full for key, full in self.buckets.items() if full}
                self.heap = sorted(self.buckets)
            bucket = self.buckets[load] = []
            heappush(self.heap, load)
        self.places[node] = (bucket, len(bucket))
        bucket.append(node)

    def take(self, node: Node) -> None:
        bucket, at = self.places.pop(node)
        last = bucket.pop()
        if last is not node:
            bucket[at] = last
            self.places[last] = (bucket, at)
