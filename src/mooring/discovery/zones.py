"""The caller's zone and all other zones: what each can carry, and how calls are split between them.

Calls stay in the caller's zone while enough of it is usable, and spill over to other zones in
proportion when it is not. Health is ignored (panic) only if neither side has enough instances that
are healthy.

The model is Envoy with the caller's zone as its first priority and all others as the second. Its
panic differs: Envoy panics for each priority separately, and only while all priorities together
cannot carry all calls. With 40 % healthy on both sides, each carries 56 %, and Envoy calls only
healthy instances. Here neither side has half, and all instances are called.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from mooring.discovery.resilience import Resilience

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
