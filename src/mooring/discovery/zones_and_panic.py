"""Zones and panic: when calls leave the zone, and when unhealthy instances are called too."""

from __future__ import annotations

import random
from hashlib import blake2b
from typing import Literal, NamedTuple

from mooring.discovery.balance.picker import Node, Picker
from mooring.discovery.resilience import Resilience
from mooring.formatting import quoted


class ZonePicker:
    """Sends the share `local_share` of the calls to local nodes and the rest to remote ones.

    Each side has its own picker of the same policy. A key stays on its side while `local_share`
    does not change; a smaller share moves only the keys that leave.
    """

    def __init__(
        self, local: Picker, remote: Picker, *, keyed: bool, rng: random.Random | None = None
    ) -> None:
        self.local_share = 0.0
        """The share of calls for local nodes. Above 0 needs a local node, below 1 a remote one."""
        self._local, self._remote = local, remote
        self._keyed = keyed
        self._random = (rng or random.Random()).random
        self._sides: dict[Node, Picker] = {}

    def add(self, node: Node, *, local: bool = False) -> None:
        if node in self._sides:
            raise ValueError(f"{quoted(node.id)} is already in this picker")
        side = self._local if local else self._remote
        side.add(node)
        self._sides[node] = side

    def remove(self, node: Node) -> None:
        self._sides.pop(node).remove(node)

    def reweight(self, node: Node, weight: float) -> None:
        self._sides[node].reweight(node, weight)

    def pick(self, key: str | bytes | None = None) -> Node:
        share = self.local_share
        if share >= 1.0:
            return self._local.pick(key)
        if share <= 0.0:
            return self._remote.pick(key)
        at = _position(key) if self._keyed and key is not None else self._random()
        return (self._local if at < share else self._remote).pick(key)

    def started(self, node: Node) -> None:
        self._sides.get(node, self._remote).started(node)

    def finished(self, node: Node, seconds: float, ok: bool) -> None:
        self._sides.get(node, self._remote).finished(node, seconds, ok)

    def __len__(self) -> int:
        return len(self._sides)


def _position(key: str | bytes) -> float:
    """The position of a key between 0 and 1, the same in every process."""
    data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return int.from_bytes(blake2b(data, digest_size=6, person=b"locality").digest()) / 2**48


Mode = Literal["zone", "spill-over", "healthy", "panic"]
"""All calls stay in the zone; some leave it; healthy instances of all zones are called; or all
instances are, regardless of health."""


class Contribution(NamedTuple):
    """What one instance contributes to the tally of its zone."""

    weight: float
    eligible: bool = False
    """Whether it may be called. A draining instance may not, but its weight still counts."""
    reachable: bool = False
    healthy: bool = False
    usable_weight: float = 0.0
    """Its weight if it is healthy, reduced during slow start; otherwise 0."""


class ZoneTally:
    """How many instances may be called, and how much of their weight is usable."""

    __slots__ = ("eligible", "healthy", "members", "reachable", "usable_weight", "weight")

    def __init__(self) -> None:
        self.members = self.eligible = self.reachable = self.healthy = 0
        self.weight = self.usable_weight = 0.0

    def count(self, part: Contribution, by: int) -> None:
        self.members += by
        self.eligible += by * part.eligible
        self.reachable += by * part.reachable
        self.healthy += by * part.healthy
        # Rounding errors must not outlive the last member.
        self.weight = self.weight + by * part.weight if self.members else 0.0
        usable = self.usable_weight + by * part.usable_weight
        self.usable_weight = usable if self.healthy else 0.0

    @property
    def usable_share(self) -> float:
        return self.usable_weight / self.weight if self.weight > 0 else 0.0


class ZoneTallies(NamedTuple):
    """The tally of all other zones and that of the caller's zone."""

    remote: ZoneTally
    local: ZoneTally

    @classmethod
    def empty(cls) -> ZoneTallies:
        return cls(ZoneTally(), ZoneTally())

    def choose(self, settings: Resilience) -> tuple[Mode, float]:
        """The mode, and the share of calls that stay in the caller's zone."""
        threshold = settings.panic_threshold
        enough = any(zone.healthy and zone.healthy >= zone.eligible * threshold for zone in self)
        if threshold and not enough and any(zone.eligible for zone in self):
            return "panic", 0.0
        if not self.local.healthy:
            return "healthy", 0.0
        share = self._local_share(settings.zone_threshold)
        return ("zone" if share >= 1.0 else "spill-over"), share

    def _local_share(self, threshold: float) -> float:
        """The share of calls that stay. Calls leave only for zones with more usable capacity."""
        local, remote = (
            1.0 if zone.usable_share >= threshold else zone.usable_share / threshold
            for zone in (self.local, self.remote)
        )
        return min(local / remote, 1.0) if self.remote.healthy else 1.0
