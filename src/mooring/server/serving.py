"""What runs under `mooring serve`, from binding the ports to the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import uvicorn

from mooring.errors import StoreError
from mooring.hub import open_host, open_store
from mooring.server.health import application
from mooring.server.settings import ServerSettings, split
from mooring.store import Store
from mooring.store.embedded.wire.server import ServerTLS, WireServer
from mooring.store.url import StoreURL
from mooring.tasks import Tasks

GRACE = 10.0
"""Seconds that calls under way have to finish when it is told to stop."""


async def serve(settings: ServerSettings, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the process at once."""
    stop = _stop_signal()
    draining = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(settings.url()))
        say(f"store    {store.url}")
        if settings.etcd and settings.etcd != "off":
            wire = await stack.enter_async_context(_etcd(settings))
            say(f"etcd     {wire.address}{'' if settings.tls is None else ' (TLS)'}")
        if settings.http != "off":
            address = await stack.enter_async_context(_http(settings, store, draining))
            say(f"health   {address}/healthz and /readyz")
        say("ready    Ctrl-C stops it")
        await stop.wait()
        say("stopping")
        draining.set()
    say("stopped")


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
async def _etcd(settings: ServerSettings) -> AsyncIterator[WireServer]:
    """etcd's API on the engine of the store."""
    assert settings.etcd is not None
    url, tls = settings.url(), settings.tls
    files = None
    if tls is not None:
        authority = Path(tls.client_ca) if tls.client_ca else None
        files = ServerTLS(Path(tls.cert), Path(tls.key), authority)
    host = open_host(url)
    try:
        async with WireServer(
            host, bind=settings.etcd, tls=files, users=settings.users, size=partial(_size, url)
        ) as wire:
            yield wire
            await wire.drain(GRACE)
    finally:
        host.release()


def _size(url: StoreURL) -> int:
    """Bytes on disk."""
    path = Path(url.location)
    return path.stat().st_size if url.scheme == "sqlite" and path.exists() else 0


@contextlib.asynccontextmanager
async def _http(
    settings: ServerSettings, store: Store, draining: asyncio.Event
) -> AsyncIterator[str]:
    """The HTTP face; the address that it listens at."""
    host, port = split("--http", settings.http)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise StoreError(
            f"cannot listen at {settings.http} ({error.strerror}): choose another with --http"
        ) from error
    tls = settings.tls
    config = uvicorn.Config(
        application(store, draining),
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
