"""Which collectors run: those that the settings enable, whoever wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points

from mooring.errors import InvalidRequest
from mooring.formatting import describe, quoted
from mooring.heartbeat.collectors import Collector
from mooring.heartbeat.collectors.database import DatabaseCollector
from mooring.heartbeat.collectors.host import (
    ApplicationCollector,
    CpuCollector,
    DiskCollector,
    MemoryCollector,
    NetworkCollector,
)
from mooring.names import nearest

GROUP = "mooring.collectors"

BUILT_IN: Mapping[str, Callable[[], Collector]] = {
    "application": ApplicationCollector,
    "cpu": CpuCollector,
    "database": DatabaseCollector,
    "disk": DiskCollector,
    "memory": MemoryCollector,
    "network": NetworkCollector,
}

INTERVALS: Mapping[str, float] = {
    "application": 120.0,
    "cpu": 60.0,
    "database": 60.0,
    "disk": 300.0,
    "memory": 30.0,
    "network": 60.0,
}
INTERVAL = 60.0
"""Of a collector of the user's own, where the settings name none."""


def choose(
    enabled: Iterable[str], intervals: Mapping[str, float], own: Iterable[Collector] = ()
) -> list[tuple[Collector, float]]:
    """The enabled collectors with their intervals, in the order of their first mention, and then
    those of `own` that the settings do not name: passing a collector in code enables it.

    One of `own` replaces one of an entry point, and that one a built-in one, of the same type.
    Only enabled collectors are loaded. Raises `InvalidRequest` for an unknown name.
    """
    handed = {collector.type: collector for collector in own}
    installed = {point.name: point for point in entry_points(group=GROUP)}
    known = handed.keys() | installed.keys() | BUILT_IN.keys()
    names = list(dict.fromkeys([*enabled, *handed]))
    _check("enabled-metrics", names, known)
    _check("collection-intervals", intervals, known)

    def collector(name: str) -> Collector:
        if name in handed:
            return handed[name]
        return _load(installed[name]) if name in installed else BUILT_IN[name]()

    return [(collector(name), intervals.get(name, INTERVALS.get(name, INTERVAL))) for name in names]


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
            f"the entry point {quoted(point.name)} gives a collector of type "
            f"{quoted(collector.type)}: give both one name"
        )
    return collector
