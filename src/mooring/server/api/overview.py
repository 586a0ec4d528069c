"""`/admin/overview`: how everything is, what is wrong and what happened, in one request."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import structs

from mooring.messages import Message
from mooring.model import Time, now
from mooring.names import split_service
from mooring.server.auth.authorization import READING, Principal
from mooring.server.http.request import ApiCall
from mooring.server.http.response import Response, encode, shown, tag
from mooring.server.http.routing import ApiRoute
from mooring.server.live.history import TimelineEvent
from mooring.server.live.problems import Problem, problems, visible_problems
from mooring.server.live.services import RenderedPage
from mooring.server.live.state import Fleet
from mooring.server.live.summary import (
    HealthCounts,
    HealthSummary,
    Observed,
    count_health,
    health,
    percentile,
)

RECENT = 50
"""So many events are shown."""
_OF_ONE = 20
"""So many of them of one service."""


class GroupCounts(msgspec.Struct, frozen=True, rename="camel"):
    group: str
    total_services: int
    total_instances: int
    healthy_instances: int
    active_instances: int


class Lag(msgspec.Struct, frozen=True):
    """Milliseconds since the last sign of life of each instance; null where none is known."""

    max: float | None
    p99: float | None
    count: int


class EventShown(msgspec.Struct, frozen=True):
    time: str
    service: str
    id: str
    kind: str
    text: str
    """In English."""
    message: Message
    """The same as data."""

    @classmethod
    def of(cls, event: TimelineEvent) -> EventShown:
        time = shown(event.time) or ""
        return cls(time, event.service, event.id, event.kind, event.text, event.message)


class Overview(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    version: int
    stale: bool
    """Whether what is shown may be old."""
    error: str
    health: HealthSummary
    problems: Sequence[Problem]
    """The worst first."""
    groups: Sequence[GroupCounts]
    heartbeat_lag: Lag
    events: Sequence[EventShown]
    """The newest first."""


def overview(fleet: Fleet, told: Iterable[Problem], principal: Principal, at: Time) -> Overview:
    """What a principal may see of a fleet."""
    by_group: dict[str, HealthCounts] = {}
    silences: list[float] = []
    names = [name for name in fleet.names() if principal.sees_service(name)]
    for name in names:
        known = fleet.service(name)
        if known is None:
            continue
        observed = fleet.observed(name)
        group = split_service(name)[0]
        by_group[group] = by_group.get(group, HealthCounts()) + count_health(
            known.instances, observed
        )
        silences += _delays(known.instances, observed)
    silences.sort()
    return Overview(
        version=fleet.version,
        stale=fleet.stale,
        error=fleet.error,
        health=health(sum(by_group.values(), start=HealthCounts()), at),
        problems=visible_problems(told, principal.sees_service),
        groups=[_counts(group, by_group[group]) for group in sorted(by_group)],
        heartbeat_lag=lag(silences),
        events=[EventShown.of(event) for event in recent(fleet, names)],
    )


def lag(ordered: Sequence[float]) -> Lag:
    """Of delays in order."""
    if not ordered:
        return Lag(None, None, 0)
    return Lag(ordered[-1], percentile(ordered, 0.99), len(ordered))


def recent(fleet: Fleet, names: Iterable[str]) -> list[TimelineEvent]:
    """The last events of some services and of the picture as a whole, the newest first."""
    events = list(fleet.timeline()[-_OF_ONE:])
    for name in names:
        events += fleet.timeline(name)[-_OF_ONE:]
    return heapq.nlargest(RECENT, events, key=lambda event: event.time)


def _delays(instances: Iterable[str], observed: Mapping[str, Observed]) -> list[float]:
    delays = (observed[id].heartbeat_delay for id in instances if id in observed)
    return [delay for delay in delays if delay is not None]


def _counts(group: str, told: HealthCounts) -> GroupCounts:
    return GroupCounts(group, told.services, told.instances, told.healthy, told.active)


async def _overview(call: ApiCall) -> Response:
    """Written once for each state of the fleet and for all who may see the same groups: every open
    console asks for it all the time. Its ETag is that of all but the moment."""
    fleet, outlook = call.server.fleet, call.server.outlook
    told = problems(fleet, now()) if outlook is None else outlook.problems()

    def write() -> RenderedPage:
        seen = overview(fleet, told, call.principal, now())
        timeless = structs.replace(seen, health=structs.replace(seen.health, timestamp=""))
        return RenderedPage(encode(seen), {"ETag": tag(encode(timeless)).strip('"')})

    stamp = (fleet.version, fleet.sampled, fleet.stale, fleet.error, tuple(told))
    page = fleet.rendering.page(("overview", call.principal.groups), stamp, write)
    return Response(page.body, etag=page.headers["ETag"])


ENDPOINTS = (
    ApiRoute(
        "GET",
        "/admin/overview",
        READING,
        _overview,
        "Get health, current problems and recent events",
        answers={200: Overview},
    ),
)
