"""Collectors of metrics: the contract, those that come with Mooring, and how one is chosen.

`collector` says what a collector is, `selection` picks those that the settings enable.
"""

import importlib
from typing import TYPE_CHECKING

from mooring.heartbeat.collectors.collector import Collector, Cost

if TYPE_CHECKING:
    from mooring.heartbeat.collectors.database import DatabaseCollector
    from mooring.heartbeat.collectors.host import (
        ApplicationCollector,
        CpuCollector,
        DiskCollector,
        MemoryCollector,
        NetworkCollector,
    )
    from mooring.heartbeat.collectors.selection import choose

__all__ = [
    "ApplicationCollector",
    "Collector",
    "Cost",
    "CpuCollector",
    "DatabaseCollector",
    "DiskCollector",
    "MemoryCollector",
    "NetworkCollector",
    "choose",
]

_MODULES = {
    "ApplicationCollector": "host",
    "CpuCollector": "host",
    "DatabaseCollector": "database",
    "DiskCollector": "host",
    "MemoryCollector": "host",
    "NetworkCollector": "host",
    "choose": "selection",
}


def __getattr__(name: str) -> object:
    """The collectors are loaded when they are first used: psutil is slow to load."""
    if name not in _MODULES:
        raise AttributeError(f"module 'mooring.heartbeat.collectors' has no attribute '{name}'")
    module = importlib.import_module(f"mooring.heartbeat.collectors.{_MODULES[name]}")
    value: object = getattr(module, name)
    return value
