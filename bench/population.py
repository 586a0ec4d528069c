"""Instances of one service, written without a process that keeps them registered."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from mooring.model import JSON, Instance, Status
from mooring.registry.kv.layouts import layout_of
from mooring.store import MAX_OPERATIONS, Put, Store

SERVICE = "bench/service"
LAYOUT = layout_of("tree")

_STARTED = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
# The output of the default collectors, so that values have a realistic length.
_CPU: Mapping[str, JSON] = {
    "processCpuLoad": 3.5,
    "systemCpuLoad": 12.5,
    "loadAverage": {"1m": 2.17236328125, "5m": 2.0146484375, "15m": 1.35693359375},
    "count": 8,
}
_METRICS: Mapping[str, JSON] = {
    "memory": {
        "usagePercent": 41.5,
        "used": 10_737_418_240,
        "available": 15_032_385_536,
        "total": 25_769_803_776,
        "processResident": 33_308_672,
    },
    "application": {"threadCount": 12, "uptimeSeconds": 3600.5, "pid": 1234},
    "disk": {
        "path": "/",
        "usagePercent": 55.5,
        "used": 107_374_182_400,
        "free": 107_374_182_400,
        "total": 214_748_364_800,
    },
}


def instance(number: int, *, load: float = 3.5) -> Instance:
    """One of many instances, each on its own host. Equal numbers give equal instances; `load`
    changes the status."""
    host = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    return _instance(host, 8080, f"{number:032x}", load)


def here(number: int) -> Instance:
    """One of the instances of one host, which differ in their ports."""
    return _instance("192.168.0.1", 1024 + number, f"{number:032x}", 3.5)


def _instance(host: str, port: int, incarnation: str, load: float) -> Instance:
    metrics = {**_METRICS, "cpu": {**_CPU, "processCpuLoad": load}}
    return Instance(
        SERVICE,
        host=host,
        port=port,
        version="1.2.3",
        zone="zone-1",
        metadata={"team": "bench", "commit": "0123456789abcdef"},
        incarnation=incarnation,
        status=Status(registered_at=_STARTED, updated_at=_STARTED, metrics=metrics),
    )


def puts(instance: Instance) -> list[Put]:
    """The puts that register it permanently, without a lease."""
    return [Put(name, value) for name, value in LAYOUT.encode(instance).items()]


async def populate(store: Store, numbers: Iterable[int]) -> None:
    """Writes these instances in batches."""
    writes = [put for number in numbers for put in puts(instance(number))]
    for start in range(0, len(writes), MAX_OPERATIONS):
        await store.commit(*writes[start : start + MAX_OPERATIONS])
