"""`/admin/events`: live changes as server-sent events.

The first event is `hello`. `services` and `instances` contain what changed, as the API shows it,
and the names of what was removed; `health` and `problems` are complete values. `reset` means that
events were missed: reload everything.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mooring.names import is_service
from mooring.server.api.endpoint import ApiCall, EndpointList
from mooring.server.auth.authorization import READING
from mooring.server.event_stream import KINDS, EventSubscription, StreamKind
from mooring.server.http.response import HTTPError, Response

endpoints = EndpointList()

MEDIA = "text/event-stream"


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True):
    service: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """The service whose instances are included."""
    kind: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """Some of `services,instances,health,problems`; by default all."""


@endpoints.add("GET", "/admin/events", READING, query=EventsQuery, answers={200: None}, media=MEDIA)
async def events(call: ApiCall) -> Response:
    """Stream changes as server-sent events."""
    query, caller = call.query, call.principal
    service, kinds = _service(call, query.service), _kinds(query.kind)
    stream = call.server.stream
    if call.request.method == "HEAD":
        return Response(b"", media=MEDIA)
    listener = stream.open(
        EventSubscription(caller.groups, service, kinds),
        call.request.headers.get("last-event-id", "")[:100],
        caller=caller,
        authorized=lambda: _current_principal(call) == caller,
    )
    headers = {"X-Accel-Buffering": "no"}  # otherwise nginx buffers the events
    return Response(stream=listener.frames(), media=MEDIA, headers=headers)


def _service(call: ApiCall, service: str) -> str:
    if not service:
        return ""
    if not is_service(service):
        raise HTTPError(400, "bad_query", "service_query_invalid")
    if not call.principal.sees_service(service):
        name = call.principal.name
        raise HTTPError(403, "forbidden", "outside_groups", name=name, service=service)
    return service


def _kinds(text: str) -> frozenset[StreamKind]:
    names = {name.strip() for name in text.split(",")} if text else set(KINDS)
    if unknown := names - KINDS:
        raise HTTPError(
            400, "bad_query", "stream_kind_unknown", kind=min(unknown), known=sorted(KINDS)
        )
    return frozenset(kind for kind in KINDS if kind in names)


def _current_principal(call: ApiCall) -> object:
    """The principal that the credentials of a call have now; it changes if they are revoked, expire
    or get another scope."""
    header = call.request.headers.get("authorization")
    if header is not None:
        return call.server.tokens.bearer(header.partition(" ")[2].strip())
    return call.server.sessions.principal(call.request)
