"""Smart heartbeats: when an instance beats, and when it tells its metrics with the beat.

`policy` decides by `thresholds`, and `scheduler` runs the `collectors`.
"""

from typing import TYPE_CHECKING

from mooring.heartbeat.collectors import Collector, Cost
from mooring.heartbeat.policy import Beats, Decision
from mooring.heartbeat.scheduler import Collecting
from mooring.heartbeat.thresholds import changes, flatten
from mooring.settings.registry import (
    CleanupSettings,
    HeartbeatSettings,
    MetricsSettings,
    Policy,
    RedisSettings,
    RegistrySettings,
    Threshold,
    load,
    parse,
)

if TYPE_CHECKING:
    from mooring.heartbeat.collectors import DatabaseCollector, DiskCollector

__all__ = [
    "Beats",
    "CleanupSettings",
    "Collecting",
    "Collector",
    "Cost",
    "DatabaseCollector",
    "Decision",
    "DiskCollector",
    "HeartbeatSettings",
    "MetricsSettings",
    "Policy",
    "RedisSettings",
    "RegistrySettings",
    "Threshold",
    "changes",
    "flatten",
    "load",
    "parse",
]


def __getattr__(name: str) -> object:
    """Collectors are loaded when they are first used."""
    if name in ("DatabaseCollector", "DiskCollector"):
        from mooring.heartbeat import collectors

        return getattr(collectors, name)
    raise AttributeError(f"module 'mooring.heartbeat' has no attribute '{name}'")
