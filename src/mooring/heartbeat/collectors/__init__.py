"""Collectors of metrics: the contract, those that come with Mooring, and how one is chosen.

`selection` picks those that the settings enable.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

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


class Cost(enum.Enum):
    """How dear a collection is, which decides where it runs."""

    LOW = "low"
    """In the event loop: it must return at once, never wait for a disk or a network."""
    MEDIUM = "medium"
    """In a thread of its own."""
    HIGH = "high"
    """In a thread, never beside another of this cost, and no more than once a minute."""


class Collector(Protocol):
    """One source of metrics.

    Handed to `Collecting` as an object, or found by the entry point group `mooring.collectors`:
    the entry point's name is the collector's type, and its class is called without arguments.
    """

    @property
    def type(self) -> str:
        """Its name: what `enabled-metrics` lists, and the branch that its values stand under."""

    @property
    def cost(self) -> Cost: ...

    def available(self) -> bool:
        """Whether it can measure here and now. Asked before each collection, where that runs."""

    def collect(self) -> Mapping[str, object]:
        """The values of now: texts, numbers, booleans, and mappings and lists of those.

        Percentages are 0 to 100, sizes bytes, durations seconds. An exception means that there
        is no value; it is logged once, until the collector works again.
        """


def __getattr__(name: str) -> object:
    """The collectors are loaded when they are first used: psutil is slow to load."""
    if name not in _MODULES:
        raise AttributeError(f"module 'mooring.heartbeat.collectors' has no attribute '{name}'")
    module = importlib.import_module(f"mooring.heartbeat.collectors.{_MODULES[name]}")
    value: object = getattr(module, name)
    return value
