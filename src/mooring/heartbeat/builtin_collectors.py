"""The built-in collectors: processors, memory, disk, network, the process, and a database check."""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from mooring.formatting import describe
from mooring.heartbeat.collectors import Cost

log = logging.getLogger(__name__)

_FIRST_INTERVAL = 0.1
"""Seconds between the two samples of the first collection."""


@dataclass(frozen=True, slots=True)
class CpuSample:
    """Seconds of processor time so far, over all processors."""

    process: float
    busy: float
    total: float


class CpuCollector:
    """Measures the load since the last collection. It does not use the percentages of psutil, which
    refer to the last call in the same thread: each collection runs in a new thread."""

    type = "cpu"
    cost = Cost.MEDIUM

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._last: CpuSample | None = None

    def available(self) -> bool:
        return True

    def collect(self) -> Mapping[str, object]:
        if self._last is None:
            self._last = self._sample()
            time.sleep(_FIRST_INTERVAL)
        sample = self._sample()
        values = loads(self._last, sample)
        self._last = sample
        one, five, fifteen = psutil.getloadavg()
        return {
            **values,
            "loadAverage": {"1m": one, "5m": five, "15m": fifteen},
            "count": psutil.cpu_count() or 1,
        }

    def _sample(self) -> CpuSample:
        own, machine = self._process.cpu_times(), psutil.cpu_times()
        # Linux counts a guest's time in `user` as well.
        guests = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
        total = sum(machine) - guests
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        return CpuSample(own.user + own.system, total - idle, total)


def loads(before: CpuSample, after: CpuSample) -> dict[str, float]:
    """The loads between two samples in percent of all processors; 0 if no time passed."""
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
        """`usagePercent` is the share of the machine's memory that is not available."""
        machine = psutil.virtual_memory()
        return {
            "usagePercent": machine.percent,
            "used": machine.used,
            "available": machine.available,
            "total": machine.total,
            "processResident": self._process.memory_info().rss,
        }


class DiskCollector:
    """Runs in a thread, because a network file system can be slow."""

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
        """Bytes are counted since the machine started."""
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
        # The age of the process, not of this object. From here on the monotonic clock counts, so
        # that setting the wall clock does not change the uptime.
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


class DatabaseCollector:
    """Measures whether the application's database answers, and how fast.

    `check` is a function such as `lambda: connection.execute("SELECT 1")`. The database is
    unreachable if it raises or returns False. It runs in a thread, one call at a time. Without a
    check the collector is not available.
    """

    type = "database"
    cost = Cost.HIGH

    def __init__(self, check: Callable[[], object] | None = None) -> None:
        self._check = check
        self._reachable = True

    def available(self) -> bool:
        return self._check is not None

    def collect(self) -> Mapping[str, object]:
        """`latencySeconds` is present only while the database is reachable."""
        if self._check is None:
            return {}
        started = time.monotonic()
        try:
            reachable, reason = self._check() is not False, "its check returned False"
        except Exception as error:  # noqa: BLE001 - a driver may raise anything
            reachable, reason = False, describe(error)
        latency = time.monotonic() - started
        if reachable != self._reachable:
            self._reachable = reachable
            if reachable:
                log.info("the database is reachable again")
            else:
                log.warning("the database is not reachable: %s", reason)
        return {"reachable": True, "latencySeconds": latency} if reachable else {"reachable": False}
