"""Metrics that look alive: each wanders about a place of its own, and jumps where something is
wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from mooring.heartbeat.collectors.contract import Cost
from mooring.model import JSON


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
