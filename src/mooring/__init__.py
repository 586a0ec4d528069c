"""Service registry, discovery, locks and configuration on etcd, Redis or an embedded store."""

import importlib
import os
import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_FORK_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
grpc_fork_handlers = ""
"""Why gRPC's fork handlers are on; empty if they are off. `mooring.fork_safety` says why they must
be off. gRPC reads the variable when it is first imported, so it is set here."""
if os.environ.get(_FORK_VARIABLE, "").lower() not in ("", "0", "false", "no"):
    grpc_fork_handlers = f"{_FORK_VARIABLE} is set to {os.environ[_FORK_VARIABLE]}"
elif not os.environ.get(_FORK_VARIABLE):
    os.environ[_FORK_VARIABLE] = "0"
    if "grpc._cython.cygrpc" in sys.modules:
        grpc_fork_handlers = "grpc was imported before mooring"

if TYPE_CHECKING:
    from mooring.discovery.eligibility import Explanation
    from mooring.discovery.resilience import Resilience, RetryBudget
    from mooring.discovery.view import Pick, View
    from mooring.errors import (
        AccessDenied,
        CannotResume,
        Closed,
        Compacted,
        Conflict,
        FutureRevision,
        InUse,
        InvalidName,
        InvalidRequest,
        InvalidURL,
        LeaseNotFound,
        LockError,
        LockLost,
        LockTimeout,
        MigrationError,
        MissingExtra,
        MooringError,
        NoInstance,
        NotConfigured,
        NotHeld,
        OutcomeUnknown,
        OutOfSpace,
        Reentered,
        RegistryError,
        Removed,
        SessionLost,
        StaleToken,
        StoreError,
        Superseded,
        Taken,
        TenantError,
        TooLarge,
        Unavailable,
        Undecipherable,
    )
    from mooring.hub import Hub, connect
    from mooring.locks.barrier import Barrier
    from mooring.locks.election import Campaign, Election, Leader, Leaders, Leadership
    from mooring.locks.held import Held
    from mooring.locks.inspect import Contender, LockInfo
    from mooring.locks.lock import Lock, ReadWriteLock, Semaphore
    from mooring.mirror import Mirror
    from mooring.model import Config, Group, Instance, Service, Status
    from mooring.registry.contract import Registry
    from mooring.registry.registration import Registration
    from mooring.registry.shutdown import until_stopped
    from mooring.session import Session
    from mooring.store.contract import Store, Watch
    from mooring.tenants.publish.publisher import Publisher
    from mooring.tenants.read.provider import Provider as Provider

__all__ = [
    "AccessDenied",
    "Barrier",
    "Campaign",
    "CannotResume",
    "Closed",
    "Compacted",
    "Config",
    "Conflict",
    "Contender",
    "Election",
    "Explanation",
    "FutureRevision",
    "Group",
    "Held",
    "Hub",
    "InUse",
    "Instance",
    "InvalidName",
    "InvalidRequest",
    "InvalidURL",
    "Leader",
    "Leaders",
    "Leadership",
    "LeaseNotFound",
    "Lock",
    "LockError",
    "LockInfo",
    "LockLost",
    "LockTimeout",
    "MigrationError",
    "Mirror",
    "MissingExtra",
    "MooringError",
    "NoInstance",
    "NotConfigured",
    "NotHeld",
    "OutOfSpace",
    "OutcomeUnknown",
    "Pick",
    "Publisher",
    "ReadWriteLock",
    "Reentered",
    "Registration",
    "Registry",
    "RegistryError",
    "Removed",
    "Resilience",
    "RetryBudget",
    "Semaphore",
    "Service",
    "Session",
    "SessionLost",
    "StaleToken",
    "Status",
    "Store",
    "StoreError",
    "Superseded",
    "Taken",
    "TenantError",
    "TooLarge",
    "Unavailable",
    "Undecipherable",
    "View",
    "Watch",
    "__version__",
    "connect",
    "until_stopped",
]


_MODULES = {
    "Resilience": "mooring.discovery.resilience",
    "RetryBudget": "mooring.discovery.resilience",
    "Explanation": "mooring.discovery.eligibility",
    "Pick": "mooring.discovery.view",
    "View": "mooring.discovery.view",
    "Hub": "mooring.hub",
    "connect": "mooring.hub",
    "Barrier": "mooring.locks.barrier",
    "Campaign": "mooring.locks.election",
    "Election": "mooring.locks.election",
    "Leader": "mooring.locks.election",
    "Leaders": "mooring.locks.election",
    "Leadership": "mooring.locks.election",
    "Held": "mooring.locks.held",
    "Contender": "mooring.locks.inspect",
    "LockInfo": "mooring.locks.inspect",
    "Lock": "mooring.locks.lock",
    "ReadWriteLock": "mooring.locks.lock",
    "Semaphore": "mooring.locks.lock",
    "Mirror": "mooring.mirror",
    "Config": "mooring.model",
    "Group": "mooring.model",
    "Instance": "mooring.model",
    "Service": "mooring.model",
    "Status": "mooring.model",
    "Registry": "mooring.registry.contract",
    "Registration": "mooring.registry.registration",
    "until_stopped": "mooring.registry.shutdown",
    "Session": "mooring.session",
    "Store": "mooring.store.contract",
    "Watch": "mooring.store.contract",
    "Publisher": "mooring.tenants.publish.publisher",
    "Provider": "mooring.tenants.read.provider",
}
"""The module of each public name; names that are not listed here are errors. A module is imported
when one of its names is first used, so a program starts without the parts that it does not use.

`Provider` is not in `__all__`, since it needs the extra `tenants`: a program that does not install
it may still write `from mooring import *`."""

_PARTS = {
    *("discovery", "errors", "heartbeat", "hub", "locks", "mirror", "model", "registry"),
    *("session", "store", "sync", "tenants"),
}
"""The modules that are available as attributes after `import mooring`."""


def __getattr__(name: str) -> object:
    if name in _PARTS:
        return importlib.import_module(f"mooring.{name}")
    if name not in __all__ and name not in _MODULES:
        raise AttributeError(f"module 'mooring' has no attribute '{name}'")
    module = importlib.import_module(_MODULES.get(name, "mooring.errors"))
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, *_PARTS})
