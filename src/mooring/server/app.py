"""The HTTP face: every request goes through here, from its first byte to the audit.

The order is the safety: the Host, then the route, then who asks, then whether they may on that very
route, then whether the request came from our own page, and only then what it says.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable

from starlette.requests import Request
from starlette.responses import Response as StarletteResponse
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from mooring.errors import MooringError
from mooring.server.api.prometheus import answered
from mooring.server.auth.authorization import Principal, objection
from mooring.server.context import ServerContext
from mooring.server.http import response as errors
from mooring.server.http.request import NOBODY, ApiCall, parse_query, read_body
from mooring.server.http.response import HTTPError, Response, matches, tag
from mooring.server.http.routing import SAFE, ApiRoute, Router

log = logging.getLogger(__name__)

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


_PATIENCE = 30.0
"""Seconds for the body of a request."""


class Application:
    """An ASGI application of a table of endpoints."""

    def __init__(self, server: ServerContext, endpoints: Iterable[ApiRoute]) -> None:
        self._server, self._router = server, Router(endpoints)
        self._streams: set[asyncio.Timeout] = set()

    def end_streams(self) -> None:
        """End answers that last as long as the client listens: the server is about to stop."""
        now = asyncio.get_running_loop().time()
        for limit in self._streams:
            if not limit.expired():
                limit.reschedule(now)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        response = await self._respond(request)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> StarletteResponse:
        started = time.perf_counter()
        call: ApiCall | None = None
        try:
            self._server.origins.check_host(request)
            endpoint, path = self._router.match(request.method, request.scope["raw_path"])
            call = ApiCall(self._server, request, endpoint, path)
            answer = await self._handle(call)
            response = self._response(request, answer)
        except Exception as error:
            if not isinstance(error, HTTPError | MooringError):
                shown = request.scope["raw_path"].decode("ascii", "backslashreplace")
                log.exception("%s %s failed", request.method, shown)
            answer = errors.answer(_refusal(error))
            response = self._response(request, answer)
        if call is not None and call.endpoint.audited:
            self._server.audit.write(call, answer.status)
        route = "" if call is None else call.endpoint.path
        answered(request.method, route, answer.status, time.perf_counter() - started)
        return response

    async def _handle(self, call: ApiCall) -> Response:
        endpoint, request = call.endpoint, call.request
        self._server.limits.check(call.client)
        call.principal = self._admit(call)
        if request.method not in SAFE:
            self._server.origins.check_origin(request, call.principal)
        call.query = parse_query(endpoint, request.scope["query_string"])
        if request.method not in SAFE:
            most = self._server.limits.body
            try:
                async with asyncio.timeout(_PATIENCE):
                    call.body = await read_body(endpoint, request, most=most)
            except TimeoutError:
                raise HTTPError(408, "too_slow", "the body did not come in time") from None
        return await endpoint.handler(call)

    def _admit(self, call: ApiCall) -> Principal:
        """Who asks, if they may. Raises `HTTPError`: they did not say who (401), wrote too often
        (429), of which what they may not counts too, or may not (403)."""
        wanted = call.endpoint.needs
        if wanted.roles is None:
            return NOBODY
        principal = self._principal(call)
        if call.request.method not in SAFE:
            self._server.limits.check_write(principal)
        tenant = call.tenant if wanted.within == "tenant" else None
        service = call.path.get("service", "")
        if why := objection(principal, wanted, service=service, tenant=tenant):
            raise HTTPError(403, "forbidden", why)
        return principal

    def _principal(self, call: ApiCall) -> Principal:
        """Whose token or session this is; a token that was sent counts alone."""
        headers = call.request.headers.getlist("authorization")
        if headers:
            scheme, _, token = headers[0].partition(" ")
            good = len(headers) == 1 and scheme.lower() == "bearer"
            principal = self._server.tokens.bearer(token.strip()) if good else None
        else:
            principal = self._server.sessions.principal(call.request)
        if principal is None:
            if not self._server.tokens.loaded and (headers or call.request.cookies):
                raise _unknown_yet("the server cannot read its tokens")
            if headers:  # who says nothing, or has a session that is over, tries nothing
                self._server.limits.count_failure(call.client)
            raise HTTPError(
                401,
                "unauthenticated",
                "say who you are: Authorization: Bearer TOKEN (see `mooring token create`), or log "
                "in with the link that `mooring login` prints",
                headers={"WWW-Authenticate": 'Bearer realm="mooring"'},
            )
        call.principal = principal  # for the audit, whether or not they may
        writes = call.request.method not in SAFE and principal.role in ("operator", "admin")
        if writes and not self._server.tokens.is_confirmed(principal.token):
            raise _unknown_yet("the store has not confirmed this token for too long")
        return principal

    def _response(self, request: Request, answer: Response) -> StarletteResponse:
        headers = {**HEADERS, **answer.headers}
        if answer.stream is not None:
            stream = self._until_the_end(answer.stream)
            return StreamingResponse(
                stream, answer.status, headers=headers, media_type=answer.media
            )
        body = answer.body()
        if request.method in SAFE and answer.status == 200:
            headers["ETag"] = f'W/"{answer.etag}"' if answer.etag else tag(body)
            headers["Cache-Control"] = answer.headers.get("Cache-Control", "private, no-cache")
            if matches(request.headers.get("if-none-match", ""), headers["ETag"]):
                return StarletteResponse(status_code=304, headers=headers)
        media = answer.media if body else None
        return StarletteResponse(body, answer.status, headers=headers, media_type=media)

    async def _until_the_end(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async with asyncio.timeout(None) as limit:
                self._streams.add(limit)
                try:
                    async for frame in stream:
                        yield frame
                finally:
                    self._streams.discard(limit)
        except TimeoutError:
            if not self._server.readiness.stopping:
                raise


def _unknown_yet(why: str) -> HTTPError:
    return HTTPError(
        503,
        "unavailable",
        f"{why}, since the store is away: try again when it is back",
        headers={"Retry-After": "5"},
    )


def _refusal(error: Exception) -> HTTPError:
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, MooringError):
        return errors.refusal(error)
    return HTTPError(500, "internal", "this is a mistake of ours: the server's log has it")
