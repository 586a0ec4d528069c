"""Which node is called next: six policies behind one interface.

| policy            | cost of a pick | weights                     | suited for |
|-------------------|----------------|-----------------------------|------------|
| `random`          | O(1)           | exact on average            | many clients, short calls |
| `round_robin`     | O(1)           | ignored                     | equal nodes, equal requests |
| `weighted`        | O(log n)       | exact over every turn       | unequal nodes, equal requests |
| `p2c`             | O(1)           | on average, and under load  | fewer calls for slow nodes |
| `least_requests`  | O(log n)       | on average, and under load  | calls of unequal length |
| `consistent_hash` | O(log n)       | roughly                     | caches, sticky keys |

Pickers do no I/O and do not know about health: their owner adds the nodes that may be called and
removes the others. No operation visits all nodes, since a view may hold 10,000 and receive 1,000
changes a second. (Structures with lazy deletion are swept once half of them is garbage: O(1) for
each change on average.) Pickers are not thread-safe.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Final

from mooring.discovery.balance.consistent_hash import ConsistentHash
from mooring.discovery.balance.least_requests import LeastRequests
from mooring.discovery.balance.p2c import P2C
from mooring.discovery.balance.picker import Clock, Node, Picker
from mooring.discovery.balance.round_robin import RoundRobin
from mooring.discovery.balance.weighted_random import Random
from mooring.discovery.balance.weighted_round_robin import WeightedRoundRobin
from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.names import nearest

__all__ = [
    "NAMES",
    "P2C",
    "ConsistentHash",
    "LeastRequests",
    "Node",
    "Picker",
    "Random",
    "RoundRobin",
    "WeightedRoundRobin",
    "make",
]


_PICKERS: Mapping[str, Callable[[random.Random, Clock], Picker]] = {
    "random": lambda rng, _: Random(rng),
    "round_robin": lambda *_: RoundRobin(),
    "weighted": lambda rng, _: WeightedRoundRobin(rng),
    "p2c": P2C,
    "least_requests": lambda rng, _: LeastRequests(rng),
    "consistent_hash": lambda rng, _: ConsistentHash(rng),
}
NAMES: Final = tuple(_PICKERS)


def make(policy: str, *, rng: random.Random | None = None, clock: Clock = time.monotonic) -> Picker:
    """Make the picker for a policy by name. Raises `InvalidRequest` for an unknown one."""
    if policy not in NAMES:
        raise InvalidRequest(f"unknown balancing policy {quoted(policy)}{nearest(policy, NAMES)}")
    return _PICKERS[policy](rng or random.Random(), clock)
