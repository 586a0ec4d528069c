"""The load of the processors, by this process and by all."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from mooring.heartbeat.collectors.contract import Cost

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
