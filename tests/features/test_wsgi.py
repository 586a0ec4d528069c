"""A WSGI application registers in the process that serves it: threads, forks, gunicorn."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

import mooring
import mooring.sync
from mooring import wsgi
from mooring.errors import InvalidRequest, InvalidURL
from mooring.model import Instance
from mooring.testing.etcd import EtcdServer
from mooring.testing.servers import free_port
from mooring.workers import Turn
from tests.acceptance.commands import start_program
from tests.acceptance.forking import Forked
from tests.waiting import until


@pytest.fixture
def url(etcd: Callable[[str], EtcdServer]) -> str:
    return f"{etcd('3.5').url}?namespace=/{uuid.uuid4().hex}"


@pytest.fixture
def hub(url: str) -> Iterator[mooring.sync.Hub]:
    with mooring.sync.connect(url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate folder of locks for each test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def instances(hub: mooring.sync.Hub) -> tuple[Instance, ...]:
    return hub.registry.instances("echo").instances


def registered_by(hub: mooring.sync.Hub) -> int:
    """The process that holds the registration, or 0."""
    registered = instances(hub)
    metrics = registered[0].status.metrics.get("application") if registered else None
    return int(metrics["pid"]) if isinstance(metrics, dict) else 0  # type: ignore[arg-type]


def echo(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    known = environ["mooring.hub"].registry.instances("echo").instances
    start_response("200 OK", [])
    return [str(len(known)).encode()]


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


def test_the_first_request_registers_the_application(hub: mooring.sync.Hub, url: str):
    port = free_port()
    app = wsgi.registered(echo, url, Instance("echo", "127.0.0.1", port))
    assert app.state == "closed"
    server = make_server("127.0.0.1", port, app, handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10).close()
        until(lambda: app.state == "registered")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            assert answer.read() == b"1"
        app.stop(linger=0.0)
        assert app.state == "closed"
        assert instances(hub) == ()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_concurrent_requests_register_the_application_once(hub: mooring.sync.Hub, url: str):
    with make_server("127.0.0.1", 0, echo) as server:
        app = wsgi.registered(echo, url, Instance("echo", "127.0.0.1", server.server_port))
        hubs: list[object] = []
        threads = [threading.Thread(target=lambda: hubs.append(app.start())) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(hub_) for hub_ in hubs}) == 1
        until(lambda: len(instances(hub)) == 1)
        app.stop(linger=0.0)
        app.stop()
    assert instances(hub) == ()


def test_an_invalid_registration_is_refused(url: str):
    with pytest.raises(InvalidURL):
        wsgi.registered(echo, "mysql://here", Instance("echo", "10.0.0.1", 80))
    hprose = mooring.sync.connect(url, layout="hprose")
    app = wsgi.registered(echo, hprose, Instance("Common/Echo", "10.0.0.1", 80))
    with pytest.raises(InvalidRequest, match="group"):
        app.start()
    assert app.state == "closed"


PREFORK = """
import os, signal, socket, sys
import mooring, mooring.wsgi

url, workers = sys.argv[1], int(sys.argv[2])
listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
app = mooring.wsgi.registered(
    lambda environ, start_response: [], url, mooring.Instance("echo", "127.0.0.1", port), ttl=4
)
pids = []
for _ in range(workers):
    pid = os.fork()
    if not pid:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # no other thread handles it
        app.start()
        signal.sigwait([signal.SIGTERM])
        sys.exit(0)
    pids.append(pid)
print(*pids, flush=True)
for pid in pids:
    os.waitpid(pid, 0)
"""


@pytest.fixture
def prefork(url: str) -> Iterator[Callable[[int], list[int]]]:
    """A pre-fork server: the application is loaded first, and started in each worker."""
    started: list[Forked] = []
    workers: list[int] = []

    def start(count: int) -> list[int]:
        read, write = os.pipe()
        with open(read) as printed, open(write) as stdout:
            started.append(start_program(PREFORK, url, str(count), stdout=stdout))
            workers.extend(int(pid) for pid in printed.readline().split())
        return workers

    yield start
    for process in started:
        for pid in workers:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait(timeout=20)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_one_of_three_workers_registers_and_the_next_takes_over_at_once(
    hub: mooring.sync.Hub,
    prefork: Callable[[int], list[int]],
    end: signal.Signals,
    tmp_path: Path,
):
    workers = prefork(3)
    held: list[int] = []
    gone: list[str] = []
    with hub.discover("echo") as view:
        view.subscribe(lambda update: gone.extend(c.key for c in update.changes if c.after is None))
        for left in (2, 1, 0):
            until(lambda: registered_by(hub) in set(workers) - set(held))
            assert len(instances(hub)) == 1
            if left:
                (lock,) = (tmp_path / "mooring").glob("*.lock")
                until(lambda: Turn(lock).wanted)  # noqa: B023
            if end == signal.SIGTERM:
                assert gone == []  # handed over without a gap
            held.append(registered_by(hub))
            os.kill(held[-1], end)
        assert sorted(held) == sorted(workers)
        until(lambda: instances(hub) == ())


GUNICORN = """
import os
import mooring, mooring.wsgi

def echo(environ, start_response):
    start_response("200 OK", [])
    return [str(os.getpid()).encode()]

app = mooring.wsgi.registered(
    echo, os.environ["REGISTRY"], mooring.Instance("echo", "127.0.0.1", int(os.environ["PORT"])),
)

def post_worker_init(worker):
    worker.wsgi.start()

preload_app = bool(os.environ["PRELOAD"])
workers = 2
bind = f"127.0.0.1:{os.environ['PORT']}"
"""


@pytest.mark.parametrize("preload", ["", "yes"])
def test_gunicorn(hub: mooring.sync.Hub, url: str, tmp_path: Path, preload: str):
    (tmp_path / "served.py").write_text(textwrap.dedent(GUNICORN))
    port = free_port()
    environment = {**os.environ, "REGISTRY": url, "PORT": str(port), "PRELOAD": preload}
    with (tmp_path / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "--config=served.py", "served:app"],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: registered_by(hub), within=20, what=(tmp_path / "log").read_text())
        first = registered_by(hub)
        (lock,) = (tmp_path / "mooring").glob("*.lock")
        until(lambda: Turn(lock).wanted)  # the other has started too
        os.kill(first, signal.SIGKILL)
        until(lambda: registered_by(hub) not in (0, first))
        until(lambda: Turn(lock).wanted)  # gunicorn has replaced it
        process.terminate()
        assert process.wait(timeout=20) == 0
        assert instances(hub) == ()
    finally:
        process.kill()
        process.wait()


def test_a_request_does_not_wait_for_an_unavailable_registry():
    port = free_port()
    away = f"etcd://127.0.0.1:{free_port()}?timeout=30s"

    def hello(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return [b"hello"]

    app = wsgi.registered(hello, away, Instance("echo", "127.0.0.1", port))
    answered: list[object] = []
    environ: WSGIEnvironment = {"wsgi.input": io.BytesIO()}
    thread = threading.Thread(target=lambda: answered.append(app(environ, None)))  # type: ignore[arg-type]
    thread.start()
    thread.join(10)
    assert answered == [[b"hello"]]
    app.stop(linger=0.0)
