"""Collectors of metrics: the contract, those that come with Mooring, and how one is chosen.

`contract` says what a collector is; each other module but `choosing` is one.
"""

import importlib
from typing import TYPE_CHECKING

from mooring.heartbeat.collectors.contract import Collector, Cost

if TYPE_CHECKING:
    from mooring.heartbeat.collectors.application import ApplicationCollector
    from mooring.heartbeat.collectors.choosing import choose
    from mooring.heartbeat.collectors.cpu import CpuCollector
    from mooring.heartbeat.collectors.database import DatabaseCollector
    from mooring.heartbeat.collectors.disk import DiskCollector
    from mooring.heartbeat.collectors.memory import MemoryCollector
    from mooring.heartbeat.collectors.network import NetworkCollector

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
    "ApplicationCollector": "application",
    "CpuCollector": "cpu",
    "DatabaseCollector": "database",
    "DiskCollector": "disk",
    "MemoryCollector": "memory",
    "NetworkCollector": "network",
    "choose": "choosing",
}


def __getattr__(name: str) -> object:
    """The collectors are loaded when they are first used: psutil is slow to load."""
    if name not in _MODULES:
        raise AttributeError(f"module 'mooring.heartbeat.collectors' has no attribute '{name}'")
    module = importlib.import_module(f"mooring.heartbeat.collectors.{_MODULES[name]}")
    value: object = getattr(module, name)
    return value
