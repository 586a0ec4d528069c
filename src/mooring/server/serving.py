"""What runs under `mooring serve`, from binding the ports to the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import uvicorn

from mooring.durations import show
from mooring.errors import StoreError
from mooring.hub import Hub, connect, open_host
from mooring.locks.contests import Contests
from mooring.server.health import Readiness, application, questions
from mooring.server.settings import ServerSettings, split
from mooring.store.embedded.store import EmbeddedStore
from mooring.store.embedded.wire.server import WireServer
from mooring.store.embedded.wire.tls import ServerTLS
from mooring.store.url import REDIS
from mooring.tasks import Tasks
from mooring.xds.server import ControlPlane

if TYPE_CHECKING:
    from mooring.registry.redis.registry import RedisRegistry

GRACE = 10.0
"""Seconds that calls under way have to finish when it is told to stop."""


async def serve(settings: ServerSettings, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the process at once."""
    stop = _stop_signal()
    readiness = Readiness()
    tls = _tls(settings)
    if tls is not None:
        tls.check()
    async with contextlib.AsyncExitStack() as stack:
        # First up and last down, so that probes are answered all the while.
        health = ""
        if settings.http != "off":
            health = await stack.enter_async_context(_http(settings, readiness))
        has_store = settings.url().scheme not in REDIS
        apart = bool(settings.registry) or not has_store
        hub = await stack.enter_async_context(_hub(settings))
        if has_store:
            say(f"store    {hub.store.url}")
        if apart:
            say(f"registry {hub.registry.url}")
        if settings.sweeps:
            say(f"cleanup  {await stack.enter_async_context(_cleanup(hub))}")
        if settings.etcd and settings.etcd != "off":
            wire = await stack.enter_async_context(_etcd(settings, tls))
            say(f"etcd     {wire.address}{'' if tls is None else ' (TLS)'}")
        if settings.xds != "off":
            plane = await stack.enter_async_context(ControlPlane(hub, bind=settings.xds, tls=tls))
            say(f"xds      {plane.address}{'' if tls is None else ' (TLS)'}")
        if health:
            say(f"health   {health}/healthz and /readyz")
        readiness.questions = tuple(questions(hub, store=has_store, apart=apart))
        say("ready    Ctrl-C stops it")
        await stop.wait()
        say("stopping")
        readiness.stopping = True
    say("stopped")


def _hub(settings: ServerSettings) -> Hub:
    return connect(
        settings.store or str(settings.url()),
        registry=settings.registry,
        settings=settings.registry_settings,
    )


@contextlib.asynccontextmanager
async def _cleanup(hub: Hub) -> AsyncIterator[str]:
    """Take out the dead of a registry on Redis; what is done, in words."""
    registry = cast("RedisRegistry", hub.registry)
    told = registry.settings.cleanup
    tasks = Tasks()
    tasks.start(registry.sweeper().run(), name="cleanup")
    try:
        yield f"every {show(told.interval)}, after {show(told.global_timeout)} without a heartbeat"
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
async def _etcd(settings: ServerSettings, tls: ServerTLS | None) -> AsyncIterator[WireServer]:
    """etcd's API on the engine of the store."""
    assert settings.etcd is not None
    url = settings.url()
    host = open_host(url)
    # Not the store that the URL names: clients of the wire are below no namespace.
    store = EmbeddedStore(host, url=str(url))
    contests = Contests(store)
    server = WireServer(host, bind=settings.etcd, tls=tls, users=settings.users, contests=contests)
    try:
        async with server as wire:
            yield wire
            await wire.drain(GRACE)
    finally:
        await contests.aclose()
        await store.aclose()  # and releases the host


@contextlib.asynccontextmanager
async def _http(settings: ServerSettings, readiness: Readiness) -> AsyncIterator[str]:
    """The HTTP face; the address that it listens at."""
    host, port = split("--http", settings.http)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except (OSError, TypeError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no host's name"
        raise StoreError(
            f"cannot listen at {settings.http} ({reason}): choose another with --http"
        ) from error
    tls = settings.tls
    config = uvicorn.Config(
        application(readiness),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(GRACE),
        ssl_certfile=tls.cert if tls else None,
        ssl_keyfile=tls.key if tls else None,
        ssl_ca_certs=tls.client_ca or None if tls else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
    )
    server = _Uvicorn(config)
    tasks = Tasks()
    running = tasks.start(server.serve(sockets=[listening]), name="http")
    scheme = "https" if tls else "http"
    try:
        yield f"{scheme}://{host}:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait([running], timeout=GRACE)
        await tasks.aclose()
        listening.close()


class _Uvicorn(uvicorn.Server):
    """Signals are `serve`'s business, for all faces alike."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
