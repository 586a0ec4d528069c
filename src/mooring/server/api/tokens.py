"""Tokens: `/admin/tokens`, and who the caller is."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mooring import durations
from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.server.auth.authorization import ROLES, Need, Role, need
from mooring.server.auth.tokens import Token, Tokens, utcnow
from mooring.server.http.request import ApiCall, Page, cut
from mooring.server.http.response import HTTPError, Response, shown
from mooring.server.http.routing import ApiRoute
from mooring.tenants.keys import MAX_ID

NEVER = "never"
ADMINISTERING = need("admin", "everything")
ANYBODY = Need(frozenset(ROLES))


class TokenShown(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A token as it is listed: what opens the door is not among it."""

    id: str
    name: str
    role: Role
    groups: tuple[str, ...]
    """The groups that it is scoped to; with no tenants either: everything."""
    tenants: tuple[int, ...]
    state: str
    """valid, expired or revoked"""
    created: str
    expires: str | None
    revoked: str | None
    last_used: str | None
    """As far as this server knows since it started."""


class TokenMade(TokenShown, frozen=True, kw_only=True, rename="camel"):
    token: str
    """What its holder shows. It is told here and never again."""

    def __repr__(self) -> str:
        return f"TokenMade(id={self.id!r}, name={self.name!r})"


class TokenWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    """Who it is for: the audit says so."""
    role: Role
    groups: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=255)]], msgspec.Meta(max_length=1000)
    ] = []
    tenants: Annotated[
        list[Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)]], msgspec.Meta(max_length=1000)
    ] = []
    expires: Annotated[str, msgspec.Meta(max_length=40)] = "90d"
    """After how long it is of no more use (`30d`, `12h`), or `never`."""


class Whoami(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and what they may."""

    name: str
    role: Role
    groups: list[str] | None
    """The groups that it is scoped to; null: all."""
    tenants: list[int] | None
    token: str
    """The id of the token."""
    session: bool
    """Whether it is a browser's session, not the token itself."""
    expires: str | None


async def whoami(call: ApiCall) -> Response:
    who = call.principal
    token = _found(call.server.tokens, who.token)
    return Response(
        Whoami(
            name=who.name,
            role=who.role,
            groups=None if who.groups is None else sorted(who.groups),
            tenants=None if who.tenants is None else sorted(who.tenants),
            token=who.token,
            session=bool(who.session),
            expires=shown(token.expires) if token else None,
        )
    )


async def listed(call: ApiCall) -> Response:
    tokens = call.server.tokens
    told = sorted((_shown(tokens, each) for each in tokens.listed()), key=lambda each: each.id)
    some, headers = cut(told, call.query, lambda each: each.id, path=call.here)
    return Response(some, headers=headers)


async def create(call: ApiCall) -> Response:
    wanted: TokenWanted = call.body
    if not wanted.name.isprintable() or not wanted.name.strip():
        raise HTTPError(400, "bad_request", "a token's name must be words that can be printed")
    lasts = None if wanted.expires == NEVER else durations.parse(wanted.expires)
    tokens = call.server.tokens
    made, text = await tokens.create(
        wanted.name,
        wanted.role,
        groups=wanted.groups,
        tenants=wanted.tenants,
        lasts=lasts,
    )
    call.notes.update(id=made.id, name=made.name, role=made.role)
    if made.groups or made.tenants:
        call.notes.update(groups=made.groups, tenants=made.tenants)
    told = msgspec.structs.asdict(_shown(tokens, made))
    return Response(TokenMade(**told, token=text), 201)


async def revoke(call: ApiCall) -> Response:
    id = call.path["token"]
    try:
        revoked = await call.server.tokens.revoke(id)
    except InvalidRequest as error:
        raise HTTPError(409, "refused", str(error)) from error
    if revoked is None:
        raise HTTPError(
            404, "not_found", f"there is no token {quoted(id, 100)}: see `mooring token list`"
        )
    call.notes.update(name=revoked.name, role=revoked.role)
    if _found(call.server.tokens, id) is None:
        call.notes["deleted"] = "the store is out of space, so the record was deleted"
    return Response(_shown(call.server.tokens, revoked))


def _shown(tokens: Tokens, token: Token) -> TokenShown:
    state = "revoked" if token.revoked else "valid" if token.is_valid(utcnow()) else "expired"
    return TokenShown(
        id=token.id,
        name=token.name,
        role=token.role,
        groups=token.groups,
        tenants=token.tenants,
        state=state,
        created=shown(token.created) or "",
        expires=shown(token.expires),
        revoked=shown(token.revoked),
        last_used=shown(tokens.used.get(token.id)),
    )


def _found(tokens: Tokens, id: str) -> Token | None:
    return next((each for each in tokens.listed() if each.id == id), None)


ENDPOINTS = (
    ApiRoute(
        "GET",
        "/admin/whoami",
        ANYBODY,
        whoami,
        "Get the caller's name, role and scope",
        answers={200: Whoami},
    ),
    ApiRoute(
        "GET",
        "/admin/tokens",
        ADMINISTERING,
        listed,
        "List tokens, without secrets",
        query=Page,
        answers={200: list[TokenShown]},
    ),
    ApiRoute(
        "POST",
        "/admin/tokens",
        ADMINISTERING,
        create,
        "Create a token; its secret is returned once",
        body=TokenWanted,
        answers={201: TokenMade},
    ),
    ApiRoute(
        "DELETE",
        "/admin/tokens/{token}",
        ADMINISTERING,
        revoke,
        "Revoke a token and end its sessions",
        answers={200: TokenShown},
    ),
)
