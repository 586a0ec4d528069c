"""The space of the disk that a path lies on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil

from mooring.heartbeat.collectors.contract import Cost


class DiskCollector:
    """In a thread, since a path on a network can take its time."""

    type = "disk"
    cost = Cost.MEDIUM

    def __init__(self, path: str | Path = "/") -> None:
        self._path = str(path)

    def available(self) -> bool:
        return Path(self._path).exists()

    def collect(self) -> Mapping[str, object]:
        usage = psutil.disk_usage(self._path)
        return {
            "path": self._path,
            "usagePercent": usage.percent,
            "used": usage.used,
            "free": usage.free,
            "total": usage.total,
        }
