"""The fleet of `mooring demo`: instances that register, fail, drain and recover, following a script
of one minute; a lock with waiters; and two tenants."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self

from mooring.errors import InvalidRequest, LockLost, MissingExtra, MooringError, StoreError
from mooring.hub import Hub
from mooring.model import JSON, Instance
from mooring.names import split_service
from mooring.registry.kv.layouts import layout_of
from mooring.registry.registration import Registration
from mooring.store import Delete, key, unchanged
from mooring.tasks import Backoff, Tasks, cleanup
from mooring.tenants.document import parse
from mooring.tenants.publish.publisher import Publisher

ROUND = 60.0
"""Seconds of one round of the script."""
TTL = 10.0
"""Seconds until the instances of a killed demo expire."""
_HOST = "127.0.0.1"
_METRICS_INTERVAL = 2.0
_REGISTER_TIMEOUT = 5.0
_CLEANUP_TIMEOUT = 10.0
_STOP_TIMEOUT = 20.0
SETTINGS: dict[str, object] = {
    "registry": {
        "metrics": {"enabled-metrics": []},
        "heartbeat": {"heartbeat-interval": "2s", "metadata-interval": "2s"},
    }
}
"""Settings of the demo's hub: no metrics of its own process, and frequent heartbeats."""


class InstanceSpec(NamedTuple):
    service: str
    number: int
    zone: str
    version: str


INSTANCES = tuple(
    InstanceSpec(service, number, "east" if number % 2 else "west", version)
    for service, count, version in (
        ("shop/orders", 3, "2.4.1"),
        ("shop/cart", 2, "1.9.0"),
        ("shop/payments", 3, "3.0.2"),
        ("media/thumbnails", 2, "0.8.5"),
        ("gateway", 2, "5.1.0"),
    )
    for number in range(1, count + 1)
)


DemoAction = Literal["fail", "recover", "drain", "stop", "restart"]
"""The methods of a `DemoInstance`."""


class ScriptStep(NamedTuple):
    at: float
    """Seconds from the beginning of a round."""
    action: DemoAction
    service: str
    number: int
    """The instance, counted from 1; 0 means all instances of the service."""
    text: str


SCRIPT = (
    ScriptStep(4, "fail", "shop/payments", 2, "its database is slow: it reports itself unhealthy"),
    ScriptStep(12, "fail", "shop/orders", 3, "it is out of memory: it reports itself unhealthy"),
    ScriptStep(18, "recover", "shop/payments", 2, "its database is fast again: it is healthy"),
    ScriptStep(22, "drain", "shop/cart", 1, "it is replaced by a new version: it drains"),
    ScriptStep(30, "restart", "shop/cart", 1, "it is back with a new version"),
    ScriptStep(34, "recover", "shop/orders", 3, "it was restarted: it is healthy"),
    ScriptStep(38, "stop", "media/thumbnails", 0, "all leave: the service cannot be called"),
    ScriptStep(50, "restart", "media/thumbnails", 0, "all are back"),
)
"""The steps of a round, by time. A round ends in the state in which it began."""


def next_version(version: str) -> str:
    """The version of a new build: `1.9.0` → `1.9.1`."""
    rest, _, last = version.rpartition(".")
    return f"{rest}.{int(last) + 1}"


@dataclass(slots=True)
class RandomWalk:
    """A value that changes randomly and returns to `middle` in the long run."""

    middle: float
    step: float
    least: float = 0.0
    most: float = float("inf")
    value: float = field(init=False)

    def __post_init__(self) -> None:
        self.value = self.middle

    def next(self, chance: random.Random, *, factor: float = 1.0) -> float:
        """The next value, near `factor` times the middle."""
        back = (self.middle * factor - self.value) * 0.3
        self.value += back + chance.uniform(-self.step, self.step)
        self.value = min(max(self.value, self.least), self.most)
        return round(self.value, 2)


class DemoMetrics:
    """Invented metrics. The same seed gives the same metrics."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._cpu = RandomWalk(self._chance.uniform(10, 45), 4.0, most=100.0)
        self._memory = RandomWalk(self._chance.uniform(30, 60), 1.0, least=5.0, most=100.0)
        self._requests = RandomWalk(self._chance.uniform(40, 400), 25.0)
        self._latency = RandomWalk(self._chance.uniform(8, 40), 4.0, least=1.0)
        self.failing = False

    def collect(self) -> Mapping[str, JSON]:
        load = 1.7 if self.failing else 1.0
        return {
            "cpu": {"processCpuLoad": self._cpu.next(self._chance, factor=load)},
            "memory": {"usagePercent": self._memory.next(self._chance, factor=load)},
            "application": {
                "requestsPerSecond": self._requests.next(self._chance, factor=1 / load**2),
                "p99Ms": self._latency.next(self._chance, factor=load**4),
            },
        }


class DemoInstance:
    """One instance, which really listens. Its address stays the same in all rounds."""

    def __init__(self, hub: Hub, spec: InstanceSpec, *, seed: int) -> None:
        self._hub, self.spec = hub, spec
        self._metrics = DemoMetrics(seed)
        self._version = spec.version
        self._server: asyncio.Server | None = None
        self._port = 0
        self._registration: Registration | None = None

    @property
    def name(self) -> str:
        return f"{self.spec.service} {_HOST}:{self._port}"

    @property
    def removed(self) -> bool:
        """Whether an operator, or another process, ended the registration."""
        return self._registration is not None and self._registration.state in (
            "removed",
            "superseded",
        )

    async def start(self) -> None:
        """Listen and register. If the store is unreachable, the registration is retried."""
        self._server = await asyncio.start_server(self._respond, _HOST, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        instance = Instance(
            self.spec.service,
            _HOST,
            self._port,
            protocol="http",
            version=self._version,
            zone=self.spec.zone,
            metadata={"by": "mooring demo", "team": self.spec.service.partition("/")[0]},
        )
        registration = self._hub.register(instance, ttl=TTL, wait=_REGISTER_TIMEOUT)
        self._metrics.failing = False
        registration.update(metrics=self._metrics.collect())
        try:
            self._registration = await registration.__aenter__()
        except BaseException:
            await self._stop_server()
            raise

    def update(self, *, healthy: bool | None = None) -> None:
        if healthy is not None:
            self._metrics.failing = not healthy
        if self._registration is not None and not self.removed:
            self._registration.update(healthy=healthy, metrics=self._metrics.collect())

    async def drain(self) -> None:
        """Drain and stop. The next start has a newer version."""
        self._version = next_version(self._version)
        if self._registration is not None:
            await self._registration.drain()
        await self.stop()

    async def stop(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.aclose()
        await self._stop_server()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def fail(self) -> None:
        self.update(healthy=False)

    async def recover(self) -> None:
        self.update(healthy=True)

    async def _stop_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await server.wait_closed()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status = b"503 Service Unavailable" if self._metrics.failing else b"200 OK"
        head = b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n" % status
        with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            async with asyncio.timeout(5):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(head + b"Connection: close\r\n\r\n")
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def descriptions(hub: Hub, services: Collection[str]) -> AsyncIterator[None]:
    """Remove, on leaving, the descriptions of services and groups that were created meanwhile.
    Registering creates them. Those that were changed since are kept."""
    layout, store = layout_of("tree"), hub.store
    groups = {split_service(service)[0] for service in services}
    keys = {service: layout.info_key(service=service) for service in services}
    keys |= {f"{group}/": layout.info_key(group=group) for group in groups}
    before = {name for name, at in keys.items() if (await store.read(key(at))).first is not None}
    try:
        yield
    finally:
        created = {name: at for name, at in keys.items() if name not in before}
        await cleanup(_remove_descriptions(hub, created), within=_CLEANUP_TIMEOUT)


async def _remove_descriptions(hub: Hub, created: Mapping[str, bytes]) -> None:
    """Services first: a group with other services keeps its description."""
    for name, at in sorted(created.items(), key=lambda pair: pair[0].endswith("/")):
        entry = (await hub.store.read(key(at))).first
        if name.endswith("/") and await hub.registry.names(name.removesuffix("/")):
            continue
        if entry is not None and entry.version == 1:
            await hub.store.commit(Delete(key(at)), require=[unchanged(at, entry.modified)])


LOCK = "demo/nightly-report"
CONTENDERS = 4
_HOLD_TIME = 8.0


@contextlib.asynccontextmanager
async def contenders(hub: Hub) -> AsyncIterator[None]:
    """Tasks that take turns at one lock."""
    tasks = Tasks()
    for number in range(CONTENDERS):
        tasks.start(_contend(hub), name=f"contender {number + 1}")
    try:
        yield
    finally:
        await tasks.aclose()


async def _contend(hub: Hub) -> None:
    lock, backoff = hub.lock(LOCK), Backoff(0.5, 5.0)
    while True:
        try:
            async with lock:
                backoff.reset()
                await asyncio.sleep(_HOLD_TIME)
        except (StoreError, LockLost):  # an operator released it, or the store is unavailable
            await asyncio.sleep(backoff.next())


TENANTS: tuple[Mapping[str, JSON], ...] = (
    {
        "id": 9001,
        "meta": {"code": "demo_harbour", "name": "Demo Harbour", "billingPlan": "enterprise"},
        "domain": {"primary": "harbour.demo.invalid", "aliases": ["www.harbour.demo.invalid"]},
        "storage": {"uploadQuotaGb": 500, "maxFileSizeMb": 1024},
    },
    {
        "id": 9002,
        "meta": {"code": "demo_lighthouse", "name": "Demo 灯塔", "billingPlan": "free"},
        "domain": {"primary": "lighthouse.demo.invalid"},
        "storage": {"uploadQuotaGb": 10, "maxFileSizeMb": 64},
    },
)


@contextlib.asynccontextmanager
async def tenants(hub: Hub) -> AsyncIterator[list[int]]:
    """Publish the tenants with unused ids, which it yields, and delete them on leaving."""
    publisher = hub.publisher(by="mooring demo")
    published: list[int] = []
    unused = not (await hub.store.read(key(publisher.keys.sentinel))).entries
    try:
        for content in TENANTS:
            document = parse(content)
            id = document.tenant
            if not await publisher.read(id) and not await publisher.history(id):
                published.append(id)
                await publisher.apply(document, note="for the demo")
        if published:
            quota: JSON = {"uploadQuotaGb": 800, "maxFileSizeMb": 1024}
            await publisher.put(published[0], "storage", quota)
        yield published
    finally:
        deletion = _delete_tenants(hub, publisher, published, unused=unused)
        await cleanup(deletion, within=_CLEANUP_TIMEOUT)


async def _delete_tenants(hub: Hub, publisher: Publisher, ids: list[int], *, unused: bool) -> None:
    keys = publisher.keys
    for tenant in ids:
        with contextlib.suppress(InvalidRequest):  # already deleted
            await publisher.delete(tenant)
        await hub.store.commit(Delete(keys.history_of(tenant)))
    if unused and not (await hub.store.read(keys.all, limit=1)).entries:
        await hub.store.commit(Delete(keys.health))  # publishing wrote the health sentinel


class DemoFleet:
    """Starts everything, and leaves nothing behind. `report` gets each line for the user."""

    def __init__(
        self, hub: Hub, report: Callable[[str], None], *, acceleration: float = 1.0
    ) -> None:
        self._hub, self._report, self._acceleration = hub, report, acceleration
        self._instances = [DemoInstance(hub, spec, seed=n) for n, spec in enumerate(INSTANCES)]
        self._extras, self._descriptions = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        services = {spec.service for spec in INSTANCES}
        has_store = self._has_store()
        try:
            if has_store:
                cleaning = descriptions(self._hub, services)
                await self._descriptions.enter_async_context(cleaning)
            await asyncio.gather(*(instance.start() for instance in self._instances))
            count = len(self._instances)
            self._report(f"{count} instances of {len(services)} services are registered")
            if has_store:
                await self._start_extras()
            else:
                self._report("no lock and no tenants: they need a store beside the registry")
        except BaseException:
            await self.aclose()
            raise
        self._tasks.start(self._update_metrics(), name="metrics of the demo")
        return self

    def _has_store(self) -> bool:
        try:
            return bool(self._hub.store.url)
        except InvalidRequest:
            return False

    async def _start_extras(self) -> None:
        await self._extras.enter_async_context(contenders(self._hub))
        self._report(f"{CONTENDERS} tasks take turns at the lock {LOCK}")
        try:
            ids = await self._extras.enter_async_context(tenants(self._hub))
        except MissingExtra as error:
            self._report(f"no tenants: {error}")
            return
        if ids:
            self._report(f"published tenants: {', '.join(map(str, ids))}")

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await cleanup(self._stop(), within=_STOP_TIMEOUT)

    async def _stop(self) -> None:
        await self._tasks.aclose()
        stopping = [instance.stop() for instance in self._instances]
        results = await asyncio.gather(*stopping, self._extras.aclose(), return_exceptions=True)
        await self._descriptions.aclose()
        for error in results:
            if isinstance(error, BaseException):
                raise error
        self._report("removed everything that the demo created")

    async def play(self, rounds: int | None = None) -> None:
        """Play some rounds of the script; None: until cancelled."""
        for _ in itertools.count() if rounds is None else range(rounds):
            await self._play_round()

    async def _play_round(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for step in SCRIPT:
            await asyncio.sleep(max(began + step.at / self._acceleration - loop.time(), 0.0))
            await self._perform(step)
        await asyncio.sleep(max(began + ROUND / self._acceleration - loop.time(), 0.0))
        for instance in self._instances:
            if instance.removed:
                self._report(f"{instance.name}: it was deregistered: it starts again")
                await instance.restart()

    async def _perform(self, step: ScriptStep) -> None:
        instances = [
            instance
            for instance in self._instances
            if instance.spec.service == step.service and step.number in (0, instance.spec.number)
        ]
        subject = instances[0].name if len(instances) == 1 else step.service
        self._report(f"{subject}: {step.text}")
        for instance in instances:
            try:
                await getattr(instance, step.action)()
            except MooringError as error:
                self._report(f"{instance.name}: {error}")

    async def _update_metrics(self) -> None:
        while True:
            await asyncio.sleep(_METRICS_INTERVAL)
            for instance in self._instances:
                instance.update()
