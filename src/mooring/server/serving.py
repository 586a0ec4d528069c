"""What runs under `mooring serve`, from binding the ports to the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from mooring.addresses import join
from mooring.durations import show
from mooring.etcd_server.locking import ServerLocks
from mooring.etcd_server.server import EtcdAPIServer, ServerTLS
from mooring.hub import Hub, connect, open_runner
from mooring.registry.contract import Evictions
from mooring.server.alerts import Alerts, NotifierElection, RedisElection, StoreElection
from mooring.server.api import endpoints
from mooring.server.api.health import Readiness, questions
from mooring.server.app import Application
from mooring.server.auth.data_dir import DataDir
from mooring.server.auth.tokens import ADMIN
from mooring.server.context import ServerContext, prepare
from mooring.server.event_stream import Shapes, Stream
from mooring.server.health_checks.scheduler import HealthChecks
from mooring.server.health_checks.target_policy import policy
from mooring.server.http_listener import GRACE, listen, names
from mooring.server.live.problems import CurrentProblems, StoreAlarms
from mooring.server.live.service_history import ServiceHistory, scope_of
from mooring.server.live.state import Fleet
from mooring.server.settings import ServerSettings, split
from mooring.store.embedded.store import EmbeddedStore
from mooring.store.url import REDIS
from mooring.tasks import Tasks
from mooring.xds.server import ControlPlane


def _duty(server: ServerContext) -> NotifierElection:
    """The election runs where the registry is."""
    lease = server.hub.registry.leader_lease
    return StoreElection(server.hub) if lease is None else RedisElection(lease)


@contextlib.asynccontextmanager
async def watching(server: ServerContext) -> AsyncIterator[str]:
    """From the server' fleet, which is open; the host that alerts go to, empty for none."""
    fleet, alerts = server.fleet, server.settings.alerts
    async with contextlib.AsyncExitStack() as stack:
        if server.settings.url().scheme not in REDIS:
            server.alarms = await stack.enter_async_context(StoreAlarms(server.hub.store))
        outlook = CurrentProblems(fleet, alerts.grace_periods, alarms=server.alarms)
        server.outlook = outlook
        server.stream = await stack.enter_async_context(Stream(fleet, Shapes(fleet, outlook)))
        if server.shared is not None:
            scope = scope_of(server.hub.scope if server.settings.registry_apart else "")
            history = ServiceHistory(fleet, server.shared.store, scope)
            await stack.enter_async_context(history)
        if alerts.webhook:
            duty = await stack.enter_async_context(_duty(server))
            await stack.enter_async_context(Alerts(outlook, alerts, duty))
        try:
            yield alerts.host
        finally:
            server.outlook = server.stream = server.alarms = None


async def serve(settings: ServerSettings, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the process at once."""
    stop = _stop_signal()
    readiness = Readiness()
    tls = _tls(settings)
    if tls is not None:
        tls.check()
    async with contextlib.AsyncExitStack() as stack:
        if settings.http != "off" or not settings.store:
            stack.enter_context(DataDir(settings.folder()).server_lock())
        # First up and last down, so that probes are answered all the while.
        face = None
        if settings.http != "off":
            face = await stack.enter_async_context(_http(settings, readiness))
        beside: list[str] = []
        has_store = settings.url().scheme not in REDIS
        apart = bool(settings.registry) or not has_store
        hub = await stack.enter_async_context(_hub(settings))
        if has_store:
            say(f"store    {hub.store.url}")
            await stack.enter_async_context(_retention(hub))
        if apart:
            say(f"registry {hub.registry.url}")
        if settings.sweeps and (evictions := hub.registry.evictions) is not None:
            say(f"cleanup  {await stack.enter_async_context(_cleanup(evictions))}")
        if settings.etcd and settings.etcd != "off":
            wire = await stack.enter_async_context(_etcd(settings, tls))
            beside.append(wire.address)
            say(f"etcd     {wire.address}{'' if tls is None else ' (TLS)'}")
        if settings.xds != "off":
            limit = settings.connections.limit()
            plane = await stack.enter_async_context(
                ControlPlane(hub, bind=settings.xds, tls=tls, connections=limit)
            )
            beside.append(plane.address)
            say(f"xds      {plane.address}{'' if tls is None else ' (TLS)'}")
        if face is not None:
            store = hub.store if has_store else None
            await stack.enter_async_context(face.server.sharing(store))
            told = await stack.enter_async_context(_fleet(hub, face.server))
            if told:
                say(f"alerts   → {told}")
            if settings.checks.enabled:
                say(f"checks   {await stack.enter_async_context(_checks(face, beside))}")
            say(f"health   {face.url}/healthz and /readyz")
            if settings.console:
                code = await face.server.sessions.issue(ADMIN)
                say(f"console  {face.url}/login?code={code}")
        readiness.questions = tuple(questions(hub, store=has_store, apart=apart))
        say("ready    Ctrl-C stops it")
        await stop.wait()
        say("stopping")
        readiness.stopping = True
        if face is not None:
            face.application.end_streams()
    say("stopped")


class _Face(NamedTuple):
    """The HTTP face."""

    url: str
    server: ServerContext
    application: Application


def _hub(settings: ServerSettings) -> Hub:
    # Not always the text of the URL, in which a password is masked. With a quota there is none.
    plain = settings.store and not settings.quota
    return connect(
        settings.store if plain else str(settings.url()),
        registry=settings.registry,
        settings=settings.registry_settings,
        tenants_namespace=settings.tenants_namespace,
    )


@contextlib.asynccontextmanager
async def _cleanup(evictions: Evictions) -> AsyncIterator[str]:
    """Take out the dead of a registry on Redis; what is done, in words."""
    settings = evictions.settings
    tasks = Tasks()
    tasks.start(evictions.run(), name="cleanup")
    try:
        interval, timeout = show(settings.interval), show(settings.global_timeout)
        yield f"every {interval}, after {timeout} without a heartbeat"
    finally:
        await tasks.aclose()


@contextlib.asynccontextmanager
async def _retention(hub: Hub) -> AsyncIterator[None]:
    """Sweep the histories of tenants, also of those that nobody publishes any more."""
    tasks = Tasks()
    tasks.start(hub.publisher(by="mooring serve").sweeper.run(), name="retention of histories")
    try:
        yield
    finally:
        await tasks.aclose()


def _tls(settings: ServerSettings) -> ServerTLS | None:
    files = settings.tls
    if files is None:
        return None
    authority = Path(files.client_ca) if files.client_ca else None
    return ServerTLS(Path(files.cert), Path(files.key), authority)


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()

    def told() -> None:
        if stop.is_set():
            os._exit(1)  # told twice: somebody is in a hurry
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told)
    return stop


@contextlib.asynccontextmanager
async def _etcd(settings: ServerSettings, tls: ServerTLS | None) -> AsyncIterator[EtcdAPIServer]:
    """etcd's API on the engine of the store."""
    assert settings.etcd is not None
    url = settings.url()
    runner = open_runner(url)
    # Not the store that the URL names: clients of the wire are below no namespace.
    store = EmbeddedStore(runner, url=str(url))
    locks = ServerLocks(store)
    server = EtcdAPIServer(
        runner,
        bind=settings.etcd,
        tls=tls,
        users=settings.users,
        locks=locks,
        connections=settings.connections.limit(),
    )
    try:
        async with server as wire:
            yield wire
            await wire.drain(GRACE)
    finally:
        await locks.aclose()
        await store.aclose()  # and releases the runner


@contextlib.asynccontextmanager
async def _http(settings: ServerSettings, readiness: Readiness) -> AsyncIterator[_Face]:
    """The HTTP face, up, and told to the commands on this machine."""
    server = prepare(settings, readiness)
    application = Application(server, endpoints(console=settings.console))
    async with listen(application, settings) as url:
        host, port = split("--http", url.partition("//")[2])
        near = _NEAR.get(host, host)
        name = _name(settings, near) if host in _NEAR else near
        server.origins.admit(name)
        url = f"{url.partition('//')[0]}//{join(name, port)}"
        server.folder.announce(url, at="" if name == near else join(near, port))
        try:
            yield _Face(url, server, application)
        finally:
            server.folder.retract(url)


_NEAR = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""What listens at any address, as it is called on this machine."""


def _name(settings: ServerSettings, near: str) -> str:
    """What a server that listens at any address is called: its address on this machine, unless it
    shows a certificate that is not for that."""
    if settings.tls is None:
        return near
    told = names(Path(settings.tls.cert), Path(settings.tls.key))
    if near in told.addresses:
        return near
    return next(iter((*settings.hosts, *told.dns)), near)


def _checks(face: _Face, beside: Sequence[str]) -> HealthChecks:
    """Active checks by a server that listens for HTTP, and at the addresses beside it."""
    settings = face.server.settings
    host, _ = split("--http", settings.http)
    listening = [(host, split("--http", face.url)[1]), *(split("", place) for place in beside)]
    rules = policy(settings.checks.networks, listening)
    return HealthChecks(face.server.fleet, settings.checks, policy=rules)


@contextlib.asynccontextmanager
async def _fleet(hub: Hub, server: ServerContext) -> AsyncIterator[str]:
    """What is registered, for the API; while it is there, so is the API. Whom alerts go to."""
    async with Fleet(hub.registry) as fleet:
        server.open(hub, fleet)
        try:
            async with watching(server) as told:
                yield told
        finally:
            server.close()
