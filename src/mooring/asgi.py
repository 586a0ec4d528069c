"""ASGI middleware: registers an application while it serves, and finds the tenant of a request."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import FrameType
from typing import Any, TypedDict, TypeVar, Unpack

from mooring.errors import InvalidRequest
from mooring.formatting import describe
from mooring.hub import Hub, connect
from mooring.model import Instance
from mooring.registry.shutdown import LINGER
from mooring.tasks import Tasks
from mooring.tenants.resolver import (
    Admission,
    AdmissionSettings,
    TenantRejection,
    TenantsSource,
    acting_for,
)
from mooring.workers import SharedRegistration

__all__ = [
    "GRACE",
    "ASGIApp",
    "ASGIMessage",
    "App",
    "Lifespan",
    "LifespanState",
    "Receive",
    "Scope",
    "Send",
    "ServerRegistration",
    "TenantMiddleware",
    "lifespan",
    "registered",
]


Scope = MutableMapping[str, Any]
"""The scope of a connection."""
ASGIMessage = MutableMapping[str, Any]
"""An event of a connection."""
Receive = Callable[[], Awaitable[ASGIMessage]]
"""Returns the next event of the client."""
Send = Callable[[ASGIMessage], Awaitable[None]]
"""Sends an event to the client."""
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application."""


log = logging.getLogger(__name__)

GRACE = 10.0
"""Maximum seconds to leave the registry, including the time for callers to notice."""

App = TypeVar("App")
"""The type of an application."""


class LifespanState(TypedDict):
    """The lifespan state of the application."""

    mooring: Hub


Lifespan = Callable[[App], AbstractAsyncContextManager[LifespanState]]
"""Creates the context manager that runs while an application serves."""


def lifespan(
    hub: str | Hub,
    instance: Instance,
    *,
    ttl: float | None = None,
    grace: float = GRACE,
    linger: float = LINGER,
    inner: Callable[[App], AbstractAsyncContextManager[Any]] | None = None,
) -> Lifespan[App]:
    """A lifespan for Starlette or FastAPI. `hub` is a URL, or the result of `connect`, not entered.
    `inner` is the application's own lifespan, which starts before the registration and ends after.
    """

    @asynccontextmanager
    async def registered(app: App) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            state: dict[str, object] = {}
            if inner is not None:
                state |= await stack.enter_async_context(inner(app)) or {}
            registration = ServerRegistration(hub, instance, ttl=ttl, grace=grace, linger=linger)
            state["mooring"] = await stack.enter_async_context(registration)
            yield state

    return registered


def registered(
    app: ASGIApp,
    hub: str | Hub,
    instance: Instance,
    *,
    ttl: float | None = None,
    grace: float = GRACE,
    linger: float = LINGER,
) -> ASGIApp:
    """The application, registered while it serves, even if it has no lifespan of its own. The
    server must support the lifespan protocol, as nearly all do."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            return await app(scope, receive, send)
        registration = ServerRegistration(hub, instance, ttl=ttl, grace=grace, linger=linger)
        await _LifespanProtocol(app, registration).run(scope, receive, send)

    return wrapped


class ServerRegistration:
    """Registers an instance once its address accepts connections, and deregisters it in time."""

    def __init__(
        self, hub: str | Hub, instance: Instance, *, ttl: float | None, grace: float, linger: float
    ) -> None:
        self._hub = connect(hub) if isinstance(hub, str) else hub
        self._instance, self._ttl = instance, ttl
        self._grace, self._linger = grace, linger
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Hub:
        async with AsyncExitStack() as stack:
            hub = await stack.enter_async_context(self._hub)
            # Raises at startup for an instance that can never be registered.
            shared = SharedRegistration(hub, self._instance, ttl=self._ttl)
            stack.push_async_callback(shared.aclose)
            await stack.enter_async_context(self._drain_on_sigterm(shared))
            shared.start()
            self._stack = stack.pop_all()
            return hub

    async def __aexit__(self, *_: object) -> None:
        """Idempotent, also if it was not entered."""
        await self._stack.aclose()

    @asynccontextmanager
    async def _drain_on_sigterm(self, shared: SharedRegistration) -> AsyncIterator[None]:
        """On SIGTERM, leave the registry before the server handles the signal."""
        handler = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is not threading.main_thread() or not callable(handler):
            yield
            return
        loop, tasks = asyncio.get_running_loop(), Tasks()
        leaving = False

        async def leave() -> None:
            log.info("SIGTERM: leaving the registry before the server stops")
            try:
                async with asyncio.timeout(self._grace + 1):
                    await shared.drain(grace=self._grace, linger=self._linger)
            except TimeoutError:
                log.warning("leaving the registry timed out")
            handler(signal.SIGTERM, None)

        def on_signal(number: int, frame: FrameType | None) -> None:
            nonlocal leaving
            if leaving:
                handler(number, frame)
            else:
                leaving = True
                loop.call_soon_threadsafe(lambda: tasks.start(leave(), name="leaving the registry"))

        signal.signal(signal.SIGTERM, on_signal)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGTERM) is on_signal:
                signal.signal(signal.SIGTERM, handler)
            await tasks.aclose()


class _LifespanProtocol:
    """The lifespan protocol between server and application, with a registration in between."""

    def __init__(self, app: ASGIApp, registration: ServerRegistration) -> None:
        self._app, self._registration = app, registration
        self._started = False

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def to_server(message: ASGIMessage) -> None:
            self._started = True
            if message["type"] == "lifespan.startup.complete":
                await self._enter(scope)
            await send(message)

        async def from_server() -> ASGIMessage:
            self._started = True
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._registration.__aexit__()
            return message

        try:
            await self._app(scope, from_server, to_server)
        except Exception as error:
            if self._started:
                raise
            log.debug("the application does not support the lifespan protocol: %s", describe(error))
        finally:
            await self._registration.__aexit__()
        if not self._started:
            await self._without_application(scope, receive, send)

    async def _without_application(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the protocol for an application that does not support it."""
        await self._enter(scope)
        await send({"type": "lifespan.startup.complete"})
        while (await receive())["type"] != "lifespan.shutdown":
            pass
        await self._registration.__aexit__()
        await send({"type": "lifespan.shutdown.complete"})

    async def _enter(self, scope: Scope) -> None:
        hub = await self._registration.__aenter__()
        if "state" in scope:
            scope["state"]["mooring"] = hub


POLICY_VIOLATION = 1008
"""The close code of a rejected websocket."""


class TenantMiddleware:
    """Sets the tenant of each request for an application. The keyword arguments are those of
    `Admission`. Unless `resolver` is given, each request uses the setting in the store."""

    def __init__(
        self,
        app: ASGIApp,
        tenants: TenantsSource | None = None,
        **settings: Unpack[AdmissionSettings],
    ) -> None:
        self._app, self._tenants = app, tenants
        self._admission = Admission(**settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        decided = self._admission.decide(self._source(scope), _ScopeRequest(scope))
        if isinstance(decided, TenantRejection):
            if scope["type"] == "websocket":
                return await _refuse_websocket(decided, scope, receive, send)
            return await _answer(decided, "http", send, body=scope.get("method") != "HEAD")
        # Each request has its own state: the server copies the lifespan state.
        scope.setdefault("state", {})["tenant"] = decided
        with acting_for(decided):
            await self._app(scope, receive, send)

    def _source(self, scope: Scope) -> TenantsSource | None:
        if self._tenants is not None:
            return self._tenants
        try:
            tenants: TenantsSource | None = scope["state"]["tenants"]
        except KeyError:
            raise InvalidRequest(
                "TenantMiddleware has no tenants: pass them, or have the application's lifespan "
                "put them into its state as 'tenants'"
            ) from None
        return tenants


class _ScopeRequest:
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
        encoded = name.lower().encode("latin-1", "replace")
        return [
            value.decode("utf-8", "replace")
            for key, value in self._scope["headers"]
            if key == encoded
        ]


async def _refuse_websocket(
    refusal: TenantRejection, scope: Scope, receive: Receive, send: Send
) -> None:
    if (await receive())["type"] != "websocket.connect":
        return
    if "websocket.http.response" in (scope.get("extensions") or {}):
        await _answer(refusal, "websocket.http", send)
    else:
        reason = refusal.code
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})


async def _answer(refusal: TenantRejection, kind: str, send: Send, *, body: bool = True) -> None:
    headers = [(name.encode(), value.encode()) for name, value in refusal.headers]
    await send({"type": f"{kind}.response.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": refusal.body if body else b""})
