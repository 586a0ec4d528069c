"""`/admin/events`: what changes, as it changes, as server-sent events.

`hello` comes first. `services` and `instances` name what changed, as the API shows it, and what is
gone; `health` and `problems` are told whole. `reset` means that something was missed: read anew.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mooring.formatting import quoted
from mooring.names import is_service
from mooring.server.auth.authorization import READING
from mooring.server.event_stream import KINDS, OF_ONE, Ask, Told, TooMany, TooManyOfOne
from mooring.server.http.request import ApiCall
from mooring.server.http.response import HTTPError, Response
from mooring.server.http.routing import ApiRoute

MEDIA = "text/event-stream"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    service: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """The service whose instances are told of, too."""
    kind: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """Some of `services,instances,health,problems`; by default all."""


async def _events(call: ApiCall) -> Response:
    wanted: Wanted = call.query
    ask = Ask(call.principal.groups, _service(call, wanted.service), _kinds(wanted.kind))
    stream = call.server.stream
    call.server.fleet  # noqa: B018 - raises while there is none
    if stream is None or stream.closed:
        raise HTTPError(503, "starting", "there is no stream yet: try again in a second")
    if call.request.method == "HEAD":
        return Response(b"", media=MEDIA)
    last = call.request.headers.get("last-event-id", "")
    who = call.principal
    try:
        listener = stream.open(
            ask, last[:100], token=who.token, acts=who.role != "viewer", may=lambda: _may(call)
        )
    except TooManyOfOne:
        raise HTTPError(
            429,
            "too_many_streams",
            f"{OF_ONE} follow this server with the token of {who.name}: close some, or use another",
            headers={"Retry-After": "10"},
        ) from None
    except TooMany:
        raise HTTPError(
            503,
            "too_many_streams",
            "as many follow this server as it can bear: try again later, or ask another",
            headers={"Retry-After": "10"},
        ) from None
    headers = {"X-Accel-Buffering": "no"}  # nginx would keep the words to itself
    return Response(stream=listener.frames(), media=MEDIA, headers=headers)


def _service(call: ApiCall, service: str) -> str:
    if not service:
        return ""
    if not is_service(service):
        raise HTTPError(400, "bad_query", "the service is none: write it as group/name, or name")
    if not call.principal.sees_service(service):
        raise HTTPError(403, "forbidden", f"{service} is outside of the groups of this token")
    return service


def _kinds(kind: str) -> frozenset[Told]:
    named = {each.strip() for each in kind.split(",")} if kind else set(KINDS)
    if unknown := named - KINDS:
        known = ", ".join(sorted(KINDS))
        raise HTTPError(
            400, "bad_query", f"there is no kind {quoted(min(unknown))}: there is {known}"
        )
    return frozenset(each for each in KINDS if each in named)


def _may(call: ApiCall) -> bool:
    """Whether who began to listen is still who they were: neither revoked, expired nor scoped
    otherwise."""
    header = call.request.headers.get("authorization")
    if header is not None:
        principal = call.server.tokens.bearer(header.partition(" ")[2].strip())
    else:
        principal = call.server.sessions.principal(call.request)
    return principal == call.principal


ENDPOINTS = (
    ApiRoute(
        "GET",
        "/admin/events",
        READING,
        _events,
        "Stream changes as server-sent events",
        query=Wanted,
        answers={200: None},
        media=MEDIA,
    ),
)
