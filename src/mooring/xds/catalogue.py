"""The services of the registry as xDS resources, shared by all clients, with resolved hosts."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import time
from collections.abc import Callable, Collection
from typing import Protocol

import msgspec

from mooring.addresses import is_ip
from mooring.discovery.last_known_good import RetainedFeed
from mooring.errors import InvalidRequest, StoreError
from mooring.mirror import Mirror
from mooring.model import Instance
from mooring.registry.contract import Discovery
from mooring.tasks import Tasks, wait_for
from mooring.xds import proto, resources
from mooring.xds.resources import HTTP_SUFFIX, ROUTE_TABLE, Resource, XdsClient
from mooring.xds.subscriptions import Lookup

log = logging.getLogger(__name__)

RESOLVE_INTERVAL = 30.0
"""Seconds after which a host is resolved again."""

_RESOLVE_TIMEOUT = 2.0
_CACHED_HOSTS = 10_000


class HostResolver:
    """Resolves hosts, and keeps the last result while the name server is unavailable."""

    def __init__(self) -> None:
        self._resolved: dict[str, tuple[str, float]] = {}

    async def resolve(self, instances: tuple[Instance, ...]) -> tuple[Instance, ...]:
        """The instances with IP addresses as hosts, without those whose host was never resolved."""
        names = {instance.host for instance in instances if not is_ip(instance.host)}
        if not names:
            return instances
        await asyncio.gather(*(self._resolve(name) for name in names))
        addresses = {name: self._resolved[name][0] for name in names}
        return tuple(
            msgspec.structs.replace(instance, host=address)
            for instance in instances
            if (address := addresses.get(instance.host, instance.host))
        )

    async def _resolve(self, name: str) -> None:
        address, when = self._resolved.get(name, ("", float("-inf")))
        if time.monotonic() - when < RESOLVE_INTERVAL / 2:
            return
        if len(self._resolved) > _CACHED_HOSTS:
            self._resolved.clear()
        try:
            async with asyncio.timeout(_RESOLVE_TIMEOUT):
                infos = await asyncio.get_running_loop().getaddrinfo(
                    name, None, type=socket.SOCK_STREAM
                )
            address = str(infos[0][4][0])
        except (OSError, UnicodeError) as error:
            if when == float("-inf"):
                log.warning("cannot resolve the host %s; omitting its instances: %s", name, error)
        self._resolved[name] = (address, time.monotonic())


INTERVAL = 1.0
"""Seconds between two reads of the list of services."""

LINGER = 60.0
"""Seconds for which a removed service is still listed, because it may come back."""

_LOAD_TIMEOUT = 5.0  # seconds for which one service may delay the list of all
_LIST_SHARE = 20  # the pause before the next read, as a multiple of the last read's duration
_CACHED = 1000


class CatalogueListener(Protocol):
    """Receives changes. Its methods must not block."""

    def service_changed(self, service: str) -> None: ...

    def list_changed(self) -> None: ...


class CatalogueEntry:
    """One service and the streams that listen to it."""

    def __init__(
        self,
        discovery: Discovery,
        service: str,
        hosts: HostResolver,
        notify: Callable[[CatalogueEntry, bool], None],
    ) -> None:
        self.service = service
        self.since = time.monotonic()
        self.instances: tuple[Instance, ...] | None = None
        """None until they are known."""
        self.separate_http = False
        self.listeners: set[CatalogueListener] = set()
        self.listed = False
        self.endpoints = functools.lru_cache(_CACHED)(self._endpoints)
        self._inputs: list[tuple[object, ...]] = []
        self._hosts, self._notify = hosts, notify
        self._updated = asyncio.Event()
        self._mirror: Mirror[str, Instance] = Mirror(
            RetainedFeed(discovery.follow(service)), wait=False
        )
        self._tasks = Tasks()
        self._mirror.subscribe(lambda _: self._updated.set())
        self._mirror.start()
        self._tasks.start(self._publish(), name=f"{self.service} for xDS")

    async def _publish(self) -> None:
        has_names = False
        while True:
            await wait_for(self._updated, within=RESOLVE_INTERVAL if has_names else None)
            self._updated.clear()
            instances = tuple(self._mirror.items.values())
            has_names = not all(is_ip(instance.host) for instance in instances)
            self._update(await self._hosts.resolve(instances))

    def _update(self, instances: tuple[Instance, ...]) -> None:
        inputs = [resources.resource_inputs(instance) for instance in instances]
        if self.instances is not None and inputs == self._inputs:
            return
        before = None if self.instances is None else self.separate_http
        self._inputs, self.instances = inputs, instances
        self.separate_http = resources.has_separate_http(instances)
        self.endpoints.cache_clear()
        self._notify(self, self.separate_http != before)

    def _endpoints(self, name: str, client: XdsClient) -> Resource:
        return resources.endpoints(name, self.instances or (), client)

    async def aclose(self) -> None:
        await self._tasks.aclose()
        await self._mirror.aclose()


class Catalogue:
    def __init__(self, discovery: Discovery, *, interval: float = INTERVAL) -> None:
        self._discovery, self._interval = discovery, interval
        self._hosts = HostResolver()
        self._entries: dict[str, CatalogueEntry] = {}
        self._list_listeners: set[CatalogueListener] = set()
        self._listed: dict[str, float] | None = None
        """When each service was last in the list; None until it is read."""
        self._loading: set[str] = set()
        self._route_table: Resource | None = None
        self._published: dict[str, bool] | None = None
        """The services in the last published list, and whether each has separate HTTP ports."""
        self._failing = False
        self._listing: asyncio.Task[object] | None = None
        self._tasks = Tasks()

    def service_of(self, name: str) -> str:
        """The service of a resource; empty if the name is invalid."""
        try:
            return self._discovery.canonical(name.removesuffix(HTTP_SUFFIX))
        except InvalidRequest:
            return ""

    def follow(self, service: str, listener: CatalogueListener) -> None:
        self._entry(service).listeners.add(listener)

    def unfollow(self, service: str, listener: CatalogueListener) -> None:
        if (entry := self._entries.get(service)) is not None:
            entry.listeners.discard(listener)
            self._remove_unused(entry)

    def follow_list(self, listener: CatalogueListener) -> None:
        self._list_listeners.add(listener)
        if self._listing is None:
            self._listing = self._tasks.start(self._list(), name="services for xDS")

    def unfollow_list(self, listener: CatalogueListener) -> None:
        self._list_listeners.discard(listener)
        if self._list_listeners or self._listing is None:
            return
        self._listing.cancel()
        self._listing = self._listed = self._route_table = self._published = None
        self._loading.clear()
        for entry in list(self._entries.values()):
            entry.listed = False
            self._remove_unused(entry)

    def _entry(self, service: str) -> CatalogueEntry:
        entry = self._entries.get(service)
        if entry is None:
            entry = CatalogueEntry(self._discovery, service, self._hosts, self._entry_changed)
            self._entries[service] = entry
        return entry

    def _remove_unused(self, entry: CatalogueEntry) -> None:
        if not entry.listeners and not entry.listed:
            del self._entries[entry.service]
            self._tasks.start(entry.aclose(), name=f"close {entry.service} for xDS")

    def _entry_changed(self, entry: CatalogueEntry, routes: bool) -> None:
        """`routes`: its clusters and routes changed too, because its ports did."""
        for listener in entry.listeners:
            listener.service_changed(entry.service)
        if entry.listed and routes:
            self._loading.discard(entry.service)
            self._publish_list()

    def _publish_list(self) -> None:
        """Notify the listeners if the services or their clusters have changed."""
        if self._loading or self._listed is None:
            return
        services = {name: self._entries[name].separate_http for name in self._listed}
        if services == self._published:
            return
        hosts = resources.hosts_by_service(services)
        for name in sorted(services.keys() - hosts.keys() - (self._published or {}).keys()):
            log.warning("Envoy cannot route calls to %s: its host is invalid or taken", name)
        self._published, self._route_table = services, resources.route_table(services)
        for listener in self._list_listeners:
            listener.list_changed()

    async def _list(self) -> None:
        while True:
            began = time.monotonic()
            try:
                names = await self._discovery.names()
            except (StoreError, InvalidRequest) as error:
                if not self._failing:
                    log.warning("cannot list the services, keeping the last list: %s", error)
                self._failing = True
            else:
                self._failing = False
                self._set_listed(
                    {name for name in names if resources.is_addressable(name)}, time.monotonic()
                )
            took = time.monotonic() - began
            await asyncio.sleep(max(self._interval, took * _LIST_SHARE))

    def _set_listed(self, names: Collection[str], now: float) -> None:
        known = self._listed or {}
        self._listed = {name: when for name, when in known.items() if now - when < LINGER}
        self._listed.update(dict.fromkeys(names, now))
        for name in self._listed:
            entry = self._entry(name)
            if not entry.listed:
                entry.listed = True
                if entry.instances is None:
                    self._loading.add(name)
        for name in known.keys() - self._listed.keys():
            entry = self._entries[name]
            entry.listed = False
            self._remove_unused(entry)
        self._loading = {
            name
            for name in self._loading & self._listed.keys()
            if now - self._entries[name].since < _LOAD_TIMEOUT
        }
        self._publish_list()

    def listed(self, kind: str) -> Collection[str] | None:
        """The names of a wildcard, known for clusters only; None if not known yet."""
        if kind != proto.CLUSTER:
            return ()
        if self._published is None:
            return None
        return [
            name
            for service, separate_http in self._published.items()
            for name in (service, service + HTTP_SUFFIX)[: 1 + separate_http]
        ]

    def find(self, client: XdsClient, kind: str, name: str) -> Lookup:
        """A resource for a client, by type and name.

        A service without instances has all resources, but no endpoints; for gRPC, so has an
        invalid name. Calls to it fail immediately; without the resources, a client would let them
        wait for 15 seconds.
        """
        if client.kind == "grpc":
            return self._find_for_grpc(client, kind, name)
        if kind == proto.ROUTES and name == ROUTE_TABLE:
            return self._route_table or "unknown"
        service = self.service_of(name)
        if kind == proto.LISTENER or not service:
            return "absent"
        if kind == proto.CLUSTER:
            return resources.cluster(name, XdsClient("envoy"))
        entry = self._loaded_entry(service)
        if entry is None:
            return "unknown"
        if kind == proto.ROUTES:
            return resources.routes(name, separate_http=entry.separate_http)
        return entry.endpoints(name, client)

    def _find_for_grpc(self, client: XdsClient, kind: str, name: str) -> Lookup:
        if kind == proto.LISTENER:
            return resources.listener(name)
        if kind == proto.CLUSTER:
            return resources.cluster(name, XdsClient("grpc"))
        if kind == proto.ROUTES:
            return resources.routes(name, separate_http=False)
        service = self.service_of(name)
        if not service:
            return resources.endpoints(name, (), client)
        entry = self._loaded_entry(service)
        return "unknown" if entry is None else entry.endpoints(name, client)

    def _loaded_entry(self, service: str) -> CatalogueEntry | None:
        """The entry of a service; None until its instances are known."""
        entry = self._entries.get(service)
        return None if entry is None or entry.instances is None else entry

    async def aclose(self) -> None:
        for entry in self._entries.values():
            await entry.aclose()
        await self._tasks.aclose()
