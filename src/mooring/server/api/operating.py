"""What an operator does: drain and enable instances, weigh them, take them out; say something of a
service, or have it forgotten; release a brake."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from mooring.errors import InvalidRequest
from mooring.model import JSON, Instance, Service
from mooring.server.access.principals import READING, need
from mooring.server.api.known import instance_of, not_found, on_redis, service_of
from mooring.server.api.registry import known_of
from mooring.server.api.unmasking import Unmasking, configuration, fields, may_unmask
from mooring.server.http.answers import Answer, shown
from mooring.server.http.calls import Call
from mooring.server.http.endpoint import Endpoint
from mooring.server.http.errors import Refused
from mooring.server.http.paging import Page, cut
from mooring.tenants.diversion import Diversion, of_config
from mooring.tenants.hiding import holds_mask, masked_field
from mooring.tenants.masks import unmasked

OPERATING = need("operator", "group")
LOOKING = need("viewer", "group")

SERVICE = "/admin/registry/services/{service}"
INSTANCE = f"{SERVICE}/instances/{{id}}"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
MOST = 100
"""Values that one edit changes: the audit names them all."""


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


class Editing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of some values; the others stay."""

    set: Annotated[dict[Name, Any], msgspec.Meta(max_length=MOST)] = {}
    """A mask stands for the secret that is there."""
    unset: Annotated[list[Name], msgspec.Meta(max_length=MOST)] = []


class Info(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a service is described to people."""

    name: str
    display_name: str
    description: str


class Describing(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    display_name: Annotated[str, msgspec.Meta(max_length=200)] | msgspec.UnsetType = msgspec.UNSET
    description: Annotated[str, msgspec.Meta(max_length=10_000)] | msgspec.UnsetType = msgspec.UNSET


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


KEPT_ON = "enabledBeforeDrain"
"""There where an operator had said `enabled: true` before somebody drained it."""


async def drain(call: Call) -> Answer:
    said = await _said(call)
    own = said.before.get("enabled")
    if own is True:
        return await said.change("drained", set={"enabled": False, KEPT_ON: True})
    old = (KEPT_ON,) if own is None and KEPT_ON in said.before else ()
    return await said.change("drained", set={"enabled": False}, unset=old)


async def enable(call: Call) -> Answer:
    """What a drain said is taken back. Where something else holds it out (its service is disabled
    as a whole, or it says so itself), it is enabled in spite of that: so it was asked for."""
    said = await _said(call)
    was_on = said.before.get("enabled") is True or said.before.get(KEPT_ON) is True
    kept = (KEPT_ON,) if KEPT_ON in said.before else ()
    if not was_on:
        answer = await said.change("", unset=("enabled", *kept))
        if answer.value.enabled:
            _tell(call, said.instance.service, said.instance.id, "enabled")
            return answer
    return await said.change("enabled", set={"enabled": True}, unset=kept)


async def weigh(call: Call) -> Answer:
    said, weight = await _said(call), call.body.weight
    if weight is None:
        return await said.change("its own weight was given back", unset=("weight",))
    return await said.change(f"its weight was set to {weight:g}", set={"weight": weight})


class _Said(NamedTuple):
    """The operator's word on an instance, to be changed."""

    call: Call
    instance: Instance
    before: Mapping[str, JSON]

    async def change(
        self, what: str, *, set: Mapping[str, JSON] | None = None, unset: tuple[str, ...] = ()
    ) -> Answer:
        """Change it. The timeline tells `what` was done; nothing while there is more to do."""
        call, (service, id) = self.call, (self.instance.service, self.instance.id)
        _note(call, self.before, set or {}, unset)
        config = await call.parts.hub.registry.configure(service, id, set=set or {}, unset=unset)
        if what:
            _tell(call, service, id, what)
        return Answer(_operated(await instance_of(call), config))


async def _said(call: Call) -> _Said:
    instance = await instance_of(call)
    return _Said(
        call, instance, await call.parts.hub.registry.config(instance.service, instance.id)
    )


def _tell(call: Call, service: str, id: str, what: str) -> None:
    """In the timeline: what was done, by whom and why."""
    reason = getattr(call.query, "reason", "")
    told = f"{what} by {call.principal.name}"
    call.parts.fleet.act(service, id, f"{told}: {reason}" if reason else told)


def _operated(instance: Instance, config: Mapping[str, JSON]) -> Operated:
    return Operated(
        service=instance.service,
        id=instance.id,
        enabled=instance.enabled,
        weight=instance.weight,
        config=fields(config),
    )


def _note(
    call: Call, before: Mapping[str, JSON], set: Mapping[str, JSON], unset: Sequence[str] = ()
) -> None:
    """For the audit: what it was, what it is to be, and why."""
    after = {**set, **dict.fromkeys(unset)}
    call.notes["before"] = fields({name: before.get(name) for name in after})
    call.notes["after"] = fields(after)
    if reason := getattr(call.query, "reason", ""):
        call.notes["reason"] = reason


async def deregister(call: Call) -> Answer:
    registry = call.parts.hub.registry
    service, id = registry.canonical(call.service), call.path["id"]
    if call.query.reason:
        call.notes["reason"] = call.query.reason
    known = call.parts.fleet.service(service)
    if known is not None and (instance := known.instances.get(id)) is not None:
        call.notes["before"] = {
            "address": instance.address,
            "version": instance.version,
            "incarnation": instance.incarnation,
        }
    call.parts.fleet.expect(service, id, "taken_out")
    if not await registry.deregister(service, id):
        call.parts.fleet.expect(service, id, None)
        await instance_of(call)  # says what is wrong with the name
        raise not_found(f"{service} has no instance {id!r} any more", id, ())
    _tell(call, service, id, "taken out")
    return Answer(status=204)


async def forget(call: Call) -> Answer:
    if call.query.reason:
        call.notes["reason"] = call.query.reason
    known, registry = known_of(call), call.parts.hub.registry
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
        raise Refused(
            409,
            "not_empty",
            f"{known.name} has instances ({count}): deregister them, or end their processes, first"
            if count
            else f"{known.name} has records of instances that are silent, or cannot be read: on "
            "Redis cleanup takes them out (`mooring cleanup --once`)",
        )
    call.parts.fleet.forget(known.name)
    return Answer(status=204)


async def service_config(call: Call) -> Answer:
    service = await service_of(call)
    return configuration(call, await call.parts.hub.registry.config(service))


async def instance_config(call: Call) -> Answer:
    return configuration(call, await _kept(call))


async def _kept(call: Call) -> Mapping[str, JSON]:
    """The operator's word on an instance; it outlives the instance. Raises `Refused` (404) where
    there is neither."""
    registry = call.parts.hub.registry
    config = await registry.config(registry.canonical(call.service), call.path["id"])
    if not config:
        await instance_of(call)
    return config


async def configure_service(call: Call) -> Answer:
    service = await service_of(call)
    return await _edit(call, service, "", await call.parts.hub.registry.config(service))


async def configure_instance(call: Call) -> Answer:
    service = call.parts.hub.registry.canonical(call.service)
    return await _edit(call, service, call.path["id"], await _kept(call))


async def _edit(call: Call, service: str, id: str, before: Mapping[str, JSON]) -> Answer:
    told, gone = call.body.set, tuple(call.body.unset)
    if not told and not gone:
        raise Refused(400, "bad_request", "nothing is to be changed: say what to set or to unset")
    if both := [name for name in gone if name in told]:
        raise Refused(400, "bad_request", f"{both[0]!r} is to be set and to be unset")
    if (count := len(told) + len(gone)) > MOST:
        raise Refused(400, "bad_request", f"{count} values are too many for one edit: {MOST}")
    new = _unmasked(call, before)
    if not may_unmask(call):
        below = await call.parts.hub.registry.config(service) if id else {}
        diverted = _diverted(below, before, told, gone) or _fallen(below, {**before, **new}, gone)
        if diverted is not None:
            raise Refused(409, "conflict", str(diverted))
    _note(call, before, new, gone)
    if not new and not gone:
        return Answer(fields(before))
    config = await call.parts.hub.registry.configure(service, id, set=new, unset=gone)
    return Answer(fields(config))


def _diverted(
    below: Mapping[str, JSON],
    before: Mapping[str, JSON],
    told: Mapping[str, JSON],
    gone: Sequence[str],
) -> Diversion | None:
    """A secret that stays while its place changes, in all that holds: `below` is the service's
    word, where that on an instance is edited. What falls back to it is no secret that stays."""
    shown_below = {**fields(below), **{name: below[name] for name in gone if name in below}}
    kept = {name: value for name, value in fields(before).items() if name not in gone}
    return of_config(_over(below, before), _over(shown_below, {**kept, **told}))


def _fallen(
    below: Mapping[str, JSON], after: Mapping[str, JSON], gone: Sequence[str]
) -> Diversion | None:
    """A secret of the service's to which an instance falls back, with a place that is its own."""
    own = {name: value for name, value in after.items() if name not in gone}
    back = {name: masked_field(name, below[name]) for name in gone if name in below}
    return of_config(below, {**_over(below, own), **back})


def _over(below: Mapping[str, JSON], own: Mapping[str, JSON]) -> dict[str, JSON]:
    """What holds for an instance."""
    merged = {**below, **own}
    labels, more = below.get("metadata"), own.get("metadata")
    if isinstance(labels, dict) and isinstance(more, dict):
        merged["metadata"] = {**labels, **more}
    return merged


def _unmasked(call: Call, before: Mapping[str, JSON]) -> dict[str, JSON]:
    """What is to be set, with the secrets that are there in place of their masks; without what is
    a mask alone, which nobody changed."""
    told: dict[str, JSON] = call.body.set
    restored = unmasked(told, dict(before))
    assert isinstance(restored, dict)
    new = {
        name: value
        for name, value in restored.items()
        if value == told[name] or value != before.get(name)
    }
    for name, value in new.items():
        if holds_mask({name: value}):
            message = f"{name!r} is masked, and no such secret is there: leave it out, or say it"
            raise Refused(400, "bad_request", message)
    return new


async def info(call: Call) -> Answer:
    service = await service_of(call)
    return Answer(_info(await call.parts.hub.registry.info(service=service)))


async def describe(call: Call) -> Answer:
    told = {
        name: text
        for name, text in (
            ("displayName", call.body.display_name),
            ("description", call.body.description),
        )
        if text is not msgspec.UNSET
    }
    if not told:
        raise Refused(400, "bad_request", "nothing is to be changed: say displayName, description")
    service = await service_of(call)
    registry = call.parts.hub.registry
    before = _info(await registry.info(service=service))
    was = {"displayName": before.display_name, "description": before.description}
    _note(call, was, told)
    return Answer(_info(await registry.describe(service=service, set=told)))


def _info(told: object) -> Info:
    assert isinstance(told, Service)
    return Info(name=told.name, display_name=told.display_name, description=told.description)


async def brakes(call: Call) -> Answer:
    redis = on_redis(call.parts.hub)
    found = {} if redis is None else await redis.sweeper().brakes()
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
    redis = on_redis(call.parts.hub)
    if redis is None:
        raise Refused(404, "not_found", f"there are no brakes: {registry.guarantees.expires}")
    service = redis.canonical(call.service)
    call.notes["before"] = (await redis.brakes()).get(service, "")
    if not await redis.sweeper().release(service):
        await service_of(call)
        raise Refused(404, "not_found", f"no brake holds for {service}")
    return Answer(status=204)


ENDPOINTS = (
    Endpoint(
        "POST",
        f"{INSTANCE}/drain",
        OPERATING,
        drain,
        "Let an instance be called no more; it stays registered",
        query=Reason,
        answers={200: Operated},
    ),
    Endpoint(
        "POST",
        f"{INSTANCE}/enable",
        OPERATING,
        enable,
        "Let an instance be called again",
        query=Reason,
        answers={200: Operated},
    ),
    Endpoint(
        "PUT",
        f"{INSTANCE}/weight",
        OPERATING,
        weigh,
        "Set an instance's share of the calls",
        query=Reason,
        body=Weight,
        answers={200: Operated},
    ),
    Endpoint(
        "DELETE",
        INSTANCE,
        OPERATING,
        deregister,
        "Take an instance out until its process starts anew",
        query=Reason,
        answers={204: None},
    ),
    Endpoint(
        "DELETE",
        SERVICE,
        OPERATING,
        forget,
        "Have a service forgotten that has no instances; one that registers brings it back",
        query=Reason,
        answers={204: None},
    ),
    Endpoint(
        "GET",
        f"{SERVICE}/config",
        LOOKING,
        service_config,
        "The operator's word on a service, and its own values; secrets masked",
        query=Unmasking,
        answers={200: dict[str, Any]},
    ),
    Endpoint(
        "PATCH",
        f"{SERVICE}/config",
        OPERATING,
        configure_service,
        "Change some of a service's configuration; instances and callers follow at once",
        query=Reason,
        body=Editing,
        answers={200: dict[str, Any]},
    ),
    Endpoint(
        "GET",
        f"{INSTANCE}/config",
        LOOKING,
        instance_config,
        "The operator's word on an instance, secrets masked; it outlives the instance",
        query=Unmasking,
        answers={200: dict[str, Any]},
    ),
    Endpoint(
        "PATCH",
        f"{INSTANCE}/config",
        OPERATING,
        configure_instance,
        "Change some of an instance's configuration",
        query=Reason,
        body=Editing,
        answers={200: dict[str, Any]},
    ),
    Endpoint(
        "GET",
        f"{SERVICE}/info",
        LOOKING,
        info,
        "How a service is described to people",
        answers={200: Info},
    ),
    Endpoint(
        "PATCH",
        f"{SERVICE}/info",
        OPERATING,
        describe,
        "Describe a service to people",
        query=Reason,
        body=Describing,
        answers={200: Info},
    ),
    Endpoint(
        "GET",
        "/admin/registry/brakes",
        READING,
        brakes,
        "The services of which nobody is taken out at present; on a store there are none",
        query=Page,
        answers={200: list[BrakeShown]},
    ),
    Endpoint(
        "DELETE",
        "/admin/registry/brakes/{service}",
        OPERATING,
        release,
        "Release a brake: who is silent is taken out at the next pass",
        query=Reason,
        answers={204: None},
    ),
)
