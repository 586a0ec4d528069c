"""The load of the processors, by this process and by all."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from mooring.heartbeat.collectors import Cost

_FIRST = 0.1
"""Seconds to measure over when there is no earlier sample: a load is over a stretch of time."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds of processor time so far, over all processors."""

    process: float
    busy: float
    total: float


class CpuCollector:
    """Loads are since the last collection. Sampled here and not by psutil's own percentages, which
    remember the last call for each thread, and each collection has a new one."""

    type = "cpu"
    cost = Cost.MEDIUM

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._last: Sample | None = None

    def available(self) -> bool:
        return True

    def collect(self) -> Mapping[str, object]:
        if self._last is None:
            self._last = self._sample()
            time.sleep(_FIRST)
        sample = self._sample()
        values = loads(self._last, sample)
        self._last = sample
        one, five, fifteen = psutil.getloadavg()
        return {
            **values,
            "loadAverage": {"1m": one, "5m": five, "15m": fifteen},
            "count": psutil.cpu_count() or 1,
        }

    def _sample(self) -> Sample:
        own, machine = self._process.cpu_times(), psutil.cpu_times()
        # Linux counts a guest's time in `user` as well.
        guests = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
        total = sum(machine) - guests
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        return Sample(own.user + own.system, total - idle, total)


def loads(before: Sample, after: Sample) -> dict[str, float]:
    """The loads between two samples in percent of all processors; 0 where no time passed."""
    passed = after.total - before.total

    def percent(used: float) -> float:
        return round(min(max(used / passed * 100, 0.0), 100.0), 2) if passed > 0 else 0.0

    return {
        "processCpuLoad": percent(after.process - before.process),
        "systemCpuLoad": percent(after.busy - before.busy),
    }


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


class NetworkCollector:
    type = "network"
    cost = Cost.MEDIUM

    def __init__(self) -> None:
        self._process = psutil.Process()

    def available(self) -> bool:
        return psutil.net_io_counters() is not None

    def collect(self) -> Mapping[str, object]:
        """Bytes are those since the machine started."""
        machine = psutil.net_io_counters()
        states = Counter(c.status for c in self._process.net_connections(kind="inet"))
        return {
            "bytesSent": machine.bytes_sent,
            "bytesReceived": machine.bytes_recv,
            "connections": states.total(),
            "established": states[psutil.CONN_ESTABLISHED],
            "listening": states[psutil.CONN_LISTEN],
        }


class ApplicationCollector:
    type = "application"
    cost = Cost.LOW

    def __init__(self) -> None:
        # Since the process began, not since this import; counted on by the monotonic clock, so
        # that a wall clock which is set does not change it.
        age = time.time() - psutil.Process().create_time()
        self._started = time.monotonic() - max(age, 0.0)

    def available(self) -> bool:
        return True

    def collect(self) -> Mapping[str, object]:
        return {
            "threadCount": threading.active_count(),
            "uptimeSeconds": round(time.monotonic() - self._started, 3),
            "pid": os.getpid(),
            "pythonVersion": platform.python_version(),
        }
