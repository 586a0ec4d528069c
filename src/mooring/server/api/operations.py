"""Operator actions: drain, enable, set weights, deregister, and release eviction brakes."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.messages import Parameter, message
from mooring.model import JSON, Instance
from mooring.server.api.lookup import instance_of, not_found, service_of
from mooring.server.api.registry import known_of
from mooring.server.api.unmasking import fields
from mooring.server.auth.authorization import READING, need
from mooring.server.http.request import ApiCall, Page, cut
from mooring.server.http.response import HTTPError, Response, shown
from mooring.server.http.routing import ApiRoute

OPERATING = need("operator", "group")
LOOKING = need("viewer", "group")

SERVICE = "/admin/registry/services/{service}"
INSTANCE = f"{SERVICE}/instances/{{id}}"


class Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """Why, for the audit."""


class Operated(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An instance after an operator's word."""

    service: str
    id: str
    enabled: bool
    """Whether it may be called."""
    weight: float
    config: dict[str, Any]
    """The operator's word on this instance, secrets masked."""


class Weight(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    weight: Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)] | None
    """Its share of the calls in relation to the others'; 0: none; null: as it says itself."""


KEPT_ON = "enabledBeforeDrain"
"""There where an operator had said `enabled: true` before somebody drained it."""


async def drain(call: ApiCall) -> Response:
    said = await _said(call)
    own = said.before.get("enabled")
    if own is True:
        return await said.change("drained_by", set={"enabled": False, KEPT_ON: True})
    old = (KEPT_ON,) if own is None and KEPT_ON in said.before else ()
    return await said.change("drained_by", set={"enabled": False}, unset=old)


async def enable(call: ApiCall) -> Response:
    """What a drain said is taken back. Where something else holds it out (its service is disabled
    as a whole, or it says so itself), it is enabled in spite of that: so it was asked for."""
    said = await _said(call)
    was_on = said.before.get("enabled") is True or said.before.get(KEPT_ON) is True
    kept = (KEPT_ON,) if KEPT_ON in said.before else ()
    if not was_on:
        answer = await said.change("", unset=("enabled", *kept))
        if answer.value.enabled:
            _record(call, said.instance.service, said.instance.id, "enabled_by")
            return answer
    return await said.change("enabled_by", set={"enabled": True}, unset=kept)


async def weigh(call: ApiCall) -> Response:
    said, weight = await _said(call), call.body.weight
    if weight is None:
        return await said.change("weight_reset_by", unset=("weight",))
    return await said.change("weight_set_by", {"weight": float(weight)}, set={"weight": weight})


class _Said(NamedTuple):
    """The operator's word on an instance, to be changed."""

    call: ApiCall
    instance: Instance
    before: Mapping[str, JSON]

    async def change(
        self,
        kind: str,
        params: Mapping[str, Parameter] | None = None,
        *,
        set: Mapping[str, JSON] | None = None,
        unset: tuple[str, ...] = (),
    ) -> Response:
        """Change it, and record a message of this kind in the timeline; with an empty kind record
        nothing, because more changes follow."""
        call, (service, id) = self.call, (self.instance.service, self.instance.id)
        note(call, self.before, set or {}, unset)
        config = await call.server.hub.registry.configure(service, id, set=set or {}, unset=unset)
        if kind:
            _record(call, service, id, kind, params)
        return Response(_operated(await instance_of(call), config))


async def _said(call: ApiCall) -> _Said:
    instance = await instance_of(call)
    return _Said(
        call, instance, await call.server.hub.registry.config(instance.service, instance.id)
    )


def _record(
    call: ApiCall, service: str, id: str, kind: str, params: Mapping[str, Parameter] | None = None
) -> None:
    """Add an action to the timeline: what was done, by which token, and the reason given."""
    by, reason = call.principal.name, getattr(call.query, "reason", "")
    call.server.fleet.record_action(
        service, id, message(kind, **(params or {}), by=by, reason=reason)
    )


def _operated(instance: Instance, config: Mapping[str, JSON]) -> Operated:
    return Operated(
        service=instance.service,
        id=instance.id,
        enabled=instance.enabled,
        weight=instance.weight,
        config=fields(config),
    )


def note(
    call: ApiCall, before: Mapping[str, JSON], set: Mapping[str, JSON], unset: Sequence[str] = ()
) -> None:
    """For the audit: what it was, what it is to be, and why."""
    after = {**set, **dict.fromkeys(unset)}
    was, is_now = fields(before), fields({**before, **after})
    call.notes["before"] = {name: was.get(name) for name in fields(after)}
    call.notes["after"] = {name: is_now.get(name) for name in fields(after)}
    if reason := getattr(call.query, "reason", ""):
        call.notes["reason"] = reason


async def deregister(call: ApiCall) -> Response:
    registry = call.server.hub.registry
    service, id = registry.canonical(call.service), call.path["id"]
    if call.query.reason:
        call.notes["reason"] = call.query.reason
    known = call.server.fleet.service(service)
    if known is not None and (instance := known.instances.get(id)) is not None:
        call.notes["before"] = {
            "address": instance.address,
            "version": instance.version,
            "incarnation": instance.incarnation,
        }
    call.server.fleet.expect_departure(service, id, "removed")
    if not await registry.deregister(service, id):
        call.server.fleet.expect_departure(service, id, None)
        await instance_of(call)  # says what is wrong with the name
        raise not_found(f"{service} has no instance {quoted(id)} any more", id, ())
    _record(call, service, id, "deregistered_by")
    return Response(status=204)


async def forget(call: ApiCall) -> Response:
    if call.query.reason:
        call.notes["reason"] = call.query.reason
    known, registry = known_of(call), call.server.hub.registry
    config: Mapping[str, JSON] = {}
    if registry.guarantees.describes:
        with contextlib.suppress(InvalidRequest):  # what cannot be read is forgotten, too
            config = await registry.config(known.name)
    call.notes["before"] = {
        "emptied": shown(known.emptied),
        "lost": known.lost,
        "config": fields(config),
    }
    if known.instances or not await registry.forget(known.name):
        listing = await registry.instances(known.name)
        count = len(listing.instances) or len(known.instances)
        raise HTTPError(
            409,
            "not_empty",
            f"{known.name} has instances ({count}): deregister them, or end their processes, first"
            if count
            else f"{known.name} has records of instances that are silent, or cannot be read: on "
            "Redis cleanup takes them out (`mooring cleanup --once`)",
        )
    call.server.fleet.forget(known.name)
    return Response(status=204)


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


async def brakes(call: ApiCall) -> Response:
    evictions = call.server.hub.registry.evictions
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
    return Response(some, headers=headers)


def _moment(ms: int) -> str:
    return shown(datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)) or ""


async def release(call: ApiCall) -> Response:
    if call.query.reason:
        call.notes["reason"] = call.query.reason
    registry = call.server.hub.registry
    evictions = registry.evictions
    if evictions is None:
        raise HTTPError(404, "not_found", f"there are no brakes: {registry.guarantees.expires}")
    service = registry.canonical(call.service)
    brake = (await evictions.brakes()).get(service)
    call.notes["before"] = str(brake or "")
    if not await evictions.release(service):
        await service_of(call)
        raise HTTPError(404, "not_found", f"no brake holds for {service}")
    return Response(status=204)


ENDPOINTS = (
    ApiRoute(
        "GET",
        "/admin/registry/brakes",
        READING,
        brakes,
        "List services whose eviction is paused by the mass-expiry brake (Redis only)",
        query=Page,
        answers={200: list[BrakeShown]},
    ),
    ApiRoute(
        "DELETE",
        "/admin/registry/brakes/{service}",
        OPERATING,
        release,
        "Release the brake of a service; the next pass evicts its silent instances",
        query=Reason,
        answers={204: None},
    ),
    ApiRoute(
        "POST",
        f"{INSTANCE}/drain",
        OPERATING,
        drain,
        "Drain an instance: it stays registered but receives no calls",
        query=Reason,
        answers={200: Operated},
    ),
    ApiRoute(
        "POST",
        f"{INSTANCE}/enable",
        OPERATING,
        enable,
        "Put an instance back into rotation",
        query=Reason,
        answers={200: Operated},
    ),
    ApiRoute(
        "PUT",
        f"{INSTANCE}/weight",
        OPERATING,
        weigh,
        "Set the weight of an instance",
        query=Reason,
        body=Weight,
        answers={200: Operated},
    ),
    ApiRoute(
        "DELETE",
        INSTANCE,
        OPERATING,
        deregister,
        "Remove an instance until its process restarts",
        query=Reason,
        answers={204: None},
    ),
    ApiRoute(
        "DELETE",
        SERVICE,
        OPERATING,
        forget,
        "Delete a service without instances; it returns when an instance registers",
        query=Reason,
        answers={204: None},
    ),
)
