"""What the reference pages are generated from. Only this tool imports the internals of `mooring`.

If a module moves, adapt this file; `tools/reference.py` only formats what these functions return.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mooring
import mooring.sync
from mooring import errors
from mooring.cli import app
from mooring.cli.typer_extensions import LazyCommand
from mooring.server.api import all_endpoints
from mooring.server.api.openapi import describe
from mooring.server.settings import ServerSettings
from mooring.settings import RegistrySettings

PACKAGE = Path(mooring.__file__).parent
VERSION: str = mooring.__version__

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Hub": (
        "mooring.connect",
        "mooring.Hub",
        "mooring.until_stopped",
        "mooring.Session",
        "mooring.session.SessionState",
        "mooring.Mirror",
        "mooring.mirror.Update",
        "mooring.Message",
    ),
    "Registration": (
        "mooring.Registration",
        "mooring.model.RegistrationState",
        "mooring.Instance",
        "mooring.Service",
        "mooring.Group",
        "mooring.Config",
        "mooring.Status",
        "mooring.Registry",
        "mooring.registry.contract.RegistryGuarantees",
        "mooring.registry.contract.RemoteRegistration",
        "mooring.registry.contract.Listing",
        "mooring.registry.contract.ServiceCount",
        "mooring.workers.SharedRegistration",
        "mooring.workers.WorkerState",
        "mooring.heartbeat",
        "mooring.settings",
    ),
    "Discovery": (
        "mooring.View",
        "mooring.discovery.view.ViewState",
        "mooring.Pick",
        "mooring.Explanation",
        "mooring.Resilience",
        "mooring.RetryBudget",
    ),
    "Locks": (
        "mooring.Lock",
        "mooring.Held",
        "mooring.locks.held.LockState",
        "mooring.ReadWriteLock",
        "mooring.Semaphore",
        "mooring.Election",
        "mooring.Campaign",
        "mooring.Leadership",
        "mooring.Leader",
        "mooring.Leaders",
        "mooring.Barrier",
        "mooring.LockInfo",
        "mooring.Contender",
        "mooring.locks.fencing.admit",
        "mooring.locks.fencing.admission",
        "mooring.locks.fencing.SQL",
        "mooring.locks.fencing.ParamStyle",
        "mooring.locks.fencing.Guard",
    ),
    "Tenants": ("mooring.Publisher", "mooring.Provider", "mooring.tenants"),
    "Store": ("mooring.Store", "mooring.Watch", "mooring.store"),
    "Blocking API": ("mooring.sync.connect", "mooring.sync.timeout", "mooring.sync.until_stopped"),
    "Integrations": (
        "mooring.asgi",
        "mooring.wsgi",
        "mooring.httpx",
        "mooring.grpc",
        "mooring.grpc.aio",
        "mooring.hprose",
        "mooring.xds",
    ),
    "Health checks": ("mooring.server.health_checks",),
    "Testing": (
        "mooring.testing.fixtures.mooring_url",
        "mooring.testing.fixtures.mooring_hub",
        "mooring.testing.fixtures.mooring_sync_hub",
        "mooring.testing.fixtures.mooring_etcd_server",
        "mooring.testing.fixtures.mooring_etcd_url",
        "mooring.testing.fixtures.mooring_etcd",
        "mooring.testing.fixtures.mooring_proxy",
        "mooring.testing.proxy.FaultProxy",
        "mooring.testing.etcd.EtcdServer",
        "mooring.testing.etcd.EtcdCluster",
        "mooring.testing.redis.RedisServer",
        "mooring.testing.redis.RedisCluster",
        "mooring.testing.redis.SentinelGroup",
    ),
}
"""The public names by page. A module stands for everything in its `__all__`."""

CREATED_BY_MOORING = {
    "mooring.Barrier",
    "mooring.Campaign",
    "mooring.Election",
    "mooring.Held",
    "mooring.Hub",
    "mooring.Leaders",
    "mooring.Leadership",
    "mooring.Lock",
    "mooring.Mirror",
    "mooring.Pick",
    "mooring.Provider",
    "mooring.Publisher",
    "mooring.ReadWriteLock",
    "mooring.Registration",
    "mooring.Semaphore",
    "mooring.View",
    "mooring.asgi.Lifespan",
    "mooring.asgi.ServerRegistration",
    "mooring.grpc.BlockingServing",
    "mooring.grpc.Channel",
    "mooring.grpc.Serving",
    "mooring.grpc.aio.Channel",
    "mooring.hprose.BlockingClient",
    "mooring.hprose.Client",
    "mooring.hprose.Registered",
    "mooring.tenants.Tenants",
    "mooring.wsgi.RegisteredApplication",
}
"""Classes that programs do not construct: the reference omits the parameters of `__init__`."""


def public_names(group: str) -> Iterator[tuple[str, str]]:
    """Each public name of a group, and the path at which the source defines it."""
    for name in GROUPS[group]:
        if not is_module(name):
            module, _, attribute = name.rpartition(".")
            yield name, _definition(getattr(importlib.import_module(module), attribute), name)
            continue
        package = importlib.import_module(name)
        for member in package.__all__:
            path = f"{name}.{member}"
            if not is_module(path):
                yield path, _definition(getattr(package, member), path)


def blocking_names() -> list[str]:
    """The types of `mooring.sync` that differ from those of `mooring`."""
    types = {name: getattr(mooring.sync, name) for name in (*mooring.sync.__all__, "Provider")}
    return sorted(
        name
        for name, value in types.items()
        if isinstance(value, type) and value is not getattr(mooring, name)
    )


def exported() -> set[str]:
    """What `mooring` exports, apart from its version and the errors."""
    names = set(mooring.__all__) - {"__version__"}
    return {f"mooring.{name}" for name in names if not hasattr(errors, name)}


def command() -> Any:
    """The click group of the command `mooring`."""
    return app


def loaded(command: Any) -> Any:
    """The command itself, if it is loaded on its first call."""
    return command.load() if isinstance(command, LazyCommand) else command


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the server, with the console."""
    return describe(all_endpoints(), cookie="mooring_session")


def settings() -> dict[str, type]:
    """The types of the settings, by the section of the YAML that they describe."""
    return {"": ServerSettings, "registry": RegistrySettings}


HIDDEN_SETTINGS = ("registry_settings",)
"""Fields without a setting in the YAML: they hold a section that is loaded separately."""


def error_types() -> list[type[errors.MooringError]]:
    """The errors, in the order in which the module defines them."""
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.MooringError)
        and kind.__module__ == errors.__name__
    ]


def is_module(path: str) -> bool:
    """Whether a path names a module, not something of the same name in its package."""
    package, _, name = path.rpartition(".")
    value = vars(importlib.import_module(package)).get(name)
    if value is not None:
        return inspect.ismodule(value)
    return importlib.util.find_spec(path) is not None


def _definition(value: object, path: str) -> str:
    """Where the source defines an object. A constant is shown at its public path."""
    if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith(
        "mooring"
    ):
        return f"{value.__module__}.{value.__qualname__}"
    return path
