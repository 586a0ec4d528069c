"""Registration over HTTP, for services that are not written in Python: register, send heartbeats,
deregister, and list callable instances.

The server keeps no state of a registration: each heartbeat may go to any server of the same
registry. After 404, a service registers again with the same incarnation. After 409 (superseded by
another process) or 410 (removed by an operator), it stops until its process restarts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from mooring.discovery.exclusion import Selector
from mooring.discovery.resilience import Resilience
from mooring.discovery.rotation import explain
from mooring.durations import parse_duration
from mooring.messages import message
from mooring.model import Instance, State
from mooring.server.api.endpoint import ApiCall, EndpointList
from mooring.server.auth.authorization import DISCOVERING, need
from mooring.server.http.request import PageQuery
from mooring.server.http.response import HTTPError, Response
from mooring.server.live.summary import masked_metadata

endpoints = EndpointList()

REGISTER = need("service", "group")

MAX_TTL = 3600.0
"""Seconds."""

INSTANCES = "/registry/services/{service}/instances"

_REMOVED = 410

InstanceText = Annotated[str, msgspec.Meta(max_length=200)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Incarnation = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]

_INCARNATION = (
    "Leave it empty when the process starts: the server assigns one, and the registration "
    "supersedes an earlier one with the same instance id. After a 404 to a heartbeat, register "
    "again with the same incarnation. The response is then 409 if another incarnation is "
    "registered (even one of an earlier start that has not expired yet), and 410 if an operator "
    "removed the instance. A client may choose its own incarnation if it is different at each "
    "start."
)


class RegistrationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    """An IP address or host name that callers can reach."""
    port: Port
    protocol: InstanceText = "tcp"
    version: InstanceText = "0.0.0"
    zone: InstanceText = ""
    weight: Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)] = 1.0
    metadata: dict[str, str] = {}
    ports: dict[str, Port] = {}
    """Additional ports by protocol."""
    id: InstanceText = ""
    """By default `host:port`; some registries allow no other."""
    incarnation: Annotated[str, msgspec.Meta(max_length=200, description=_INCARNATION)] = ""
    ttl: (
        Annotated[float, msgspec.Meta(gt=0, le=MAX_TTL)]
        | Annotated[str, msgspec.Meta(max_length=20)]
        | None
    ) = None
    """Time without a heartbeat after which the instance expires: `10s`, or seconds; up to one hour.
    Redis has its own timeout."""


class RegistrationInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    service: str
    id: str
    incarnation: str
    """Identifies this start of the process: send it with each heartbeat."""
    ttl: float
    """Seconds without a heartbeat after which the instance expires."""
    beat_every: float
    """Seconds between two heartbeats."""
    not_kept: tuple[str, ...]
    """Fields that this registry cannot store."""


class HeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A heartbeat with changes. Omitted fields stay as they are."""

    incarnation: Incarnation
    healthy: bool | None = None
    state: State | None = None
    metrics: dict[str, Any] | None = None
    """By collector: `{"memory": {"usagePercent": 41.5}}`. They replace all earlier metrics."""


class OperatorOverride(msgspec.Struct, frozen=True, kw_only=True):
    """The operator overrides of the instance and its service that this server knows."""

    enabled: bool | None = None
    weight: float | None = None
    config: dict[str, Any] = {}


class DeregistrationQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    incarnation: Incarnation


class DiscoveryQuery(PageQuery, frozen=True, kw_only=True):
    version: InstanceText = ""
    """Only instances of this version."""
    zone: InstanceText = ""
    """The zone of the caller, which is preferred."""


class CallableInstance(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    host: str
    port: int
    protocol: str
    version: str
    zone: str
    weight: float
    healthy: bool
    metadata: dict[str, str]
    ports: dict[str, int]


@endpoints.add(
    "POST",
    INSTANCES,
    REGISTER,
    body=RegistrationRequest,
    answers={201: RegistrationInfo},
    fails=(_REMOVED,),
)
async def register(call: ApiCall) -> Response:
    """Register an instance; it supersedes an earlier one with the same id."""
    request: RegistrationRequest = call.body
    fields = msgspec.structs.asdict(request)
    del fields["ttl"]
    instance = Instance(call.service, **fields)
    call.notes["instance"] = instance.id
    entered = await call.server.registry.enter(instance, ttl=_seconds(request.ttl))
    instance = entered.instance
    call.notes["instance"] = instance.id
    call.server.fleet.set_ttl(instance.service, instance.id, entered.ttl)
    info = RegistrationInfo(
        service=instance.service,
        id=instance.id,
        incarnation=instance.incarnation,
        ttl=entered.ttl,
        beat_every=entered.every,
        not_kept=entered.lost,
    )
    return Response(info, 201)


def _seconds(ttl: float | str | None) -> float | None:
    if not isinstance(ttl, str):
        return ttl
    seconds = parse_duration(ttl)
    if not 0 < seconds <= MAX_TTL:
        raise HTTPError(400, "bad_request", "ttl_invalid", ttl=ttl)
    return seconds


@endpoints.add(
    "PUT",
    f"{INSTANCES}/{{id}}/beat",
    REGISTER,
    body=HeartbeatRequest,
    answers={200: OperatorOverride},
    fails=(_REMOVED,),
    audited=False,  # thousands per second that change no decision of an operator
)
async def beat(call: ApiCall) -> Response:
    """Send a heartbeat. 404: register again; 409: superseded; 410: removed by an operator."""
    request: HeartbeatRequest = call.body
    registry, id = call.server.registry, call.path["id"]
    registered = await registry.beat(
        call.service,
        id,
        request.incarnation,
        healthy=request.healthy,
        state=request.state,
        metrics=request.metrics,
    )
    if not registered:
        raise HTTPError(
            404,
            "not_registered",
            "registration_gone",
            service=call.service,
            id=id,
        )
    service = registry.canonical(call.service)
    return Response(_override(call, service, request.incarnation))


def _override(call: ApiCall, service: str, incarnation: str) -> OperatorOverride:
    try:
        known = call.server.fleet.service(service)
    except HTTPError:  # the heartbeat has succeeded, even if the fleet is not loaded
        return OperatorOverride()
    instance = known.instances.get(call.path["id"]) if known is not None else None
    if instance is None or instance.incarnation != incarnation:
        return OperatorOverride()
    config = instance.config
    return OperatorOverride(
        enabled=config.enabled, weight=config.weight, config=dict(config.values)
    )


@endpoints.add(
    "DELETE",
    f"{INSTANCES}/{{id}}",
    REGISTER,
    query=DeregistrationQuery,
    answers={204: None},
)
async def deregister(call: ApiCall) -> Response:
    """Deregister an instance; `incarnation` must be the one that it registered with."""
    registry, fleet = call.server.registry, call.server.fleet
    service, id = registry.canonical(call.service), call.path["id"]
    fleet.expect_departure(service, id, "left")
    if await registry.leave(service, id, call.query.incarnation):
        fleet.record_action(service, id, message("deregistered_itself"))
        return Response(status=204)
    fleet.expect_departure(service, id, None)
    raise HTTPError(404, "not_registered", "registration_of_another", service=service, id=id)


@endpoints.add(
    "GET", INSTANCES, DISCOVERING, query=DiscoveryQuery, answers={200: list[CallableInstance]}
)
async def discover(call: ApiCall) -> Response:
    """List callable instances: enabled, up and healthy."""
    query: DiscoveryQuery = call.query
    selector = Selector(version=query.version, zone=query.zone)
    explanations = explain(await _instances(call), selector, Resilience())
    eligible = [item.instance for item in explanations if item.called]
    page, headers = call.page(eligible, lambda instance: instance.id)
    # Callers may need all metadata to call the service; viewers only read it.
    unmasked = call.principal.role != "viewer"
    instances = [_callable_instance(instance, unmasked=unmasked) for instance in page]
    return Response(instances, headers=headers)


async def _instances(call: ApiCall) -> Iterable[Instance]:
    """From the live cache, or from the registry if the cache may be outdated."""
    registry, fleet = call.server.registry, call.server.fleet
    service = registry.canonical(call.service)
    if fleet.stale or fleet.error:
        return (await registry.instances(service)).instances
    known = fleet.service(service)
    return [] if known is None else known.instances.values()


def _callable_instance(instance: Instance, *, unmasked: bool) -> CallableInstance:
    return CallableInstance(
        id=instance.id,
        host=instance.host,
        port=instance.port,
        protocol=instance.protocol,
        version=instance.version,
        zone=instance.zone,
        weight=instance.weight,
        healthy=instance.status.healthy,
        metadata=dict(instance.metadata) if unmasked else masked_metadata(instance.metadata),
        ports=dict(instance.ports),
    )
