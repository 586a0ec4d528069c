"""The demo's instances, which really listen, its lock and tenants, and the task that runs it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Self

from mooring.demo.script import ACTS, LASTS, ROLES, Act, Gauges, Role, next_version
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


METRICS_EVERY = 2.0
SETTINGS: dict[str, object] = {
    "registry": {
        "metrics": {"enabled-metrics": []},
        "heartbeat": {"heartbeat-interval": "2s", "metadata-interval": "2s"},
    }
}
"""The metrics of this process are not those of the actors, and theirs are told often."""
_GO_WITHIN = 20.0


class Stage:
    """Everything of the demo is there while this is entered, and nothing afterwards. `say` gets
    each line for the audience."""

    def __init__(self, hub: Hub, say: Callable[[str], None], *, hurry: float = 1.0) -> None:
        self._hub, self._say, self._hurry = hub, say, hurry
        self._actors = [Actor(hub, role, seed=number) for number, role in enumerate(ROLES)]
        self._opened, self._described = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        services = {role.service for role in ROLES}
        try:
            if self._has_store:
                described = descriptions(self._hub, services)
                await self._described.enter_async_context(described)
            await asyncio.gather(*(actor.enter() for actor in self._actors))
            self._say(f"{len(self._actors)} instances of {len(services)} services are registered")
            if self._has_store:
                await self._furnish()
            else:
                self._say("no lock and no tenants: those need a store beside the registry")
        except BaseException:
            await self._go()
            raise
        self._tasks.start(self._beat(), name="metrics of the demo")
        return self

    @property
    def _has_store(self) -> bool:
        """Whether there is one beside the registry, or below it."""
        try:
            return bool(self._hub.store.url)
        except InvalidRequest:
            return False

    async def _furnish(self) -> None:
        await self._opened.enter_async_context(queue(self._hub))
        self._say(f"{CONTENDERS} take turns at the lock {LOCK}")
        try:
            made = await self._opened.enter_async_context(tenants(self._hub))
        except MissingExtra as error:
            self._say(f"no tenants: {error}")
            return
        if made:
            self._say(f"tenants {' and '.join(map(str, made))} are published")

    async def __aexit__(self, *_: object) -> None:
        await self._go()

    async def _go(self) -> None:
        await cleanup(self._leave(), within=_GO_WITHIN)

    async def _leave(self) -> None:
        await self._tasks.aclose()
        leaving = [actor.leave() for actor in self._actors]
        ended = await asyncio.gather(*leaving, self._opened.aclose(), return_exceptions=True)
        await self._described.aclose()
        for error in ended:
            if isinstance(error, BaseException):
                raise error
        self._say("everything of the demo is gone again")

    async def play(self, rounds: int | None = None) -> None:
        """Round after round; without a number, until it is cancelled."""
        number = 0
        while rounds is None or number < rounds:
            number += 1
            await self._round()

    async def _round(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for act in ACTS:
            await asyncio.sleep(max(began + act.at / self._hurry - loop.time(), 0.0))
            await self._perform(act)
        await asyncio.sleep(max(began + LASTS / self._hurry - loop.time(), 0.0))
        for actor in self._actors:
            if actor.taken_out:
                self._say(f"{actor.name}: somebody took it out: it starts anew")
                await self._return(actor)

    async def _perform(self, act: Act) -> None:
        actors = [actor for actor in self._actors if _plays(actor, act)]
        who = actors[0].name if len(actors) == 1 else act.service
        self._say(f"{who}: {act.text}")
        for actor in actors:
            try:
                await self._do(actor, act)
            except MooringError as error:
                self._say(f"{actor.name}: {error}")

    async def _do(self, actor: Actor, act: Act) -> None:
        match act.verb:
            case "fail":
                actor.fail()
            case "recover":
                actor.recover()
            case "drain":
                await actor.drain()
            case "leave":
                await actor.leave()
            case "return":
                await self._return(actor)

    async def _return(self, actor: Actor) -> None:
        if actor.present:
            await actor.leave()
        await actor.enter()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(METRICS_EVERY)
            for actor in self._actors:
                actor.beat()


def _plays(actor: Actor, act: Act) -> bool:
    return actor.role.service == act.service and act.number in (0, actor.role.number)
