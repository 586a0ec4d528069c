"""`mooring instances` and `mooring deregister`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
import typer

from mooring import durations
from mooring.cli.io.connect import did_you_mean, list_instances, open_hub, run_command
from mooring.cli.io.options import (
    JSONOption,
    LayoutOption,
    RegistryOption,
    RevealOption,
    ServiceArgument,
    StoreOption,
)
from mooring.cli.io.output import Columns, Styled, note, number, show, show_json, yes_no
from mooring.errors import RegistryError
from mooring.formatting import quoted
from mooring.masking import masked_fields
from mooring.model import JSON, Config, Instance, RecordedMetadata, Time, now

_SPARE = ("protocol", "ports", "metadata")
_STYLES = {"up": "green", "draining": "yellow", "down": "red"}


def instances(
    service: ServiceArgument,
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
    reveal: RevealOption = False,
) -> None:
    """List the instances of a service.

    Secrets in metadata and configuration are masked.
    """
    run_command(_instances(service, store, registry, layout, as_json, reveal))


async def _instances(
    service: str, store: str, registry: str, layout: str, as_json: bool, reveal: bool
) -> None:
    async with open_hub(store, layout, registry=registry) as hub:
        found = await list_instances(hub, service)
    if not found:
        note(f"{service} has no instances")
    if reveal:
        note(f"the secrets of {service} are shown in clear text")
    else:
        found = tuple(map(without_secrets, found))
    show(found, COLUMNS, record, as_json=as_json, spare=_SPARE)


def deregister(
    service: ServiceArgument,
    id: Annotated[
        str, typer.Argument(metavar="ID", help="instance id, as listed by `mooring instances`")
    ],
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
) -> None:
    """Remove an instance until its process restarts."""
    run_command(_deregister(service, id, store, registry, layout, as_json))


async def _deregister(
    service: str, id: str, store: str, registry: str, layout: str, as_json: bool
) -> None:
    async with open_hub(store, layout, registry=registry) as hub:
        if not await hub.registry.deregister(service, id):
            known = [instance.id for instance in await list_instances(hub, service)]
            raise RegistryError(f"{service} has no instance {quoted(id)}{did_you_mean(id, known)}")
    if as_json:
        show_json({"service": service, "id": id, "deregistered": True})
    else:
        note(f"deregistered {service} {id}")


def without_secrets(instance: Instance) -> Instance:
    """The instance with the secrets in its metadata, configuration and metrics masked."""
    config, status = instance.config, instance.status
    return msgspec.structs.replace(
        instance,
        metadata=RecordedMetadata(_masked(instance.metadata)),
        config=msgspec.structs.replace(
            config, metadata=_masked(config.metadata), values=masked_fields(config.values)
        ),
        status=msgspec.structs.replace(status, metrics=masked_fields(status.metrics)),
    )


def _masked(metadata: Mapping[str, str]) -> dict[str, str]:
    return {name: str(value) for name, value in masked_fields(metadata).items()}


def record(instance: Instance) -> dict[str, JSON]:
    """An instance as JSON, with the registry's field names."""
    status = instance.status
    return {
        "service": instance.service,
        "id": instance.id,
        "host": instance.host,
        "port": instance.port,
        "protocol": instance.protocol,
        "version": instance.version,
        "zone": instance.zone,
        "weight": number(instance.weight),
        "enabled": instance.enabled,
        "ephemeral": instance.ephemeral,
        "state": status.state,
        "healthy": status.healthy,
        "registeredAt": _time(status.registered_at),
        "updatedAt": _time(status.updated_at),
        "ports": dict(instance.ports),
        "metadata": dict(instance.metadata),
        "metrics": dict(status.metrics),
        "config": _config_fields(instance.config),
        "incarnation": instance.incarnation,
    }


def _time(time: Time | None) -> str | None:
    return None if time is None else time.isoformat().replace("+00:00", "Z")


def _config_fields(config: Config) -> dict[str, JSON]:
    """Only the fields that an operator has set."""
    fields: dict[str, JSON] = {
        "weight": None if config.weight is None else number(config.weight),
        "enabled": config.enabled,
        "zone": config.zone,
        "metadata": dict(config.metadata) or None,
    }
    return {name: value for name, value in fields.items() if value is not None} | dict(
        config.values
    )


def _age(instance: Instance) -> str:
    since = instance.status.registered_at
    if since is None:
        return ""
    return durations.show(max(round((now() - since).total_seconds()), 1))


def _pairs(pairs: dict[str, str] | dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in pairs.items())


COLUMNS: Columns[Instance] = {
    "id": lambda instance: instance.id,
    "state": lambda instance: Styled(instance.status.state, _STYLES.get(instance.status.state, "")),
    "healthy": lambda instance: yes_no(instance.status.healthy),
    "enabled": lambda instance: yes_no(instance.enabled),
    "weight": lambda instance: f"{number(instance.weight)}",
    "zone": lambda instance: instance.zone,
    "version": lambda instance: instance.version,
    "protocol": lambda instance: instance.protocol,
    "age": _age,
    "ports": lambda instance: _pairs(dict(instance.ports)),
    "metadata": lambda instance: _pairs(dict(instance.metadata)),
}
