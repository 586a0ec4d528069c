"""The services of the registry for xDS clients: followed once, with host names resolved."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import msgspec

from mooring.addresses import is_ip
from mooring.discovery.last_known_good import RetainedFeed
from mooring.errors import InvalidRequest, StoreError
from mooring.mirror import Mirror
from mooring.model import Instance
from mooring.registry.contract import Registry
from mooring.tasks import Tasks
from mooring.xds import proto, resources
from mooring.xds.resources import PLAIN, TABLE, Client, Resource
from mooring.xds.subscriptions import Found

log = logging.getLogger(__name__)

RESOLVE_AGAIN = 30.0
"""Seconds after which a name is resolved again."""

_PATIENCE = 2.0
_REMEMBERED = 10_000


class HostResolver:
    """Resolves names, and keeps the last result while the name server is unavailable."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, float]] = {}

    async def resolved(self, instances: Iterable[Instance]) -> tuple[Instance, ...]:
        """The instances with IP addresses as hosts, without those whose host was never resolved."""
        there = tuple(instances)
        names = {each.host for each in there if not is_ip(each.host)}
        if not names:
            return there
        await asyncio.gather(*(self._resolve(name) for name in names))
        return tuple(
            each if each.host not in names else msgspec.structs.replace(each, host=address)
            for each in there
            if each.host not in names or (address := self._found[each.host][0])
        )

    async def _resolve(self, name: str) -> None:
        address, when = self._found.get(name, ("", float("-inf")))
        if time.monotonic() - when < RESOLVE_AGAIN / 2:
            return
        if len(self._found) > _REMEMBERED:
            self._found.clear()
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await asyncio.get_running_loop().getaddrinfo(
                    name, None, type=socket.SOCK_STREAM
                )
            address = str(found[0][4][0])
        except (OSError, UnicodeError) as error:
            if when == float("-inf"):
                log.warning(
                    "the host %s cannot be resolved; its instances are left out: %s", name, error
                )
        self._found[name] = (address, time.monotonic())


INTERVAL = 1.0
"""Seconds between two looks at the list of services."""

LINGER = 60.0
"""Seconds that a service is still listed after it went: it may be about to come back."""

_LATE = 5.0  # seconds that one service may keep the list of all from being told
_SHARE = 20  # the list is looked at again after so many times the time that it took
_CACHED = 1000


class Listener(Protocol):
    """Who wants to know of changes. Neither may block."""

    def changed(self, service: str) -> None: ...

    def relisted(self) -> None: ...


class Followed:
    """One service and those who ask for it."""

    def __init__(
        self,
        registry: Registry,
        service: str,
        hosts: HostResolver,
        told: Callable[[Followed, bool], None],
    ) -> None:
        self.service = service
        self.since = time.monotonic()
        self.instances: tuple[Instance, ...] | None = None
        """None before they are known."""
        self.plain = False
        self.listeners: set[Listener] = set()
        self.listed = False
        self.cache: dict[tuple[str, str, Client], Resource] = {}
        self._essence: list[tuple[object, ...]] = []
        self._hosts, self._told = hosts, told
        self._turn = asyncio.Event()
        self._mirror: Mirror[str, Instance] = Mirror(
            RetainedFeed(registry.follow(service)), wait=False
        )
        self._tasks = Tasks()

    def start(self) -> None:
        self._mirror.subscribe(lambda _: self._turn.set())
        self._mirror.start()
        self._tasks.start(self._publish(), name=f"{self.service} for xDS")

    async def _publish(self) -> None:
        named = False
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESOLVE_AGAIN if named else None):
                    await self._turn.wait()
            self._turn.clear()
            there = tuple(self._mirror.items.values())
            named = not all(is_ip(each.host) for each in there)
            self._take(await self._hosts.resolved(there))

    def _take(self, instances: tuple[Instance, ...]) -> None:
        essence = [resources.essence(each) for each in instances]
        if self.instances is not None and essence == self._essence:
            return
        before = None if self.instances is None else self.plain
        self._essence, self.instances = essence, instances
        self.plain = resources.has_plain(instances)
        self.cache.clear()
        self._told(self, self.plain != before)

    async def aclose(self) -> None:
        await self._tasks.aclose()
        await self._mirror.aclose()


class Catalogue:
    def __init__(self, registry: Registry, *, interval: float = INTERVAL) -> None:
        self._registry, self._interval = registry, interval
        self._hosts = HostResolver()
        self._services: dict[str, str] = {}
        self._followed: dict[str, Followed] = {}
        self._lists: set[Listener] = set()
        self._listed: dict[str, float] | None = None
        """When each service was last in the list; None before it was read."""
        self._loading: set[str] = set()
        self._table: Resource | None = None
        self._plain: dict[str, bool] | None = None
        """The services as they were last told, and which have HTTP ports of their own."""
        self._failing = False
        self._listing: asyncio.Task[object] | None = None
        self._tasks = Tasks()

    def service_of(self, name: str) -> str:
        """The service that a resource is of; empty where there can be none of that name."""
        service = self._services.get(name)
        if service is None:
            try:
                service = self._registry.canonical(name.removesuffix(PLAIN))
            except InvalidRequest:
                service = ""
            if len(self._services) > 10 * _CACHED:
                self._services.clear()
            self._services[name] = service
        return service

    def follow(self, service: str, listener: Listener) -> None:
        """Tell a listener of changes to a service, until it leaves."""
        self._follow(service).listeners.add(listener)

    def leave(self, service: str, listener: Listener) -> None:
        if (followed := self._followed.get(service)) is not None:
            followed.listeners.discard(listener)
            self._forget_unused(followed)

    def follow_list(self, listener: Listener) -> None:
        """Tell a listener of services that come and go, until it leaves."""
        self._lists.add(listener)
        if self._listing is None:
            self._listing = self._tasks.start(self._list(), name="services for xDS")

    def leave_list(self, listener: Listener) -> None:
        self._lists.discard(listener)
        if self._lists or self._listing is None:
            return
        self._listing.cancel()
        self._listing = self._listed = self._table = self._plain = None
        self._loading.clear()
        for followed in list(self._followed.values()):
            followed.listed = False
            self._forget_unused(followed)

    def _follow(self, service: str) -> Followed:
        followed = self._followed.get(service)
        if followed is None:
            followed = Followed(self._registry, service, self._hosts, self._changed)
            self._followed[service] = followed
            followed.start()
        return followed

    def _forget_unused(self, followed: Followed) -> None:
        if not followed.listeners and not followed.listed:
            del self._followed[followed.service]
            self._tasks.start(followed.aclose(), name=f"{followed.service} is left")

    def _changed(self, followed: Followed, routes: bool) -> None:
        """`routes`: its HTTP ports came or went, so that it has other clusters and routes."""
        for listener in followed.listeners:
            listener.changed(followed.service)
        if followed.listed and routes:
            self._loading.discard(followed.service)
            self._relist()

    def _relist(self) -> None:
        """Tell of the services and their clusters, where these are others than before."""
        if self._loading or self._listed is None:
            return
        plain = {name: self._followed[name].plain for name in self._listed}
        if plain == self._plain:
            return
        hosts = resources.hosts_of(plain)
        for name in sorted(plain.keys() - hosts.keys() - (self._plain or {}).keys()):
            log.warning("%s has no host to be called by through Envoy: see its name", name)
        self._plain, self._table = plain, resources.table(plain)
        for listener in self._lists:
            listener.relisted()

    async def _list(self) -> None:
        while True:
            began = time.monotonic()
            try:
                found = await self._registry.names()
            except (StoreError, InvalidRequest) as error:
                if not self._failing:
                    log.warning("services cannot be listed, the last list is kept: %s", error)
                self._failing = True
            else:
                self._failing = False
                names = {name for name in found if resources.is_name(name)}
                self._found(names, time.monotonic())
            took = time.monotonic() - began
            await asyncio.sleep(max(self._interval, took * _SHARE))

    def _found(self, names: Collection[str], now: float) -> None:
        known = self._listed or {}
        self._listed = {name: when for name, when in known.items() if now - when < LINGER}
        self._listed.update(dict.fromkeys(names, now))
        for name in self._listed:
            followed = self._follow(name)
            if not followed.listed:
                followed.listed = True
                if followed.instances is None:
                    self._loading.add(name)
        for name in known.keys() - self._listed.keys():
            followed = self._followed[name]
            followed.listed = False
            self._forget_unused(followed)
        self._loading = {
            name
            for name in self._loading & self._listed.keys()
            if now - self._followed[name].since < _LATE
        }
        self._relist()

    def listed(self, kind: str, client: Client) -> Collection[str] | None:
        """The names that a wildcard means; None where they are not known yet. No listeners: those
        of Envoy are in its own file."""
        if kind != proto.CLUSTER:
            return ()
        if self._plain is None:
            return None
        return [
            name
            for service, plain in self._plain.items()
            for name in (service, service + PLAIN)[: 1 + plain]
        ]

    def find(self, kind: str, name: str, client: Client) -> Found:
        """A resource of a type by its name.

        A service that nobody offers has all of them, and no endpoints; for gRPC, so has a name
        that no service can have. Calls then fail at once, where a client that hears of no such
        resource would let them wait for 15 seconds.
        """
        if kind == proto.ROUTES and name == TABLE and client.kind == "envoy":
            return self._table or "unknown"
        service = self.service_of(name)
        if not service and client.kind == "envoy":
            return "absent"
        if kind == proto.LISTENER:
            return _listener(name) if client.kind == "grpc" else "absent"
        if kind == proto.CLUSTER:
            return _cluster(name, Client(client.kind))
        if kind == proto.ROUTES and client.kind == "grpc":
            return _routes(name, False)
        if not service:
            return resources.endpoints(name, (), client)
        followed = self._followed.get(service)
        if followed is None or followed.instances is None:
            return "unknown"
        if kind == proto.ROUTES:
            return _routes(name, followed.plain)
        key = (kind, name, client)
        if (cached := followed.cache.get(key)) is None:
            if len(followed.cache) > _CACHED:
                followed.cache.clear()
            cached = resources.endpoints(name, followed.instances, client)
            followed.cache[key] = cached
        return cached

    async def aclose(self) -> None:
        for followed in self._followed.values():
            await followed.aclose()
        await self._tasks.aclose()


@functools.lru_cache(_CACHED)
def _listener(name: str) -> Resource:
    return resources.listener(name)


@functools.lru_cache(4 * _CACHED)
def _cluster(name: str, client: Client) -> Resource:
    return resources.cluster(name, client)


@functools.lru_cache(_CACHED)
def _routes(name: str, plain: bool) -> Resource:
    return resources.routes(name, plain=plain)
