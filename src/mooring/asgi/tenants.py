"""The tenant of each request, for ASGI.

    app = Starlette(middleware=[Middleware(mooring.asgi.TenantMiddleware)], lifespan=lifespan)

    async def orders(request):
        tenant = mooring.tenants.current()

**Source.** The tenants come from the lifespan state under the name `tenants`, or from the argument:
a `Tenants`, or a function that returns it, or None while they are not loaded.

**Tenant.** `mooring.tenants.current()` returns it while the request is served, and in tasks started
by the request. `scope["state"]["tenant"]` holds it too, which is `request.state.tenant` in
Starlette and FastAPI; None if the request has no tenant.

**Refusals.** A request is refused if it names no tenant (400), an unknown one (404), or an inactive
or suspended one (403). All requests are refused before the first load, and if `common/resolver` was
never valid (503). The body is always `{"error": {"code": …, "message": …, "tenant": …}}`. A
websocket is refused before it is accepted, with the same response if the server supports that,
otherwise by closing with 1008. CORS preflight requests do not carry a tenant header: put a CORS
middleware outside of this one.
"""

from __future__ import annotations

from typing import Unpack

from mooring.asgi.registration import Application, Receive, Scope, Send
from mooring.errors import InvalidRequest
from mooring.tenants.resolve.context import acting_for
from mooring.tenants.resolve.resolver import Admission, AdmissionSettings, Refusal, Source

POLICY_VIOLATION = 1008
"""The close code of a refused websocket."""


class TenantMiddleware:
    """Sets the tenant of each request for an application. The keyword arguments are those of
    `Admission`. Unless `resolver` is given, each request uses the setting in the store."""

    def __init__(
        self,
        app: Application,
        tenants: Source | None = None,
        **settings: Unpack[AdmissionSettings],
    ) -> None:
        self._app, self._tenants = app, tenants
        self._admission = Admission(**settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        decided = self._admission.decide(self._source(scope), _Request(scope))
        if isinstance(decided, Refusal):
            refuse = _refuse_websocket if scope["type"] == "websocket" else _refuse
            return await refuse(decided, scope, receive, send)
        # Each request has its own state: the server copies the lifespan state.
        scope.setdefault("state", {})["tenant"] = decided
        with acting_for(decided):
            await self._app(scope, receive, send)

    def _source(self, scope: Scope) -> Source | None:
        if self._tenants is not None:
            return self._tenants
        try:
            tenants: Source | None = scope["state"]["tenants"]
        except KeyError:
            raise InvalidRequest(
                "TenantMiddleware has no tenants: give it some, or let the application's lifespan "
                "leave them in its state by the name 'tenants'"
            ) from None
        return tenants


class _Request:
    """The parts of a request that `Admission` reads."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    @property
    def path(self) -> str:
        path: str = self._scope["path"]
        root: str = self._scope.get("root_path", "").rstrip("/")
        return path[len(root) :] if root and path.startswith(f"{root}/") else path

    @property
    def query(self) -> str:
        query: bytes = self._scope.get("query_string", b"")
        return query.decode("utf-8", "replace")

    def header(self, name: str) -> list[str]:
        wanted = name.lower().encode("latin-1", "replace")
        return [
            value.decode("utf-8", "replace")
            for key, value in self._scope["headers"]
            if key == wanted
        ]


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    await _answer(refusal, "http", send, body=scope.get("method") != "HEAD")


async def _refuse_websocket(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    if (await receive())["type"] != "websocket.connect":
        return
    if "websocket.http.response" in (scope.get("extensions") or {}):
        await _answer(refusal, "websocket.http", send)
    else:
        reason = refusal.code
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})


async def _answer(refusal: Refusal, kind: str, send: Send, *, body: bool = True) -> None:
    headers = [(name.encode(), value.encode()) for name, value in refusal.headers]
    await send({"type": f"{kind}.response.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": refusal.body if body else b""})
