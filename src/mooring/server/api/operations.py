"""Operator actions: drain, enable, set weights, deregister, forget, and release eviction brakes."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec

from mooring.errors import InvalidRequest
from mooring.masking import masked_fields
from mooring.messages import Message, Parameter, message
from mooring.model import JSON, Instance
from mooring.registry.lookup import instance_not_found, require_service
from mooring.server.api.endpoint import ApiCall, EndpointList
from mooring.server.api.registry import INSTANCE, SERVICE, known_of
from mooring.server.auth.authorization import READING, need
from mooring.server.http.request import PageQuery
from mooring.server.http.response import HTTPError, Response, rfc3339

endpoints = EndpointList()

OPERATE_SERVICE = need("operator", "group")


class ReasonQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """For the audit log."""


operation = partial(endpoints.add, needs=OPERATE_SERVICE, query=ReasonQuery)
"""Declares an action of an operator, which may have a reason."""


class InstanceOverride(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An instance with its operator override."""

    service: str
    id: str
    enabled: bool
    weight: float
    config: dict[str, Any]
    """The operator override of this instance, secrets masked."""


class WeightRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    weight: Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)] | None
    """Its share of the calls relative to other instances; 0: none; null: the registered weight."""


ENABLED_BEFORE_DRAIN = "enabledBeforeDrain"
"""A value that records that an operator had set `enabled: true` before the drain."""


@operation("POST", f"{INSTANCE}/drain", answers={200: InstanceOverride})
async def drain(call: ApiCall) -> Response:
    """Drain an instance: it is disabled, and stays registered but receives no calls."""
    instance, before = await _instance_with_config(call)
    values: dict[str, JSON] = {"enabled": False}
    obsolete: tuple[str, ...] = ()
    if before.get("enabled") is True:
        values[ENABLED_BEFORE_DRAIN] = True
    elif before.get("enabled") is None and ENABLED_BEFORE_DRAIN in before:
        obsolete = (ENABLED_BEFORE_DRAIN,)
    config = await _configure(call, instance, before, set=values, unset=obsolete)
    _record(call, instance.service, instance.id, "drained_by")
    return _override(await instance_of(call), config)


@operation("POST", f"{INSTANCE}/enable", answers={200: InstanceOverride})
async def enable(call: ApiCall) -> Response:
    """Enable an instance, so that it receives calls again."""
    instance, before = await _instance_with_config(call)
    mark = (ENABLED_BEFORE_DRAIN,) if ENABLED_BEFORE_DRAIN in before else ()
    enabled = False
    if before.get("enabled") is not True and before.get(ENABLED_BEFORE_DRAIN) is not True:
        config = await _configure(call, instance, before, unset=("enabled", *mark))
        enabled = (await instance_of(call)).enabled
    if not enabled:  # also if its service is disabled or it registered as disabled
        config = await _configure(call, instance, before, set={"enabled": True}, unset=mark)
    _record(call, instance.service, instance.id, "enabled_by")
    return _override(await instance_of(call), config)


@operation("PUT", f"{INSTANCE}/weight", body=WeightRequest, answers={200: InstanceOverride})
async def set_weight(call: ApiCall) -> Response:
    """Set the weight of an instance."""
    instance, before = await _instance_with_config(call)
    weight = call.body.weight
    if weight is None:
        config = await _configure(call, instance, before, unset=("weight",))
        _record(call, instance.service, instance.id, "weight_reset_by")
    else:
        config = await _configure(call, instance, before, set={"weight": weight})
        _record(call, instance.service, instance.id, "weight_set_by", weight=float(weight))
    return _override(await instance_of(call), config)


async def _instance_with_config(call: ApiCall) -> tuple[Instance, Mapping[str, JSON]]:
    instance = await instance_of(call)
    return instance, await call.server.registry.config(instance.service, instance.id)


async def _configure(
    call: ApiCall,
    instance: Instance,
    before: Mapping[str, JSON],
    *,
    set: Mapping[str, JSON] | None = None,
    unset: tuple[str, ...] = (),
) -> Mapping[str, JSON]:
    note_change(call, before, set or {}, unset)
    registry = call.server.registry
    return await registry.configure(instance.service, instance.id, set=set or {}, unset=unset)


def _override(instance: Instance, config: Mapping[str, JSON]) -> Response:
    return Response(
        InstanceOverride(
            service=instance.service,
            id=instance.id,
            enabled=instance.enabled,
            weight=instance.weight,
            config=masked_fields(config),
        )
    )


def _record(call: ApiCall, service: str, id: str, kind: str, **params: Parameter) -> None:
    """Add an action to the timeline: what was done, by which token, and the reason given."""
    by, reason = call.principal.name, call.query.reason
    call.server.fleet.record_action(service, id, message(kind, **params, by=by, reason=reason))


def note_change(
    call: ApiCall, before: Mapping[str, JSON], set: Mapping[str, JSON], unset: Sequence[str] = ()
) -> None:
    """Add the old values, the new values and the reason to the audit entry."""
    changes = masked_fields({**set, **dict.fromkeys(unset)})
    old, new = masked_fields(before), masked_fields({**before, **set, **dict.fromkeys(unset)})
    call.notes["before"] = {name: old.get(name) for name in changes}
    call.notes["after"] = {name: new.get(name) for name in changes}
    call.note_reason()


@operation("DELETE", INSTANCE, answers={204: None})
async def deregister(call: ApiCall) -> Response:
    """Remove an instance until its process restarts."""
    registry, fleet = call.server.registry, call.server.fleet
    service, id = registry.canonical(call.service), call.path["id"]
    call.note_reason()
    known = fleet.service(service)
    if known is not None and (instance := known.instances.get(id)) is not None:
        call.notes["before"] = {
            "address": instance.address,
            "version": instance.version,
            "incarnation": instance.incarnation,
        }
    fleet.expect_departure(service, id, "removed")
    if not await registry.deregister(service, id):
        fleet.expect_departure(service, id, None)
        await instance_of(call)  # raises a more precise error if the name is wrong
        raise HTTPError(404, "not_found", "instance_gone", service=service, id=id)
    _record(call, service, id, "deregistered_by")
    return Response(status=204)


@operation("DELETE", SERVICE, answers={204: None})
async def forget(call: ApiCall) -> Response:
    """Delete a service without instances; it returns when an instance registers."""
    call.note_reason()
    known, registry = known_of(call), call.server.registry
    config: Mapping[str, JSON] = {}
    if registry.guarantees.describes:
        with contextlib.suppress(InvalidRequest):  # an unreadable configuration is deleted, too
            config = await registry.config(known.name)
    call.notes["before"] = {
        "emptied": rfc3339(known.emptied),
        "lost": known.lost,
        "config": masked_fields(config),
    }
    if known.instances or not await registry.forget(known.name):
        listing = await registry.instances(known.name)
        count = len(listing.instances) or len(known.instances)
        raise HTTPError(
            409,
            "not_empty",
            message("service_not_empty", service=known.name, count=count)
            if count
            else message("service_has_records", service=known.name),
        )
    call.server.fleet.forget(known.name)
    return Response(status=204)


class BrakeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A service whose brake is engaged. Many of its instances are silent at once, so the cause is
    probably elsewhere, and none is evicted."""

    service: str
    silent: int
    total: int
    since: str
    until: str
    """When the brake is released automatically, at the latest."""
    why: str
    """In English."""
    message: Message
    """The reason as data."""


@endpoints.add(
    "GET", "/admin/registry/brakes", READING, query=PageQuery, answers={200: list[BrakeInfo]}
)
async def brakes(call: ApiCall) -> Response:
    """List the engaged brakes: services whose eviction is paused (Redis only)."""
    evictions = call.server.registry.evictions
    active = {} if evictions is None else await evictions.brakes()
    infos = [
        BrakeInfo(
            service=service,
            silent=brake.silent,
            total=brake.total,
            since=_time(brake.since),
            until=_time(brake.until),
            why=str(brake),
            message=brake.message,
        )
        for service, brake in sorted(active.items())
        if call.principal.sees_service(service)
    ]
    page, headers = call.page(infos, lambda info: info.service)
    return Response(page, headers=headers)


def _time(ms: int) -> str:
    return rfc3339(datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC))


@operation("DELETE", "/admin/registry/brakes/{service}", answers={204: None})
async def release_brake(call: ApiCall) -> Response:
    """Release the brake of a service; the next pass evicts its silent instances."""
    call.note_reason()
    registry = call.server.registry
    evictions = registry.evictions
    if evictions is None:
        raise HTTPError(404, "not_found", "brakes_missing")
    service = registry.canonical(call.service)
    brake = (await evictions.brakes()).get(service)
    call.notes["before"] = brake and {"silent": brake.silent, "total": brake.total}
    if not await evictions.release(service):
        await service_of(call)  # raises a more precise error if the name is wrong
        raise HTTPError(404, "not_found", "brake_not_engaged", service=service)
    return Response(status=204)


async def service_of(call: ApiCall) -> str:
    """The canonical name of the service in the path, read from the registry. Raises `NotFound`
    if it has neither instances nor a description nor a configuration."""
    registry = call.server.registry
    service = registry.canonical(call.service)
    known = call.server.fleet.service(service)
    if known is None or not known.instances:
        await require_service(registry, service, call.principal.sees_service)
    return service


async def instance_of(call: ApiCall) -> Instance:
    """The instance in the path, read from the registry. Raises `NotFound`."""
    registry = call.server.registry
    service, id = registry.canonical(call.service), call.path["id"]
    listed = {item.id: item for item in (await registry.instances(service)).instances}
    if id in listed:
        return listed[id]
    known = call.server.fleet.service(service)  # a silent instance may still be shown
    if known is not None and id in known.instances:
        return known.instances[id]
    await service_of(call)
    raise instance_not_found(service, id, listed)
