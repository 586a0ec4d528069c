"""Brakes of a registry on Redis: which hold, and letting go."""

from __future__ import annotations

import datetime

import msgspec

from mooring.server.api.lookup import service_of
from mooring.server.api.operations import OPERATING, Reason
from mooring.server.auth.authorization import READING
from mooring.server.http.request import Call, Page, cut
from mooring.server.http.response import Answer, Refused, shown
from mooring.server.http.routing import Endpoint


class BrakeShown(msgspec.Struct, frozen=True, kw_only=True):
    """A service of which nobody is taken out at present: so many are silent that the fault is
    likely elsewhere."""

    service: str
    silent: int
    total: int
    since: str
    until: str
    """When it releases by itself, at the latest."""
    why: str


async def brakes(call: Call) -> Answer:
    evictions = call.parts.hub.registry.evictions
    found = {} if evictions is None else await evictions.brakes()
    shown_brakes = [
        BrakeShown(
            service=service,
            silent=brake.silent,
            total=brake.total,
            since=_moment(brake.since),
            until=_moment(brake.until),
            why=str(brake),
        )
        for service, brake in sorted(found.items())
        if call.principal.sees_service(service)
    ]
    some, headers = cut(shown_brakes, call.query, lambda each: each.service, path=call.here)
    return Answer(some, headers=headers)


def _moment(ms: int) -> str:
    return shown(datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)) or ""


async def release(call: Call) -> Answer:
    if call.query.reason:
        call.notes["reason"] = call.query.reason
    registry = call.parts.hub.registry
    evictions = registry.evictions
    if evictions is None:
        raise Refused(404, "not_found", f"there are no brakes: {registry.guarantees.expires}")
    service = registry.canonical(call.service)
    brake = (await evictions.brakes()).get(service)
    call.notes["before"] = str(brake or "")
    if not await evictions.release(service):
        await service_of(call)
        raise Refused(404, "not_found", f"no brake holds for {service}")
    return Answer(status=204)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/admin/registry/brakes",
        READING,
        brakes,
        "List services whose eviction is paused by the mass-expiry brake (Redis only)",
        query=Page,
        answers={200: list[BrakeShown]},
    ),
    Endpoint(
        "DELETE",
        "/admin/registry/brakes/{service}",
        OPERATING,
        release,
        "Release the brake of a service; the next pass evicts its silent instances",
        query=Reason,
        answers={204: None},
    ),
)
