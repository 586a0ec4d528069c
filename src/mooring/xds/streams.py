"""One client's stream, without its wires: requests in, responses out, in the order in which they
can be applied."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from prometheus_client import Counter, Gauge

from mooring import __version__
from mooring.formatting import quoted
from mooring.xds import proto
from mooring.xds.catalogue import Catalogue
from mooring.xds.proto import message
from mooring.xds.resources import TABLE, Client, client_of
from mooring.xds.subscriptions import Answer, Heard, Incremental, StateOfTheWorld

log = logging.getLogger(__name__)

STREAMS = Gauge("mooring_xds_streams", "Clients of xDS that are connected")
RESPONSES = Counter("mooring_xds_responses", "Responses that were sent", ["type"])
REFUSED = Counter("mooring_xds_refused", "Responses that a client refused (NACK)", ["type"])


class Stream(ABC):
    """What a client has asked for and was told. `turn` is set when there may be something to
    send."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.turn = asyncio.Event()
        self._catalogue = catalogue
        self._client = Client("envoy")
        self._node = ""
        self._names: dict[str, set[str]] = {}
        """By service, the names that were asked for."""
        self._lists = False
        self._sent = 0

    @property
    @abstractmethod
    def _subscriptions(self) -> dict[str, Any]:
        """By type."""

    def hear(self, request: Any) -> None:
        """A request of the client. A type that we do not serve is not answered."""
        if request.HasField("node") and not self._node:
            self._client, self._node = client_of(request.node), request.node.id or "?"
        kind = request.type_url
        if kind not in proto.TYPES:
            log.debug("%s asks for %s, which is not served", self._node, quoted(kind))
            return
        error = request.error_detail.message if request.HasField("error_detail") else ""
        if request.HasField("error_detail") and not error:
            error = f"code {request.error_detail.code}"
        before = self._asked(kind)
        heard = self._hear(kind, request, error)
        if heard == "refused":
            REFUSED.labels(short(kind)).inc()
            log.warning("%s refuses %s: %s", self._node, short(kind), quoted(error))
        if self._asked(kind) != before:
            self._follow()
        self.turn.set()

    def _asked(self, kind: str) -> tuple[frozenset[str], bool]:
        subscription = self._subscriptions.get(kind)
        if subscription is None:
            return frozenset(), False
        return frozenset(subscription.names), subscription.wildcard

    @abstractmethod
    def _hear(self, kind: str, request: Any, error: str) -> Heard: ...

    @abstractmethod
    def _response(self, kind: str, answer: Answer, nonce: str) -> Any: ...

    def _follow(self) -> None:
        """Follow what is asked for, and nothing else."""
        names: dict[str, set[str]] = {}
        lists = False
        for subscription in self._subscriptions.values():
            lists = lists or subscription.wildcard or TABLE in subscription.names
            for name in subscription.names:
                if service := self._catalogue.service_of(name):
                    names.setdefault(service, set()).add(name)
        for service in names.keys() - self._names.keys():
            self._catalogue.follow(service, self)
        for service in self._names.keys() - names.keys():
            self._catalogue.leave(service, self)
        if lists and not self._lists:
            self._catalogue.follow_list(self)
        if self._lists and not lists:
            self._catalogue.leave_list(self)
        self._names, self._lists = names, lists

    def changed(self, service: str) -> None:
        for subscription in self._subscriptions.values():
            subscription.touch(self._names[service] & subscription.names)
        self.turn.set()

    def relisted(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.relist()
            if TABLE in subscription.names:
                subscription.touch([TABLE])
        self.turn.set()

    def due(self) -> Iterator[Any]:
        """The responses that must be sent now. Each counts as sent when it is taken."""
        for kind in self._order():
            subscription = self._subscriptions.get(kind)
            if subscription is None or (kind == proto.ROUTES and self._unsettled()):
                continue
            answer = subscription.next(
                lambda name, kind=kind: self._catalogue.find(kind, name, self._client),
                self._catalogue.listed(kind, self._client) if subscription.wildcard else (),
            )
            if answer is not None:
                self._sent += 1
                nonce = str(self._sent)
                subscription.sent(nonce)
                _responses[kind].inc()
                yield self._response(kind, answer, nonce)

    def _order(self) -> tuple[str, ...]:
        """Routes lead to endpoints, so they come last; but endpoints that change all the time must
        not keep them back for ever."""
        endpoints = self._subscriptions.get(proto.ENDPOINTS)
        routes = self._subscriptions.get(proto.ROUTES)
        if routes is None or not routes.pending or endpoints is None or endpoints.owes:
            return proto.TYPES
        return proto.CLUSTER, proto.LISTENER, proto.ROUTES, proto.ENDPOINTS

    def _unsettled(self) -> bool:
        """Whether Envoy still has to take clusters or endpoints that new routes may lead to."""
        return self._client.kind == "envoy" and any(
            self._subscriptions[kind].awaited
            for kind in (proto.CLUSTER, proto.ENDPOINTS)
            if kind in self._subscriptions
        )

    def close(self) -> None:
        for service in self._names:
            self._catalogue.leave(service, self)
        if self._lists:
            self._catalogue.leave_list(self)


def short(kind: str) -> str:
    """A type in logs and metrics."""
    return kind.rpartition(".")[2]


_identity = message("ControlPlane", identifier=f"mooring {__version__}")
_responses = {kind: RESPONSES.labels(short(kind)) for kind in proto.TYPES}


class WorldStream(Stream):
    """States of the world: what gRPC speaks."""

    def __init__(self, catalogue: Catalogue) -> None:
        super().__init__(catalogue)
        self._worlds: dict[str, StateOfTheWorld] = {}

    @property
    def _subscriptions(self) -> dict[str, StateOfTheWorld]:
        return self._worlds

    def _hear(self, kind: str, request: Any, error: str) -> Heard:
        world = self._worlds.setdefault(kind, StateOfTheWorld(whole=kind in proto.WHOLE))
        return world.hear(request.resource_names, request.response_nonce, error)

    def _response(self, kind: str, answer: Answer, nonce: str) -> Any:
        versions = blake2b(digest_size=8)
        for name, resource in answer.resources.items():
            versions.update(f"{name} {resource.version}\n".encode())
        return message(
            "DiscoveryResponse",
            version_info=versions.hexdigest(),
            resources=[resource.body for resource in answer.resources.values()],
            type_url=kind,
            nonce=nonce,
            control_plane=_identity,
        )


class DeltaStream(Stream):
    """Differences: what Envoy speaks where it is told to."""

    def __init__(self, catalogue: Catalogue) -> None:
        super().__init__(catalogue)
        self._deltas: dict[str, Incremental] = {}

    @property
    def _subscriptions(self) -> dict[str, Incremental]:
        return self._deltas

    def _hear(self, kind: str, request: Any, error: str) -> Heard:
        delta = self._deltas.setdefault(kind, Incremental(whole=kind in proto.WHOLE))
        return delta.hear(
            request.resource_names_subscribe,
            request.resource_names_unsubscribe,
            {entry.key: entry.value for entry in request.initial_resource_versions},
            request.response_nonce,
            error,
        )

    def _response(self, kind: str, answer: Answer, nonce: str) -> Any:
        return message(
            "DeltaDiscoveryResponse",
            resources=[
                message("Resource", name=name, version=found.version, resource=found.body)
                for name, found in answer.resources.items()
            ],
            removed_resources=answer.removed,
            type_url=kind,
            nonce=nonce,
            control_plane=_identity,
        )
