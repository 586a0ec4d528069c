"""Zones: how calls are split between the caller's own zone and other zones."""

from __future__ import annotations

import random
from hashlib import blake2b
from typing import Literal, NamedTuple

from mooring.discovery.balance.picker import Node, Picker
from mooring.discovery.resilience import Resilience
from mooring.formatting import quoted


class ZonePicker:
    """Sends the share `stay` of the calls to local nodes and the rest to remote ones.

    Each side has its own picker of the same policy. A key stays on its side while `stay` does not
    change, and a smaller `stay` moves only the keys that leave.
    """

    def __init__(
        self, local: Picker, remote: Picker, *, keyed: bool, rng: random.Random | None = None
    ) -> None:
        self.stay = 0.0
        """The share of calls for local nodes. Above 0 needs a local node, below 1 a remote one."""
        self._local, self._remote = local, remote
        self._keyed = keyed
        self._random = (rng or random.Random()).random
        self._sides: dict[Node, Picker] = {}

    def add(self, node: Node, *, local: bool = False) -> None:
        if node in self._sides:
            raise ValueError(f"{quoted(node.id)} is in this picker already")
        side = self._local if local else self._remote
        side.add(node)
        self._sides[node] = side

    def remove(self, node: Node) -> None:
        self._sides.pop(node).remove(node)

    def reweight(self, node: Node, weight: float) -> None:
        self._sides[node].reweight(node, weight)

    def pick(self, key: str | bytes | None = None) -> Node:
        stay = self.stay
        if stay >= 1.0:
            return self._local.pick(key)
        if stay <= 0.0:
            return self._remote.pick(key)
        at = _position(key) if self._keyed and key is not None else self._random()
        return (self._local if at < stay else self._remote).pick(key)

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
instances are, whatever their health."""


class Part(NamedTuple):
    """What one instance contributes to a tally."""

    weight: float
    admissible: bool = False
    """Whether it may be called. One that drains may not, and yet was a part of its zone."""
    reachable: bool = False
    well: bool = False
    usable: float = 0.0
    """The part of its weight that is usable: of one that is well, as far as it is warm."""


class Tally:
    """How many instances may be called, and how much of their weight is usable."""

    __slots__ = ("admissible", "members", "reachable", "usable", "weight", "well")

    def __init__(self) -> None:
        self.members = self.admissible = self.reachable = self.well = 0
        self.weight = self.usable = 0.0

    def count(self, part: Part, by: int) -> None:
        self.members += by
        self.admissible += by * part.admissible
        self.reachable += by * part.reachable
        self.well += by * part.well
        # Rounding errors must not outlive the last member.
        self.weight = self.weight + by * part.weight if self.members else 0.0
        self.usable = self.usable + by * part.usable if self.well else 0.0

    @property
    def share(self) -> float:
        """How much of what it could carry is usable."""
        return self.usable / self.weight if self.weight > 0 else 0.0


class Sides(NamedTuple):
    """The tallies of all other zones and of the caller's zone."""

    remote: Tally
    local: Tally

    @classmethod
    def empty(cls) -> Sides:
        return cls(Tally(), Tally())

    def choose(self, settings: Resilience) -> tuple[Mode, float]:
        """The mode, and the share of calls that stay in the caller's zone."""
        least = settings.panic_threshold
        enough = any(side.well and side.well >= side.admissible * least for side in self)
        if least and not enough and any(side.admissible for side in self):
            return "panic", 0.0
        if not self.local.well:
            return "healthy", 0.0
        stay = self._staying(settings.zone_threshold)
        return ("zone" if stay >= 1.0 else "spill-over"), stay

    def _staying(self, threshold: float) -> float:
        """Calls leave only for zones that are better off."""
        here, elsewhere = (
            1.0 if side.share >= threshold else side.share / threshold
            for side in (self.local, self.remote)
        )
        return min(here / elsewhere, 1.0) if self.remote.well else 1.0
