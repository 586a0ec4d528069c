"""The health service of gRPC (`grpc.health.v1.Health`), of which clients take notice.

Its two messages have one field each, so that they are read and written here and no generated code
is needed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from enum import IntEnum
from typing import Any

import grpc
import grpc.aio

from mooring.errors import InvalidRequest
from mooring.formatting import quoted

log = logging.getLogger(__name__)

SERVICE = "grpc.health.v1.Health"

Listener = Callable[["Status | None"], None]


class Status(IntEnum):
    """As it is on the wire."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """What a server says of itself and of its services, to those who ask and those who watch.

    The server as a whole is the service without a name: it serves unless it is said otherwise. May
    be used from any thread.
    """

    def __init__(self, services: Mapping[str, bool] | None = None) -> None:
        self._lock = threading.Lock()
        self._statuses = {"": Status.SERVING}
        self._listeners: dict[str, set[Listener]] = {}
        self._ended = False
        for service, serving in (services or {}).items():
            self.set(service, serving)

    def set(self, service: str, serving: bool) -> None:
        """Say whether a service can be called. After `end` nothing serves."""
        with self._lock:
            if not self._ended:
                self._tell(service, Status.SERVING if serving else Status.NOT_SERVING)

    def end(self) -> None:
        """The server stops: report NOT_SERVING for every service, then end all watches, which would
        keep the server from stopping."""
        with self._lock:
            self._ended = True
            for service in self._statuses:
                self._tell(service, Status.NOT_SERVING)
            listeners = [each for some in self._listeners.values() for each in some]
            self._listeners.clear()
            for listener in listeners:
                listener(None)

    def status(self, service: str) -> Status:
        return self._statuses.get(service, Status.SERVICE_UNKNOWN)

    def listen(self, service: str, listener: Listener) -> Callable[[], None]:
        """Tell the status now and at each change, and None at the end; what is returned ends it."""
        with self._lock:
            listener(self.status(service))
            if self._ended:
                listener(None)
                return lambda: None
            listeners = self._listeners.setdefault(service, set())
            listeners.add(listener)

        def end() -> None:
            with self._lock:
                listeners.discard(listener)
                if not listeners and self._listeners.get(service) is listeners:
                    del self._listeners[service]

        return end

    def _tell(self, service: str, status: Status) -> None:
        if self._statuses.get(service) is status:
            return
        self._statuses[service] = status
        for listener in tuple(self._listeners.get(service, ())):
            listener(status)

    def serve(self, server: grpc.Server | grpc.aio.Server) -> None:
        """Add the service to a server that has not started. One that it has already wins."""
        handlers = _asyncio(self) if isinstance(server, grpc.aio.Server) else _threads(self)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def _asyncio(health: Health) -> dict[str, grpc.RpcMethodHandler]:
    async def check(service: str, context: grpc.aio.ServicerContext) -> Status:
        if (status := health.status(service)) is Status.SERVICE_UNKNOWN:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"there is no service {quoted(service)} here"
            )
        return status

    async def watch(service: str, context: grpc.aio.ServicerContext) -> AsyncIterator[Status]:
        loop = asyncio.get_running_loop()
        told: asyncio.Queue[Status | None] = asyncio.Queue()

        def hear(status: Status | None) -> None:
            loop.call_soon_threadsafe(told.put_nowait, status)

        end = health.listen(service, hear)
        try:
            while (status := await told.get()) is not None:
                yield status
        finally:
            end()

    return _handlers(check, watch)


def _threads(health: Health) -> dict[str, grpc.RpcMethodHandler]:
    def check(service: str, context: grpc.ServicerContext) -> Status:
        if (status := health.status(service)) is Status.SERVICE_UNKNOWN:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {quoted(service)} here")
        return status

    sends = _Sends()

    def watch(
        service: str, context: grpc.ServicerContext, send: Callable[[Status | None], None]
    ) -> None:
        end = health.listen(service, functools.partial(sends.add, send))
        if not context.add_callback(end):
            end()  # it was over before it began

    # Those who watch are many and stay: each would keep one of the server's few threads.
    watch.experimental_non_blocking = True  # type: ignore[attr-defined]
    return _handlers(check, watch)


class _Sends:
    """What is to be sent to those who watch, in its order, by a thread of its own while there is
    anything.

    gRPC's `send` may wait for the thread that also tells us that a call is over: whoever sends must
    hold no lock that is needed there, or both wait for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: deque[tuple[Listener, Status | None]] = deque()
        self._running = False

    def add(self, send: Listener, status: Status | None) -> None:
        """Does not wait."""
        with self._lock:
            self._due.append((send, status))
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="mooring health", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._due:
                    self._running = False
                    return
                send, status = self._due.popleft()
            try:
                send(status)
            except Exception:
                log.exception("somebody who watches the health of this server cannot be told")


def _handlers(check: Any, watch: Any) -> dict[str, grpc.RpcMethodHandler]:
    return {
        "Check": grpc.unary_unary_rpc_method_handler(check, decoded, encoded),
        "Watch": grpc.unary_stream_rpc_method_handler(watch, decoded, encoded),
    }


def encoded(status: Status) -> bytes:
    """A `HealthCheckResponse`."""
    return bytes((0x08, status))


def decoded(request: bytes) -> str:
    """The service of a `HealthCheckRequest`. Raises `InvalidRequest` for anything else."""
    if not request:
        return ""
    size, at = 0, 1
    while at < min(len(request), 11):  # a number in sevenths of bytes, the least first, ten at most
        size |= (request[at] & 0x7F) << 7 * (at - 1)
        at += 1
        if request[at - 1] < 0x80:
            break
    if request[0] != 0x0A or at == 1 or size != len(request) - at:
        raise InvalidRequest("this is no request of the health service")
    return request[at:].decode()
