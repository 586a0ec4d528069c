"""An ASGI application registers while it serves; several workers at one address take turns."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import mooring
from mooring import asgi
from mooring.errors import InvalidRequest
from mooring.model import Instance
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import close_server
from mooring.testing.servers import ServerProcess, free_port
from mooring.workers import SharedRegistration, Turn, runtime_folder
from tests.waiting import eventually


@pytest.fixture
def url(etcd: Callable[[str], EtcdServer]) -> str:
    return f"{etcd('3.5').url}?namespace=/{uuid.uuid4().hex}"


@pytest.fixture
async def hub(url: str) -> AsyncIterator[mooring.Hub]:
    async with mooring.connect(url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate folder of locks for each test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


async def instances(hub: mooring.Hub, service: str = "echo") -> tuple[Instance, ...]:
    return (await hub.registry.instances(service)).instances


async def registered_by(hub: mooring.Hub) -> int:
    """The process that holds the registration, or 0."""
    registered = await instances(hub)
    metrics = registered[0].status.metrics.get("application") if registered else None
    return int(metrics["pid"]) if isinstance(metrics, dict) else 0  # type: ignore[arg-type]


def a_worker_waits(folder: Path) -> bool:
    """Whether another worker has started and waits for its turn."""
    (lock,) = (folder / "mooring").glob("*.lock")
    return Turn(lock).wanted


APP = """
import os
import mooring, mooring.asgi

async def plain(scope, receive, send):
    assert scope["type"] == "http"
    body = str(os.getpid()).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})

app = mooring.asgi.registered(
    plain,
    os.environ["REGISTRY"],
    mooring.Instance("echo", "127.0.0.1", int(os.environ["PORT"])),
    ttl=6,
    linger=2,
)
"""


class Uvicorn(ServerProcess):
    """A real server with the application above, and this number of workers."""

    def __init__(self, folder: Path, url: str, *, workers: int = 1, port: int = 0) -> None:
        self.port = port or free_port()
        folder.mkdir(exist_ok=True)
        (folder / "served.py").write_text(textwrap.dedent(APP))
        command = [sys.executable, "-m", "uvicorn", "served:app", f"--port={self.port}"]
        super().__init__([*command, f"--workers={workers}"], folder / "log")
        self._environment = {
            **os.environ,
            "REGISTRY": url,
            "PORT": str(self.port),
            "PYTHONPATH": str(folder),
        }

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.arguments, env=self._environment, stdout=output, stderr=output
            )

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    @property
    def workers(self) -> list[int]:
        assert self.process is not None
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [
            child.pid for child in children if "resource_tracker" not in "".join(child.cmdline())
        ]

    def __exit__(self, *_: object) -> None:
        left = [] if self.ended else self.workers
        self.kill()
        for pid in left:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)


async def test_an_application_is_registered_while_it_serves_and_drains_before_it_stops(
    hub: mooring.Hub, url: str, tmp_path: Path
):
    with Uvicorn(tmp_path / "one", url) as server:
        server.start()
        async with hub.discover("echo") as view:
            await view.wait(timeout=20)
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.close()
            listening: list[bool] = []

            async def look() -> None:
                """Check whether it still accepts connections as soon as it drains."""
                async with view.changes() as changes:
                    async for update in changes:
                        after = [change.after for change in update.changes]
                        if any(
                            instance and instance.status.state == "draining" for instance in after
                        ):
                            break
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                    writer.close()
                    listening.append(True)
                except OSError:
                    listening.append(False)

            looking = asyncio.ensure_future(look())
            await asyncio.sleep(0)
            server.signal(signal.SIGTERM)
            await asyncio.wait_for(looking, 30)
            assert listening == [True]
        await eventually(lambda: server.ended)
        assert await instances(hub) == ()


@pytest.mark.deadline
async def test_another_worker_takes_over_when_the_registered_one_is_killed(
    hub: mooring.Hub, url: str, tmp_path: Path
):
    with Uvicorn(tmp_path / "two", url, workers=2) as server:
        server.start()
        first = 0

        async def is_registered() -> bool:
            nonlocal first
            first = await registered_by(hub)
            return bool(first)

        await eventually(is_registered, within=20)
        await eventually(lambda: len(server.workers) == 2 and first in server.workers)
        await eventually(lambda: a_worker_waits(tmp_path))
        incarnation = (await instances(hub))[0].incarnation
        os.kill(first, signal.SIGKILL)

        async def has_taken_over() -> bool:
            now = await registered_by(hub)
            return bool(now) and now != first

        # At once, before the lease of the dead worker expires and before a new worker starts.
        await eventually(has_taken_over, within=3)
        assert (await instances(hub))[0].incarnation != incarnation
        server.signal(signal.SIGTERM)
        await eventually(lambda: server.ended, within=20)

        async def gone() -> bool:
            return await instances(hub) == ()

        await eventually(gone)


async def test_a_worker_that_stops_hands_over_without_a_gap(
    hub: mooring.Hub, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mooring.workers.HAND_OVER", 20.0)
    one = SharedRegistration(hub, Instance("echo", "10.0.0.1", 80))
    async with mooring.connect(hub.registry.url) as elsewhere:
        two = SharedRegistration(elsewhere, Instance("echo", "10.0.0.1", 80))
        async with hub.discover("echo", empty="accept") as view:
            removals: list[str] = []
            view.subscribe(
                lambda update: removals.extend(c.key for c in update.changes if c.after is None)
            )
            await one.__aenter__()
            await two.__aenter__()
            assert (one.state, two.state) == ("registered", "waiting")
            assert two.registration is None
            await eventually(lambda: one._turn.wanted)
            await one.aclose()
            await eventually(lambda: two.state == "registered")
            assert one.state == "superseded"
            assert removals == []
            await two.aclose()
            assert two.state == "closed"
            await eventually(lambda: removals == ["10.0.0.1:80"])


async def test_a_deregistration_by_an_operator_is_not_undone_by_a_waiting_worker(hub: mooring.Hub):
    me = Instance("echo", "10.0.0.1", 80)
    one = SharedRegistration(hub, me)
    async with mooring.connect(hub.registry.url) as elsewhere:
        two, three = SharedRegistration(elsewhere, me), SharedRegistration(elsewhere, me)
        await one.__aenter__()
        await two.__aenter__()
        await three.__aenter__()
        await eventually(lambda: one._turn.wanted)
        await hub.registry.deregister("echo", "10.0.0.1:80")
        await eventually(lambda: one.state == "removed")
        await one.aclose()
        await eventually(lambda: "removed" in (two.state, three.state))
        first, last = (two, three) if two.state == "removed" else (three, two)
        await first.aclose()
        await eventually(lambda: last.state == "removed")
        assert await instances(hub) == ()
        await last.aclose()
        async with SharedRegistration(hub, me) as restarted:
            assert restarted.state == "registered"


async def test_a_waiting_worker_can_be_closed(hub: mooring.Hub):
    one = SharedRegistration(hub, Instance("echo", "10.0.0.1", 80))
    two = SharedRegistration(hub, Instance("echo", "10.0.0.1", 80))
    await one.__aenter__()
    await two.__aenter__()
    await eventually(lambda: one._turn.wanted)
    await two.aclose()
    assert two.state == "closed"
    assert not one._turn.wanted
    await one.aclose()
    assert await instances(hub) == ()


async def test_a_waiting_process_also_serves_for_its_linger_time_when_it_drains(hub: mooring.Hub):
    one = SharedRegistration(hub, Instance("echo", "10.0.0.1", 80))
    two = SharedRegistration(hub, Instance("echo", "10.0.0.1", 80))
    await one.__aenter__()
    await two.__aenter__()
    assert two.state == "waiting"
    started = time.monotonic()
    await two.drain(linger=0.3)
    assert time.monotonic() - started >= 0.3
    assert (one.state, two.state) == ("registered", "closed")
    await one.aclose()


async def test_different_addresses_and_services_do_not_share_a_turn(hub: mooring.Hub):
    async with (
        SharedRegistration(hub, Instance("echo", "10.0.0.1", 80)) as one,
        SharedRegistration(hub, Instance("echo", "10.0.0.1", 81)) as two,
        SharedRegistration(hub, Instance("mail", "10.0.0.1", 80)) as three,
    ):
        assert {one.state, two.state, three.state} == {"registered"}


async def test_different_layouts_of_one_store_do_not_share_a_turn(hub: mooring.Hub):
    me = Instance("echo", "10.0.0.1", 80)
    async with (
        mooring.connect(hub.registry.url, layout="endpoints:/go/") as go,
        mooring.connect(hub.registry.url, layout="endpoints:/gone/") as gone,
        SharedRegistration(hub, me) as one,
        SharedRegistration(go, me) as two,
        SharedRegistration(gone, me) as three,
    ):
        assert {one.state, two.state, three.state} == {"registered"}


async def test_a_deleted_lock_file_blocks_no_worker(tmp_path: Path):
    one, two = Turn(tmp_path / "a"), Turn(tmp_path / "a")
    assert one.take()
    assert not two.take()
    (tmp_path / "a.lock").unlink()
    assert two.take()
    two.end()
    one.end()


async def test_a_forked_child_does_not_keep_the_turn(tmp_path: Path):
    """The lock belongs to the open file, which a child shares."""
    script = """
        import os, sys, time
        from pathlib import Path
        from mooring.workers import Turn
        assert Turn(Path(sys.argv[1])).take()
        if not os.fork():
            print(os.getpid(), flush=True)
            time.sleep(60)
        os._exit(0)
    """
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "a")),
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    orphan = int(await child.stdout.readline())
    try:
        await asyncio.wait_for(Turn(tmp_path / "a").wait(), 20)
    finally:
        os.kill(orphan, signal.SIGKILL)
        await child.communicate()


def test_the_folder_of_the_locks_belongs_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert runtime_folder() == tmp_path / "mooring"
    assert runtime_folder().stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"mooring-{os.getuid()}").symlink_to("/")
    with pytest.raises(InvalidRequest, match="XDG_RUNTIME_DIR"):
        runtime_folder()


class Lifespan:
    """The server's side of the lifespan protocol."""

    def __init__(self, app: asgi.ASGIApp) -> None:
        self._inbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.outbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.state: dict[str, Any] = {}
        scope = {"type": "lifespan", "state": self.state}
        self.task = asyncio.ensure_future(app(scope, self._inbox.get, self.outbox.put))

    async def send(self, what: str) -> str:
        await self._inbox.put({"type": f"lifespan.{what}"})
        answer = asyncio.ensure_future(self.outbox.get())
        await asyncio.wait([answer, self.task], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            raise self.task.exception() or AssertionError("no answer")
        kind: str = answer.result()["type"]
        return kind


@pytest.fixture
async def listening() -> AsyncIterator[int]:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    await close_server(server)


async def test_the_lifespan_of_an_application_is_kept(hub: mooring.Hub, url: str, listening: int):
    events: list[str] = []

    @asynccontextmanager
    async def own(app: Starlette) -> AsyncIterator[dict[str, str]]:
        events.append("up")
        yield {"mine": "yes"}
        events.append("down")

    app = asgi.registered(
        Starlette(lifespan=own),
        url,
        Instance("echo", "127.0.0.1", listening),
    )
    server = Lifespan(app)
    assert await server.send("startup") == "lifespan.startup.complete"
    assert events == ["up"]
    assert server.state["mine"] == "yes"
    assert isinstance(server.state["mooring"], mooring.Hub)

    async def is_registered() -> bool:
        return len(await instances(hub)) == 1

    await eventually(is_registered)
    assert await server.send("shutdown") == "lifespan.shutdown.complete"
    assert events == ["up", "down"]
    assert await instances(hub) == ()
    await server.task


async def test_an_application_that_fails_to_start_is_not_registered(hub: mooring.Hub, url: str):
    @asynccontextmanager
    async def own(app: Starlette) -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    app = asgi.registered(
        Starlette(lifespan=own),
        url,
        Instance("echo", "10.0.0.1", 80),
    )
    server = Lifespan(app)
    assert await server.send("startup") == "lifespan.startup.failed"
    with pytest.raises(ValueError, match="no database"):
        await server.task
    assert await instances(hub) == ()


async def test_a_crash_in_the_lifespan_is_not_taken_for_a_missing_lifespan(url: str):
    async def app(scope: object, receive: asgi.Receive, send: asgi.Send) -> None:
        await receive()
        raise ValueError("no database")

    server = Lifespan(asgi.registered(app, url, Instance("echo", "10.0.0.1", 80)))
    with pytest.raises(ValueError, match="no database"):
        await server.send("startup")


async def test_an_application_that_can_never_be_registered_does_not_start(url: str):
    async def app(scope: MutableMapping[str, Any], receive: object, send: object) -> None:
        assert scope["type"] == "http"

    server = Lifespan(asgi.registered(app, mooring.connect(url, layout="hprose"), BAD))
    with pytest.raises(InvalidRequest):
        await server.send("startup")


BAD = Instance("Common/Echo", "10.0.0.1", 80)  # hprose has no groups


async def test_a_lifespan_for_starlette_and_similar_frameworks(
    hub: mooring.Hub, url: str, listening: int
):
    @asynccontextmanager
    async def own(app: Starlette) -> AsyncIterator[dict[str, str]]:
        yield {"mine": "yes"}

    async def first_instance(request: Request) -> PlainTextResponse:
        listing = await request.state.mooring.registry.instances("echo")
        return PlainTextResponse(listing.instances[0].id + request.state.mine)

    me = Instance("echo", "127.0.0.1", listening)
    app = Starlette(
        routes=[Route("/", first_instance)],
        lifespan=asgi.lifespan(url, me, inner=own),
    )
    server = Lifespan(app)
    assert await server.send("startup") == "lifespan.startup.complete"

    async def is_registered() -> bool:
        return len(await instances(hub)) == 1

    await eventually(is_registered)
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        **{"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""},
        "state": server.state,
    }
    await app(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert sent[1]["body"] == f"127.0.0.1:{listening}yes".encode()
    assert await server.send("shutdown") == "lifespan.shutdown.complete"
    assert await instances(hub) == ()
    await server.task


async def test_an_address_that_is_unreachable_from_here_is_still_registered(
    hub: mooring.Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("mooring.workers.LISTENS_WITHIN", 0.1)
    shared = SharedRegistration(hub, Instance("echo", "127.0.0.1", free_port()))
    shared.start()
    await eventually(lambda: shared.state == "registered")
    assert "accepts no connections" in caplog.text
    await shared.aclose()
