"""`mooring instances`: the instances of a service, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mooring.cli.io.connect import RegistryTarget, list_instances
from mooring.cli.io.options import JSONOption, RevealOption, ServiceArgument
from mooring.cli.io.streams import note
from mooring.cli.io.tables import Columns, Styled, show, yes_no
from mooring.durations import format_duration
from mooring.masking import masked_fields
from mooring.model import JSON, Instance, RecordedMetadata, now
from mooring.registry.json_values import config_fields, number, show_time

_STYLES = {"up": "green", "draining": "yellow", "down": "red"}


async def instances(
    service: ServiceArgument,
    target: RegistryTarget,
    as_json: JSONOption = False,
    reveal: RevealOption = False,
) -> None:
    """List the instances of a service.

    Secrets in metadata and configuration are masked.
    """
    async with target.connect() as hub:
        listed = await list_instances(hub, service)
    if not listed:
        note(f"{service} has no instances")
    if reveal:
        note(f"the secrets of {service} are shown in clear text")
    else:
        listed = tuple(map(without_secrets, listed))
    show(listed, COLUMNS, record, as_json=as_json, spare=("protocol", "ports", "metadata"))


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
        "registeredAt": show_time(status.registered_at),
        "updatedAt": show_time(status.updated_at),
        "ports": dict(instance.ports),
        "metadata": dict(instance.metadata),
        "metrics": dict(status.metrics),
        "config": config_fields(instance.config),
        "incarnation": instance.incarnation,
    }


def _age(instance: Instance) -> str:
    since = instance.status.registered_at
    if since is None:
        return ""
    return format_duration(max(round((now() - since).total_seconds()), 1))


def _pairs(pairs: Mapping[str, str | int]) -> str:
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
    "ports": lambda instance: _pairs(instance.ports),
    "metadata": lambda instance: _pairs(instance.metadata),
}
