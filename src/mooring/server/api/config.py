"""What is said of services and instances: configuration, secrets masked, and descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from mooring.formatting import quoted
from mooring.masking import holds_mask, masked_fields
from mooring.model import JSON, Service
from mooring.server.api.lookup import instance_of, service_of
from mooring.server.api.operations import INSTANCE, LOOKING, OPERATING, SERVICE, Reason, note
from mooring.server.api.unmasking import Unmasking, configuration, fields, may_unmask
from mooring.server.http.request import ApiCall
from mooring.server.http.response import HTTPError, Response
from mooring.server.http.routing import ApiRoute
from mooring.tenants.diff import unmask
from mooring.tenants.redirect_guard import Redirect, redirect_in_value

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
MOST = 100
"""Values that one edit changes: the audit names them all."""


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


async def service_config(call: ApiCall) -> Response:
    service = await service_of(call)
    return configuration(call, await call.server.hub.registry.config(service))


async def instance_config(call: ApiCall) -> Response:
    return configuration(call, await _kept(call))


async def _kept(call: ApiCall) -> Mapping[str, JSON]:
    """The operator's word on an instance; it outlives the instance. Raises `HTTPError` (404) where
    there is neither."""
    registry = call.server.hub.registry
    config = await registry.config(registry.canonical(call.service), call.path["id"])
    if not config:
        await instance_of(call)
    return config


async def configure_service(call: ApiCall) -> Response:
    service = await service_of(call)
    return await _edit(call, service, "", await call.server.hub.registry.config(service))


async def configure_instance(call: ApiCall) -> Response:
    service = call.server.hub.registry.canonical(call.service)
    return await _edit(call, service, call.path["id"], await _kept(call))


async def _edit(call: ApiCall, service: str, id: str, before: Mapping[str, JSON]) -> Response:
    told, gone = call.body.set, tuple(call.body.unset)
    if not told and not gone:
        raise HTTPError(400, "bad_request", "nothing is to be changed: say what to set or to unset")
    if both := [name for name in gone if name in told]:
        raise HTTPError(400, "bad_request", f"{quoted(both[0])} is to be set and to be unset")
    if (count := len(told) + len(gone)) > MOST:
        raise HTTPError(400, "bad_request", f"{count} values are too many for one edit: {MOST}")
    new = _unmasked(call, before)
    if not may_unmask(call):
        below = await call.server.hub.registry.config(service) if id else {}
        redirect = _redirect(below, before, told, gone) or _fallen(below, {**before, **new}, gone)
        if redirect is not None:
            raise HTTPError(409, "conflict", str(redirect))
    note(call, before, new, gone)
    if not new and not gone:
        return Response(fields(before))
    config = await call.server.hub.registry.configure(service, id, set=new, unset=gone)
    return Response(fields(config))


def _redirect(
    below: Mapping[str, JSON],
    before: Mapping[str, JSON],
    told: Mapping[str, JSON],
    gone: Sequence[str],
) -> Redirect | None:
    """A secret that is kept while something beside it changes. `below` is the configuration of the
    service, if that of an instance is edited. A value that falls back to it is not kept."""
    own = {name: value for name, value in masked_fields(before).items() if name not in gone}
    back = {name: below[name] for name in gone if name in below}
    sent = _over({**masked_fields(below), **back}, {**own, **told})
    return redirect_in_value("", _over(below, before), sent)


def _fallen(
    below: Mapping[str, JSON], after: Mapping[str, JSON], gone: Sequence[str]
) -> Redirect | None:
    """A secret of the service to which an instance falls back, beside values of its own."""
    own = {name: value for name, value in after.items() if name not in gone}
    back = {name: value for name, value in masked_fields(below).items() if name in gone}
    sent = {**own, **back}
    return redirect_in_value("", {name: below.get(name) for name in sent}, sent)


def _over(below: Mapping[str, JSON], own: Mapping[str, JSON]) -> dict[str, JSON]:
    """What holds for an instance."""
    merged = {**below, **own}
    labels, more = below.get("metadata"), own.get("metadata")
    if isinstance(labels, dict) and isinstance(more, dict):
        merged["metadata"] = {**labels, **more}
    return merged


def _unmasked(call: ApiCall, before: Mapping[str, JSON]) -> dict[str, JSON]:
    """What is to be set, with the secrets that are there in place of their masks; without what is
    a mask alone, which nobody changed."""
    told: dict[str, JSON] = call.body.set
    restored = unmask(told, dict(before))
    assert isinstance(restored, dict)
    new = {
        name: value
        for name, value in restored.items()
        if value == told[name] or value != before.get(name)
    }
    for name, value in new.items():
        if holds_mask({name: value}):
            message = (
                f"{quoted(name)} is masked, and no such secret is there: leave it out, or say it"
            )
            raise HTTPError(400, "bad_request", message)
    return new


async def info(call: ApiCall) -> Response:
    service = await service_of(call)
    return Response(_info(await call.server.hub.registry.info(service=service)))


async def describe(call: ApiCall) -> Response:
    told = {
        name: text
        for name, text in (
            ("displayName", call.body.display_name),
            ("description", call.body.description),
        )
        if text is not msgspec.UNSET
    }
    if not told:
        raise HTTPError(
            400, "bad_request", "nothing is to be changed: say displayName, description"
        )
    service = await service_of(call)
    registry = call.server.hub.registry
    before = _info(await registry.info(service=service))
    was = {"displayName": before.display_name, "description": before.description}
    note(call, was, told)
    return Response(_info(await registry.describe(service=service, set=told)))


def _info(told: object) -> Info:
    assert isinstance(told, Service)
    return Info(name=told.name, display_name=told.display_name, description=told.description)


ENDPOINTS = (
    ApiRoute(
        "GET",
        f"{SERVICE}/config",
        LOOKING,
        service_config,
        "Get the configuration of a service, secrets masked",
        query=Unmasking,
        answers={200: dict[str, Any]},
    ),
    ApiRoute(
        "PATCH",
        f"{SERVICE}/config",
        OPERATING,
        configure_service,
        "Change configuration values of a service; instances and callers follow at once",
        query=Reason,
        body=Editing,
        answers={200: dict[str, Any]},
    ),
    ApiRoute(
        "GET",
        f"{INSTANCE}/config",
        LOOKING,
        instance_config,
        ("Get the configuration of an instance, secrets masked; it persists across restarts"),
        query=Unmasking,
        answers={200: dict[str, Any]},
    ),
    ApiRoute(
        "PATCH",
        f"{INSTANCE}/config",
        OPERATING,
        configure_instance,
        "Change configuration values of an instance",
        query=Reason,
        body=Editing,
        answers={200: dict[str, Any]},
    ),
    ApiRoute(
        "GET",
        f"{SERVICE}/info",
        LOOKING,
        info,
        "Get the description of a service",
        answers={200: Info},
    ),
    ApiRoute(
        "PATCH",
        f"{SERVICE}/info",
        OPERATING,
        describe,
        "Change the description of a service",
        query=Reason,
        body=Describing,
        answers={200: Info},
    ),
)
