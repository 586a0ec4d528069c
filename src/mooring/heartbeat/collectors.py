"""Metric collectors: the protocol, and the choice of those that the settings enable."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from mooring.errors import InvalidRequest
from mooring.formatting import describe, quoted
from mooring.names import nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Cost(enum.Enum):
    """The cost of a collection, which decides where it runs."""

    LOW = "low"
    """In the event loop: `collect` returns at once and never waits for a disk or a network."""
    MEDIUM = "medium"
    """In a thread of its own."""
    HIGH = "high"
    """In a thread, one such collector at a time, and at most once a minute."""


class Collector(Protocol):
    """One source of metrics.

    Pass it to `connect` as an object, or install its class under the entry point group
    `mooring.collectors`: the name of the entry point is the collector's type, and the class is
    called without arguments.
    """

    @property
    def type(self) -> str:
        """Its name: `enabled-metrics` lists it, and its values appear below it."""

    @property
    def cost(self) -> Cost: ...

    def available(self) -> bool:
        """Whether it can measure here and now. Called before each collection, in the same place."""

    def collect(self) -> Mapping[str, object]:
        """The current values: texts, numbers, booleans, and mappings and lists of those.

        Percentages are 0 to 100, sizes bytes, durations seconds. An exception means that there
        is no value; it is logged once, until the collector works again.
        """


GROUP = "mooring.collectors"

BUILT_IN: Mapping[str, tuple[str, float]] = {
    "application": ("ApplicationCollector", 120.0),
    "cpu": ("CpuCollector", 60.0),
    "database": ("DatabaseCollector", 60.0),
    "disk": ("DiskCollector", 300.0),
    "memory": ("MemoryCollector", 30.0),
    "network": ("NetworkCollector", 60.0),
}
"""The class of each built-in collector, and its interval in seconds unless the settings set one."""

INTERVAL = 60.0
"""The interval of a custom collector unless the settings set one."""


def choose(
    enabled: Iterable[str], intervals: Mapping[str, float], own: Iterable[Collector] = ()
) -> list[tuple[Collector, float]]:
    """The enabled collectors with their intervals, in the order of their first mention, then those
    of `own` that the settings do not name: passing a collector in code enables it.

    If several have the same type, one of `own` wins over an entry point, and an entry point over a
    built-in collector. Only enabled collectors are loaded. Raises `InvalidRequest` for an unknown
    name.
    """
    from importlib.metadata import entry_points  # slow to load

    objects = {collector.type: collector for collector in own}
    installed = {point.name: point for point in entry_points(group=GROUP)}
    known = objects.keys() | installed.keys() | BUILT_IN.keys()
    names = list(dict.fromkeys([*enabled, *objects]))
    _check("enabled-metrics", names, known)
    _check("collection-intervals", intervals, known)

    def chosen(name: str) -> tuple[Collector, float]:
        class_name, interval = BUILT_IN.get(name, ("", INTERVAL))
        interval = intervals.get(name, interval)
        if name in objects:
            return objects[name], interval
        if name in installed:
            return _load(installed[name]), interval
        # Loaded on first use, because psutil is slow to load.
        built_in = importlib.import_module("mooring.heartbeat.builtin_collectors")
        return getattr(built_in, class_name)(), interval

    return [chosen(name) for name in names]


def _check(setting: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise InvalidRequest(
                f"registry.metrics.{setting}: no collector {quoted(name)}{nearest(name, known)}"
            )


def _load(point: EntryPoint) -> Collector:
    try:
        collector: Collector = point.load()()
    except Exception as error:
        raise InvalidRequest(
            f"collector {quoted(point.name)} of the entry point {point.value} cannot be loaded: "
            f"{describe(error)}"
        ) from error
    if collector.type != point.name:
        raise InvalidRequest(
            f"the entry point {quoted(point.name)} provides a collector of type "
            f"{quoted(collector.type)}: both must have the same name"
        )
    return collector
