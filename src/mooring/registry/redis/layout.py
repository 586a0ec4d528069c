"""The layout on Redis: keys, and an instance as the fields of a hash. Pure.

    {p}:services                     Set    tier 1: the services that have instances
    {p}:services:{svc}:heartbeats    ZSet   tier 2: instances by their last heartbeat, in ms
    {p}:services:{svc}:instance:{id} Hash   tier 3: one instance
    {p}:services:{svc}:config        Hash   operator overrides: by id, of the service under ""
    {p}:services:{svc}:removed       ZSet   instances that left, by when Redis forgets that
    {p}:services:{svc}:persistent    ZSet   as tier 2, for instances that are never evicted
    {p}:services:{svc}:brake         Hash   exists while the brake is engaged or was just released
    {p}:services:{svc}:evictions     String evictions within the current interval
    {p}:services:{svc}:changes       channel
    {p}:alerts                       String what the webhook last reported
    {p}:alerts:leader                String the server that calls the webhook, for its lease
    {p}:info                         Hash   descriptions: of services by name, of groups with a "/"

`{p}` is `[namespace:]prefix`. On a cluster the service is in braces, so that all keys of a service
share a slot; the keys of the alerts share one for the same reason.

The flattened `metadata_*` fields are for other programs. This module reads `metadataJson` and
`metricsJson`, which keep the types. A record without them was written by another program, and its
`metadata_*` fields are its metadata. The scripts write the times, by the clock of the server.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec

from mooring.errors import InvalidName, InvalidRequest
from mooring.messages import Message, message
from mooring.messages.validation import rejection
from mooring.model import JSON, Instance, RecordedMetadata, State, Status
from mooring.names import accepts, check_part, split_service
from mooring.registry import json_values as values
from mooring.registry.json_values import Malformed


class RedisKeys:
    def __init__(self, prefix: str = "registry", *, namespace: str = "", cluster: bool = False):
        self.prefix = f"{namespace}:{prefix}" if namespace else prefix
        if self.prefix.split(":")[-1] == "services":
            raise InvalidRequest(message("redis_prefix_reserved", prefix=self.prefix))
        self.cluster = cluster
        self.services = f"{self.prefix}:services"
        self.info = f"{self.prefix}:info"
        self.alerts = f"{{{self.prefix}:alerts}}" if cluster else f"{self.prefix}:alerts"
        self.leader = f"{self.alerts}:leader"

    def of(self, service: str) -> ServiceKeys:
        """The keys of a service. Raises `InvalidName`."""
        return ServiceKeys(self, check_service(service))

    def service_of(self, instance_key: str) -> tuple[str, str] | None:
        """The service and id of the key of an instance; None for any other key."""
        start = f"{self.services}:"
        if not instance_key.startswith(start):
            return None
        service, separator, id = instance_key[len(start) :].partition(":instance:")
        if not separator or not id:
            return None
        if self.cluster:
            service = service.removeprefix("{").removesuffix("}")
        return (service, id) if is_service(service) else None


class ServiceKeys:
    def __init__(self, keys: RedisKeys, service: str) -> None:
        self.name = service
        self.services, self.cluster = keys.services, keys.cluster
        self.base = (
            f"{keys.services}:{{{service}}}" if keys.cluster else f"{keys.services}:{service}"
        )
        self.heartbeats = f"{self.base}:heartbeats"
        self.config = f"{self.base}:config"
        self.removed = f"{self.base}:removed"
        self.persistent = f"{self.base}:persistent"
        self.brake = f"{self.base}:brake"
        self.evictions = f"{self.base}:evictions"
        self.changes = f"{self.base}:changes"

    @property
    def tier1(self) -> list[str]:
        """The key of tier 1 for the scripts, which cannot reach it on a cluster."""
        return [] if self.cluster else [self.services]

    def instance(self, id: str) -> str:
        return f"{self.base}:instance:{id}"


def check_service(service: str) -> str:
    """Returns the name. Raises `InvalidName`, also for a name with braces."""
    group, name = split_service(service)
    check_part("group", group)
    check_part("service", name)
    if "{" in service or "}" in service:
        raise InvalidName(message("redis_service_has_brace", service=service))
    return service


def is_service(name: str) -> bool:
    return accepts(check_service, name)


FLAT = "metadata_"

READ = (
    "host",
    "port",
    "protocol",
    "version",
    "zone",
    "healthy",
    "enabled",
    "weight",
    "ephemeral",
    "state",
    "incarnation",
    "registrationTime",
    "lastMetadataUpdate",
    "portsJson",
    "metadataJson",
    "metricsJson",
)
"""The fields to read, in the order of the replies of the list script."""

_encode = msgspec.json.Encoder().encode


def encode(instance: Instance) -> dict[str, str]:
    """All fields except the times, which the server sets."""
    status = instance.status
    fields: dict[str, str] = {
        "host": instance.host,
        "port": str(instance.port),
        "protocol": instance.protocol,
        "version": instance.version,
        "zone": instance.zone,
        "healthy": _bool(status.healthy),
        "enabled": _bool(instance.enabled),
        "weight": str(values.number(instance.weight)),
        "ephemeral": _bool(instance.ephemeral),
        "state": status.state,
        "incarnation": instance.incarnation,
    }
    if instance.ports:
        fields["portsJson"] = _json(instance.ports)
    fields["metadataJson"] = _json(instance.metadata)
    fields["metricsJson"] = _json(status.metrics)
    fields.update(flattened(instance.metadata))
    fields.update(flattened(status.metrics))
    return fields


def flattened(tree: Mapping[str, JSON]) -> dict[str, str]:
    """`{"memory": {"usagePercent": 65.5}}` as `{"metadata_memory_usagePercent": "65.5"}`."""
    return dict(_flatten(FLAT, tree))


def _flatten(path: str, tree: Mapping[str, JSON]) -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, str):
            yield f"{path}{name}", value
        elif isinstance(value, float | int):  # before the slower test for a mapping
            yield f"{path}{name}", _json(value)
        elif isinstance(value, Mapping):
            yield from _flatten(f"{path}{name}_", value)
        else:
            yield f"{path}{name}", _json(value)


def size(fields: Mapping[str, str]) -> int:
    """The bytes of metadata and metrics."""
    return len(fields["metadataJson"].encode()) + len(fields["metricsJson"].encode())


def decode(service: str, id: str, fields: Mapping[str, str]) -> Instance:
    """The instance with these fields. Raises `Malformed`, or `InvalidRequest` for values that the
    model rejects."""
    metadata = _object(fields, "metadataJson")
    if metadata is None:
        metadata = {
            name.removeprefix(FLAT): value
            for name, value in fields.items()
            if name.startswith(FLAT)
        }
    elif not all(isinstance(value, str) for value in metadata.values()):
        # Another program wrote it: show values other than strings as JSON.
        metadata = {n: v if isinstance(v, str) else _json(v) for n, v in metadata.items()}
    status = Status(
        state=_state(fields),
        healthy=_flag(fields, "healthy"),
        registered_at=_time(fields, "registrationTime"),
        updated_at=_time(fields, "lastMetadataUpdate"),
        metrics=_object(fields, "metricsJson") or {},
    )
    return Instance(
        service,
        fields.get("host", ""),
        _port(fields),
        protocol=fields.get("protocol", "tcp").lower(),
        version=fields.get("version", "0.0.0"),
        zone=fields.get("zone", ""),
        weight=_number(fields, "weight", 1.0),
        metadata=RecordedMetadata(cast("Mapping[str, str]", metadata)),  # the model checks it
        ports=cast("Mapping[str, int]", _object(fields, "portsJson") or {}),
        id=id,
        incarnation=fields.get("incarnation", ""),
        enabled=_flag(fields, "enabled"),
        ephemeral=_flag(fields, "ephemeral"),
        status=status,
    )


def from_reply(reply: Sequence[bytes | None]) -> dict[str, str]:
    """The fields of a reply in the order of `READ`."""
    return {
        name: value.decode(errors="backslashreplace")
        for name, value in zip(READ, reply, strict=True)
        if value is not None
    }


def from_pairs(reply: Sequence[bytes]) -> dict[str, str]:
    """The fields of a reply of alternating names and values."""
    parts = [part.decode(errors="backslashreplace") for part in reply]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _json(value: object) -> str:
    return _encode(value).decode()


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _flag(fields: Mapping[str, str], name: str) -> bool:
    text = fields.get(name, "true").lower()
    if text not in ("true", "false", "1", "0"):
        raise _wrong(name, message("neither_true_nor_false", text=text))
    return text in ("true", "1")


def _number(fields: Mapping[str, str], name: str, default: float) -> float:
    text = fields.get(name, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise _wrong(name, message("not_a_number", text=text)) from None


def _port(fields: Mapping[str, str]) -> int:
    number = _number(fields, "port", 0.0)
    if not number.is_integer():  # infinity, for too many digits, is not an integer either
        raise _wrong("port", message("not_a_port", number=number))
    return int(number)


def _state(fields: Mapping[str, str]) -> State:
    try:
        state: State = msgspec.convert(fields.get("state", "up"), State)
    except msgspec.ValidationError as error:
        problem = rejection(error, "state")
        raise Malformed(message("has_invalid_value", field="", problem=problem)) from error
    return state


def _time(fields: Mapping[str, str], name: str) -> datetime.datetime | None:
    milliseconds = _number(fields, name, 0)
    try:
        return (
            datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
            if milliseconds
            else None
        )
    except (OverflowError, ValueError, OSError) as error:
        raise _wrong(name, message("not_a_time", number=milliseconds)) from error


def _object(fields: Mapping[str, str], name: str) -> dict[str, JSON] | None:
    if name not in fields:
        return None
    try:
        return values.decode(fields[name].encode())
    except (InvalidRequest, UnicodeEncodeError) as error:
        raise Malformed(message("has_malformed_field", field=name, problem=error)) from error


def _wrong(name: str, problem: Message) -> Malformed:
    return Malformed(message("has_wrong_field", field=name, problem=problem))
