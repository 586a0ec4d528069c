"""`/admin/registry`: services and instances, from the live cache of the fleet.

If the store is unreachable, the cache stays available, and the header `X-Mooring-Stale` says that
it may be outdated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Annotated, Any

import msgspec

from mooring.discovery.exclusion import Selector
from mooring.discovery.resilience import Resilience
from mooring.discovery.rotation import explain
from mooring.errors import InvalidName
from mooring.messages import Message
from mooring.model import Instance, now
from mooring.names import split_service
from mooring.registry.lookup import instance_not_found, service_not_found
from mooring.server.api.endpoint import ApiCall, EndpointList
from mooring.server.api.overview import EventInfo
from mooring.server.auth.authorization import DISCOVERING, READING, need
from mooring.server.http.request import PageQuery
from mooring.server.http.response import HTTPError, Response, rfc3339
from mooring.server.live.services import KnownService, RenderedPage, array
from mooring.server.live.state import Fleet
from mooring.server.live.summary import (
    NOT_OBSERVED,
    DisplayState,
    HealthSummary,
    InstanceDetail,
    InstanceMetrics,
    ServiceDetail,
    ServiceSummary,
    display_state,
    health,
    healthy,
    instance_metrics,
)
from mooring.server.live.timeline import TimelineEvent

endpoints = EndpointList()

READ_SERVICE = need("viewer", "group")

SERVICES = "/admin/registry/services"
SERVICE = f"{SERVICES}/{{service}}"
INSTANCES = f"{SERVICE}/instances"
INSTANCE = f"{INSTANCES}/{{id}}"

STALE = "X-Mooring-Stale"

FilterText = Annotated[str, msgspec.Meta(max_length=500)]


class ServicesQuery(PageQuery, frozen=True, kw_only=True):
    name: FilterText = ""
    """A substring of the name, ignoring case."""
    group: FilterText = ""
    healthy: bool | None = None
    """true: only services with instances, all of them healthy; false: only the others."""


class InstancesQuery(PageQuery, frozen=True, kw_only=True):
    name: FilterText = ""
    """A substring of the id, ignoring case."""
    healthy: bool | None = None
    enabled: bool | None = None
    state: DisplayState | None = None
    zone: FilterText | None = None
    version: FilterText = ""


class ExplainQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The selection of a caller."""

    version: FilterText = ""
    zone: FilterText = ""


class RotationExplanation(msgspec.Struct, frozen=True, rename="camel"):
    instance_id: str
    called: bool
    reasons: tuple[str, ...]
    """In English."""
    messages: tuple[Message, ...]
    """The reasons as data."""


class SampleInfo(msgspec.Struct, frozen=True):
    time: str
    metrics: dict[str, float]
    """Numbers by path: `memory.usagePercent`."""


def loaded_fleet(call: ApiCall) -> Fleet:
    """The fleet. Raises `HTTPError` (503) until the registry has been read: an empty list would be
    wrong."""
    fleet = call.server.fleet
    if not fleet.loaded:
        raise HTTPError(503, "unavailable", "registry_not_read", error=fleet.error, retry_after=1)
    return fleet


def known_of(call: ApiCall) -> KnownService:
    """The service in the path. Raises `NotFound`."""
    fleet = loaded_fleet(call)
    try:
        name = fleet.discovery.canonical(call.service)
    except InvalidName:
        name = call.service
    known = fleet.service(name)
    if known is None or not call.principal.sees_service(name):
        raise service_not_found(name, filter(call.principal.sees_service, fleet.names()))
    return known


def _known_instance(call: ApiCall) -> tuple[KnownService, Instance]:
    """The instance in the path. Raises `NotFound`."""
    known, id = known_of(call), call.path["id"]
    instance = known.instances.get(id)
    if instance is None:
        raise instance_not_found(known.name, id, known.instances)
    return known, instance


def _response(call: ApiCall, stamp: Hashable, value: Any, **headers: str) -> Response:
    """A response whose ETag covers the stamp, staleness and the scope of the caller."""
    fleet, groups = call.server.fleet, call.principal.groups
    tag = [fleet.epoch, str(stamp), "" if groups is None else str(sorted(groups))]
    if fleet.stale:
        headers[STALE] = "true"
        tag.append("stale")
    digest = hash("\0".join(tag)) & 0xFFFFFFFFFFFFFFFF
    return Response(value, headers=headers, etag=f"{digest:016x}")


def _page_response(
    call: ApiCall, kind: str, stamp: Hashable, render: Callable[[], RenderedPage]
) -> Response:
    """A rendered page, cached until its stamp changes."""
    key = (kind, call.raw_path, call.query, call.principal.groups)
    page = call.server.fleet.rendering.page(key, stamp, render)
    return _response(call, stamp, page.body, **page.headers)


def _stamp(known: KnownService) -> Hashable:
    """Changes with the shown state of a service, also if it is forgotten and returns."""
    return known.since.timestamp(), *known.stamp


def _fleet_stamp(call: ApiCall, fleet: Fleet) -> Hashable:
    """Changes whenever the shown state of any service that the caller may access changes. It does
    not reveal changes of other services."""
    if call.principal.groups is None:
        return fleet.version, fleet.sampled
    visible = fleet.services(call.principal.sees_service)
    return hash(tuple((known.name, _stamp(known)) for known in visible))


@endpoints.add("GET", "/admin/registry/health", READING, answers={200: HealthSummary})
async def fleet_health(call: ApiCall) -> Response:
    """Get the health of all services the caller may see."""
    fleet = loaded_fleet(call)
    visible = fleet.services(call.principal.sees_service)
    value = health(map(fleet.rendering.counts, visible), now())
    return _response(call, _fleet_stamp(call, fleet), value)


@endpoints.add("GET", f"{SERVICE}/health", READ_SERVICE, answers={200: HealthSummary})
async def service_health(call: ApiCall) -> Response:
    """Get the health of a service."""
    known = known_of(call)
    counts = call.server.fleet.rendering.counts(known)
    return _response(call, _stamp(known), health([counts], now()))


@endpoints.add("GET", SERVICES, READING, query=ServicesQuery, answers={200: list[ServiceSummary]})
async def list_services(call: ApiCall) -> Response:
    """List services with their summaries."""
    fleet, query = loaded_fleet(call), call.query

    def render() -> RenderedPage:
        visible = fleet.services(call.principal.sees_service)
        services = [known for known in visible if _matches(fleet, known, query)]
        page, headers = call.page(services, lambda known: known.name)
        return RenderedPage(array(map(fleet.rendering.summary_text, page)), headers)

    return _page_response(call, "services", _fleet_stamp(call, fleet), render)


def _matches(fleet: Fleet, known: KnownService, query: ServicesQuery) -> bool:
    if query.group and split_service(known.name)[0] != query.group:
        return False
    if query.name and query.name.casefold() not in known.name.casefold():
        return False
    if query.healthy is None:
        return True
    counts = fleet.rendering.counts(known)
    return (0 < counts.healthy == counts.instances) is query.healthy


@endpoints.add("GET", SERVICE, READ_SERVICE, answers={200: ServiceDetail})
async def get_service(call: ApiCall) -> Response:
    """Get a service with its instances."""
    fleet, known = loaded_fleet(call), known_of(call)

    def render() -> RenderedPage:
        return RenderedPage(fleet.rendering.detail_text(known), {})

    return _page_response(call, "service", _stamp(known), render)


@endpoints.add(
    "GET", INSTANCES, DISCOVERING, query=InstancesQuery, answers={200: list[InstanceDetail]}
)
async def list_instances(call: ApiCall) -> Response:
    """List the instances of a service."""
    fleet, known, query = loaded_fleet(call), known_of(call), call.query

    def render() -> RenderedPage:
        ids = sorted(_matching_ids(known, query))
        page, headers = call.page(ids, str)
        texts = (fleet.rendering.instance_text(known, id) for id in page)
        return RenderedPage(array(texts), headers)

    return _page_response(call, "instances", _stamp(known), render)


def _matching_ids(known: KnownService, query: InstancesQuery) -> list[str]:
    substring = query.name.casefold()
    return [
        instance.id
        for instance, observation in known.observed_instances()
        if (not substring or substring in instance.id.casefold())
        and query.healthy in (None, healthy(instance, observation))
        and query.enabled in (None, instance.enabled)
        and query.state in (None, display_state(instance, observation))
        and query.zone in (None, instance.zone)
        and query.version in ("", instance.version)
    ]


@endpoints.add("GET", INSTANCE, DISCOVERING, answers={200: InstanceDetail})
async def get_instance(call: ApiCall) -> Response:
    """Get an instance."""
    known, instance = _known_instance(call)
    text = call.server.fleet.rendering.instance_text(known, instance.id)
    return _response(call, _stamp(known), text)


@endpoints.add("GET", f"{INSTANCE}/metrics", READ_SERVICE, answers={200: InstanceMetrics})
async def metrics(call: ApiCall) -> Response:
    """Get the metrics of an instance with their times."""
    known, instance = _known_instance(call)
    observed = known.observations.get(instance.id, NOT_OBSERVED)
    return _response(call, _stamp(known), instance_metrics(instance, observed))


@endpoints.add("GET", f"{SERVICE}/timeline", READ_SERVICE, answers={200: Sequence[EventInfo]})
async def service_timeline(call: ApiCall) -> Response:
    """List events of a service and its instances, oldest first."""
    return _events_response(call.server.fleet.timeline(known_of(call).name))


@endpoints.add("GET", f"{INSTANCE}/timeline", READ_SERVICE, answers={200: Sequence[EventInfo]})
async def instance_timeline(call: ApiCall) -> Response:
    """List events of an instance, oldest first."""
    events = call.server.fleet.timeline(known_of(call).name, call.path["id"])
    if not events:  # those of a removed instance remain for some time
        _known_instance(call)
    return _events_response(events)


def _events_response(events: Iterable[TimelineEvent]) -> Response:
    return Response([EventInfo.of(event) for event in events])


@endpoints.add("GET", f"{INSTANCE}/history", READ_SERVICE, answers={200: Sequence[SampleInfo]})
async def metric_history(call: ApiCall) -> Response:
    """List recent metric samples of an instance, oldest first."""
    samples = call.server.fleet.history(known_of(call).name, call.path["id"])
    if not samples:  # those of a removed instance remain for some time
        _known_instance(call)
    return Response([SampleInfo(rfc3339(sample.time), sample.metrics) for sample in samples])


@endpoints.add(
    "GET",
    f"{SERVICE}/explain",
    READ_SERVICE,
    query=ExplainQuery,
    answers={200: Sequence[RotationExplanation]},
)
async def explain_rotation(call: ApiCall) -> Response:
    """Explain for each instance why it is or is not in rotation."""
    known, query = known_of(call), call.query
    ordered = [known.instances[id] for id in sorted(known.instances)]
    explanations = explain(ordered, Selector(query.version, zone=query.zone), Resilience())
    return Response(
        [
            RotationExplanation(item.instance.id, item.called, item.reasons, item.messages)
            for item in explanations
        ]
    )
