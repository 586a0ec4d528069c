"""The policy `p2c`: the power of two choices, by latency and requests in flight."""

from __future__ import annotations

import random
import time
from array import array
from math import exp, log

from mooring.discovery.balance.picker import Clock, Node
from mooring.discovery.balance.weighted_random import WeightedSampler


class P2C(WeightedSampler):
    """The better one of two random nodes, by peak EWMA latency.

    A node costs its latency times one more than its requests in flight. The latency jumps to any
    slower response at once and decays within about ten seconds, with or without faster responses.
    Knowledge about a node fades, and an unknown latency counts as the typical one, so that an
    untried node is neither starved nor flooded, and a bad one gets another chance. A failure counts
    as a response ten times slower than typical; otherwise a node that fails fast would attract all
    calls.

    With equal weights the two nodes are distinct. With unequal weights each is drawn by weight, so
    that idle nodes are picked in proportion, and requests in flight count relative to the weight,
    so that busy nodes carry in proportion too. A node that is drawn twice is taken unless it is
    slow or busy.
    """

    # A node's slowness is log(latency / typical), which decays by exp(-age / 10 s). All nodes decay
    # alike, so the arrays hold values as if measured at `_epoch`, and a pick computes the decay
    # since then once, not for each node.

    def __init__(self, rng: random.Random | None = None, clock: Clock = time.monotonic) -> None:
        super().__init__(rng)
        self._clock = clock
        self._epoch = clock()
        self._typical: float | None = None  # the logarithm of a typical latency

    def add(self, node: Node) -> None:
        super().add(node)
        node.weight_class.load[node.place] = node.active / node.weight
        if node.latency:
            slowness = log(node.latency) - (self._typical or 0.0)
            node.weight_class.slowness[node.place] = slowness * self._grown(node.sampled)

    def pick(self, key: str | bytes | None = None) -> Node:
        group = self._equal
        if group is None:
            return self._pick_by_weight()
        nodes = group.nodes
        count = len(nodes)
        if count == 1:
            return nodes[0]
        # One random number yields both: its integer part the first, its fraction the second.
        at = self._random() * count
        one = int(at)
        other = int((at - one) * (count - 1))
        if other >= one:
            other += 1
        faded = exp((self._epoch - self._clock()) * _FADING)
        slowness, load, mean_weight = group.slowness, group.load, self._mean_weight
        cost = exp(slowness[one] * faded) * (load[one] * mean_weight + 1)
        if exp(slowness[other] * faded) * (load[other] * mean_weight + 1) < cost * _CLEARLY:
            return nodes[other]
        return nodes[one]

    def _pick_by_weight(self) -> Node:
        draw, mean_weight = self._sample, self._mean_weight
        faded = exp((self._epoch - self._clock()) * _FADING)
        group, place = draw()
        other, there = draw()
        cost = exp(group.slowness[place] * faded) * (group.load[place] * mean_weight + 1)
        if place == there and group is other:
            if cost <= 2:
                return group.nodes[place]
            for _ in range(4):
                other, there = draw()
                if place != there or group is not other:
                    break
        other_cost = exp(other.slowness[there] * faded) * (other.load[there] * mean_weight + 1)
        if other_cost < cost * _CLEARLY:
            return other.nodes[there]
        return group.nodes[place]

    def started(self, node: Node) -> None:
        node.active = active = node.active + 1
        if (group := node.weight_class) is not None:
            group.load[node.place] = active / node.weight

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
        if (group := node.weight_class) is not None:
            place = node.place
            group.load[place] = active / node.weight
            group.slowness[place] = (slowness - typical) * self._grown(now)

    def _grown(self, now: float) -> float:
        """The factor that turns a value measured now into one measured at the epoch."""
        if now - self._epoch > _EPOCH:
            self._begin_epoch(now)
        return exp((now - self._epoch) * _FADING)

    def _begin_epoch(self, now: float) -> None:
        """Rescale before the numbers grow out of range: a millisecond, once an hour."""
        faded = exp((self._epoch - now) * _FADING)
        for group in self._classes:
            group.slowness = array("d", [slowness * faded for slowness in group.slowness])
        self._epoch = now


_CLEARLY = 0.98  # how much cheaper the second node must be: old slow responses must not decide
_FADING = 1 / 10.0
_EPOCH = 3600.0
_PENALTY = 10.0
_LEAST = 1e-6  # seconds; the logarithm of 0 is undefined
