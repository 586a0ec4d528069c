"""The participants of a Redis registry, driven step by step: processes, operators and sweepers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Set
from typing import Any

import msgspec
import pytest

from mooring.errors import Removed, Superseded
from mooring.hub import Hub
from mooring.model import JSON, Instance, Status, new_incarnation
from mooring.registry.redis.cleanup import RedisEvictions
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.instance_record import RedisInstanceRecord
from mooring.registry.redis.layout import RedisKeys, flattened, from_pairs
from mooring.registry.redis.live_service import LiveService, message_head
from mooring.registry.redis.pubsub import ChangeChannels
from mooring.registry.redis.reader import Reader
from mooring.registry.redis.registry import RedisRegistry
from mooring.registry.redis.service_feed import ServiceFeed
from mooring.settings import (
    CleanupSettings,
    HeartbeatSettings,
    MetricsSettings,
    RedisSettings,
    RegistrySettings,
)
from mooring.settings.connections import RedisConnectionSettings
from mooring.testing.redis import RedisCluster, RedisServer

NO_BRAKE = CleanupSettings(interval=0.02, global_timeout=0.04, brake_least=1_000_000)


def quick(
    *,
    beat: float = 0.3,
    interval: float = 0.5,
    timeout: float = 2.0,
    release: float = 600.0,
    **redis: Any,
) -> RegistrySettings:
    """Settings with which everything happens within seconds."""
    return RegistrySettings(
        heartbeat=HeartbeatSettings(heartbeat_interval=beat),
        metrics=MetricsSettings(enabled_metrics=()),
        cleanup=CleanupSettings(interval=interval, global_timeout=timeout, brake_release=release),
        redis=RedisSettings(**redis),
    )


def namespaced(url: str) -> str:
    """The same place with a new namespace."""
    return f"{url}?namespace={uuid.uuid4().hex}"


def registry_of(hub: Hub) -> RedisRegistry:
    assert isinstance(hub.registry, RedisRegistry)
    return hub.registry


@contextlib.asynccontextmanager
async def fleet(
    hub: Hub, count: int, *, service: str = "echo", first: int = 1, **fields: Any
) -> AsyncIterator[list[Any]]:
    """This number of registered instances."""
    made = [
        hub.register(Instance(service, "10.0.0.1", port, **fields))
        for port in range(first, first + count)
    ]
    async with contextlib.AsyncExitStack() as stack:
        for registration in made:
            stack.push_async_callback(registration.aclose)
        await asyncio.gather(*(registration.__aenter__() for registration in made))
        yield made


def evictions_of(registry: RedisRegistry) -> RedisEvictions:
    """Evictions as another process has them, with separate state."""
    settings = registry.settings
    beat = settings.heartbeat.heartbeat_interval
    return RedisEvictions(
        registry.connection, registry.keys, registry.reader, settings.cleanup, beat=beat
    )


@contextlib.asynccontextmanager
async def sweeping(hub: Hub, sweepers: int = 1) -> AsyncIterator[None]:
    """Run this number of sweepers meanwhile."""
    running = [asyncio.ensure_future(evictions_of(registry_of(hub)).run()) for _ in range(sweepers)]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        assert all(task.cancelled() for task in running)


async def crash(registrations: Iterable[Any]) -> None:
    """End these without another heartbeat, and without deregistering."""
    for registration in registrations:
        await registration._tasks.aclose()
        registration._record._service.leave(registration._record)
        registration._closing = asyncio.Event()
        registration._closing.set()


async def silence(hub: Hub, registrations: Iterable[Any]) -> None:
    """Make these look as if they crashed an hour ago, longer than any timeout."""
    gone = list(registrations)
    await crash(gone)
    registry = registry_of(hub)
    for service in {one.instance.service for one in gone}:
        keys = registry.keys.of(service)
        ago = (await registry.reader.state(keys)).now - 3_600_000
        ids = [one.instance.id for one in gone if one.instance.service == service]
        # A sweeper may run at any time: all at once, and never overdue like ephemeral instances.
        for scores in (keys.persistent, keys.heartbeats):
            command = ("ZADD", scores, "XX", *(word for id in ids for word in (ago, id)))
            await registry.connection.call(*command, what="the test", writes=True)


@contextlib.contextmanager
def counted_looks() -> Iterator[Counter[ServiceFeed]]:
    """How often each feed has read its service, with or without success."""
    looks: Counter[ServiceFeed] = Counter()
    look = ServiceFeed.refresh

    async def counted(feed: ServiceFeed, gone: Set[str]) -> None:
        try:
            await look(feed, gone)
        finally:
            looks[feed] += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServiceFeed, "refresh", counted)
        yield looks


class World:
    """One service as several processes see it, each with its own connection."""

    def __init__(self, where: RedisServer | RedisCluster, *, cleanup: CleanupSettings = NO_BRAKE):
        cluster = isinstance(where, RedisCluster)
        members = where.members if isinstance(where, RedisCluster) else [where]
        self._settings = RedisConnectionSettings(
            tuple(member.address for member in members), "cluster" if cluster else "single"
        )
        self.keys = RedisKeys("registry", namespace=uuid.uuid4().hex, cluster=cluster)
        self.cleanup = cleanup
        self.service = "echo"
        self._open: list[Connection] = []

    async def __aenter__(self) -> World:
        self.connection = self.connect()
        self.several = [self.connect() for _ in range(4)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._open:
            await connection.aclose()

    def connect(self) -> Connection:
        connection = Connection(self._settings, url="redis://test")
        self._open.append(connection)
        return connection

    def live(self, connection: Connection | None = None) -> LiveService:
        connection = connection or self.connection
        changes = ChangeChannels(connection, self.keys)
        timeout = self.cleanup.global_timeout
        return LiveService(connection, self.keys, changes, self.service, timeout=timeout)

    def process(self, id: str, connection: Connection | None = None, **fields: Any) -> Process:
        return Process(self, id, self.live(connection), **fields)

    def sweeper(self, connection: Connection | None = None) -> RedisEvictions:
        connection = connection or self.connection
        return RedisEvictions(connection, self.keys, Reader(connection), self.cleanup)

    async def remove(self, id: str, connection: Connection | None = None) -> bool:
        """Evict an instance, like an operator."""
        head = message_head(self.service, id)
        return await self.live(connection).deregister(id, "", head=head)

    async def call(self, *command: str | bytes | int | float) -> Any:
        return await self.connection.call(*command, what="the test", writes=True)

    async def record(self, id: str) -> dict[str, str]:
        """The hash of an instance."""
        reply = await self.call("HGETALL", self.keys.of(self.service).instance(id))
        return from_pairs(
            reply if isinstance(reply, list) else [x for p in reply.items() for x in p]
        )

    async def scores(self) -> dict[str, float]:
        return await Reader(self.connection).scores(self.keys.of(self.service))

    async def hashes(self) -> set[str]:
        """The ids that have a hash."""
        base = f"{self.keys.of(self.service).base}:instance:"
        pattern = base.replace("{", "\\{").replace("}", "\\}") + "*"
        return {key.removeprefix(base) for key in await self.connection.scan(pattern)}

    async def check(self, *, tier1: bool = True) -> None:
        """Check what must hold whenever no operation is in progress."""
        listed, hashed = (await self.scores()).keys(), await self.hashes()
        assert listed == hashed, "ZSet and hashes differ"
        for id in hashed:
            record = await self.record(id)
            for name in ("incarnation", "host", "port", "heartbeat", "registrationTime", "healthy"):
                assert record.get(name), f"{id} has no {name}: {record}"
            flat = flattened(json.loads(record["metadataJson"]))
            flat |= flattened(json.loads(record["metricsJson"]))
            left = {name for name in record if name.startswith("metadata_")}
            assert left == flat.keys(), "fields of dropped metadata are left"
        if tier1:
            services = await self.call("SMEMBERS", self.keys.services)
            assert [*services] == ([self.service.encode()] if listed else []), "tier 1 is wrong"


class Process:
    """One run of a process: it registers, beats, repairs what a heartbeat finds wrong, and
    leaves."""

    def __init__(self, world: World, id: str, live: LiveService, **fields: Any) -> None:
        self.world, self.id = world, id
        self.instance = Instance(
            world.service, "10.0.0.1", 1, id=id, incarnation=new_incarnation(), **fields
        )
        self.record = RedisInstanceRecord(live, self.instance, limit=65536, leave=_nothing)
        self.state = "new"

    @property
    def registered(self) -> int:
        """When it registered, by the clock of the server."""
        return int(self.record._registered or 0)

    @property
    def age(self) -> tuple[int, str]:
        """What decides which of two incarnations is the later one."""
        return self.registered, self.incarnation

    @property
    def incarnation(self) -> str:
        return self.instance.incarnation

    def with_status(self, metrics: dict[str, JSON], *, healthy: bool = True) -> Instance:
        status = Status(healthy=healthy, metrics=metrics)
        return msgspec.structs.replace(self.instance, status=status)

    async def step(self, *, update: bool = False, metrics: dict[str, JSON] | None = None) -> str:
        """Do what a registration would do next, and return the state after it."""
        if self.state in ("superseded", "removed", "left"):
            return self.state
        instance = self.with_status(metrics or {})
        try:
            if self.state == "new" or self.record.disturbed:
                fresh, self.state = self.state == "new", "registered"
                await self.record.put(instance, fresh=fresh)
            else:
                await self.record.beat(instance, update=update)
        except Superseded:
            self.state = "superseded"
        except Removed:
            self.state = "removed"
        return self.state

    async def settle(self) -> str:
        """Step until there is nothing left to repair."""
        for _ in range(3):
            await self.step()
        return self.state

    async def leave(self) -> None:
        if self.state not in ("superseded", "removed", "left"):
            self.state = "left"
            await self.record.withdraw()


async def _nothing() -> None: ...
