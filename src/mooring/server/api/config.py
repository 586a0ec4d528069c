"""The configuration of services and instances, secrets masked, and the descriptions of services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec

from mooring.masking import holds_mask, masked_fields
from mooring.messages import Message
from mooring.model import JSON, Service
from mooring.server.api.endpoint import UNMASKED, ApiCall, EndpointList, UnmaskQuery
from mooring.server.api.operations import (
    OPERATE_SERVICE,
    ReasonQuery,
    instance_of,
    note_change,
    service_of,
)
from mooring.server.api.registry import INSTANCE, READ_SERVICE, SERVICE
from mooring.server.http.response import HTTPError, Response
from mooring.tenants.diff import unmask
from mooring.tenants.redirect_guard import redirect_in_value

endpoints = EndpointList()
operation = partial(endpoints.add, needs=OPERATE_SERVICE, query=ReasonQuery)
configuration = partial(
    endpoints.add, "GET", needs=READ_SERVICE, query=UnmaskQuery, answers={200: dict[str, Any]}
)

MAX_CHANGES = 100
"""Values in one change: the audit entry contains all of them."""

ConfigKey = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class ConfigPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of some values; the others stay."""

    set: Annotated[dict[ConfigKey, Any], msgspec.Meta(max_length=MAX_CHANGES)] = {}
    """A mask stands for the stored secret."""
    unset: Annotated[list[ConfigKey], msgspec.Meta(max_length=MAX_CHANGES)] = []


class ServiceInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The description of a service."""

    name: str
    display_name: str
    description: str


class ServiceInfoPatch(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    display_name: Annotated[str, msgspec.Meta(max_length=200)] | msgspec.UnsetType = msgspec.UNSET
    description: Annotated[str, msgspec.Meta(max_length=10_000)] | msgspec.UnsetType = msgspec.UNSET


@configuration(f"{SERVICE}/config")
async def service_config(call: ApiCall) -> Response:
    """Get the configuration of a service, secrets masked."""
    return _config_response(call, await call.server.registry.config(await service_of(call)))


@configuration(f"{INSTANCE}/config")
async def instance_config(call: ApiCall) -> Response:
    """Get the configuration of an instance, secrets masked; it persists across restarts."""
    return _config_response(call, await _instance_config(call))


def _config_response(call: ApiCall, config: Mapping[str, JSON]) -> Response:
    if call.unmasks():
        return Response(dict(config), headers=UNMASKED)
    return Response(masked_fields(config))


async def _instance_config(call: ApiCall) -> Mapping[str, JSON]:
    """The operator override of an instance, which outlives the instance. Raises `HTTPError` (404)
    if there is neither."""
    registry = call.server.registry
    config = await registry.config(registry.canonical(call.service), call.path["id"])
    if not config:
        await instance_of(call)
    return config


@operation("PATCH", f"{SERVICE}/config", body=ConfigPatch, answers={200: dict[str, Any]})
async def change_service_config(call: ApiCall) -> Response:
    """Change configuration values of a service; instances and callers follow at once."""
    service = await service_of(call)
    return await _change(call, service, "", await call.server.registry.config(service))


@operation("PATCH", f"{INSTANCE}/config", body=ConfigPatch, answers={200: dict[str, Any]})
async def change_instance_config(call: ApiCall) -> Response:
    """Change configuration values of an instance."""
    service = call.server.registry.canonical(call.service)
    return await _change(call, service, call.path["id"], await _instance_config(call))


async def _change(call: ApiCall, service: str, id: str, before: Mapping[str, JSON]) -> Response:
    sent, unset = call.body.set, tuple(call.body.unset)
    _check_change(sent, unset)
    new = _restore_secrets(sent, before)
    if not call.may_unmask:
        service_config = await call.server.registry.config(service) if id else {}
        redirect = _redirect_of_kept(service_config, before, sent, unset)
        redirect = redirect or _redirect_of_inherited(service_config, {**before, **new}, unset)
        if redirect is not None:
            raise HTTPError(409, "conflict", redirect)
    note_change(call, before, new, unset)
    if not new and not unset:
        return Response(masked_fields(before))
    config = await call.server.registry.configure(service, id, set=new, unset=unset)
    return Response(masked_fields(config))


def _check_change(sent: Mapping[str, JSON], unset: Sequence[str]) -> None:
    if not sent and not unset:
        raise HTTPError(400, "bad_request", "change_empty")
    if both := [name for name in unset if name in sent]:
        raise HTTPError(400, "bad_request", "change_contradictory", name=both[0])
    if (count := len(sent) + len(unset)) > MAX_CHANGES:
        raise HTTPError(400, "bad_request", "change_too_large", count=count, limit=MAX_CHANGES)


def _redirect_of_kept(
    service_config: Mapping[str, JSON],
    before: Mapping[str, JSON],
    sent: Mapping[str, JSON],
    unset: Sequence[str],
) -> Message | None:
    """A redirect of a secret that the change keeps. `service_config` is empty if the configuration
    of the service itself is changed. Values that fall back to it are not kept."""
    own = {name: value for name, value in masked_fields(before).items() if name not in unset}
    inherited = {name: service_config[name] for name in unset if name in service_config}
    after = _merge({**masked_fields(service_config), **inherited}, {**own, **sent})
    return redirect_in_value("", _merge(service_config, before), after)


def _redirect_of_inherited(
    service_config: Mapping[str, JSON], after: Mapping[str, JSON], unset: Sequence[str]
) -> Message | None:
    """A redirect of a secret of the service that an instance inherits next to its own values."""
    own = {name: value for name, value in after.items() if name not in unset}
    masked = masked_fields(service_config)
    inherited = {name: value for name, value in masked.items() if name in unset}
    sent = {**own, **inherited}
    return redirect_in_value("", {name: service_config.get(name) for name in sent}, sent)


def _merge(service: Mapping[str, JSON], instance: Mapping[str, JSON]) -> dict[str, JSON]:
    """The effective configuration of an instance."""
    merged = {**service, **instance}
    labels, own_labels = service.get("metadata"), instance.get("metadata")
    if isinstance(labels, dict) and isinstance(own_labels, dict):
        merged["metadata"] = {**labels, **own_labels}
    return merged


def _restore_secrets(sent: dict[str, JSON], before: Mapping[str, JSON]) -> dict[str, JSON]:
    """The values to set, with masks replaced by the stored secrets. Values that are only a mask are
    omitted, because they do not change. Raises `HTTPError` (400) if a mask has no stored secret."""
    restored = unmask(sent, dict(before))
    assert isinstance(restored, dict)
    new = {
        name: value
        for name, value in restored.items()
        if value == sent[name] or value != before.get(name)
    }
    for name, value in new.items():
        if holds_mask({name: value}):
            raise HTTPError(400, "bad_request", "mask_without_secret", name=name)
    return new


@endpoints.add("GET", f"{SERVICE}/info", READ_SERVICE, answers={200: ServiceInfo})
async def service_info(call: ApiCall) -> Response:
    """Get the description of a service."""
    service = await service_of(call)
    return Response(_info(await call.server.registry.info(service=service)))


@operation("PATCH", f"{SERVICE}/info", body=ServiceInfoPatch, answers={200: ServiceInfo})
async def change_service_info(call: ApiCall) -> Response:
    """Change the description of a service."""
    sent = {"displayName": call.body.display_name, "description": call.body.description}
    changes = {name: text for name, text in sent.items() if text is not msgspec.UNSET}
    if not changes:
        raise HTTPError(400, "bad_request", "description_empty")
    service = await service_of(call)
    registry = call.server.registry
    info = _info(await registry.info(service=service))
    before = {"displayName": info.display_name, "description": info.description}
    note_change(call, before, changes)
    return Response(_info(await registry.describe(service=service, set=changes)))


def _info(service: object) -> ServiceInfo:
    assert isinstance(service, Service)
    return ServiceInfo(
        name=service.name, display_name=service.display_name, description=service.description
    )
