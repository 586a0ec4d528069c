"""What all tenants share, in two areas: `common`, how requests name tenants and where their files
lie, and `platform`, the configuration of the platform. It is read and written like a tenant: with
masks, a history, rollbacks and the same preconditions."""

from __future__ import annotations

from typing import Any

import msgspec

from mooring.errors import NotConfigured
from mooring.masking import cleartext_secrets_of, is_hidden, masked_field
from mooring.server.api.tenant_history import history_endpoints
from mooring.server.api.tenants import (
    NO_STORE,
    PublishedShown,
    Publishing,
    owner_of,
    precondition,
    published_shown,
    publisher_of,
    reason,
    tell,
    would_change,
)
from mooring.server.api.unmasking import OPENED, Unmasking, allow_unmasking, may_unmask
from mooring.server.auth.authorization import need
from mooring.server.http.request import ApiCall
from mooring.server.http.response import HTTPError, Response
from mooring.server.http.routing import ApiRoute
from mooring.tenants.diff import unmask_part
from mooring.tenants.keys import AREAS, COMMON, SENTINEL, Area, field_of, joined
from mooring.tenants.parts import NOTHING_RESENT, Parts, Resent, StoredParts, UnreadablePart
from mooring.tenants.publish.merge import merged_common
from mooring.tenants.redirect_guard import redirect_in_value
from mooring.tenants.secrets import Keyring

LOOKING = need("viewer", "everything")
CHANGING = need("operator", "everything")

AREA = "/admin/shared/{area}"
VALUE = f"{AREA}/values/{{key}}"
HEALTH = "/admin/shared/health"


class SharedShown(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    area: Area
    revision: str
    """Identifies this state: send it as `base`, or the ETag as If-Match."""
    values: dict[str, Any]
    """By key, secrets masked."""
    problems: list[str]
    """What cannot be understood, and is left out."""
    last_publish: str | None
    """When a publisher last worked, by the health sentinel."""

    def __repr__(self) -> str:
        return f"<{self.area} at {self.revision}>"


class SharedValue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    value: bool | int | float | str | list[Any] | dict[str, Any]
    """What it is to be; not null. A mask stands for the secret that is there."""

    def __repr__(self) -> str:
        return "<a value>"  # it may be secret


class Health(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    last_publish: str | None


async def show(call: ApiCall) -> Response:
    unmask = call.query.unmask
    if unmask:
        allow_unmasking(call)
    area = _area(call)
    publisher = publisher_of(call, Keyring([]))
    found = await publisher.look(area)
    values, problems = {}, []
    for path, value in sorted(found.parts.items()):
        key = path.removeprefix(AREAS[area])
        if isinstance(value, UnreadablePart):
            problems.append(f"{path} cannot be understood and is left out")
        else:
            values[key] = value if unmask else masked_field(field_of(path), value)
    told = SharedShown(
        area=area,
        revision=found.revision,
        values=values,
        problems=problems,
        last_publish=_last(await publisher.health()),
    )
    etag = f"{found.revision}{'-unmasked' * unmask}"
    return Response(told, headers=OPENED if unmask else {}, etag=etag)


def _area(call: ApiCall) -> Area:
    area = owner_of(call)
    assert isinstance(area, str)
    return area


def _path(call: ApiCall) -> str:
    area, key = _area(call), call.path["key"]
    call.notes["key"] = key
    path = f"{AREAS[area]}{key}"
    if area == "common" and path not in COMMON:
        known = ", ".join(each.removeprefix(AREAS[area]) for each in COMMON)
        raise HTTPError(
            404, "not_found", f"no common setting is called {key[:40]}: there are {known}"
        )
    if joined(key) != key:
        raise HTTPError(400, "bad_request", "a key has no slash at its ends, and not two in a row")
    return path


def _last(health: Any) -> str | None:
    at = health.get("updatedAt") if isinstance(health, dict) else None
    return at if isinstance(at, str) else None


async def put(call: ApiCall) -> Response:
    area, path, ring = _area(call), _path(call), Keyring.from_environment()
    condition = precondition(call, call.query.base, path)
    existed = False

    def require(there: StoredParts) -> None:
        nonlocal existed
        condition(there)
        existed = path in there.parts

    def change(there: Parts) -> Parts:
        return {**there, path: _wanted(call, path, there)}

    published = await publisher_of(call, ring).change(
        area, change, note=reason(call), require=require, resent=_resent(call, path)
    )
    tell(call, published)
    return Response(published_shown(published), 200 if existed else 201)


def _wanted(call: ApiCall, path: str, there: Parts) -> Any:
    """The value to write, with masks replaced by the stored secrets. Raises `HTTPError` (409) if a
    caller that may not read a secret would redirect it to another host."""
    value, held = call.body.value, there.get(path)
    if isinstance(held, UnreadablePart):
        return merged_common(path, held, value)
    # A value that is secret as a whole is kept or replaced as a whole: no part of it stays.
    redirect = None if is_hidden(field_of(path)) else redirect_in_value(path, held, value)
    if redirect is not None and not may_unmask(call):
        raise HTTPError(409, "conflict", str(redirect))
    return merged_common(path, held, unmask_part(path, value, held))


def _resent(call: ApiCall, path: str) -> Resent:
    if may_unmask(call):
        return NOTHING_RESENT
    fields = cleartext_secrets_of(field_of(path), call.body.value)
    return {path: fields} if fields else NOTHING_RESENT


async def diff(call: ApiCall) -> Response:
    area, path = _area(call), _path(call)
    publisher = publisher_of(call, Keyring.from_environment())
    value = _wanted(call, path, await publisher.read(area))
    found = await publisher.diff_common(path, value, resent=_resent(call, path))
    call.notes["dry"] = True
    return Response(would_change(area, found))


async def delete(call: ApiCall) -> Response:
    area, path = _area(call), _path(call)
    publisher = publisher_of(call, Keyring.from_environment())
    if path not in await publisher.read(area):
        raise NotConfigured(f"there is no {path}")
    published = await publisher.remove_common(
        path, note=reason(call), require=precondition(call, call.query.base, path)
    )
    tell(call, published)
    return Response(published_shown(published))


async def beat(call: ApiCall) -> Response:
    publisher = publisher_of(call, Keyring([]))
    await publisher.beat()
    return Response(Health(last_publish=_last(await publisher.health())))


async def remove_health(call: ApiCall) -> Response:
    await publisher_of(call, Keyring([])).remove_common(SENTINEL)
    return Response(Health(last_publish=None))


ENDPOINTS = (
    ApiRoute(
        "GET",
        AREA,
        LOOKING,
        show,
        "Get the configuration shared by all tenants, secrets masked",
        query=Unmasking,
        answers={200: SharedShown},
        fails=(NO_STORE,),
    ),
    ApiRoute(
        "PUT",
        VALUE,
        CHANGING,
        put,
        ("Set a value. 409: changed since `base`; 412: If-Match or If-None-Match does not hold"),
        query=Publishing,
        body=SharedValue,
        answers={200: PublishedShown, 201: PublishedShown},
        fails=(412,),
    ),
    ApiRoute(
        "POST",
        f"{VALUE}/diff",
        CHANGING,
        diff,
        "Preview setting a value; nothing is written except an audit entry",
        body=SharedValue,
        answers={200: PublishedShown},
    ),
    ApiRoute(
        "DELETE",
        VALUE,
        CHANGING,
        delete,
        "Remove a value; the history keeps it. 409, 412: see PUT",
        query=Publishing,
        answers={200: PublishedShown},
        fails=(412,),
    ),
    *history_endpoints(
        AREA,
        LOOKING,
        CHANGING,
        what="an area",
        whose="List changes of the shared configuration, oldest first",
    ),
    ApiRoute(
        "POST",
        HEALTH,
        CHANGING,
        beat,
        "Write the health sentinel with the current time",
        answers={200: Health},
    ),
    ApiRoute(
        "DELETE",
        HEALTH,
        CHANGING,
        remove_health,
        "Remove the health sentinel; the next publish writes it again",
        answers={200: Health},
        fails=(404,),
    ),
)
