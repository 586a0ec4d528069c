"""Smart heartbeats: when an instance sends a heartbeat, and when it publishes its metrics with it.

`policy` decides what to send, and `collectors` measure the metrics.
"""

from typing import TYPE_CHECKING

from mooring.heartbeat.collectors import Collecting, Collector, Cost
from mooring.heartbeat.policy import Beats, Decision, changes, flatten

if TYPE_CHECKING:
    from mooring.heartbeat.builtin_collectors import DatabaseCollector, DiskCollector

__all__ = [
    "Beats",
    "Collecting",
    "Collector",
    "Cost",
    "DatabaseCollector",
    "Decision",
    "DiskCollector",
    "changes",
    "flatten",
]


def __getattr__(name: str) -> object:
    """Built-in collectors are loaded on first use, because psutil is slow to load."""
    if name in ("DatabaseCollector", "DiskCollector"):
        from mooring.heartbeat import builtin_collectors

        return getattr(builtin_collectors, name)
    raise AttributeError(f"module 'mooring.heartbeat' has no attribute '{name}'")
