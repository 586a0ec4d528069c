"""`/admin/registry`: what is registered and how it is, from the live picture.

Where the store is away the picture stays, and the header `X-Mooring-Stale` says that it may be old.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Annotated, Any

import msgspec

from mooring.discovery.eligibility import Selector
from mooring.discovery.resilience import Resilience
from mooring.discovery.rotation import explain
from mooring.errors import InvalidName
from mooring.formatting import quoted
from mooring.messages import Message
from mooring.model import Instance, now
from mooring.names import split_service
from mooring.server.api.lookup import not_found
from mooring.server.api.overview import EventShown
from mooring.server.auth.authorization import DISCOVERING, READING, need
from mooring.server.http.request import ApiCall, Page, cut
from mooring.server.http.response import HTTPError, Response, shown
from mooring.server.http.routing import ApiRoute
from mooring.server.live.history import TimelineEvent
from mooring.server.live.services import KnownService, RenderedPage, array
from mooring.server.live.state import Fleet
from mooring.server.live.summary import (
    UNOBSERVED,
    HealthCounts,
    HealthSummary,
    InstanceDetail,
    InstanceMetrics,
    ServiceDetail,
    ServiceSummary,
    ShownState,
    health,
    healthy,
    instance_metrics,
    state_shown,
)

LOOKING = need("viewer", "group")

SERVICES = "/admin/registry/services"
SERVICE = f"{SERVICES}/{{service}}"
INSTANCES = f"{SERVICE}/instances"
INSTANCE = f"{INSTANCES}/{{id}}"

STALE = "X-Mooring-Stale"

Text = Annotated[str, msgspec.Meta(max_length=500)]


class ServicesQuery(Page, frozen=True, kw_only=True):
    name: Text = ""
    """A part of the name, in whatever case."""
    group: Text = ""
    healthy: bool | None = None
    """True: all its instances are healthy, and there are some; false: not so."""


class InstancesQuery(Page, frozen=True, kw_only=True):
    name: Text = ""
    """A part of the id, in whatever case."""
    healthy: bool | None = None
    enabled: bool | None = None
    state: ShownState | None = None
    zone: Text | None = None
    version: Text = ""


class ExplainQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How a caller would ask."""

    version: Text = ""
    zone: Text = ""


class Explained(msgspec.Struct, frozen=True, rename="camel"):
    instance_id: str
    called: bool
    reasons: tuple[str, ...]
    """In English."""
    messages: tuple[Message, ...]
    """The same as data."""


class SampleShown(msgspec.Struct, frozen=True):
    time: str
    metrics: dict[str, float]
    """Numbers by path: `memory.usagePercent`."""


def fleet_of(call: ApiCall) -> Fleet:
    """The picture. Raises `HTTPError` (503) while there is none: an empty list would be a lie."""
    fleet = call.server.fleet
    if not fleet.loaded:
        raise HTTPError(
            503,
            "unavailable",
            f"the registry has not been read yet: {fleet.error}",
            headers={"Retry-After": "1"},
        )
    return fleet


def known_of(call: ApiCall) -> KnownService:
    """The service that the path names. Raises `HTTPError` (404) where it is not known."""
    fleet = fleet_of(call)
    try:
        name = fleet.registry.canonical(call.service)
    except InvalidName:
        name = call.service
    known = fleet.service(name)
    if known is None or not call.principal.sees_service(name):
        raise not_found(f"there is no service {quoted(name)}", name, _seen(call, fleet))
    return known


def instance_of(call: ApiCall) -> tuple[KnownService, Instance]:
    """The instance that the path names. Raises `HTTPError` (404) where it is not there."""
    known, id = known_of(call), call.path["id"]
    instance = known.instances.get(id)
    if instance is None:
        raise not_found(f"{known.name} has no instance {quoted(id)}", id, known.instances)
    return known, instance


def _seen(call: ApiCall, fleet: Fleet) -> list[str]:
    """The services that the caller may see, in order."""
    sees = call.principal
    return fleet.names() if sees.groups is None else [*filter(sees.sees_service, fleet.names())]


def _answer(call: ApiCall, fleet: Fleet, stamp: Hashable, value: Any, **headers: str) -> Response:
    """With what tells it from a later one: its state, whether that may be old, and who asks."""
    scope = call.principal.groups
    told = [fleet.epoch, str(stamp), "" if scope is None else str(sorted(scope))]
    if fleet.stale:
        headers[STALE] = "true"
        told.append("stale")
    return Response(value, headers=headers, etag=_tag(told))


def _tag(told: Iterable[str]) -> str:
    digest = hash("\0".join(told)) & 0xFFFFFFFFFFFFFFFF
    return f"{digest:016x}"


def _stamp(known: KnownService) -> Hashable:
    """Another one whenever something else is shown of a service, also of one that was forgotten and
    came again."""
    return known.since.timestamp(), *known.stamp


def _everything(call: ApiCall, fleet: Fleet) -> Hashable:
    """Another one whenever something else is shown of all that the caller may see. That something
    happened elsewhere is not for them to know."""
    if call.principal.groups is None:
        return fleet.version, fleet.sampled
    return hash(tuple((known.name, _stamp(known)) for known in _visible(call, fleet)))


def _visible(call: ApiCall, fleet: Fleet) -> list[KnownService]:
    return [known for known in map(fleet.service, _seen(call, fleet)) if known is not None]


async def whole_health(call: ApiCall) -> Response:
    fleet = fleet_of(call)
    told = sum(map(fleet.rendering.counts, _visible(call, fleet)), start=HealthCounts())
    return _answer(call, fleet, _everything(call, fleet), health(told, now()))


async def service_health(call: ApiCall) -> Response:
    fleet, known = fleet_of(call), known_of(call)
    return _answer(call, fleet, _stamp(known), health(fleet.rendering.counts(known), now()))


async def services(call: ApiCall) -> Response:
    fleet, query = fleet_of(call), call.query

    def write() -> RenderedPage:
        found = [known for known in _visible(call, fleet) if _is_wanted(fleet, known, query)]
        some, headers = cut(found, query, lambda known: known.name, path=call.here)
        return RenderedPage(array(map(fleet.rendering.summary_text, some)), headers)

    return _page(call, fleet, ("services",), _everything(call, fleet), write)


def _is_wanted(fleet: Fleet, known: KnownService, query: ServicesQuery) -> bool:
    if query.group and split_service(known.name)[0] != query.group:
        return False
    if query.name and query.name.casefold() not in known.name.casefold():
        return False
    if query.healthy is None:
        return True
    told = fleet.rendering.counts(known)
    return (0 < told.healthy == told.instances) is query.healthy


async def service(call: ApiCall) -> Response:
    fleet, known = fleet_of(call), known_of(call)

    def write() -> RenderedPage:
        return RenderedPage(fleet.rendering.detail_text(known), {})

    return _page(call, fleet, ("service", known.name), _stamp(known), write)


async def instances(call: ApiCall) -> Response:
    fleet, known, query = fleet_of(call), known_of(call), call.query

    def write() -> RenderedPage:
        found = sorted(_matching(fleet, known, query))
        some, headers = cut(found, query, str, path=call.here)
        texts = (fleet.rendering.instance_text(known, id) for id in some)
        return RenderedPage(array(texts), headers)

    return _page(call, fleet, ("instances", known.name), _stamp(known), write)


def _page(
    call: ApiCall,
    fleet: Fleet,
    what: tuple[str, ...],
    stamp: Hashable,
    write: Callable[[], RenderedPage],
) -> Response:
    asked = (*what, call.here, call.query, call.principal.groups)
    page = fleet.rendering.page(asked, stamp, write)
    return _answer(call, fleet, stamp, page.body, **page.headers)


def _matching(fleet: Fleet, known: KnownService, query: InstancesQuery) -> list[str]:
    observed, part = fleet.observed(known.name), query.name.casefold()
    seen = ((id, each, observed.get(id, UNOBSERVED)) for id, each in known.instances.items())
    return [
        id
        for id, each, found in seen
        if (not part or part in id.casefold())
        and query.healthy in (None, healthy(each, found))
        and query.enabled in (None, each.enabled)
        and query.state in (None, state_shown(each, found))
        and query.zone in (None, each.zone)
        and query.version in ("", each.version)
    ]


async def instance(call: ApiCall) -> Response:
    fleet = fleet_of(call)
    known, each = instance_of(call)
    return _answer(call, fleet, _stamp(known), fleet.rendering.instance_text(known, each.id))


async def metrics(call: ApiCall) -> Response:
    fleet = fleet_of(call)
    known, each = instance_of(call)
    observed = fleet.observed(known.name).get(each.id, UNOBSERVED)
    return _answer(call, fleet, _stamp(known), instance_metrics(each, observed))


async def service_timeline(call: ApiCall) -> Response:
    fleet, known = fleet_of(call), known_of(call)
    return Response(_shown(fleet.timeline(known.name)))


async def instance_timeline(call: ApiCall) -> Response:
    """Also of one that is gone, as long as anything is remembered."""
    fleet, known = fleet_of(call), known_of(call)
    events = fleet.timeline(known.name, call.path["id"])
    if not events:
        instance_of(call)
    return Response(_shown(events))


def _shown(events: Iterable[TimelineEvent]) -> list[EventShown]:
    return [EventShown.of(event) for event in events]


async def history(call: ApiCall) -> Response:
    """Also of one that is gone, as long as anything is remembered."""
    fleet, known = fleet_of(call), known_of(call)
    samples = fleet.history(known.name, call.path["id"])
    if not samples:
        instance_of(call)
    return Response([SampleShown(shown(each.time) or "", dict(each.metrics)) for each in samples])


async def explanation(call: ApiCall) -> Response:
    known, query = known_of(call), call.query
    ordered = [known.instances[id] for id in sorted(known.instances)]
    told = explain(ordered, Selector(query.version, zone=query.zone), Resilience())
    return Response(
        [Explained(each.instance.id, each.called, each.reasons, each.messages) for each in told]
    )


ENDPOINTS = (
    ApiRoute(
        "GET",
        "/admin/registry/health",
        READING,
        whole_health,
        "Get the health of all services the caller may see",
        answers={200: HealthSummary},
    ),
    ApiRoute(
        "GET",
        SERVICES,
        READING,
        services,
        "List services with their summaries",
        query=ServicesQuery,
        answers={200: list[ServiceSummary]},
    ),
    ApiRoute(
        "GET",
        SERVICE,
        LOOKING,
        service,
        "Get a service with its instances",
        answers={200: ServiceDetail},
    ),
    ApiRoute(
        "GET",
        f"{SERVICE}/health",
        LOOKING,
        service_health,
        "Get the health of a service",
        answers={200: HealthSummary},
    ),
    ApiRoute(
        "GET",
        INSTANCES,
        DISCOVERING,
        instances,
        "List the instances of a service",
        query=InstancesQuery,
        answers={200: list[InstanceDetail]},
    ),
    ApiRoute(
        "GET", INSTANCE, DISCOVERING, instance, "Get an instance", answers={200: InstanceDetail}
    ),
    ApiRoute(
        "GET",
        f"{INSTANCE}/metrics",
        LOOKING,
        metrics,
        "Get the metrics of an instance with their times",
        answers={200: InstanceMetrics},
    ),
    ApiRoute(
        "GET",
        f"{SERVICE}/timeline",
        LOOKING,
        service_timeline,
        "List events of a service and its instances, oldest first",
        answers={200: Sequence[EventShown]},
    ),
    ApiRoute(
        "GET",
        f"{INSTANCE}/timeline",
        LOOKING,
        instance_timeline,
        "List events of an instance, oldest first",
        answers={200: Sequence[EventShown]},
    ),
    ApiRoute(
        "GET",
        f"{INSTANCE}/history",
        LOOKING,
        history,
        "List recent metric samples of an instance, oldest first",
        answers={200: Sequence[SampleShown]},
    ),
    ApiRoute(
        "GET",
        f"{SERVICE}/explain",
        LOOKING,
        explanation,
        "Explain for each instance why it is or is not in rotation",
        query=ExplainQuery,
        answers={200: Sequence[Explained]},
    ),
)
