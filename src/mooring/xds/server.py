"""The control plane on a port: what Envoy and `xds:///` channels of gRPC talk to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import grpc
import grpc.aio

from mooring.connection_limit import ConnectionLimit
from mooring.etcd_server.connections import ServerSockets
from mooring.etcd_server.server import ServerTLS, listen
from mooring.hub import Hub
from mooring.store.etcd.grpc_shutdown import stop
from mooring.tasks import Tasks
from mooring.xds import proto
from mooring.xds.catalogue import INTERVAL, Catalogue
from mooring.xds.streams import STREAMS, DeltaStream, Stream, WorldStream

log = logging.getLogger(__name__)

_OPTIONS = [
    # Else two servers on one port would both start, and share the clients between them.
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", -1),
    # Pings of clients are taken often; gRPC's own minimum is five minutes.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A client that vanished without a word is noticed.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
]

_PARTING = 1.0  # seconds in which streams end


class ControlPlane:
    """Feeds Envoy and gRPC with the services of a hub's registry while it is entered: xDS v3 over
    one stream for each client (ADS), as states of the world or incremental.

    `bind` is `HOST:PORT`, port 0 for any that is free; `address` then tells the real one. Every
    `interval` seconds it looks for services that came or went, while a client wants all.
    `connections` bounds the connections of one address.

    Entering raises `StoreError` where the address cannot be bound, and `InvalidRequest` where a
    file of `tls` is no good. Leaving ends the streams; clients go on with what they were told, and
    come again.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        bind: str = "127.0.0.1:18000",
        tls: ServerTLS | None = None,
        interval: float = INTERVAL,
        connections: ConnectionLimit | None = None,
    ) -> None:
        self.port = 0
        self._hub, self._bind, self._tls, self._interval = hub, bind, tls, interval
        self._stopping = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._streams: set[Stream] = set()
        self._limit = connections or ConnectionLimit()
        self._tasks = Tasks()

    @property
    def address(self) -> str:
        """Where it listens: `HOST:PORT`."""
        return f"{self._bind.rpartition(':')[0]}:{self.port}"

    async def __aenter__(self) -> Self:
        self._catalogue = Catalogue(self._hub.registry, interval=self._interval)
        server = grpc.aio.server(options=_OPTIONS)
        self.port = listen(server, self._bind, self._tls)
        server.add_generic_rpc_handlers((_Methods(self._serve),))
        await server.start()
        self._server = server
        watch = ServerSockets(self.port, self._limit).watch()
        self._tasks.start(watch, name=f"connections to {self.address}")
        return self

    async def __aexit__(self, *_: object) -> None:
        server, self._server = self._server, None
        if server is not None:
            self._stopping.set()
            for stream in self._streams:
                stream.turn.set()
            await stop(server, _PARTING)
            await self._tasks.aclose()
            await self._catalogue.aclose()

    async def _serve(
        self,
        make: Callable[[Catalogue], Stream],
        requests: AsyncIterator[Any],
        context: grpc.aio.ServicerContext,
    ) -> None:
        stream = make(self._catalogue)
        self._streams.add(stream)
        STREAMS.inc()
        tasks = Tasks()
        reading = tasks.start(_read(requests, stream), name=f"xDS requests of {context.peer()}")
        try:
            while not reading.done() and not self._stopping.is_set():
                stream.turn.clear()
                for response in stream.due():
                    await context.write(response)
                await stream.turn.wait()
        finally:
            STREAMS.dec()
            self._streams.discard(stream)
            stream.close()
            await tasks.aclose()


async def _read(requests: AsyncIterator[Any], stream: Stream) -> None:
    try:
        async for request in requests:
            stream.hear(request)
    finally:
        stream.turn.set()


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, serve: Callable[..., Any]) -> None:
        async def world(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
            await serve(WorldStream, requests, context)

        async def delta(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
            await serve(DeltaStream, requests, context)

        self._handlers = {
            proto.STREAM: grpc.stream_stream_rpc_method_handler(
                world, proto.reading("DiscoveryRequest"), proto.writing("DiscoveryResponse")
            ),
            proto.DELTA: grpc.stream_stream_rpc_method_handler(
                delta,
                proto.reading("DeltaDiscoveryRequest"),
                proto.writing("DeltaDiscoveryResponse"),
            ),
        }

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._handlers.get(details.method)
