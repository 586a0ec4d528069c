"""What happens when, as data: a play of a minute that begins again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mooring.heartbeat.collectors import Cost
from mooring.model import JSON

Verb = Literal["fail", "recover", "drain", "leave", "return"]

LASTS = 60.0
"""Seconds of one round."""


@dataclass(frozen=True, slots=True)
class Role:
    """An instance of the play."""

    service: str
    number: int
    zone: str
    version: str

    @property
    def name(self) -> str:
        return f"{self.service} {self.number}"


@dataclass(frozen=True, slots=True)
class Act:
    at: float
    """Seconds from the beginning of a round."""
    verb: Verb
    service: str
    number: int
    """Which of its instances, from 1 on; 0: all of them."""
    text: str
    """What the audience is told."""


_CAST = (
    ("shop/orders", 3, "2.4.1"),
    ("shop/cart", 2, "1.9.0"),
    ("shop/payments", 3, "3.0.2"),
    ("media/thumbnails", 2, "0.8.5"),
    ("gateway", 2, "5.1.0"),
)

ROLES: tuple[Role, ...] = tuple(
    Role(service, number, "east" if number % 2 else "west", version)
    for service, count, version in _CAST
    for number in range(1, count + 1)
)

ACTS: tuple[Act, ...] = (
    Act(4, "fail", "shop/payments", 2, "its database is slow: it says that it is unhealthy"),
    Act(12, "fail", "shop/orders", 3, "it is out of memory: it says that it is unhealthy"),
    Act(18, "recover", "shop/payments", 2, "its database answers again: it is healthy"),
    Act(22, "drain", "shop/cart", 1, "a new version comes: it drains, and goes"),
    Act(30, "return", "shop/cart", 1, "it is back, with a new version"),
    Act(34, "recover", "shop/orders", 3, "it was restarted: it is healthy"),
    Act(38, "leave", "media/thumbnails", 0, "all of them go: nobody can be called"),
    Act(50, "return", "media/thumbnails", 0, "they are back"),
)
"""In their order. After them everything is as it was at the beginning."""


def next_version(version: str) -> str:
    """The version that a new build has: `1.9.0` → `1.9.1`."""
    rest, _, last = version.rpartition(".")
    return f"{rest}.{int(last) + 1}"


@dataclass(slots=True)
class Wandering:
    """A value that goes up and down, and back to `middle` in the long run."""

    middle: float
    step: float
    least: float = 0.0
    most: float = float("inf")
    value: float = field(init=False)

    def __post_init__(self) -> None:
        self.value = self.middle

    def next(self, chance: random.Random, *, times: float = 1.0) -> float:
        """The value of now, about so many times its middle."""
        back = (self.middle * times - self.value) * 0.3
        self.value += back + chance.uniform(-self.step, self.step)
        self.value = min(max(self.value, self.least), self.most)
        return round(self.value, 2)


class Gauges:
    """A collector for one actor. The same seed gives the same metrics."""

    type = "demo"
    cost = Cost.LOW

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._cpu = Wandering(self._chance.uniform(10, 45), 4.0, most=100.0)
        self._memory = Wandering(self._chance.uniform(30, 60), 1.0, least=5.0, most=100.0)
        self._requests = Wandering(self._chance.uniform(40, 400), 25.0)
        self._latency = Wandering(self._chance.uniform(8, 40), 4.0, least=1.0)
        self.failing = False

    def available(self) -> bool:
        return True

    def collect(self) -> Mapping[str, JSON]:
        worse = 1.7 if self.failing else 1.0
        return {
            "cpu": {"processCpuLoad": self._cpu.next(self._chance, times=worse)},
            "memory": {"usagePercent": self._memory.next(self._chance, times=worse)},
            "application": {
                "requestsPerSecond": self._requests.next(self._chance, times=1 / worse**2),
                "p99Ms": self._latency.next(self._chance, times=worse**4),
            },
        }
