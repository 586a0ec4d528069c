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
    from mooring.discovery.exclusion import Explanation as Explanation
    from mooring.discovery.resilience import Resilience as Resilience
    from mooring.discovery.resilience import RetryBudget as RetryBudget
    from mooring.discovery.view import Pick as Pick
    from mooring.discovery.view import View as View
    from mooring.errors import AccessDenied as AccessDenied
    from mooring.errors import CannotResume as CannotResume
    from mooring.errors import Closed as Closed
    from mooring.errors import Compacted as Compacted
    from mooring.errors import Conflict as Conflict
    from mooring.errors import FutureRevision as FutureRevision
    from mooring.errors import InUse as InUse
    from mooring.errors import InvalidName as InvalidName
    from mooring.errors import InvalidRequest as InvalidRequest
    from mooring.errors import InvalidURL as InvalidURL
    from mooring.errors import LeaseNotFound as LeaseNotFound
    from mooring.errors import LockError as LockError
    from mooring.errors import LockLost as LockLost
    from mooring.errors import LockTimeout as LockTimeout
    from mooring.errors import MigrationError as MigrationError
    from mooring.errors import MissingExtra as MissingExtra
    from mooring.errors import MooringError as MooringError
    from mooring.errors import NoInstance as NoInstance
    from mooring.errors import NotConfigured as NotConfigured
    from mooring.errors import NotFound as NotFound
    from mooring.errors import NotHeld as NotHeld
    from mooring.errors import OutcomeUnknown as OutcomeUnknown
    from mooring.errors import OutOfSpace as OutOfSpace
    from mooring.errors import Reentered as Reentered
    from mooring.errors import RegistryError as RegistryError
    from mooring.errors import Removed as Removed
    from mooring.errors import SessionLost as SessionLost
    from mooring.errors import StaleToken as StaleToken
    from mooring.errors import StoreError as StoreError
    from mooring.errors import Superseded as Superseded
    from mooring.errors import Taken as Taken
    from mooring.errors import TenantError as TenantError
    from mooring.errors import TooLarge as TooLarge
    from mooring.errors import Unavailable as Unavailable
    from mooring.errors import Undecipherable as Undecipherable
    from mooring.hub import Hub as Hub
    from mooring.hub import connect as connect
    from mooring.locks.barrier import Barrier as Barrier
    from mooring.locks.election import Campaign as Campaign
    from mooring.locks.election import Election as Election
    from mooring.locks.election import Leader as Leader
    from mooring.locks.election import Leaders as Leaders
    from mooring.locks.election import Leadership as Leadership
    from mooring.locks.held import Held as Held
    from mooring.locks.inspect import Contender as Contender
    from mooring.locks.inspect import LockInfo as LockInfo
    from mooring.locks.lock import Lock as Lock
    from mooring.locks.rwlock import ReadWriteLock as ReadWriteLock
    from mooring.locks.semaphore import Semaphore as Semaphore
    from mooring.messages import Message as Message
    from mooring.mirror import Mirror as Mirror
    from mooring.model import Config as Config
    from mooring.model import Group as Group
    from mooring.model import Instance as Instance
    from mooring.model import Service as Service
    from mooring.model import Status as Status
    from mooring.registry.contract import Registry as Registry
    from mooring.registry.registration import Registration as Registration
    from mooring.registry.shutdown import until_stopped as until_stopped
    from mooring.session import Session as Session
    from mooring.store.contract import Store as Store
    from mooring.store.contract import Watch as Watch
    from mooring.tenants.publish.publisher import Publisher as Publisher
    from mooring.tenants.read.provider import Provider as Provider

_NAMES = {
    "mooring.discovery.exclusion": ("Explanation",),
    "mooring.discovery.resilience": ("Resilience", "RetryBudget"),
    "mooring.discovery.view": ("Pick", "View"),
    "mooring.errors": (
        "AccessDenied",
        "CannotResume",
        "Closed",
        "Compacted",
        "Conflict",
        "FutureRevision",
        "InUse",
        "InvalidName",
        "InvalidRequest",
        "InvalidURL",
        "LeaseNotFound",
        "LockError",
        "LockLost",
        "LockTimeout",
        "MigrationError",
        "MissingExtra",
        "MooringError",
        "NoInstance",
        "NotConfigured",
        "NotFound",
        "NotHeld",
        "OutcomeUnknown",
        "OutOfSpace",
        "Reentered",
        "RegistryError",
        "Removed",
        "SessionLost",
        "StaleToken",
        "StoreError",
        "Superseded",
        "Taken",
        "TenantError",
        "TooLarge",
        "Unavailable",
        "Undecipherable",
    ),
    "mooring.hub": ("Hub", "connect"),
    "mooring.locks.barrier": ("Barrier",),
    "mooring.locks.election": ("Campaign", "Election", "Leader", "Leaders", "Leadership"),
    "mooring.locks.held": ("Held",),
    "mooring.locks.inspect": ("Contender", "LockInfo"),
    "mooring.locks.lock": ("Lock",),
    "mooring.locks.rwlock": ("ReadWriteLock",),
    "mooring.locks.semaphore": ("Semaphore",),
    "mooring.messages": ("Message",),
    "mooring.mirror": ("Mirror",),
    "mooring.model": ("Config", "Group", "Instance", "Service", "Status"),
    "mooring.registry.contract": ("Registry",),
    "mooring.registry.registration": ("Registration",),
    "mooring.registry.shutdown": ("until_stopped",),
    "mooring.session": ("Session",),
    "mooring.store.contract": ("Store", "Watch"),
    "mooring.tenants.publish.publisher": ("Publisher",),
    "mooring.tenants.read.provider": ("Provider",),
}
"""The public names by module. A module is imported when one of its names is first used, so that a
program starts without the parts that it does not use."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *sorted(_MODULES.keys() - {"Provider"})]
"""Without `Provider`, which needs the extra `tenants`: `from mooring import *` works without it."""

_PARTS = {
    "discovery",
    "errors",
    "heartbeat",
    "hub",
    "locks",
    "mirror",
    "model",
    "registry",
    "session",
    "settings",
    "store",
    "sync",
    "tenants",
}
"""The modules that are available as attributes after `import mooring`."""


def __getattr__(name: str) -> object:
    if name in _PARTS:
        return importlib.import_module(f"mooring.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'mooring' has no attribute '{name}'")
    value: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_PARTS})
