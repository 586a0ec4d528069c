"""This process as a Python application."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Mapping

import psutil

from mooring.heartbeat.collectors.contract import Cost


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
