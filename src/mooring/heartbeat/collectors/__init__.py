"""Collectors of metrics: the contract, those that come with Mooring, and how one is chosen.

`contract` says what a collector is; each other module but `choosing` is one.
"""

from mooring.heartbeat.collectors.application import ApplicationCollector
from mooring.heartbeat.collectors.choosing import choose
from mooring.heartbeat.collectors.contract import Collector, Cost
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
