"""The tenant of each request, for ASGI.

    app = Starlette(middleware=[Middleware(mooring.asgi.TenantMiddleware)], lifespan=lifespan)

    async def orders(request):
        tenant = mooring.tenants.current()

**Where the tenants are.** In the lifespan state by the name `tenants`, or given: a `Tenants`, or a
function that returns it, or None while there are none yet.

**The tenant** is `mooring.tenants.current()` while the request is served, and in tasks that are
started meanwhile; and `scope["state"]["tenant"]`, which is `request.state.tenant` in Starlette and
FastAPI, None where there is none.

**Refused** is who names no tenant (400), an unknown one (404), one that is inactive or suspended
(403), and everybody while nothing was ever loaded, or `common/resolver` cannot be understood and
never could (503): always with
`{"error": {"code": …, "message": …, "tenant": …}}`. A websocket is refused before it is accepted,
with the same answer where the server can send one, else closed with 1008. Preflight requests of
browsers carry no tenant's header: let a middleware for CORS stand outside of this one.
"""

from __future__ import annotations

from collections.abc import Collection

from mooring.asgi.registration import Application, Receive, Scope, Send
from mooring.errors import InvalidRequest
from mooring.tenants.resolve.context import acting_for
from mooring.tenants.resolve.resolver import REFUSED, Admission, Refusal, Source
from mooring.tenants.values import Resolver, Status

POLICY_VIOLATION = 1008
"""With what a websocket is closed."""


class TenantMiddleware:
    """An application that knows the tenant of each request. See `Admission` for the settings,
    which are taken from the store at each request unless `resolver` is given."""

    def __init__(
        self,
        app: Application,
        tenants: Source | None = None,
        *,
        resolver: Resolver | None = None,
        refuse: Collection[Status] = REFUSED,
        required: bool = True,
        host_header: str = "host",
        exempt: Collection[str] = (),
    ) -> None:
        self._app, self._tenants = app, tenants
        self._admission = Admission(
            resolver=resolver,
            refuse=refuse,
            required=required,
            host_header=host_header,
            exempt=exempt,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        decided = self._admission.decide(self._source(scope), _Request(scope))
        if isinstance(decided, Refusal):
            refuse = _refuse_websocket if scope["type"] == "websocket" else _refuse
            return await refuse(decided, scope, receive, send)
        # Each request has a state of its own: the server copies what the lifespan left.
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
    """What the decision looks at."""

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
