"""The ASGI application: every HTTP request passes through it.

The order of the checks is a security property: the Host header, the route, the caller, the caller's
permission for this route, the origin of a write, and only then the query and the body.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable

from prometheus_client import Counter, Histogram
from starlette.requests import Request
from starlette.responses import Response as StarletteResponse
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from mooring.errors import MooringError
from mooring.server.api.endpoint import ANONYMOUS, ApiCall, ApiEndpoint, http_error
from mooring.server.auth.authorization import Principal, objection
from mooring.server.context import ServerContext
from mooring.server.http.request import parse_query, read_body
from mooring.server.http.response import (
    HTTPError,
    Response,
    digest,
    error_response,
    etag_matches,
)
from mooring.server.http.routing import SAFE, Router

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

REQUESTS = Counter("mooring_http_requests", "Completed requests", ["method", "route", "status"])
"""By the template of the path: a label with the path itself would have unbounded values."""
LATENCY = Histogram(
    "mooring_http_request_duration_seconds",
    "Time from the head of a request to the head of its response",
    ["route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

_BODY_TIMEOUT = 30.0
"""Seconds for the body of a request."""


class Application:
    """An ASGI application that serves a table of endpoints."""

    def __init__(self, server: ServerContext, endpoints: Iterable[ApiEndpoint]) -> None:
        self._server = server
        self._router = Router((endpoint.method, endpoint.path, endpoint) for endpoint in endpoints)
        self._streams: set[asyncio.Timeout] = set()

    def end_streams(self) -> None:
        """End the responses that last as long as their client listens, before the server stops."""
        now = asyncio.get_running_loop().time()
        for timeout in self._streams:
            if not timeout.expired():
                timeout.reschedule(now)

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
            response = await self._handle(call)
            sent = self._encode(request, response)
        except Exception as error:
            if not isinstance(error, HTTPError | MooringError):
                shown = request.scope["raw_path"].decode("ascii", "backslashreplace")
                log.exception("%s %s failed", request.method, shown)
            response = error_response(http_error(error))
            sent = self._encode(request, response)
        if call is not None and call.endpoint.audited:
            self._server.audit.write(call, response.status)
        method = request.method if request.method in _METHODS else "other"
        route = "none" if call is None else call.endpoint.path
        REQUESTS.labels(method, route, str(response.status)).inc()
        LATENCY.labels(route).observe(time.perf_counter() - started)
        return sent

    async def _handle(self, call: ApiCall) -> Response:
        endpoint, request = call.endpoint, call.request
        self._server.limits.check(call.client)
        call.principal = self._authorize(call)
        if request.method not in SAFE:
            self._server.origins.check_origin(request, call.principal)
        call.query = parse_query(endpoint.query, request.scope["query_string"])
        if request.method not in SAFE:
            try:
                async with asyncio.timeout(_BODY_TIMEOUT):
                    limit = self._server.limits.body
                    call.body = await read_body(endpoint.body, request, limit=limit)
            except TimeoutError:
                raise HTTPError(408, "too_slow", "body_too_slow", seconds=_BODY_TIMEOUT) from None
        return await endpoint.handler(call)

    def _authorize(self, call: ApiCall) -> Principal:
        """The caller. Raises `HTTPError` if it is not authenticated (401), exceeds its rate of
        writes (429), which includes forbidden ones, or is not allowed (403)."""
        needs = call.endpoint.needs
        if needs.roles is None:
            return ANONYMOUS
        principal = self._authenticate(call)
        if call.request.method not in SAFE:
            self._server.limits.check_write(principal)
        tenant = call.tenant if needs.within == "tenant" else None
        service = call.path.get("service", "")
        if reason := objection(principal, needs, service=service, tenant=tenant):
            raise HTTPError(403, "forbidden", reason)
        return principal

    def _authenticate(self, call: ApiCall) -> Principal:
        """The principal of the token, or of the session if the request has no token."""
        headers = call.request.headers.getlist("authorization")
        tokens = self._server.tokens
        if headers:
            scheme, _, token = headers[0].partition(" ")
            valid = len(headers) == 1 and scheme.lower() == "bearer"
            principal = tokens.bearer(token.strip()) if valid else None
        else:
            principal = self._server.sessions.principal(call.request)
        if principal is None:
            raise self._unauthenticated(call, has_token=bool(headers))
        call.principal = principal  # also if the call is then forbidden: the audit names the caller
        writes = call.request.method not in SAFE and principal.role in ("operator", "admin")
        if writes and not tokens.is_confirmed(principal.token):
            raise HTTPError(503, "unavailable", "token_unconfirmed", retry_after=5)
        return principal

    def _unauthenticated(self, call: ApiCall, *, has_token: bool) -> HTTPError:
        if not self._server.tokens.loaded and (has_token or call.request.cookies):
            return HTTPError(503, "unavailable", "tokens_unreadable", retry_after=5)
        if has_token:  # a request without a token is no attempt to guess one
            self._server.limits.count_failure(call.client)
        return HTTPError(
            401,
            "unauthenticated",
            "token_missing",
            headers={"WWW-Authenticate": 'Bearer realm="mooring"'},
        )

    def _encode(self, request: Request, response: Response) -> StarletteResponse:
        headers = {**HEADERS, **response.headers}
        if response.stream is not None:
            return StreamingResponse(
                self._stoppable(response.stream),
                response.status,
                headers=headers,
                media_type=response.media,
            )
        body = response.body()
        if request.method in SAFE and response.status == 200:
            headers["ETag"] = f'W/"{response.etag}"' if response.etag else f'"{digest(body)}"'
            headers["Cache-Control"] = response.headers.get("Cache-Control", "private, no-cache")
            if etag_matches(request.headers.get("if-none-match", ""), headers["ETag"]):
                return StarletteResponse(status_code=304, headers=headers)
        media = response.media if body else None
        return StarletteResponse(body, response.status, headers=headers, media_type=media)

    async def _stoppable(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The stream until `end_streams`."""
        try:
            async with asyncio.timeout(None) as timeout:
                self._streams.add(timeout)
                try:
                    async for frame in stream:
                        yield frame
                finally:
                    self._streams.discard(timeout)
        except TimeoutError:
            if not self._server.readiness.stopping:
                raise
