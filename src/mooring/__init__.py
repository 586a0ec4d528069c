"""Service registry, discovery, locks and configuration on etcd, Redis or an embedded store."""

import importlib

from mooring.discovery.resilience import Resilience
from mooring.errors import LockLost, MooringError
from mooring.hub import Hub, connect
from mooring.locks.election import Leadership
from mooring.locks.held import Held
from mooring.locks.lock import Lock
from mooring.model import Config, Group, Instance, Service, Status
from mooring.registry.registration import Registration
from mooring.registry.shutdown import until_stopped
from mooring.store.etcd.forks import guard as _guard_forks
from mooring.version import VERSION as __version__

__all__ = [
    "Config",
    "Group",
    "Held",
    "Hub",
    "Instance",
    "Leadership",
    "Lock",
    "LockLost",
    "MooringError",
    "Registration",
    "Resilience",
    "Service",
    "Status",
    "__version__",
    "connect",
    "until_stopped",
]

_guard_forks()


def __getattr__(name: str) -> object:
    """`mooring.sync` is loaded when it is first asked for."""
    if name == "sync":
        return importlib.import_module("mooring.sync")
    raise AttributeError(f"module 'mooring' has no attribute '{name}'")
