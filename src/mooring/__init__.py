"""Service registry, discovery, locks and configuration on etcd, Redis or an embedded store."""

import importlib
from typing import TYPE_CHECKING

from mooring.fork_guard import guard as _guard_forks
from mooring.version import VERSION as __version__

if TYPE_CHECKING:
    from mooring.discovery.resilience import Resilience
    from mooring.errors import LockLost, MooringError
    from mooring.hub import Hub, connect
    from mooring.locks.election import Leadership
    from mooring.locks.held import Held
    from mooring.locks.lock import Lock
    from mooring.model import Config, Group, Instance, Service, Status
    from mooring.registry.registration import Registration
    from mooring.registry.shutdown import until_stopped

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

_MODULES = {
    "Config": "mooring.model",
    "Group": "mooring.model",
    "Held": "mooring.locks.held",
    "Hub": "mooring.hub",
    "Instance": "mooring.model",
    "Leadership": "mooring.locks.election",
    "Lock": "mooring.locks.lock",
    "LockLost": "mooring.errors",
    "MooringError": "mooring.errors",
    "Registration": "mooring.registry.registration",
    "Resilience": "mooring.discovery.resilience",
    "Service": "mooring.model",
    "Status": "mooring.model",
    "connect": "mooring.hub",
    "until_stopped": "mooring.registry.shutdown",
}
"""The module of each public name. It is imported when the name is first used: a program, and a
command, starts without the parts that it does not use."""

_PARTS = {
    *("discovery", "errors", "heartbeat", "hub", "locks", "mirror", "model", "registry"),
    *("session", "store", "sync", "tenants"),
}
"""Those of its modules that `import mooring` is enough for."""


def __getattr__(name: str) -> object:
    if name in _PARTS:
        return importlib.import_module(f"mooring.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'mooring' has no attribute '{name}'")
    value: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})
