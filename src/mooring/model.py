"""The model of the registry: instances with their status and config, services and groups.

An `Instance` describes its address and properties, and reports its `Status`. An operator can
override some properties with a `Config`, which takes precedence: see `applied`.
"""

from __future__ import annotations

import datetime
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from mooring import addresses
from mooring.errors import InvalidRequest
from mooring.messages import Message, message
from mooring.names import split_service

if TYPE_CHECKING:
    JSON: TypeAlias = str | int | float | bool | list["JSON"] | dict[str, "JSON"] | None
else:
    JSON = Any  # msgspec does not support recursive types

State = Literal["up", "draining", "down"]

RegistrationState = Literal[
    "registering", "registered", "suspended", "superseded", "removed", "draining", "closed"
]
"""The state of a registration. `suspended`: its record may have expired; `superseded` and `removed`
are final."""

Time: TypeAlias = datetime.datetime


def walk(value: JSON) -> Iterator[tuple[tuple[str, ...], JSON]]:
    """The value and everything within it, each with its path: names of fields, and `[0]` for the
    first element of a list."""
    pending: list[tuple[tuple[str, ...], JSON]] = [((), value)]
    while pending:
        path, current = pending.pop()
        yield path, current
        if isinstance(current, dict):
            pending += [((*path, name), inner) for name, inner in current.items()]
        elif isinstance(current, list):
            pending += [((*path, f"[{n}]"), inner) for n, inner in enumerate(current)]


def rewrite_maps(value: JSON, rewrite: Callable[[dict[str, JSON]], JSON]) -> JSON:
    """The value with each map within it, innermost first, replaced by the result of `rewrite`."""
    if isinstance(value, list):
        return [rewrite_maps(inner, rewrite) for inner in value]
    if not isinstance(value, dict):
        return value
    return rewrite({name: rewrite_maps(inner, rewrite) for name, inner in value.items()})


def path_text(path: Iterable[str]) -> str:
    """A path of `walk` in messages: `.tags[0].name`."""
    return "".join(name if name.startswith("[") else f".{name}" for name in path)


def now() -> Time:
    """The wall-clock time, for display."""
    return datetime.datetime.now(datetime.UTC)


def new_incarnation() -> str:
    """A unique id for one start of a process."""
    return uuid.uuid4().hex


class Status(msgspec.Struct, frozen=True, gc=False):
    """The status that an instance reports."""

    state: State = "up"
    healthy: bool = True
    registered_at: Time | None = None
    updated_at: Time | None = None
    metrics: Mapping[str, JSON] = {}
    """By collector: `{"memory": {"usagePercent": 41.5}}`."""


class Config(msgspec.Struct, frozen=True, gc=False):
    """The operator overrides for an instance or a whole service. None: no override."""

    weight: float | None = None
    enabled: bool | None = None
    zone: str | None = None
    metadata: Mapping[str, str] = {}
    values: Mapping[str, JSON] = {}
    """Typed values that the service defines."""

    def over(self, below: Config) -> Config:
        """Merge two configs; this one takes precedence."""
        return Config(
            weight=below.weight if self.weight is None else self.weight,
            enabled=below.enabled if self.enabled is None else self.enabled,
            zone=below.zone if self.zone is None else self.zone,
            metadata={**below.metadata, **self.metadata},
            values={**below.values, **self.values},
        )


MAX_METADATA = 64 * 1024
"""The limit of an instance's metadata: bytes of its names and values in UTF-8."""


class RecordedMetadata(dict[str, str]):
    """Metadata that was read from a registry, or merged with operator overrides. It has no size
    limit, so that large records of other writers remain visible."""


NO_CONFIG = Config()
NO_STATUS = Status()


class Instance(msgspec.Struct, frozen=True, gc=False):
    """One process that offers a service. Creating an invalid one raises `InvalidRequest`."""

    service: str
    """`group/name`, or `name` in the default group."""
    host: str = ""
    """An IP address or host name that others can reach; empty: determined at registration."""
    port: int = 0
    protocol: str = "tcp"
    version: str = "0.0.0"
    zone: str = ""
    weight: float = 1.0
    """Its share of the calls relative to other instances; 0: none."""
    metadata: Mapping[str, str] = {}
    """At most 64 KiB of names and values in UTF-8."""
    ports: Mapping[str, int] = {}
    """Ports other than the main one, by protocol."""
    id: str = ""
    """`host:port`, unless the layout defines other ids."""
    incarnation: str = ""
    """Unique for each start of a process; generated at registration."""
    enabled: bool = True
    """Whether it may be called at all; set by an operator."""
    ephemeral: bool = True
    """Whether it is evicted when its heartbeats stop; otherwise it stays and becomes unhealthy.
    Only Redis supports instances that stay."""
    status: Status = NO_STATUS
    config: Config = NO_CONFIG
    """The operator overrides of this instance in the registry."""

    def __post_init__(self) -> None:
        split_service(self.service)
        for name in ("protocol", "version", "zone", "id", "incarnation"):
            check_text(name, getattr(self, name))
        if self.host:
            addresses.check_host(self.host)
        addresses.check_port(self.port)
        if isinstance(self.weight, bool) or not isinstance(self.weight, int | float):
            raise self._invalid("weight_not_a_number", weight=self.weight)
        if not 0 <= self.weight < float("inf"):
            raise self._invalid("weight_out_of_range", weight=self.weight)
        check_metadata(self.metadata)
        if not isinstance(self.metadata, RecordedMetadata):
            check_metadata_size(self.service, self.metadata)
        if not isinstance(self.ports, Mapping):
            raise InvalidRequest(message("ports_not_a_map", ports=self.ports))
        for name, port in self.ports.items():
            addresses.check_port(port)
            check_text("ports", name)
            if not name:
                raise self._invalid("port_without_name", port=port)
        if not self.id and self.host:
            msgspec.structs.force_setattr(self, "id", self.address)
        if " " in self.id or not self.id.isprintable():
            raise InvalidRequest(message("id_invalid", id=self.id))

    def _invalid(self, kind: str, **params: object) -> InvalidRequest:
        return InvalidRequest(message(kind, service=self.service, **params))

    @property
    def address(self) -> str:
        """The host and the main port."""
        return addresses.join(self.host, self.port)

    def port_for(self, protocol: str) -> int:
        """The port for a protocol: the one of that name, or else the main port."""
        return self.ports.get(protocol, self.port)

    def address_for(self, protocol: str) -> str:
        """The host and the port of a protocol. See `port_for`."""
        return addresses.join(self.host, self.port_for(protocol))


def check_text(field: str, value: object) -> None:
    """Raise `InvalidRequest` unless it is valid text."""
    if not isinstance(value, str):
        raise InvalidRequest(message("field_not_text", field=field, value=value))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(message("field_not_utf8", field=field, value=value)) from None


def check_metadata(metadata: object) -> None:
    if not isinstance(metadata, Mapping):
        raise InvalidRequest(message("metadata_not_a_map", value=metadata))
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidRequest(message("metadata_not_text", key=key, value=value))
        check_text("metadata", key)
        check_text("metadata", value)


def check_metadata_size(service: str, metadata: Mapping[str, object]) -> None:
    """Raise `InvalidRequest` if the metadata, which consists of text, exceeds the limit."""
    size = sum(len(str(text).encode()) for pair in metadata.items() for text in pair)
    if size > MAX_METADATA:
        raise InvalidRequest(
            message("metadata_too_large", service=service, size=size, limit=MAX_METADATA)
        )


def check_json(what: Message, value: object, *, finite: bool = True) -> None:
    """Raise `InvalidRequest` unless JSON can represent it. `finite`: reject NaN and infinity, which
    would otherwise be written as null."""
    try:
        problem = _json_problem(value, finite)
        if not problem:
            msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(message("not_as_json", what=what, problem=error)) from error
    if problem:
        raise InvalidRequest(message("not_as_json", what=what, problem=problem))


def _json_problem(value: object, finite: bool) -> Message | None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                return message("json_name_not_text", name=name)
            if problem := _json_problem(inner, finite):
                return problem
    elif isinstance(value, list | tuple):
        return next(filter(None, (_json_problem(item, finite) for item in value)), None)
    elif isinstance(value, float):
        if finite and not math.isfinite(value):
            return message("json_not_finite", value=value)
    elif not (value is None or isinstance(value, str | int)):
        return message("json_has_no", value=value)
    return None


def applied(instance: Instance, service: Config = NO_CONFIG) -> Instance:
    """The instance with the operator overrides applied: its own config takes precedence over the
    service's, and both over the instance's own properties."""
    config = instance.config.over(service) if service != NO_CONFIG else instance.config
    if config == NO_CONFIG:
        return instance
    return msgspec.structs.replace(
        instance,
        weight=instance.weight if config.weight is None else config.weight,
        enabled=instance.enabled if config.enabled is None else config.enabled,
        zone=instance.zone if config.zone is None else config.zone,
        metadata=RecordedMetadata({**instance.metadata, **config.metadata}),
        config=config,
    )


class Group(msgspec.Struct, frozen=True, gc=False):
    """The description of a group."""

    name: str
    display_name: str = ""
    """The title; empty: its name."""
    department: str = ""
    description: str = ""


class Service(msgspec.Struct, frozen=True, gc=False):
    """The description of a service."""

    name: str
    """`group/name`, or `name` in the default group."""
    display_name: str = ""
    description: str = ""
