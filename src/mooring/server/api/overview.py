"""`/admin/overview`: health, problems and recent events of the whole fleet in one request."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import structs

from mooring.messages import Message
from mooring.model import Time, now
from mooring.names import split_service
from mooring.server.api.endpoint import ApiCall, EndpointList
from mooring.server.auth.authorization import READING, Principal
from mooring.server.http.response import Response, digest, encode, rfc3339
from mooring.server.live.problems import FleetProblem, visible_problems
from mooring.server.live.services import KnownService, RenderedPage
from mooring.server.live.state import Fleet
from mooring.server.live.summary import HealthCounts, HealthSummary, health, percentile
from mooring.server.live.timeline import TimelineEvent

endpoints = EndpointList()

MAX_EVENTS = 50
MAX_EVENTS_PER_SERVICE = 20


class GroupCounts(msgspec.Struct, frozen=True, rename="camel"):
    group: str
    total_services: int
    total_instances: int
    healthy_instances: int
    active_instances: int


class HeartbeatDelay(msgspec.Struct, frozen=True):
    """Milliseconds since the last heartbeats of the instances; null if none is known."""

    max: float | None
    p99: float | None
    count: int


class EventInfo(msgspec.Struct, frozen=True):
    time: str
    service: str
    id: str
    kind: str
    text: str
    """In English."""
    message: Message
    """The text as data."""

    @classmethod
    def of(cls, event: TimelineEvent) -> EventInfo:
        time = rfc3339(event.time)
        return cls(time, event.service, event.id, event.kind, event.text, event.message)


class Overview(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    version: int
    stale: bool
    """Whether the data may be outdated."""
    error: str
    """Why the registry cannot be read, in English."""
    message: Message | None
    """The error as data."""
    health: HealthSummary
    problems: Sequence[FleetProblem]
    """Most severe first."""
    groups: Sequence[GroupCounts]
    heartbeat_delay: HeartbeatDelay
    events: Sequence[EventInfo]
    """Newest first."""


def overview(
    fleet: Fleet, problems: Iterable[FleetProblem], principal: Principal, moment: Time
) -> Overview:
    """The overview of the services that a principal may access."""
    counts: dict[str, HealthCounts] = {}
    delays: list[float] = []
    services = fleet.services(principal.sees_service)
    for known in services:
        group = split_service(known.name)[0]
        counts[group] = counts.get(group, HealthCounts()) + fleet.rendering.counts(known)
        observed = known.observations.values()
        delays += [seen.heartbeat_delay for seen in observed if seen.heartbeat_delay is not None]
    delays.sort()
    return Overview(
        version=fleet.version,
        stale=fleet.stale,
        error=str(fleet.error or ""),
        message=fleet.error,
        health=health(counts.values(), moment),
        problems=visible_problems(problems, principal.sees_service),
        groups=[
            GroupCounts(group, total.services, total.instances, total.healthy, total.active)
            for group, total in sorted(counts.items())
        ],
        heartbeat_delay=HeartbeatDelay(
            max=delays[-1] if delays else None,
            p99=percentile(delays, 0.99) if delays else None,
            count=len(delays),
        ),
        events=[EventInfo.of(event) for event in recent_events(fleet, services)],
    )


def recent_events(fleet: Fleet, services: Iterable[KnownService]) -> list[TimelineEvent]:
    """The last events of these services and of the fleet itself, newest first."""
    events = list(fleet.timeline()[-MAX_EVENTS_PER_SERVICE:])
    for known in services:
        events += fleet.timeline(known.name)[-MAX_EVENTS_PER_SERVICE:]
    return heapq.nlargest(MAX_EVENTS, events, key=lambda event: event.time)


@endpoints.add("GET", "/admin/overview", READING, answers={200: Overview})
async def get_overview(call: ApiCall) -> Response:
    """Get health, current problems and recent events."""
    # Every open console polls it, so callers with the same groups share a rendered page until the
    # fleet changes. The ETag ignores the timestamp.
    fleet, problems = call.server.fleet, call.server.problems.problems()

    def render() -> RenderedPage:
        value = overview(fleet, problems, call.principal, now())
        timeless = structs.replace(value, health=structs.replace(value.health, timestamp=""))
        return RenderedPage(encode(value), {"ETag": digest(encode(timeless))})

    stamp = (fleet.version, fleet.sampled, fleet.stale, fleet.error, tuple(problems))
    page = fleet.rendering.page(("overview", call.principal.groups), stamp, render)
    return Response(page.body, etag=page.headers["ETag"])
