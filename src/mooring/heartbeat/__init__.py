"""Smart heartbeats: when an instance beats, and when it tells its metrics with the beat.

`policy` decides by `thresholds`, `collecting` runs the `collectors`, `settings` reads the YAML.
"""

from mooring.heartbeat.collecting import Collecting
from mooring.heartbeat.collectors import Collector, Cost, DatabaseCollector, DiskCollector
from mooring.heartbeat.policy import Beats, Decision, Policy
from mooring.heartbeat.settings import (
    CleanupSettings,
    HeartbeatSettings,
    MetricsSettings,
    RedisSettings,
    RegistrySettings,
    load,
    parse,
)
from mooring.heartbeat.thresholds import Threshold, changes, flatten

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
