"""Registration over HTTP, for services that are not Python: register, beat, deregister, and who may
be called.

Nothing is kept in this process: the next beat may come to any `mooring serve` on the same registry.
A service that hears 404 registers again with the incarnation that it has; at 409 (another process
took its place) and at 410 (an operator took it out) it stops until it is started anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from mooring import durations
from mooring.discovery.eligibility import Selector
from mooring.discovery.resilience import Resilience
from mooring.discovery.rotation import explain
from mooring.messages import message
from mooring.model import Instance, State
from mooring.server.auth.authorization import DISCOVERING, need
from mooring.server.http.request import ApiCall, Page, cut
from mooring.server.http.response import HTTPError, Response
from mooring.server.http.routing import ApiRoute
from mooring.server.live.summary import metadata_shown

REGISTERING = need("service", "group")

LONGEST_TTL = 3600.0
"""Seconds: who is silent for longer is not there."""

INSTANCES = "/registry/services/{service}/instances"

Text = Annotated[str, msgspec.Meta(max_length=200)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Incarnation = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]

_COMES_BACK = (
    "Empty for a process that was just started: it is given one, and takes the place of whoever is "
    "there under this id. With one, it comes back as who it was (after a 404 to its beat): it is "
    "refused with 409 while another incarnation is there, be it its own last start whose time has "
    "not run out, and with 410 where an operator took it out. A client may make up its own, if it "
    "is another at each start."
)


class Registering(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An instance that wants to be called."""

    host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    """An IP address or host name that others reach."""
    port: Port
    protocol: Text = "tcp"
    version: Text = "0.0.0"
    zone: Text = ""
    weight: Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)] = 1.0
    metadata: dict[str, str] = {}
    ports: dict[str, Port] = {}
    """Ports other than the main one, by what is spoken there."""
    id: Text = ""
    """`host:port` where none is given, or where the registry has no others."""
    incarnation: Annotated[str, msgspec.Meta(max_length=200, description=_COMES_BACK)] = ""
    ttl: (
        Annotated[float, msgspec.Meta(gt=0, le=LONGEST_TTL)]
        | Annotated[str, msgspec.Meta(max_length=20)]
        | None
    ) = None
    """How long it stays without a beat: `10s`, or seconds; up to an hour. Redis has its own."""


class Registered(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    service: str
    id: str
    incarnation: str
    """To be sent with each beat: it tells this start of the process from all others."""
    ttl: float
    """Seconds that it stays without a beat."""
    beat_every: float
    """Seconds to let pass between two beats."""
    not_kept: tuple[str, ...]
    """Fields that this registry cannot hold."""


class Beating(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sign of life, with what changed. What is left out stays as it was."""

    incarnation: Incarnation
    healthy: bool | None = None
    state: State | None = None
    metrics: dict[str, Any] | None = None
    """By collector: `{"memory": {"usagePercent": 41.5}}`. They replace those before."""


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's word on the instance and its service, as far as this server knows it yet."""

    enabled: bool | None = None
    weight: float | None = None
    config: dict[str, Any] = {}


class Leaving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    incarnation: Incarnation


class Asked(Page, frozen=True, kw_only=True):
    """What the caller wants to call; it may be left out."""

    version: Text = ""
    """This one alone."""
    zone: Text = ""
    """The caller's own, which is preferred."""


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that may be called."""

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


async def register(call: ApiCall) -> Response:
    told: Registering = call.body
    instance = Instance(
        call.service,
        told.host,
        told.port,
        protocol=told.protocol,
        version=told.version,
        zone=told.zone,
        weight=told.weight,
        metadata=told.metadata,
        ports=told.ports,
        id=told.id,
        incarnation=told.incarnation,
    )
    call.notes["instance"] = instance.id
    entered = await call.server.hub.registry.enter(instance, ttl=_seconds(told.ttl))
    made = entered.instance
    call.notes["instance"] = made.id
    call.server.fleet.set_ttl(made.service, made.id, entered.ttl)
    registered = Registered(
        service=made.service,
        id=made.id,
        incarnation=made.incarnation,
        ttl=entered.ttl,
        beat_every=entered.every,
        not_kept=entered.lost,
    )
    return Response(registered, 201)


def _seconds(ttl: float | str | None) -> float | None:
    if not isinstance(ttl, str):
        return ttl
    seconds = durations.parse(ttl)
    if not 0 < seconds <= LONGEST_TTL:
        raise HTTPError(400, "bad_request", f"a ttl of {ttl} is not possible: at most an hour")
    return seconds


async def beat(call: ApiCall) -> Response:
    told: Beating = call.body
    registry, id = call.server.hub.registry, call.path["id"]
    stands = await registry.beat(
        *(call.service, id, told.incarnation),
        healthy=told.healthy,
        state=told.state,
        metrics=told.metrics,
    )
    if not stands:
        raise HTTPError(
            404,
            "not_registered",
            f"{call.service} {id} is not registered any more: register again, with the same "
            "incarnation",
        )
    return Response(_word(call, registry.canonical(call.service), told.incarnation))


def _word(call: ApiCall, service: str, incarnation: str) -> Heard:
    """The operator's. A beat counts whether or not there is a picture to look at."""
    try:
        known = call.server.fleet.service(service)
    except HTTPError:
        return Heard()
    instance = known.instances.get(call.path["id"]) if known is not None else None
    if instance is None or instance.incarnation != incarnation:
        return Heard()
    config = instance.config
    return Heard(enabled=config.enabled, weight=config.weight, config=dict(config.values))


async def withdraw(call: ApiCall) -> Response:
    registry, fleet = call.server.hub.registry, call.server.fleet
    service, id = registry.canonical(call.service), call.path["id"]
    fleet.expect_departure(service, id, "left")
    if await registry.leave(service, id, call.query.incarnation):
        fleet.record_action(service, id, message("deregistered_itself"))
        return Response(status=204)
    fleet.expect_departure(service, id, None)
    raise HTTPError(
        404, "not_registered", f"{service} {id} is not registered, or not as that incarnation"
    )


async def discover(call: ApiCall) -> Response:
    asked: Asked = call.query
    selector = Selector(version=asked.version, zone=asked.zone)
    told = explain(await _instances(call), selector, Resilience())
    eligible = [each.instance for each in told if each.called]
    some, headers = cut(eligible, asked, lambda each: each.id, path=call.here)
    calls = call.principal.role != "viewer"  # by all that is said; who only looks need not know it
    return Response([_offered(each, whole=calls) for each in some], headers=headers)


async def _instances(call: ApiCall) -> Iterable[Instance]:
    """From the live picture; from the registry itself where that may be old."""
    registry, fleet = call.server.hub.registry, call.server.fleet
    service = registry.canonical(call.service)
    if fleet.stale or fleet.error:
        return (await registry.instances(service)).instances
    known = fleet.service(service)
    return [] if known is None else known.instances.values()


def _offered(instance: Instance, *, whole: bool) -> Offered:
    return Offered(
        id=instance.id,
        host=instance.host,
        port=instance.port,
        protocol=instance.protocol,
        version=instance.version,
        zone=instance.zone,
        weight=instance.weight,
        healthy=instance.status.healthy,
        metadata=dict(instance.metadata) if whole else metadata_shown(instance.metadata),
        ports=dict(instance.ports),
    )


_GONE = 410

ENDPOINTS = (
    ApiRoute(
        "POST",
        INSTANCES,
        REGISTERING,
        register,
        "Register an instance; it supersedes an earlier one at the same address",
        body=Registering,
        answers={201: Registered},
        fails=(_GONE,),
    ),
    ApiRoute(
        "PUT",
        f"{INSTANCES}/{{id}}/beat",
        REGISTERING,
        beat,
        ("Send a heartbeat. 404: register again; 409: superseded; 410: removed by an operator"),
        body=Beating,
        answers={200: Heard},
        fails=(_GONE,),
        acts=False,  # thousands a second, of which none changes what somebody decided
    ),
    ApiRoute(
        "DELETE",
        f"{INSTANCES}/{{id}}",
        REGISTERING,
        withdraw,
        "Deregister an instance by its own incarnation",
        query=Leaving,
        answers={204: None},
    ),
    ApiRoute(
        "GET",
        INSTANCES,
        DISCOVERING,
        discover,
        "List callable instances: enabled, up and healthy",
        query=Asked,
        answers={200: list[Offered]},
    ),
)
