"""The configuration that all tenants share, in two areas: `common` (how requests name tenants and
where their files are) and `platform`. Like tenants, it has masks, a history, rollbacks and
preconditions; `tenant_history` has its history."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from mooring.errors import NotConfigured
from mooring.masking import cleartext_secrets_of, is_hidden, masked_field
from mooring.messages import Message, message
from mooring.server.api.endpoint import NO_STORE, UNMASKED, ApiCall, EndpointList, UnmaskQuery
from mooring.server.api.tenants import (
    Precondition,
    PublishQuery,
    PublishReport,
    owner_of,
    preview_response,
    publish_response,
    publisher_of,
)
from mooring.server.auth.authorization import need
from mooring.server.http.response import HTTPError, Response
from mooring.tenants.diff import unmask_part
from mooring.tenants.keys import AREAS, COMMON, SENTINEL, Area, field_of, joined
from mooring.tenants.parts import NOTHING_RESENT, Parts, Resent, UnreadablePart
from mooring.tenants.publish.merge import merged_common
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.redirect_guard import redirect_in_value
from mooring.tenants.secrets import Keyring

endpoints = EndpointList(fails=(NO_STORE,))

READ_AREA = need("viewer", "everything")
CHANGE_AREA = need("operator", "everything")

publication = partial(endpoints.add, needs=CHANGE_AREA, query=PublishQuery, fails=(412,))
"""Declares a change of a value, which may have preconditions."""

AREA = "/admin/shared/{area}"
VALUE = f"{AREA}/values/{{key}}"
HEALTH = "/admin/shared/health"


class SharedConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    area: Area
    revision: str
    """Identifies this state: send it as `base`, or the ETag as If-Match."""
    values: dict[str, Any]
    """By key, secrets masked."""
    problems: list[Message]
    """Unreadable values, which are omitted."""
    last_publish: str | None
    """The time of the last publish, from the health sentinel."""

    def __repr__(self) -> str:
        return f"<{self.area} at {self.revision}>"


class SharedValue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    value: bool | int | float | str | list[Any] | dict[str, Any]
    """The new value, not null. A mask stands for the stored secret."""

    def __repr__(self) -> str:
        return "<a value>"  # it may be secret


class HealthSentinel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    last_publish: str | None


@endpoints.add("GET", AREA, READ_AREA, query=UnmaskQuery, answers={200: SharedConfig})
async def get_area(call: ApiCall) -> Response:
    """Get the configuration shared by all tenants, secrets masked."""
    unmask = call.unmasks()
    area = _area(call)
    publisher = publisher_of(call, Keyring([]))
    stored = await publisher.look(area)
    values, problems = {}, list[Message]()
    for path, value in sorted(stored.parts.items()):
        if isinstance(value, UnreadablePart):
            problems.append(message("part_unreadable", path=path))
        else:
            shown = value if unmask else masked_field(field_of(path), value)
            values[path.removeprefix(AREAS[area])] = shown
    config = SharedConfig(
        area=area,
        revision=stored.revision,
        values=values,
        problems=problems,
        last_publish=await _last_publish(publisher),
    )
    etag = f"{stored.revision}{'-unmasked' * unmask}"
    return Response(config, headers=UNMASKED if unmask else {}, etag=etag)


def _area(call: ApiCall) -> Area:
    area = owner_of(call)
    assert isinstance(area, str)
    return area


def _path(call: ApiCall) -> str:
    area, key = _area(call), call.path["key"]
    call.notes["key"] = key
    path = f"{AREAS[area]}{key}"
    if area == "common" and path not in COMMON:
        known = [path.removeprefix(AREAS[area]) for path in COMMON]
        raise HTTPError(404, "not_found", "common_setting_not_found", key=key, known=known)
    if joined(key) != key:
        raise HTTPError(400, "bad_request", "key_has_empty_segment")
    return path


async def _last_publish(publisher: Publisher) -> str | None:
    health = await publisher.health()
    time = health.get("updatedAt") if isinstance(health, dict) else None
    return time if isinstance(time, str) else None


@publication("PUT", VALUE, body=SharedValue, answers={200: PublishReport, 201: PublishReport})
async def set_value(call: ApiCall) -> Response:
    """Set a value. 409: changed since `base`; 412: If-Match or If-None-Match does not hold."""
    area, path = _area(call), _path(call)
    publisher = publisher_of(call, Keyring.from_environment())
    precondition = Precondition(call, call.query.base, path)

    def change(stored: Parts) -> Parts:
        return {**stored, path: _new_value(call, path, stored)}

    result = await publisher.change(
        area,
        change,
        note=call.note_reason(),
        require=precondition,
        resent=_resent(call, path),
    )
    return publish_response(call, result, 200 if precondition.existed else 201)


def _new_value(call: ApiCall, path: str, stored: Parts) -> Any:
    """The value to write, with masks replaced by the stored secrets. Raises `HTTPError` (409) if a
    caller that may not read a secret would redirect it to another host."""
    value, before = call.body.value, stored.get(path)
    if isinstance(before, UnreadablePart):
        return merged_common(path, before, value)
    # A value that is secret as a whole is kept or replaced as a whole: no part of it stays.
    redirect = None if is_hidden(field_of(path)) else redirect_in_value(path, before, value)
    if redirect is not None and not call.may_unmask:
        raise HTTPError(409, "conflict", redirect)
    return merged_common(path, before, unmask_part(path, value, before))


def _resent(call: ApiCall, path: str) -> Resent:
    """See `tenants._resent`."""
    if call.may_unmask:
        return NOTHING_RESENT
    fields = cleartext_secrets_of(field_of(path), call.body.value)
    return {path: fields} if fields else NOTHING_RESENT


@endpoints.add("POST", f"{VALUE}/diff", CHANGE_AREA, body=SharedValue, answers={200: PublishReport})
async def diff(call: ApiCall) -> Response:
    """Preview setting a value; nothing is written except an audit entry."""
    area, path = _area(call), _path(call)
    publisher = publisher_of(call, Keyring.from_environment())
    value = _new_value(call, path, await publisher.read(area))
    changes = await publisher.diff_common(path, value, resent=_resent(call, path))
    call.notes["dry"] = True
    return preview_response(area, changes)


@publication("DELETE", VALUE, answers={200: PublishReport})
async def remove_value(call: ApiCall) -> Response:
    """Remove a value; the history keeps it. 409, 412: see PUT."""
    area, path = _area(call), _path(call)
    publisher = publisher_of(call, Keyring.from_environment())
    if path not in await publisher.read(area):
        raise NotConfigured(message("not_found", what=path))
    precondition = Precondition(call, call.query.base, path)
    result = await publisher.remove_common(path, note=call.note_reason(), require=precondition)
    return publish_response(call, result)


@endpoints.add("POST", HEALTH, CHANGE_AREA, answers={200: HealthSentinel})
async def write_health(call: ApiCall) -> Response:
    """Write the health sentinel with the current time."""
    publisher = publisher_of(call, Keyring([]))
    await publisher.beat()
    return Response(HealthSentinel(last_publish=await _last_publish(publisher)))


@endpoints.add("DELETE", HEALTH, CHANGE_AREA, answers={200: HealthSentinel}, fails=(404,))
async def remove_health(call: ApiCall) -> Response:
    """Remove the health sentinel; the next publish writes it again."""
    await publisher_of(call, Keyring([])).remove_common(SENTINEL)
    return Response(HealthSentinel(last_publish=None))
