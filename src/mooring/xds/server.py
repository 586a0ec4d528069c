"""The control plane: serves xDS (ADS) to Envoy and to `xds:///` channels of gRPC on a port."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar, Generic, Self, TypeVar

import grpc
import grpc.aio
from prometheus_client import Counter, Gauge

from mooring import __version__
from mooring.connection_limit import ConnectionLimit
from mooring.etcd_server.connections import ServerSockets
from mooring.etcd_server.server import LISTENER_OPTIONS, ServerTLS, listen
from mooring.formatting import quoted
from mooring.hub import Hub
from mooring.store.etcd.grpc_shutdown import stop
from mooring.tasks import Tasks
from mooring.xds import proto
from mooring.xds.catalogue import INTERVAL, Catalogue
from mooring.xds.proto import message
from mooring.xds.resources import ROUTE_TABLE, XdsClient, client_of
from mooring.xds.subscriptions import (
    Incremental,
    PendingResponse,
    RequestKind,
    StateOfTheWorld,
)

log = logging.getLogger(__name__)

STREAMS = Gauge("mooring_xds_streams", "Connected xDS clients")
RESPONSES = Counter("mooring_xds_responses", "Responses sent", ["type"])
REFUSED = Counter("mooring_xds_refused", "Responses that a client rejected (NACK)", ["type"])


def _short(kind: str) -> str:
    return kind.rpartition(".")[2]


_identity = message("ControlPlane", identifier=f"mooring {__version__}")
_responses = {kind: RESPONSES.labels(_short(kind)) for kind in proto.TYPES}

S = TypeVar("S", StateOfTheWorld, Incremental)


class AdsStream(ABC, Generic[S]):
    """One client's stream, without I/O: orders responses so that the client can apply them.

    `wake` is set when there may be something to send.
    """

    subscription: ClassVar[Callable[..., Any]]

    def __init__(self, catalogue: Catalogue) -> None:
        self.wake = asyncio.Event()
        self._catalogue = catalogue
        self._client = XdsClient("envoy")
        self._node = ""
        self._subscriptions: dict[str, S] = {}
        """By resource type."""
        self._names: dict[str, set[str]] = {}
        """The subscribed names by service."""
        self._follows_list = False
        self._sent = 0

    def handle(self, request: Any) -> None:
        """Apply a request of the client. Requests for unsupported types get no response."""
        if request.HasField("node") and not self._node:
            self._client, self._node = client_of(request.node), request.node.id or "?"
        kind = request.type_url
        if kind not in proto.TYPES:
            log.debug("%s requests the unsupported type %s", self._node, quoted(kind))
            return
        error = ""
        if request.HasField("error_detail"):
            error = request.error_detail.message or f"code {request.error_detail.code}"
        subscription = self._subscriptions.get(kind)
        if subscription is None:
            subscription = self.subscription(complete=kind in proto.COMPLETE_TYPES)
            self._subscriptions[kind] = subscription
        before = frozenset(subscription.names), subscription.wildcard
        if self._apply(subscription, request, error) == "nack":
            REFUSED.labels(_short(kind)).inc()
            log.warning("%s rejects %s: %s", self._node, _short(kind), quoted(error))
        if (frozenset(subscription.names), subscription.wildcard) != before:
            self._follow()
        self.wake.set()

    @abstractmethod
    def _apply(self, subscription: S, request: Any, error: str) -> RequestKind: ...

    @abstractmethod
    def _message(self, kind: str, response: PendingResponse, nonce: str) -> Any: ...

    def _follow(self) -> None:
        names = self._names_by_service()
        follows_list = any(
            subscription.wildcard or ROUTE_TABLE in subscription.names
            for subscription in self._subscriptions.values()
        )
        for service in names.keys() - self._names.keys():
            self._catalogue.follow(service, self)
        for service in self._names.keys() - names.keys():
            self._catalogue.unfollow(service, self)
        if follows_list and not self._follows_list:
            self._catalogue.follow_list(self)
        if self._follows_list and not follows_list:
            self._catalogue.unfollow_list(self)
        self._names, self._follows_list = names, follows_list

    def _names_by_service(self) -> dict[str, set[str]]:
        """The subscribed names by service, without invalid ones."""
        names: dict[str, set[str]] = {}
        for subscription in self._subscriptions.values():
            for name in subscription.names:
                if service := self._catalogue.service_of(name):
                    names.setdefault(service, set()).add(name)
        return names

    def service_changed(self, service: str) -> None:
        for subscription in self._subscriptions.values():
            subscription.mark_changed(self._names[service] & subscription.names)
        self.wake.set()

    def list_changed(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.relist()
            if ROUTE_TABLE in subscription.names:
                subscription.mark_changed([ROUTE_TABLE])
        self.wake.set()

    def responses(self) -> Iterator[Any]:
        """The responses to send now. Each counts as sent when the iterator yields it."""
        for kind in self._order():
            subscription = self._subscriptions.get(kind)
            if subscription is None or (kind == proto.ROUTES and self._routes_must_wait()):
                continue
            response = subscription.next(
                partial(self._catalogue.find, self._client, kind),
                self._catalogue.listed(kind) if subscription.wildcard else (),
            )
            if response is not None:
                self._sent += 1
                nonce = str(self._sent)
                subscription.mark_sent(nonce)
                _responses[kind].inc()
                yield self._message(kind, response, nonce)

    def _order(self) -> tuple[str, ...]:
        """Routes come last, unless endpoints that keep changing would delay them forever."""
        endpoints = self._subscriptions.get(proto.ENDPOINTS)
        routes = self._subscriptions.get(proto.ROUTES)
        if routes is None or not routes.pending or endpoints is None or endpoints.owes:
            return proto.TYPES
        return proto.CLUSTER, proto.LISTENER, proto.ROUTES, proto.ENDPOINTS

    def _routes_must_wait(self) -> bool:
        """Whether Envoy has not yet acknowledged clusters or endpoints that new routes may use."""
        return self._client.kind == "envoy" and any(
            self._subscriptions[kind].unacknowledged
            for kind in (proto.CLUSTER, proto.ENDPOINTS)
            if kind in self._subscriptions
        )

    def close(self) -> None:
        self._subscriptions.clear()
        self._follow()


class StateOfTheWorldStream(AdsStream[StateOfTheWorld]):
    subscription = StateOfTheWorld

    def _apply(self, subscription: StateOfTheWorld, request: Any, error: str) -> RequestKind:
        return subscription.handle(request.resource_names, request.response_nonce, error)

    def _message(self, kind: str, response: PendingResponse, nonce: str) -> Any:
        versions = blake2b(digest_size=8)
        for name, resource in response.resources.items():
            versions.update(f"{name} {resource.version}\n".encode())
        return message(
            "DiscoveryResponse",
            version_info=versions.hexdigest(),
            resources=[resource.body for resource in response.resources.values()],
            type_url=kind,
            nonce=nonce,
            control_plane=_identity,
        )


class IncrementalStream(AdsStream[Incremental]):
    subscription = Incremental

    def _apply(self, subscription: Incremental, request: Any, error: str) -> RequestKind:
        return subscription.handle(
            request.resource_names_subscribe,
            request.resource_names_unsubscribe,
            {entry.key: entry.value for entry in request.initial_resource_versions},
            request.response_nonce,
            error,
        )

    def _message(self, kind: str, response: PendingResponse, nonce: str) -> Any:
        return message(
            "DeltaDiscoveryResponse",
            resources=[
                message("Resource", name=name, version=resource.version, resource=resource.body)
                for name, resource in response.resources.items()
            ],
            removed_resources=response.removed,
            type_url=kind,
            nonce=nonce,
            control_plane=_identity,
        )


_CLOSE_TIMEOUT = 1.0  # seconds in which the streams end


class ControlPlane:
    """Serves the services of a hub's registry to Envoy and gRPC while it is entered: xDS v3 over
    one stream per client (ADS), state of the world or incremental.

    `bind` is `HOST:PORT`; with port 0, the system chooses a port, which `address` returns. While a
    client subscribes to all services, the registry is polled for new and removed ones every
    `interval` seconds. `connections` limits the connections of one IP address.

    Entering raises `StoreError` if the address cannot be bound, and `InvalidRequest` if a file of
    `tls` is invalid. Leaving ends the streams; clients keep their resources and reconnect.
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
        self.port: int = 0
        """The port it listens on, once it is started."""
        self._hub, self._bind, self._tls, self._interval = hub, bind, tls, interval
        self._stopping = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._streams: set[AdsStream[Any]] = set()
        self._limit = connections or ConnectionLimit()
        self._tasks = Tasks()

    @property
    def address(self) -> str:
        """The bound address, `HOST:PORT`."""
        return f"{self._bind.rpartition(':')[0]}:{self.port}"

    async def __aenter__(self) -> Self:
        self._catalogue = Catalogue(self._hub.registry, interval=self._interval)
        server = grpc.aio.server(options=LISTENER_OPTIONS)
        self.port = listen(server, self._bind, self._tls)
        methods = {
            proto.STREAM.rpartition("/")[2]: self._method(StateOfTheWorldStream, "Discovery"),
            proto.DELTA.rpartition("/")[2]: self._method(IncrementalStream, "DeltaDiscovery"),
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(proto.SERVICE, methods),)
        )
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
                stream.wake.set()
            await stop(server, _CLOSE_TIMEOUT)
            await self._tasks.aclose()
            await self._catalogue.aclose()

    def _method(self, protocol: type[AdsStream[Any]], messages: str) -> grpc.RpcMethodHandler:
        async def serve(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
            await self._serve(protocol(self._catalogue), requests, context)

        return grpc.stream_stream_rpc_method_handler(
            serve, proto.parser(f"{messages}Request"), proto.serializer(f"{messages}Response")
        )

    async def _serve(
        self,
        stream: AdsStream[Any],
        requests: AsyncIterator[Any],
        context: grpc.aio.ServicerContext,
    ) -> None:
        self._streams.add(stream)
        STREAMS.inc()
        tasks = Tasks()
        reading = tasks.start(_read(requests, stream), name=f"xDS requests of {context.peer()}")
        try:
            while not reading.done() and not self._stopping.is_set():
                stream.wake.clear()
                for response in stream.responses():
                    await context.write(response)
                await stream.wake.wait()
        finally:
            STREAMS.dec()
            self._streams.discard(stream)
            stream.close()
            await tasks.aclose()


async def _read(requests: AsyncIterator[Any], stream: AdsStream[Any]) -> None:
    try:
        async for request in requests:
            stream.handle(request)
    finally:
        stream.wake.set()
