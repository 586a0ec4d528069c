"""The keys of the registry on Redis: every reader, writer and script has them from here.

    {p}:services                     Set    tier 1: the services that have instances
    {p}:services:{svc}:heartbeats    ZSet   tier 2: instances by their last heartbeat, in ms
    {p}:services:{svc}:instance:{id} Hash   tier 3: all about one instance
    {p}:services:{svc}:config        Hash   the operator's word: by id, of the service under ""
    {p}:services:{svc}:removed       ZSet   who was taken out, or left, by when that is forgotten
    {p}:services:{svc}:persistent    ZSet   as tier 2, of those that stay when they are silent
    {p}:services:{svc}:brake         Hash   there while expiry is paused, or was just released
    {p}:services:{svc}:evictions     String how many expired within the present interval
    {p}:services:{svc}:changes       channel
    {p}:alerts                       String what the webhook was told
    {p}:alerts:leader                String the server that calls the webhook, for its lease
    {p}:info                         Hash   descriptions: of services by name, of groups with a "/"

`{p}` is `[namespace:]prefix`. On a cluster the service stands in braces, so that all keys of one
service lie in one slot, and `{p}:alerts` does for the same reason.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec

from mooring.errors import InvalidName, InvalidRequest
from mooring.formatting import in_words, quoted
from mooring.model import JSON, Instance, RecordedMetadata, State, Status
from mooring.names import check_part, split_service
from mooring.registry import json_values as values
from mooring.registry.json_values import Malformed


class RedisKeys:
    def __init__(self, prefix: str = "registry", *, namespace: str = "", cluster: bool = False):
        self.prefix = f"{namespace}:{prefix}" if namespace else prefix
        if self.prefix.split(":")[-1] == "services":
            raise InvalidRequest(
                f"the prefix {quoted(self.prefix)} cannot end with 'services': its keys would "
                "look like those of another registry"
            )
        self.cluster = cluster
        self.services = f"{self.prefix}:services"
        self.info = f"{self.prefix}:info"
        self.alerts = f"{{{self.prefix}:alerts}}" if cluster else f"{self.prefix}:alerts"
        self.leader = f"{self.alerts}:leader"

    def of(self, service: str) -> ServiceKeys:
        """Those of one service. Raises `InvalidName` for one that cannot be here."""
        return ServiceKeys(self, check_service(service))

    def service_of(self, instance_key: str) -> tuple[str, str] | None:
        """Service and id of an instance's key; None where it is no such key."""
        start = f"{self.services}:"
        if not instance_key.startswith(start):
            return None
        service, separator, id = instance_key[len(start) :].partition(":instance:")
        if not separator or not id:
            return None
        if self.cluster:
            service = service.removeprefix("{").removesuffix("}")
        try:
            return check_service(service), id
        except InvalidName:
            return None


class ServiceKeys:
    def __init__(self, keys: RedisKeys, service: str) -> None:
        self.name = service
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

    def instance(self, id: str) -> str:
        return f"{self.base}:instance:{id}"


def check_service(service: str) -> str:
    """The same name, or `InvalidName`: as everywhere, and without what tells keys apart."""
    group, name = split_service(service)
    check_part("group", group)
    check_part("service", name)
    if "{" in service or "}" in service:
        raise InvalidName(
            f"the service {quoted(service)} contains a brace, which would choose a slot on a "
            "cluster"
        )
    return service


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
"""The fields that are read, in the order in which the list script gives them."""

_encode = msgspec.json.Encoder().encode


def encode(instance: Instance) -> dict[str, str]:
    """All fields but the times, which the server sets."""
    status = instance.status
    told: dict[str, str] = {
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
        told["portsJson"] = _json(instance.ports)
    told["metadataJson"] = _json(instance.metadata)
    told["metricsJson"] = _json(status.metrics)
    told.update(flattened(instance.metadata))
    told.update(flattened(status.metrics))
    return told


def flattened(tree: Mapping[str, JSON]) -> dict[str, str]:
    """`{"memory": {"usagePercent": 65.5}}` as `{"metadata_memory_usagePercent": "65.5"}`."""
    return dict(_flatten(FLAT, tree))


def _flatten(path: str, tree: Mapping[str, JSON]) -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, str):
            yield f"{path}{name}", value
        elif isinstance(value, float | int):  # before the dear question of whether it is a mapping
            yield f"{path}{name}", _json(value)
        elif isinstance(value, Mapping):
            yield from _flatten(f"{path}{name}_", value)
        else:
            yield f"{path}{name}", _json(value)


def size(fields: Mapping[str, str]) -> int:
    """Bytes of what the instance may say freely."""
    return len(fields["metadataJson"].encode()) + len(fields["metricsJson"].encode())


def decode(service: str, id: str, fields: Mapping[str, str]) -> Instance:
    """The instance that these fields make. Raises `Malformed`, or `InvalidRequest` where the model
    does not allow what they say."""
    metadata = _object(fields, "metadataJson")
    if metadata is None:
        metadata = {
            name.removeprefix(FLAT): value
            for name, value in fields.items()
            if name.startswith(FLAT)
        }
    elif not all(isinstance(value, str) for value in metadata.values()):
        # Somebody else's: what is no text is shown as it stands in the JSON.
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
        metadata=RecordedMetadata(cast("Mapping[str, str]", metadata)),  # which the model checks
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
    """The fields of a reply that has names and values in turn."""
    told = [part.decode(errors="backslashreplace") for part in reply]
    return dict(zip(told[::2], told[1::2], strict=True))


def _json(value: object) -> str:
    return _encode(value).decode()


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _flag(fields: Mapping[str, str], name: str) -> bool:
    told = fields.get(name, "true")
    if told == "true":
        return True
    told = told.lower()
    if told not in ("true", "false", "1", "0"):
        raise Malformed(f"has a wrong {quoted(name)}: {quoted(told)} is neither true nor false")
    return told in ("true", "1")


def _number(fields: Mapping[str, str], name: str, default: float) -> float:
    told = fields.get(name, "")
    try:
        return float(told) if told else default
    except ValueError:
        raise Malformed(f"has a wrong {quoted(name)}: {quoted(told)} is no number") from None


def _port(fields: Mapping[str, str]) -> int:
    number = _number(fields, "port", 0.0)
    if not number.is_integer():  # nor is infinity, which is what too many digits make
        raise Malformed(f"has a wrong 'port': {number} is no port")
    return int(number)


def _state(fields: Mapping[str, str]) -> State:
    told = fields.get("state", "up")
    if told == "up":
        return "up"
    try:
        state: State = msgspec.convert(told, State)
    except msgspec.ValidationError as error:
        raise Malformed(f"has an invalid value: {in_words(error, 'state')}") from error
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
        raise Malformed(f"has a wrong {quoted(name)}: {milliseconds} is no time") from error


def _object(fields: Mapping[str, str], name: str) -> dict[str, JSON] | None:
    if name not in fields:
        return None
    try:
        return values.decode(fields[name].encode())
    except (InvalidRequest, UnicodeEncodeError) as error:
        raise Malformed(f"has a {quoted(name)} that {error}") from error
