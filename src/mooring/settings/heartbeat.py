"""When an instance sends heartbeats, and which changes of its metrics are significant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mooring.errors import InvalidRequest

Kind = Literal["absolute", "percentage", "any"]


@dataclass(frozen=True, slots=True)
class Threshold:
    """A change of more than `threshold` is significant; under `any`, every difference is.

    A percentage is of the old value; from 0 any other value is significant. What is no number
    (a text, a boolean) is compared by equality whatever the type.
    """

    threshold: float
    type: Kind

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise InvalidRequest(f"a threshold of {self.threshold} makes no sense: give 0 or more")


THRESHOLDS: Mapping[str, Threshold] = {
    "memory.usagePercent": Threshold(10.0, "absolute"),
    "cpu.processCpuLoad": Threshold(20.0, "absolute"),
    "healthy": Threshold(0.0, "any"),
}
"""What is watched unless something else is said."""


def canonical(path: str) -> str:
    """The one spelling of a path: `health` and `healthy` are the same."""
    head, dot, rest = path.partition(".")
    return f"healthy{dot}{rest}" if head == "health" else path


@dataclass(frozen=True, slots=True)
class Policy:
    """How often to send, in seconds, and what is worth sending sooner."""

    heartbeat_interval: float = 10.0
    metadata_interval: float = 60.0
    thresholds: Mapping[str, Threshold] = field(default_factory=lambda: THRESHOLDS)
    immediate: bool = True
    """Send a significant change at once; otherwise it goes with the next beat."""
    jitter: float = 0.2
    """A send may come early by up to this share of its interval, never late: processes that started
    in the same moment must not send in the same moment for ever."""

    def __post_init__(self) -> None:
        if not (self.heartbeat_interval > 0 and self.metadata_interval > 0):
            raise InvalidRequest(
                f"intervals of {self.heartbeat_interval} s and {self.metadata_interval} s make no "
                "sense: both must be above 0"
            )
        if not 0 <= self.jitter < 1:
            raise InvalidRequest(f"a jitter of {self.jitter} is not a share from 0 to below 1")

    @property
    def longest_retry(self) -> float:
        """The bound of the pauses between tries while the registry is away, in seconds. An instance
        is back within one heartbeat: half of it is for the try itself."""
        return min(max(self.heartbeat_interval / 2, 1.0), 10.0)
