"""The health service of gRPC (`grpc.health.v1.Health`).

Its two messages have one field each. This module encodes and decodes them without generated code.
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

StatusListener = Callable[["ServingStatus | None"], None]


class ServingStatus(IntEnum):
    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """The status of a server and of its services. Thread-safe. The empty service name stands for
    the server as a whole, which serves by default."""

    def __init__(self, services: Mapping[str, bool] | None = None) -> None:
        self._lock = threading.Lock()
        self._statuses = {"": ServingStatus.SERVING}
        self._listeners: dict[str, set[StatusListener]] = {}
        self._ended = False
        for service, serving in (services or {}).items():
            self.set(service, serving)

    def set(self, service: str, serving: bool) -> None:
        """Set whether a service can be called. Has no effect after `end`."""
        with self._lock:
            if not self._ended:
                self._publish(
                    service, ServingStatus.SERVING if serving else ServingStatus.NOT_SERVING
                )

    def end(self) -> None:
        """The server stops: report NOT_SERVING for every service, then end all watches, which would
        otherwise keep the server from stopping."""
        with self._lock:
            self._ended = True
            for service in self._statuses:
                self._publish(service, ServingStatus.NOT_SERVING)
            for listeners in self._listeners.values():
                for listener in tuple(listeners):
                    listener(None)
            self._listeners.clear()

    def status(self, service: str) -> ServingStatus:
        """The status of a gRPC service."""
        return self._statuses.get(service, ServingStatus.SERVICE_UNKNOWN)

    def listen(self, service: str, listener: StatusListener) -> Callable[[], None]:
        """Call `listener` with the status now and at each change, and with None at the end. The
        returned function unsubscribes it."""
        with self._lock:
            listener(self.status(service))
            if self._ended:
                listener(None)
                return lambda: None
            listeners = self._listeners.setdefault(service, set())
            listeners.add(listener)

        def unsubscribe() -> None:
            with self._lock:
                listeners.discard(listener)
                if not listeners and self._listeners.get(service) is listeners:
                    del self._listeners[service]

        return unsubscribe

    def _publish(self, service: str, status: ServingStatus) -> None:
        if self._statuses.get(service) is status:
            return
        self._statuses[service] = status
        for listener in tuple(self._listeners.get(service, ())):
            listener(status)

    def serve(self, server: grpc.Server | grpc.aio.Server) -> None:
        """Add the health service to a server that has not started, unless it has one."""
        handlers = (
            _async_handlers(self)
            if isinstance(server, grpc.aio.Server)
            else _blocking_handlers(self)
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def _async_handlers(health: Health) -> dict[str, grpc.RpcMethodHandler]:
    async def check(service: str, context: grpc.aio.ServicerContext) -> ServingStatus:
        if (status := health.status(service)) is ServingStatus.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {quoted(service)}")
        return status

    async def watch(
        service: str, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[ServingStatus]:
        loop = asyncio.get_running_loop()
        statuses: asyncio.Queue[ServingStatus | None] = asyncio.Queue()

        def listener(status: ServingStatus | None) -> None:
            loop.call_soon_threadsafe(statuses.put_nowait, status)

        unsubscribe = health.listen(service, listener)
        try:
            while (status := await statuses.get()) is not None:
                yield status
        finally:
            unsubscribe()

    return _method_handlers(check, watch)


def _blocking_handlers(health: Health) -> dict[str, grpc.RpcMethodHandler]:
    def check(service: str, context: grpc.ServicerContext) -> ServingStatus:
        if (status := health.status(service)) is ServingStatus.SERVICE_UNKNOWN:
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {quoted(service)}")
        return status

    sender = _StatusSender()

    def watch(
        service: str, context: grpc.ServicerContext, send: Callable[[ServingStatus | None], None]
    ) -> None:
        unsubscribe = health.listen(service, functools.partial(sender.add, send))
        if not context.add_callback(unsubscribe):
            unsubscribe()  # the call has ended already

    # A watch must not occupy one of the server's few threads.
    watch.experimental_non_blocking = True  # type: ignore[attr-defined]
    return _method_handlers(check, watch)


class _StatusSender:
    """Sends statuses in order, in a thread that runs while there are any. gRPC's `send` may wait
    for the thread that runs the callbacks of ended calls, so the sender holds no lock that these
    need."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[tuple[StatusListener, ServingStatus | None]] = deque()
        self._running = False

    def add(self, send: StatusListener, status: ServingStatus | None) -> None:
        """Does not wait."""
        with self._lock:
            self._queue.append((send, status))
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="mooring health", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._running = False
                    return
                send, status = self._queue.popleft()
            try:
                send(status)
            except Exception:
                log.exception("a health status could not be sent")


def _method_handlers(check: Any, watch: Any) -> dict[str, grpc.RpcMethodHandler]:
    return {
        "Check": grpc.unary_unary_rpc_method_handler(check, decoded, encoded),
        "Watch": grpc.unary_stream_rpc_method_handler(watch, decoded, encoded),
    }


def encoded(status: ServingStatus) -> bytes:
    return bytes((0x08, status))


def decoded(request: bytes) -> str:
    """The service in a `HealthCheckRequest`. Raises `InvalidRequest` for an invalid one."""
    if not request:
        return ""
    size, at = 0, 1
    while at < min(len(request), 11):  # a varint of at most ten bytes
        size |= (request[at] & 0x7F) << 7 * (at - 1)
        at += 1
        if request[at - 1] < 0x80:
            break
    if request[0] != 0x0A or at == 1 or size != len(request) - at:
        raise InvalidRequest("invalid HealthCheckRequest")
    return request[at:].decode()
