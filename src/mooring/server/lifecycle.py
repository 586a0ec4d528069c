"""What `mooring serve` runs, from the first open port to the last response."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from mooring.addresses import join
from mooring.backends import open_runner
from mooring.durations import format_duration
from mooring.etcd_server.locking import ServerLocks
from mooring.etcd_server.server import EtcdAPIServer, ServerTLS
from mooring.hub import Hub, connect
from mooring.server.alerts import Alerts, RedisElection, StoreElection
from mooring.server.api import all_endpoints
from mooring.server.app import Application
from mooring.server.auth.data_dir import DataDir
from mooring.server.auth.tokens import ADMIN
from mooring.server.context import OpenServer, Readiness, ServerContext, prepare, readiness_probes
from mooring.server.event_stream import EventSource, EventStream
from mooring.server.health_checks.scheduler import HealthChecks
from mooring.server.health_checks.target_policy import policy
from mooring.server.http_listener import GRACE, certificate_names, listen
from mooring.server.live.problems import CurrentProblems, StoreAlarms
from mooring.server.live.service_history import ServiceHistory, scope_of
from mooring.server.live.state import Fleet
from mooring.server.settings import ServerSettings, split_address
from mooring.store.embedded.store import EmbeddedStore
from mooring.tasks import Tasks
from mooring.xds.server import ControlPlane


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
        # The HTTP listener starts first and stops last, so that it always answers probes.
        http = None
        if settings.http != "off":
            http = await stack.enter_async_context(_http(settings, readiness))
        hub = await stack.enter_async_context(_hub(settings))
        await stack.enter_async_context(_maintenance(hub, settings, say))
        addresses = await stack.enter_async_context(_grpc_listeners(hub, settings, tls, say))
        if http is not None:
            await stack.enter_async_context(_opened(http, hub, addresses, say))
        readiness.probes = tuple(readiness_probes(hub, settings))
        say("ready    Ctrl-C stops it")
        await stop.wait()
        say("stopping")
        readiness.stopping = True
        if http is not None:
            http.application.end_streams()
    say("stopped")


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stop


def _tls(settings: ServerSettings) -> ServerTLS | None:
    files = settings.tls
    if files is None:
        return None
    authority = Path(files.client_ca) if files.client_ca else None
    return ServerTLS(Path(files.cert), Path(files.key), authority)


def _hub(settings: ServerSettings) -> Hub:
    # The URL as text masks its password, so it is used only if a quota must be added to it.
    plain = settings.store and not settings.quota
    return connect(
        settings.store if plain else str(settings.url()),
        registry=settings.registry,
        settings=settings.registry_settings,
        tenants_namespace=settings.tenants_namespace,
    )


@contextlib.asynccontextmanager
async def _maintenance(
    hub: Hub, settings: ServerSettings, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Trim the history of tenants, and evict the expired instances of a registry on Redis."""
    tasks = Tasks()
    try:
        if settings.has_store:
            say(f"store    {hub.store.url}")
            # Also for tenants that are not published any more.
            sweeper = hub.publisher(by="mooring serve").sweeper
            tasks.start(sweeper.run(), name="history retention")
        if settings.registry_apart:
            say(f"registry {hub.registry.url}")
        if settings.cleanup and (evictions := hub.registry.evictions) is not None:
            tasks.start(evictions.run(), name="cleanup")
            interval = format_duration(evictions.settings.interval)
            timeout = format_duration(evictions.settings.global_timeout)
            say(f"cleanup  every {interval}, after {timeout} without a heartbeat")
        yield
    finally:
        await tasks.aclose()


@contextlib.asynccontextmanager
async def _grpc_listeners(
    hub: Hub, settings: ServerSettings, tls: ServerTLS | None, say: Callable[[str], None]
) -> AsyncIterator[list[str]]:
    """Serve etcd's API and xDS; the addresses."""
    addresses: list[str] = []
    suffix = "" if tls is None else " (TLS)"
    async with contextlib.AsyncExitStack() as stack:
        if settings.etcd and settings.etcd != "off":
            addresses.append(await stack.enter_async_context(_etcd(settings, tls)))
            say(f"etcd     {addresses[-1]}{suffix}")
        if settings.xds != "off":
            limit = settings.connections.limit()
            plane = ControlPlane(hub, bind=settings.xds, tls=tls, connections=limit)
            addresses.append((await stack.enter_async_context(plane)).address)
            say(f"xds      {addresses[-1]}{suffix}")
        yield addresses


@contextlib.asynccontextmanager
async def _opened(
    http: _HTTPServer, hub: Hub, addresses: Sequence[str], say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Open the API of an HTTP server, which answered 503 until now. The server also listens at
    `addresses`, which its health checks do not probe."""
    server, settings = http.server, http.server.settings
    async with contextlib.AsyncExitStack() as stack:
        store = hub.store if settings.has_store else None
        await stack.enter_async_context(server.sharing(store))
        await stack.enter_async_context(serve_api(server, hub))
        if settings.alerts.host:
            say(f"alerts   → {settings.alerts.host}")
        if settings.checks.enabled:
            say(f"checks   {await stack.enter_async_context(_checks(http, addresses))}")
        say(f"health   {http.url}/healthz and /readyz")
        if settings.console:
            code = await server.sessions.issue(ADMIN)
            say(f"console  {http.url}/login?code={code}")
        yield


@contextlib.asynccontextmanager
async def serve_api(server: ServerContext, hub: Hub) -> AsyncIterator[None]:
    """Serve the API from this hub: follow its fleet, and send alerts."""
    settings = server.settings
    async with contextlib.AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(Fleet(hub.registry, hub.registry.evictions))
        alarms = None
        if settings.has_store:
            alarms = await stack.enter_async_context(StoreAlarms(hub.store))
        problems = CurrentProblems(fleet, settings.alerts.grace_periods, alarms=alarms)
        source = EventSource(fleet, problems)
        stream = await stack.enter_async_context(EventStream(source))
        server.opened = OpenServer(hub, fleet, problems, stream, alarms)
        stack.callback(server.close)
        if server.shared is not None:
            scope = scope_of(hub.scope if settings.registry_apart else "")
            history = ServiceHistory(fleet, server.shared.store, scope)
            await stack.enter_async_context(history)
        if settings.alerts.webhook:
            lease = hub.registry.leader_lease
            election = StoreElection(hub) if lease is None else RedisElection(lease)
            await stack.enter_async_context(election)
            await stack.enter_async_context(Alerts(problems, settings.alerts, election))
        yield


@contextlib.asynccontextmanager
async def _etcd(settings: ServerSettings, tls: ServerTLS | None) -> AsyncIterator[str]:
    """Serve etcd's API on the engine of the store; the address."""
    assert settings.etcd is not None
    url = settings.url()
    runner = open_runner(url)
    # Not the store of the URL: clients of etcd's API are not limited to its namespace.
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
        async with server:
            yield server.address
            await server.drain(GRACE)
    finally:
        await locks.aclose()
        await store.aclose()  # also releases the runner


class _HTTPServer(NamedTuple):
    url: str
    server: ServerContext
    application: Application


_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address on this machine of a server that listens at any address."""


@contextlib.asynccontextmanager
async def _http(settings: ServerSettings, readiness: Readiness) -> AsyncIterator[_HTTPServer]:
    """Serve HTTP, and announce the URL to the commands on this machine."""
    server = prepare(settings, readiness)
    application = Application(server, all_endpoints(with_console=settings.console))
    async with listen(application, settings) as url:
        scheme, _, address = url.partition("://")
        host, port = split_address("--http", address)
        local = _LOOPBACK.get(host, host)
        name = _name(settings, local) if host in _LOOPBACK else local
        server.origins.admit(name)
        url = f"{scheme}://{join(name, port)}"
        server.data_dir.announce(url, at="" if name == local else join(local, port))
        try:
            yield _HTTPServer(url, server, application)
        finally:
            server.data_dir.retract(url)


def _name(settings: ServerSettings, local: str) -> str:
    """The name of a server that listens at any address: its local address, or a name of its
    certificate if the certificate is not valid for that address."""
    if settings.tls is None:
        return local
    names = certificate_names(Path(settings.tls.cert), Path(settings.tls.key))
    if local in names.addresses:
        return local
    return next(iter((*settings.hosts, *names.dns)), local)


def _checks(http: _HTTPServer, addresses: Sequence[str]) -> HealthChecks:
    """Active checks that may not probe this server itself, which also listens at `addresses`."""
    settings = http.server.settings
    host, _ = split_address("--http", settings.http)
    _, port = split_address("--http", http.url)
    own = [(host, port), *(split_address("", address) for address in addresses)]
    return HealthChecks(
        http.server.fleet, settings.checks, policy=policy(settings.checks.networks, own)
    )
