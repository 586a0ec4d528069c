"""The demo's instances, which really listen, and its lock, tenants and configuration."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping

from mooring.demo.script import Gauges, Role, next_version
from mooring.errors import InvalidRequest, LockLost, StoreError
from mooring.hub import Hub
from mooring.model import JSON, Instance
from mooring.names import split_service
from mooring.registry.kv.layouts import layout_of
from mooring.registry.registration import Registration
from mooring.store import Delete, key, unchanged
from mooring.tasks import Backoff, Tasks, cleanup
from mooring.tenants.document import parse
from mooring.tenants.publish.publisher import Publisher

TTL = 10.0
"""Seconds after which an actor is gone whose demo was killed."""
_WAIT = 5.0
_HOST = "127.0.0.1"


class Actor:
    """One instance. Its place, an address on this machine, stays the same through all rounds."""

    def __init__(self, hub: Hub, role: Role, *, seed: int) -> None:
        self._hub, self.role = hub, role
        self._gauges = Gauges(seed)
        self._version = role.version
        self._server: asyncio.Server | None = None
        self._port = 0
        self._registration: Registration | None = None

    @property
    def name(self) -> str:
        return f"{self.role.service} {_HOST}:{self._port}"

    @property
    def present(self) -> bool:
        """Whether it is registered, or tries to be."""
        return self._registration is not None

    @property
    def taken_out(self) -> bool:
        """Whether an operator, or another process, put an end to its registration."""
        return self._registration is not None and self._registration.state in (
            "removed",
            "superseded",
        )

    async def enter(self) -> None:
        """Listen and register; what cannot be registered now is so as soon as it can."""
        self._server = await asyncio.start_server(self._answer, _HOST, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        instance = Instance(
            self.role.service,
            _HOST,
            self._port,
            protocol="http",
            version=self._version,
            zone=self.role.zone,
            metadata={"by": "mooring demo", "team": self.role.service.partition("/")[0]},
        )
        registration = self._hub.register(instance, ttl=TTL, wait=_WAIT)
        self._gauges.failing = False
        registration.update(metrics=self._gauges.collect())
        try:
            self._registration = await registration.__aenter__()
        except BaseException:
            await self._close()
            raise

    def beat(self) -> None:
        """Tell the metrics of now."""
        if self._registration is not None and not self.taken_out:
            self._registration.update(metrics=self._gauges.collect())

    def fail(self) -> None:
        self._turn(healthy=False)

    def recover(self) -> None:
        self._turn(healthy=True)

    def _turn(self, *, healthy: bool) -> None:
        self._gauges.failing = not healthy
        if self._registration is not None and not self.taken_out:
            self._registration.update(healthy=healthy, metrics=self._gauges.collect())

    async def drain(self) -> None:
        """Go so that nobody notices, and come back newer."""
        self._version = next_version(self._version)
        if self._registration is not None:
            await self._registration.drain()
        await self.leave()

    async def leave(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.aclose()
        await self._close()

    async def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, whatever it is about."""
        status = b"503 Service Unavailable" if self._gauges.failing else b"200 OK"
        head = b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n" % status
        with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            async with asyncio.timeout(5):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(head + b"Connection: close\r\n\r\n")
                await writer.drain()
        writer.close()


LOCK = "demo/nightly-report"
CONTENDERS = 4
HELD = 8.0
"""Seconds that one holds it."""

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
_WITHIN = 10.0


@contextlib.asynccontextmanager
async def descriptions(hub: Hub, services: Collection[str]) -> AsyncIterator[None]:
    """Registering describes a service and its group. What was not described before, and by nobody
    since, is gone again afterwards."""
    layout, store = layout_of("tree"), hub.store
    groups = {split_service(service)[0] for service in services}
    mine = {service: layout.info_key(service=service) for service in services}
    mine |= {f"{group}/": layout.info_key(group=group) for group in groups}
    before = {name for name, at in mine.items() if (await store.read(key(at))).first is not None}
    try:
        yield
    finally:
        fresh = {name: at for name, at in mine.items() if name not in before}
        await cleanup(_undescribe(hub, fresh), within=_WITHIN)


async def _undescribe(hub: Hub, fresh: Mapping[str, bytes]) -> None:
    """Services first: a group with one that is not ours keeps its description."""
    for name, at in sorted(fresh.items(), key=lambda pair: pair[0].endswith("/")):
        entry = (await hub.store.read(key(at))).first
        if name.endswith("/") and await hub.registry.names(name.removesuffix("/")):
            continue
        if entry is not None and entry.version == 1:
            await hub.store.commit(Delete(key(at)), require=[unchanged(at, entry.modified)])


@contextlib.asynccontextmanager
async def queue(hub: Hub, *, held: float = HELD) -> AsyncIterator[None]:
    """Some who take turns at one lock."""
    tasks = Tasks()
    for number in range(CONTENDERS):
        tasks.start(_contend(hub, held), name=f"contender {number + 1}")
    try:
        yield
    finally:
        await tasks.aclose()


async def _contend(hub: Hub, held: float) -> None:
    lock, backoff = hub.lock(LOCK), Backoff(0.5, 5.0)
    while True:
        try:
            async with lock:
                backoff.reset()
                await asyncio.sleep(held)
        except (StoreError, LockLost):  # somebody took it away, or the store is: the play goes on
            await asyncio.sleep(backoff.next())


@contextlib.asynccontextmanager
async def tenants(hub: Hub) -> AsyncIterator[list[int]]:
    """Publish the tenants; which, those left out whose number somebody uses. They are gone
    afterwards, and so is their history."""
    publisher = hub.publisher(by="mooring demo")
    made: list[int] = []
    unused = not (await hub.store.read(key(publisher.keys.sentinel))).entries
    try:
        for told in TENANTS:
            document = parse(told)
            if await _is_free(publisher, document.tenant):
                made.append(document.tenant)
                await publisher.apply(document, note="for the demo")
        if made:
            await publisher.put(made[0], "storage", {"uploadQuotaGb": 800, "maxFileSizeMb": 1024})
        yield made
    finally:
        await cleanup(_forget(hub, publisher, made, unused=unused), within=_WITHIN)


async def _is_free(publisher: Publisher, tenant: int) -> bool:
    return not await publisher.read(tenant) and not await publisher.history(tenant)


async def _forget(hub: Hub, publisher: Publisher, tenants: list[int], *, unused: bool) -> None:
    keys = publisher.keys
    for tenant in tenants:
        with contextlib.suppress(InvalidRequest):  # somebody deleted it meanwhile
            await publisher.delete(tenant)
        await hub.store.commit(Delete(keys.history_of(tenant)))
    if unused and not (await hub.store.read(keys.all, limit=1)).entries:
        await hub.store.commit(Delete(keys.health))  # the sign of life of who publishes
