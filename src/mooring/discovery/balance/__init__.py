"""Which node is called next: six policies behind one small interface.

| policy            | a pick costs | weights                       | for |
|-------------------|--------------|-------------------------------|-----|
| `random`          | O(1)         | exact on average              | many clients, short calls |
| `round_robin`     | O(1)         | ignored                       | like nodes, like requests |
| `weighted`        | O(log n)     | exact over every turn         | unlike nodes, like requests |
| `p2c`             | O(1)         | on average, and under load    | slow nodes get less |
| `least_requests`  | O(log n)     | on average, and under load    | calls of very unlike length |
| `consistent_hash` | O(log n)     | roughly                       | caches, sticky keys |

Pickers do no I/O and know nothing of health: who keeps them adds those that may be called and
removes the others. No operation walks over all nodes, since a view may hold 10,000 and follow 1,000
changes a second. (Structures with lazy deletion are swept once they are half garbage: O(1) for each
change on average.) They are not safe for threads.
"""

from __future__ import annotations

import random
import time
from typing import Final

from mooring.discovery.balance.consistent_hash import ConsistentHash
from mooring.discovery.balance.p2c import P2C, LeastRequests
from mooring.discovery.balance.picker import HEAVIEST, LIGHTEST, Clock, Node, Picker
from mooring.discovery.balance.round_robin import RoundRobin, WeightedRoundRobin
from mooring.discovery.balance.weighted_random import Random
from mooring.discovery.balance.zone_split import LocalityPicker
from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.names import nearest

__all__ = [
    "HEAVIEST",
    "LIGHTEST",
    "NAMES",
    "P2C",
    "ConsistentHash",
    "LeastRequests",
    "LocalityPicker",
    "Node",
    "Picker",
    "Random",
    "RoundRobin",
    "WeightedRoundRobin",
    "make",
]


def make(policy: str, *, rng: random.Random | None = None, clock: Clock = time.monotonic) -> Picker:
    """The picker for a policy by name. `InvalidRequest` for an unknown one."""
    rng = rng or random.Random()
    match policy:
        case "random":
            return Random(rng)
        case "round_robin":
            return RoundRobin()
        case "weighted":
            return WeightedRoundRobin(rng)
        case "p2c":
            return P2C(rng, clock)
        case "least_requests":
            return LeastRequests(rng)
        case "consistent_hash":
            return ConsistentHash(rng)
        case _:
            raise InvalidRequest(
                f"there is no balancing policy {quoted(policy)}{nearest(policy, NAMES)}"
            )


NAMES: Final = (
    "random",
    "round_robin",
    "weighted",
    "p2c",
    "least_requests",
    "consistent_hash",
)
