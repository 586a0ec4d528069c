"""Looking at the load: power of two choices, and least requests."""

from __future__ import annotations

import random
import time
from array import array
from heapq import heappop, heappush
from math import exp, frexp, inf, ldexp, log

from mooring.discovery.balance.picker import (
    SLACK,
    Clock,
    Node,
    admit,
    effective,
    must_be_there,
    nobody,
)
from mooring.discovery.balance.weighted_random import Urn


class P2C(Urn):
    """The better one of two at random: the power of two choices, on peak EWMA latency.

    A node costs its latency times one more than the requests under way there. The latency jumps to
    any slower answer at once and comes down within some ten seconds, with faster answers or
    without: what is known of a node fades, and what is not known is taken to be typical of all, so
    that a node never tried is neither starved nor flooded, and a bad one is tried again. A failure
    counts as an answer ten times slower than typical, else a node that fails fast would draw all.

    With equal weights the two are distinct. With unequal ones each is drawn by weight, so that idle
    nodes are picked in proportion, and requests under way count relative to the weight, so that
    busy ones carry in proportion too. There a node drawn twice is taken, unless it is slow or busy.
    """

    # A node's slowness is log(latency / typical), which fades by exp(-age / 10 s). All fade alike,
    # so the arrays hold it as if it had been found at `_epoch`, and a pick reckons what has faded
    # since then once, not for each node.

    def __init__(self, rng: random.Random | None = None, clock: Clock = time.monotonic) -> None:
        super().__init__(rng)
        self._clock = clock
        self._epoch = clock()
        self._typical: float | None = None  # the logarithm of a typical latency

    def add(self, node: Node) -> None:
        super().add(node)
        node.shelf.load[node.place] = node.active / node.weight
        if node.latency:
            slowness = log(node.latency) - (self._typical or 0.0)
            node.shelf.slowness[node.place] = slowness * self._grown(node.sampled)

    def pick(self, key: str | bytes | None = None) -> Node:
        shelf = self._even
        if shelf is None:
            return self._pick_by_weight()
        nodes = shelf.nodes
        count = len(nodes)
        if count == 1:
            return nodes[0]
        # One random number makes both: its whole part the first, the rest the second.
        at = self._random() * count
        one = int(at)
        other = int((at - one) * (count - 1))
        if other >= one:
            other += 1
        faded = exp((self._epoch - self._clock()) * _FADING)
        slowness, load, usual = shelf.slowness, shelf.load, self._usual
        cost = exp(slowness[one] * faded) * (load[one] * usual + 1)
        if exp(slowness[other] * faded) * (load[other] * usual + 1) < cost * _CLEARLY:
            return nodes[other]
        return nodes[one]

    def _pick_by_weight(self) -> Node:
        draw, usual = self._draw, self._usual
        faded = exp((self._epoch - self._clock()) * _FADING)
        shelf, place = draw()
        other, there = draw()
        cost = exp(shelf.slowness[place] * faded) * (shelf.load[place] * usual + 1)
        if place == there and shelf is other:
            if cost <= 2:
                return shelf.nodes[place]
            for _ in range(4):
                other, there = draw()
                if place != there or shelf is not other:
                    break
        if exp(other.slowness[there] * faded) * (other.load[there] * usual + 1) < cost * _CLEARLY:
            return other.nodes[there]
        return shelf.nodes[place]

    def started(self, node: Node) -> None:
        node.active = active = node.active + 1
        if (shelf := node.shelf) is not None:
            shelf.load[node.place] = active / node.weight

    def finished(self, node: Node, seconds: float, ok: bool) -> None:
        node.active = active = node.active - 1
        now, known, typical = self._clock(), node.latency, self._typical
        sample = seconds if seconds > _LEAST else _LEAST
        if not ok:
            sample = max(sample, _PENALTY * (1.0 if typical is None else exp(typical)))
        if sample < known:
            sample += (known - sample) * exp((node.sampled - now) * _FADING)
        node.latency, node.sampled = sample, now
        slowness = log(sample)
        if typical is None:
            typical = slowness if ok else 0.0
        elif ok:
            typical += (slowness - typical) / 64
        if ok:
            # A geometric mean, and without failures: one timeout must not move what is typical.
            self._typical = typical
        if (shelf := node.shelf) is not None:
            place = node.place
            shelf.load[place] = active / node.weight
            shelf.slowness[place] = (slowness - typical) * self._grown(now)

    def _grown(self, now: float) -> float:
        """How much larger what is found now would have been at the epoch, to have faded to this."""
        if now - self._epoch > _EPOCH:
            self._begin_epoch(now)
        return exp((now - self._epoch) * _FADING)

    def _begin_epoch(self, now: float) -> None:
        """Before the numbers grow out of range; once in an hour it may take a millisecond."""
        faded = exp((self._epoch - now) * _FADING)
        for shelf in self._shelves:
            shelf.slowness = array("d", [slowness * faded for slowness in shelf.slowness])
        self._epoch = now


_CLEARLY = 0.98  # a lower cost than that wins; else the last trace of a slow answer would decide
_FADING = 1 / 10.0
_EPOCH = 3600.0
_PENALTY = 10.0
_LEAST = 1e-6  # seconds, of which a logarithm can be taken


class LeastRequests:
    """The node with the fewest requests under way relative to its weight: the least active/weight.

    Ties are broken at random by weight. So idle nodes share sequential calls in proportion to their
    weights, and a node in slow start is neither starved nor flooded.

    Nodes are classed by the power of two in their weight. Among ties a class is drawn by what it
    would weigh if all its nodes weighed that power, then one of its nodes, and a lighter one is put
    back as often as it is lighter: never if all weights are equal, else at most half of the time.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._random = (rng or random.Random()).random
        self._classes: dict[int, _WeightClass] = {}
        self._weights: dict[float, int] = {}
        self._size = 0

    def add(self, node: Node) -> None:
        admit(node, there=node.shelf is not None)
        exponent = frexp(node.weight)[1]
        if (home := self._classes.get(exponent)) is None:
            home = self._classes[exponent] = _WeightClass(exponent)
        node.shelf = home
        home.put(node)
        self._weights[node.weight] = self._weights.get(node.weight, 0) + 1
        self._size += 1

    def remove(self, node: Node) -> None:
        must_be_there(node, there=node.shelf is not None)
        home, node.shelf = node.shelf, None
        home.take(node)
        if not home.places:
            del self._classes[home.exponent]
        self._weights[node.weight] -= 1
        if not self._weights[node.weight]:
            del self._weights[node.weight]
        self._size -= 1

    def reweight(self, node: Node, weight: float) -> None:
        must_be_there(node, there=node.shelf is not None)
        weight = effective(weight, node.id)
        self.remove(node)
        node.weight = weight
        self.add(node)

    def pick(self, key: str | bytes | None = None) -> Node:
        if len(self._weights) > 1:
            return self._pick_by_weight()
        for home in self._classes.values():
            nodes = home.idlest()
            return nodes[int(self._random() * len(nodes))]
        raise nobody()

    def _pick_by_weight(self) -> Node:
        draw = self._random
        ties: list[tuple[float, float, list[Node]]] = []
        least, total = inf, 0.0
        for home in self._classes.values():
            nodes = home.idlest()
            load = home.heap[0]
            if load < least:
                least, ties, total = load, [], 0.0
            if load == least:
                width = home.top * len(nodes)
                ties.append((width, home.top, nodes))
                total += width
        while True:
            at = draw() * total
            for width, top, nodes in ties:
                if at < width:
                    at /= top
                    place = int(at)
                    # What is left of the random number decides whether the node is put back.
                    if place < len(nodes) and (at - place) * top < nodes[place].weight:
                        return nodes[place]
                    break
                at -= width

    def started(self, node: Node) -> None:
        node.active += 1
        if (home := node.shelf) is not None:
            home.take(node)
            home.put(node)

    def finished(self, node: Node, seconds: float, ok: bool) -> None:
        node.active -= 1
        if (home := node.shelf) is not None:
            home.take(node)
            home.put(node)

    def __len__(self) -> int:
        return self._size


class _WeightClass:
    """Nodes of about the same weight, by load.

    Nodes of the same load share a bucket, and a heap holds the loads that occur; with equal weights
    these are only a few, and everything is O(1) in effect.
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
