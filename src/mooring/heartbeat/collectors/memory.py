"""The memory of the machine and of this process."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from mooring.heartbeat.collectors.contract import Cost


class MemoryCollector:
    type = "memory"
    cost = Cost.LOW

    def __init__(self) -> None:
        self._process = psutil.Process()

    def available(self) -> bool:
        return True

    def collect(self) -> Mapping[str, object]:
        """`usagePercent` is of the machine: what no process could have any more."""
        machine = psutil.virtual_memory()
        return {
            "usagePercent": machine.percent,
            "used": machine.used,
            "available": machine.available,
            "total": machine.total,
            "processResident": self._process.memory_info().rss,
        }
