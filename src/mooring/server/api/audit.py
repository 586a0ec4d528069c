"""`/admin/audit`: who did what."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
from typing import Annotated

import msgspec

from mooring.errors import StoreError
from mooring.server.auth.audit import AuditEntry
from mooring.server.auth.authorization import need
from mooring.server.http.request import ApiCall
from mooring.server.http.response import HTTPError, Response
from mooring.server.http.routing import ApiRoute

_Text = Annotated[str, msgspec.Meta(max_length=1000)]


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    after: _Text = ""
    """The id that the last page ended with."""
    who: _Text = ""
    """The name of a token."""
    token: _Text = ""
    """The id of a token."""
    service: _Text = ""
    tenant: _Text = ""
    method: _Text = ""
    refused: bool | None = None
    """Only what was refused, or only what was done."""

    def matches(self, entry: AuditEntry) -> bool:
        return (
            (not self.who or entry.who == self.who)
            and (not self.token or entry.token == self.token)
            and (not self.service or entry.service == self.service)
            and (not self.tenant or entry.tenant == self.tenant)
            and (not self.method or entry.method == self.method.upper())
            and (self.refused is None or (entry.status >= 400) is self.refused)
        )


async def audit(call: ApiCall) -> Response:
    query: AuditQuery = call.query
    found, of = await _read(call, query)
    some = found[: query.limit]
    headers = {"X-Audit-Failures": str(call.server.audit.failures), "X-Audit-Of": of}
    if len(found) > len(some):
        told = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in msgspec.structs.asdict(query).items()
            if value not in ("", None)
        }
        following = urllib.parse.urlencode({**told, "after": some[-1].id})
        headers["Link"] = f'<{call.here}?{following}>; rel="next"'
    return Response(some, headers=headers)


async def _read(call: ApiCall, query: AuditQuery) -> tuple[list[AuditEntry], str]:
    """One entry more than wanted, and of which servers: of this one alone if the store is away."""
    limit = query.limit + 1
    shared = None if call.server.shared is None else call.server.shared.audit
    if shared is not None:
        with contextlib.suppress(StoreError):
            found = await shared.read(limit=limit, before=query.after, matches=query.matches)
            return found, "all servers"
    try:
        here = call.server.audit
        found = await asyncio.to_thread(
            here.read, limit=limit, before=query.after, matches=query.matches
        )
    except OSError as error:
        raise HTTPError(
            503, "unavailable", f"the audit cannot be read: {error.strerror}"
        ) from error
    return found, "this server"


ENDPOINTS = (
    ApiRoute(
        "GET",
        "/admin/audit",
        need("admin", "everything"),
        audit,
        "List audit entries, newest first",
        query=AuditQuery,
        answers={200: list[AuditEntry]},
    ),
)
