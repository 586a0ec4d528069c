"""What builds on the hub works on Redis as on a store: blocking code, servers, clients."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit
from wsgiref.simple_server import make_server

import hprose  # type: ignore[import-untyped]
import pytest

import mooring
import mooring.hprose
import mooring.httpx
import mooring.sync
from mooring.errors import InvalidRequest
from mooring.model import Instance
from mooring.store import Put, key, prefix
from mooring.testing.redis import RedisServer
from mooring.testing.servers import free_port
from mooring.workers import Turn
from tests.acceptance.commands import python_program
from tests.backends import usual
from tests.contract.registries import RawRecordsOnRedis
from tests.features.hprose_server import HproseServer
from tests.features.test_asgi import Uvicorn, a_worker_waits
from tests.features.test_wsgi import GUNICORN, Quiet
from tests.waiting import eventually, until

ECHO = Instance("Common/Echo", "10.0.0.1", 80)
NO_STORE = "contains only a registry: locks, tenants and your own keys need a store"


@pytest.fixture
def url(redis: Callable[[str], RedisServer]) -> str:
    return f"{redis('7.0').url}?namespace={uuid.uuid4().hex}"


@pytest.fixture
async def hub(url: str) -> AsyncIterator[mooring.Hub]:
    async with mooring.connect(url) as opened:
        yield opened


@pytest.fixture
def blocking(url: str) -> Iterator[mooring.sync.Hub]:
    with mooring.sync.connect(url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate folder of locks for each test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def registered_by(hub: mooring.sync.Hub, service: str = "echo") -> int:
    """The process that holds the registration, or 0."""
    registered = hub.registry.instances(service).instances
    metrics = registered[0].status.metrics.get("application") if registered else None
    return int(metrics["pid"]) if isinstance(metrics, dict) else 0  # type: ignore[arg-type]


class TestRedisAlone:
    @pytest.mark.parametrize(
        "use",
        [
            lambda hub: hub.store,
            lambda hub: hub.lock("a"),
            lambda hub: hub.rwlock("a"),
            lambda hub: hub.semaphore("a", 2),
            lambda hub: hub.election("a"),
            lambda hub: hub.barrier("a", 2),
            lambda hub: hub.session(),
            lambda hub: hub.mirror(prefix(b"/")),
        ],
    )
    async def test_a_feature_that_needs_a_store_says_so(
        self, hub: mooring.Hub, use: Callable[[object], object]
    ):
        with pytest.raises(InvalidRequest, match=NO_STORE) as refused:
            use(hub)
        assert 'connect("etcd://…", registry="redis://…")' in str(refused.value)

    async def test_an_awaited_feature_that_needs_a_store_says_so(self, hub: mooring.Hub):
        with pytest.raises(InvalidRequest, match=NO_STORE):
            await hub.locks()

    def test_blocking_code_that_needs_a_store_says_so(self, blocking: mooring.sync.Hub):
        with pytest.raises(InvalidRequest, match=NO_STORE):
            blocking.lock("a")
        with pytest.raises(InvalidRequest, match=NO_STORE):
            blocking.store  # noqa: B018
        with pytest.raises(InvalidRequest, match=NO_STORE):
            mooring.sync.connect("redis://h", registry="redis://h")


class TestBlockingCode:
    def test_blocking_code_does_the_same_as_async_code(self, blocking: mooring.sync.Hub):
        with (
            blocking.register(ECHO) as registration,
            blocking.discover("Common/Echo") as view,
        ):
            view.wait(timeout=20)
            with view.pick() as instance:
                assert instance.id == registration.instance.id == "10.0.0.1:80"
            assert registration.state == "registered"
        assert blocking.registry.instances("Common/Echo").instances == ()

    def test_a_hub_of_a_store_and_a_redis(self, url: str):
        with mooring.sync.connect(f"memory://{uuid.uuid4().hex}", registry=url) as hub:
            hub.store.commit(Put(b"/a", b"1"))
            with hub.register(ECHO), hub.lock("a") as held:
                assert held.token
                assert len(hub.registry.instances("Common/Echo").instances) == 1
            assert hub.store.read(key(b"/a")).first is not None
        with mooring.sync.connect(url) as alone:
            assert alone.registry.instances("Common/Echo").instances == ()

    def test_many_threads_share_one_hub(self, blocking: mooring.sync.Hub):
        def register(number: int) -> int:
            with blocking.register(Instance("echo", "10.0.0.1", number)):
                return len(blocking.registry.instances("echo").instances)

        with concurrent.futures.ThreadPoolExecutor(16) as threads:
            assert all(threads.map(register, range(1, 101)))
        assert blocking.registry.instances("echo").instances == ()

    def test_a_forked_child_leaves_the_registration_alone_and_can_connect_again(self, url: str):
        script = """
            import os, sys
            import mooring.sync
            from mooring.errors import Closed

            url = sys.argv[1]
            with mooring.sync.connect(url) as hub:
                with hub.register(mooring.Instance("echo", "10.0.0.1", 80)) as registration:
                    for turn in range(2):
                        child = os.fork()
                        if not child:
                            for use in (lambda: hub.registry, lambda: registration.state, hub.open):
                                try:
                                    use()
                                except Closed as error:
                                    assert "connect again" in str(error), error
                                else:
                                    os._exit(2)
                            mine = mooring.Instance("echo", "10.0.0.2", 80 + turn)
                            with mooring.sync.connect(url) as anew, anew.register(mine) as other:
                                assert other.state == "registered"
                            sys.exit(0)  # leaves both blocks, and runs the exit handlers
                        _, status = os.waitpid(child, 0)
                        assert status == 0, status
                    assert registration.state == "registered"
                    assert len(hub.registry.instances("echo").instances) == 1
        """
        self._run(script, url)

    def test_a_hub_that_was_not_opened_before_a_fork_is_opened_after_it(self, url: str):
        script = """
            import os, sys
            import mooring.sync
            hub = mooring.sync.connect(sys.argv[1])
            child = os.fork()
            if not child:
                with hub, hub.register(mooring.Instance("echo", "10.0.0.1", 80)) as mine:
                    assert mine.state == "registered"
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        """
        self._run(script, url)

    async def test_an_async_hub_reports_that_it_was_opened_before_a_fork(self, hub: mooring.Hub):
        async with hub.register(ECHO):
            child = os.fork()
            if not child:
                try:
                    hub.registry  # noqa: B018
                except mooring.errors.Closed as error:
                    os._exit(0 if "before a fork" in str(error) else 3)
                os._exit(2)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert status == 0

    def test_the_end_of_the_interpreter_deregisters(self, blocking: mooring.sync.Hub, url: str):
        script = """
            import sys
            import mooring.sync
            hub = mooring.sync.connect(sys.argv[1]).open()
            hub.register(mooring.Instance("echo", "10.0.0.1", 80)).open()
        """
        self._run(script, url)
        assert blocking.registry.instances("echo").instances == ()

    def _run(self, program: str, url: str) -> None:
        done = python_program(program, url)
        assert (done.returncode, done.stderr) == (0, "")


class TestServers:
    @pytest.mark.extended("test_asgi.py runs it on etcd, and test_gunicorn on Redis")
    async def test_another_uvicorn_worker_takes_over_when_the_registered_one_is_killed(
        self, hub: mooring.Hub, url: str, tmp_path: Path
    ):
        async def holder() -> int:
            registered = (await hub.registry.instances("echo")).instances
            metrics = registered[0].status.metrics.get("application") if registered else None
            return int(metrics["pid"]) if isinstance(metrics, dict) else 0  # type: ignore[arg-type]

        with Uvicorn(tmp_path / "two", url, workers=2) as server:
            server.start()
            first = 0

            async def is_registered() -> bool:
                nonlocal first
                first = await holder()
                return bool(first)

            await eventually(is_registered, within=20)
            await eventually(lambda: len(server.workers) == 2 and first in server.workers)
            await eventually(lambda: a_worker_waits(tmp_path))
            os.kill(first, signal.SIGKILL)

            async def has_taken_over() -> bool:
                return await holder() not in (0, first)

            await eventually(has_taken_over)
            server.signal(signal.SIGTERM)
            await eventually(lambda: server.ended, within=20)
            assert (await hub.registry.instances("echo")).instances == ()

    @pytest.mark.parametrize("preload", usual(["yes"], [""], reason="test_wsgi.py runs it on etcd"))
    def test_gunicorn(self, blocking: mooring.sync.Hub, url: str, tmp_path: Path, preload: str):
        """One of its workers registers and the next takes over, even if they share an application
        that was loaded before the fork."""
        (tmp_path / "served.py").write_text(textwrap.dedent(GUNICORN))
        port = str(free_port())
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "-c", "served.py", "served:app"],
            cwd=tmp_path,
            env={**os.environ, "REGISTRY": url, "PORT": port, "PRELOAD": preload},
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: registered_by(blocking), within=20)
            first = registered_by(blocking)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
                assert int(answer.read())
            os.kill(first, signal.SIGKILL)
            until(lambda: registered_by(blocking) not in (0, first))
            (lock,) = (tmp_path / "mooring").glob("*.lock")
            until(lambda: Turn(lock).wanted, within=20)  # gunicorn has replaced it
            process.terminate()
            assert process.wait(timeout=20) == 0
            until(lambda: blocking.registry.instances("echo").instances == ())
        finally:
            process.kill()
            process.wait()


class TestClients:
    def test_hprose_discovers_its_servers(
        self, blocking: mooring.sync.Hub, caplog: pytest.LogCaptureFixture
    ):
        service = hprose.HttpServer()
        service.addFunction(_hello, "hello")
        with make_server("127.0.0.1", 0, service, handler_class=Quiet) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                where = f"http://127.0.0.1:{server.server_port}/"
                with (
                    mooring.hprose.register(blocking, ["http.hello"], where, heartbeat=0.01),
                    mooring.hprose.client(blocking, "http.hello") as remote,
                ):
                    for _ in range(20):
                        assert remote.hello("world") == "hello world"
            finally:
                server.shutdown()
                thread.join()
        assert blocking.registry.instances("http.hello").instances == ()
        assert "crashed" not in caplog.text

    @pytest.mark.parametrize("back", ["none", "the one that fails"])
    async def test_hprose_calls_a_server_whose_record_vanished_when_another_fails(
        self, hub: mooring.Hub, back: str
    ):
        def at(id: str, port: int) -> Instance:
            return Instance("http.hello", "127.0.0.1", port, id=id, protocol="http")

        with HproseServer() as server:
            live = urlsplit(server.url).port
            assert live is not None
            dead = await hub.registry.enter(at("a", free_port()), ttl=60)
            async with mooring.hprose.client(hub, "http.hello", pause=60) as remote:
                await hub.registry.enter(at("b", live), ttl=60)
                await eventually(lambda: len(remote.servers) == 2)
                await RawRecordsOnRedis(hub).delete_all()
                if back != "none":
                    await hub.registry.enter(dead.instance, ttl=60)
                assert remote.primary is not None
                assert remote.primary.uuid == "a"
                assert await asyncio.wait_for(remote.invoke("hello", ["x"]), 20) == "hello x"
                assert len(remote.servers) == 2


def _hello(name: str) -> str:
    return f"hello {name}"
