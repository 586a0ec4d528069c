"""Balanced HTTP over a fleet that is restarted and dies under load."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import mooring
from mooring.httpx import AsyncTransport, url
from mooring.settings import parse
from mooring.testing.etcd import EtcdServer
from mooring.testing.servers import free_port
from tests.features.test_httpx import Backend, plain
from tests.waiting import eventually

SERVED = """
import asyncio, os, sys
import mooring, mooring.asgi, uvicorn

registry, port, linger = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

async def echo(scope, receive, send):
    assert scope["type"] == "http"
    await asyncio.sleep(0.005)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})

app = mooring.asgi.registered(
    echo, registry, mooring.Instance("Common/Echo", "127.0.0.1", port), ttl=10, linger=linger
)
uvicorn.run(app, port=port, log_level="warning", access_log=False)
"""


class Fleet:
    """Servers in separate processes."""

    def __init__(self, folder: Path, registry: str, *, linger: float) -> None:
        self.registry, self._linger = registry, linger
        self._folder = folder
        (folder / "served.py").write_text(textwrap.dedent(SERVED))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, port: int) -> None:
        with (self._folder / "log").open("ab") as log:
            self.processes[port] = subprocess.Popen(
                [
                    sys.executable,
                    "-W",
                    "error",
                    "served.py",
                    self.registry,
                    f"{port}",
                    f"{self._linger}",
                ],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "XDG_RUNTIME_DIR": str(self._folder)},
            )

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def registry(etcd: Callable[[str], EtcdServer]) -> str:
    return f"{etcd('3.5').url}?namespace=/{uuid.uuid4().hex}"


class Load:
    """Concurrent requests until the block ends; errors are kept."""

    def __init__(self, using: httpx.AsyncClient, methods: tuple[str, ...]) -> None:
        self._using, self._methods = using, itertools.cycle(methods)
        self.done = 0
        self.failed: list[object] = []
        self._stop = False

    async def _ask(self) -> None:
        while not self._stop:
            method = next(self._methods)
            try:
                answer = await self._using.request(method, url("Common/Echo"))
                if not answer.is_success:
                    self.failed.append((method, answer.status_code))
            except httpx.HTTPError as error:
                self.failed.append((method, repr(error)))
            self.done += 1
            await asyncio.sleep(0.02)

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.ensure_future(self._ask()) for _ in range(4)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)


async def rolling_restart(
    fleet: Fleet, servers: int, requests: int = 0, seconds: float = 0.0
) -> None:
    """Restart in turn until this number of requests was sent and this time has passed."""
    ends = time.monotonic() + seconds
    ports = [free_port() for _ in range(servers)]
    for port in ports:
        fleet.start(port)
    async with (
        mooring.connect(fleet.registry) as hub,
        hub.discover("Common/Echo") as watching,
        httpx.AsyncClient(mounts={"http+mooring://": AsyncTransport(hub)}, timeout=30) as using,
    ):
        await watching.wait(servers, timeout=100)
        async with Load(using, ("GET", "POST")) as load:
            while True:
                for port in ports:
                    before = fleet.processes[port]
                    before.send_signal(signal.SIGTERM)
                    await eventually(lambda: before.poll() is not None, within=40)  # noqa: B023
                    await eventually(lambda: len(watching.instances) == servers - 1)
                    fleet.start(port)
                    await eventually(
                        lambda: len(watching.rotation.picker) == servers, within=60, what=fleet.log
                    )
                if load.done >= requests and time.monotonic() >= ends:
                    break
    assert load.failed == [], fleet.log


async def test_a_rolling_restart_fails_no_request(tmp_path: Path, registry: str):
    """Not even those that may not be repeated."""
    with Fleet(tmp_path, registry, linger=1.0) as fleet:
        await rolling_restart(fleet, 2)


@pytest.mark.extended("two servers, each restarted once, are in the default run")
@pytest.mark.timeout(400)
async def test_a_rolling_restart_of_ten_servers_fails_no_request(tmp_path: Path, registry: str):
    with Fleet(tmp_path, registry, linger=3.0) as fleet:
        await rolling_restart(fleet, 10, requests=2_000)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_rolling_restarts_fail_none_of_many_requests(
    tmp_path: Path, registry: str, soak_seconds: float
):
    with Fleet(tmp_path, registry, linger=3.0) as fleet:
        await rolling_restart(fleet, 10, 20_000, soak_seconds)


async def slowly(backend: Backend, head: str, body: bytes) -> bytes:
    await asyncio.sleep(0.005)
    return plain()


@pytest.mark.parametrize("backend", ["memory", "redis-7.0"])
async def test_the_death_of_one_of_three_servers_fails_no_retryable_request(
    store_url: str, backend: str
):
    """Its record stays until it expires; on Redis, until it was silent for long enough."""
    settings = parse({"registry": {"heartbeat": {"heartbeat-interval": "500ms"}}})
    watched = f"{store_url}&expire=4s" if backend.startswith("redis") else store_url
    async with (
        mooring.connect(store_url, settings=settings) as hub,
        Backend(slowly) as one,
        Backend(slowly) as two,
        hub.register(one.instance),
        hub.register(two.instance),
        mooring.connect(watched) as watcher,
        watcher.discover("Common/Echo") as watching,
        httpx.AsyncClient(mounts={"http+mooring://": AsyncTransport(watcher)}, timeout=30) as using,
        contextlib.AsyncExitStack() as life,
    ):
        third = await life.enter_async_context(Backend(slowly))
        await hub.registry.enter(third.instance, ttl=4.0)
        await watching.wait(3, timeout=20)
        async with Load(using, ("GET",)) as load:
            await eventually(lambda: len(third.heads) >= 10)
            await life.aclose()
            killed_at = load.done
            await eventually(lambda: len(watching.instances) == 2)
            await eventually(lambda: load.done >= killed_at + 100)
        assert load.failed == []
