"""Tokens, the identity of the caller, and the audit."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Annotated

import msgspec

from mooring.durations import parse_duration
from mooring.errors import InvalidRequest, StoreError
from mooring.messages import verbatim
from mooring.model import now
from mooring.server.api.endpoint import ApiCall, EndpointList
from mooring.server.auth.audit import AuditEntry
from mooring.server.auth.authorization import ROLES, Need, Role, need
from mooring.server.auth.tokens import Token, Tokens
from mooring.server.http.request import PageQuery, next_link
from mooring.server.http.response import HTTPError, Response, rfc3339
from mooring.tenants.keys import MAX_ID

endpoints = EndpointList()

administration = partial(endpoints.add, needs=need("admin", "everything"))
"""Declares an endpoint for admins whose token has no scope."""

NEVER = "never"


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A token without its secret."""

    id: str
    name: str
    role: Role
    groups: tuple[str, ...]
    """The groups it is scoped to; without groups and tenants it is not limited."""
    tenants: tuple[int, ...]
    state: str
    """`valid`, `expired` or `revoked`."""
    created: str
    expires: str | None
    revoked: str | None
    last_used: str | None
    """The last use that this server has seen since it started."""


class CreatedToken(TokenInfo, frozen=True, kw_only=True, rename="camel"):
    token: str
    """The secret. It is returned only here."""

    def __repr__(self) -> str:
        return f"CreatedToken(id={self.id!r}, name={self.name!r})"


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    """What the token is for; it appears in the audit log."""
    role: Role
    groups: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=255)]], msgspec.Meta(max_length=1000)
    ] = []
    tenants: Annotated[
        list[Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)]], msgspec.Meta(max_length=1000)
    ] = []
    expires: Annotated[str, msgspec.Meta(max_length=40)] = "90d"
    """Its lifetime (`30d`, `12h`), or `never`."""


class CallerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The caller and its permissions."""

    name: str
    role: Role
    groups: list[str] | None
    """The groups the token is scoped to; null: all."""
    tenants: list[int] | None
    token: str
    """The id of the token."""
    session: bool
    """Whether the caller uses a browser session instead of the token."""
    expires: str | None


@endpoints.add("GET", "/admin/whoami", Need(frozenset(ROLES)), answers={200: CallerIdentity})
async def whoami(call: ApiCall) -> Response:
    """Get the caller's name, role and scope."""
    caller = call.principal
    token = _token(call.server.tokens, caller.token)
    return Response(
        CallerIdentity(
            name=caller.name,
            role=caller.role,
            groups=None if caller.groups is None else sorted(caller.groups),
            tenants=None if caller.tenants is None else sorted(caller.tenants),
            token=caller.token,
            session=bool(caller.session),
            expires=rfc3339(token.expires) if token else None,
        )
    )


@administration("GET", "/admin/tokens", query=PageQuery, answers={200: list[TokenInfo]})
async def list_tokens(call: ApiCall) -> Response:
    """List tokens, without secrets."""
    tokens = sorted(call.server.tokens.listed(), key=lambda token: token.id)
    page, headers = call.page(tokens, lambda token: token.id)
    return Response([_info(call.server.tokens, token) for token in page], headers=headers)


@administration("POST", "/admin/tokens", body=TokenRequest, answers={201: CreatedToken})
async def create_token(call: ApiCall) -> Response:
    """Create a token; its secret is returned once."""
    request: TokenRequest = call.body
    if not request.name.isprintable() or not request.name.strip():
        raise HTTPError(400, "bad_request", "token_name_invalid")
    tokens = call.server.tokens
    token, secret = await tokens.create(
        request.name,
        request.role,
        groups=request.groups,
        tenants=request.tenants,
        lasts=None if request.expires == NEVER else parse_duration(request.expires),
    )
    call.notes.update(id=token.id, name=token.name, role=token.role)
    if token.groups or token.tenants:
        call.notes.update(groups=token.groups, tenants=token.tenants)
    info = msgspec.structs.asdict(_info(tokens, token))
    return Response(CreatedToken(**info, token=secret), 201)


@administration("DELETE", "/admin/tokens/{token}", answers={200: TokenInfo})
async def revoke_token(call: ApiCall) -> Response:
    """Revoke a token and end its sessions."""
    id = call.path["token"]
    try:
        revoked = await call.server.tokens.revoke(id)
    except InvalidRequest as error:
        raise HTTPError(409, "refused", error.message) from error
    if revoked is None:
        raise HTTPError(404, "not_found", "token_not_found", id=id)
    call.notes.update(name=revoked.name, role=revoked.role)
    if _token(call.server.tokens, id) is None:
        call.notes["deleted"] = "out_of_space"  # deleted, because it could not be marked as revoked
    return Response(_info(call.server.tokens, revoked))


def _info(tokens: Tokens, token: Token) -> TokenInfo:
    state = "revoked" if token.revoked else "valid" if token.is_valid(now()) else "expired"
    return TokenInfo(
        id=token.id,
        name=token.name,
        role=token.role,
        groups=token.groups,
        tenants=token.tenants,
        state=state,
        created=rfc3339(token.created),
        expires=rfc3339(token.expires),
        revoked=rfc3339(token.revoked),
        last_used=rfc3339(tokens.used.get(token.id)),
    )


def _token(tokens: Tokens, id: str) -> Token | None:
    return next((token for token in tokens.listed() if token.id == id), None)


_AuditText = Annotated[str, msgspec.Meta(max_length=1000)]


class AuditQuery(PageQuery, frozen=True, kw_only=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    actor: _AuditText = ""
    """The name of a token."""
    token: _AuditText = ""
    """The id of a token."""
    service: _AuditText = ""
    tenant: _AuditText = ""
    method: _AuditText = ""
    refused: bool | None = None
    """Only refused calls, or only successful ones."""

    def matches(self, entry: AuditEntry) -> bool:
        return (
            self.actor in ("", entry.actor)
            and self.token in ("", entry.token)
            and self.service in ("", entry.service)
            and self.tenant in ("", entry.tenant)
            and self.method.upper() in ("", entry.method)
            and self.refused in (None, entry.status >= 400)
        )


@administration("GET", "/admin/audit", query=AuditQuery, answers={200: list[AuditEntry]})
async def audit(call: ApiCall) -> Response:
    """List audit entries, newest first."""
    query: AuditQuery = call.query
    entries, source = await _read_audit(call, query, limit=query.limit + 1)
    page = entries[: query.limit]
    headers = {"X-Audit-Failures": str(call.server.audit.failures), "X-Audit-Of": source}
    if len(entries) > len(page):
        headers["Link"] = next_link(query, page[-1].id, path=call.raw_path)
    return Response(page, headers=headers)


async def _read_audit(
    call: ApiCall, query: AuditQuery, *, limit: int
) -> tuple[list[AuditEntry], str]:
    """Entries and their source: all servers, or this server alone if the store is unreachable."""
    shared = None if call.server.shared is None else call.server.shared.audit
    if shared is not None:
        with contextlib.suppress(StoreError):
            entries = await shared.read(limit=limit, before=query.after, matches=query.matches)
            return entries, "all servers"
    try:
        entries = await asyncio.to_thread(
            call.server.audit.read, limit=limit, before=query.after, matches=query.matches
        )
    except OSError as error:
        reason = verbatim(error.strerror or "")
        raise HTTPError(503, "unavailable", "audit_unreadable", reason=reason) from error
    return entries, "this server"
