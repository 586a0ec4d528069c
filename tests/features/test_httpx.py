"""Balanced HTTP with httpx: names, retries, feedback."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest

import mooring
import mooring.httpx
import mooring.sync
from mooring.discovery.resilience import Resilience
from mooring.discovery.view import View
from mooring.errors import NoInstance
from mooring.httpx import AsyncTransport, Attempts, blames, url
from mooring.model import Instance
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy, close_server
from mooring.testing.redis import RedisServer
from mooring.testing.servers import free_port
from tests.waiting import eventually, retried_at_once, until

Answer = Callable[["Backend", str, bytes], Awaitable[bytes]]


def plain(body: str = "", status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def well(backend: Backend, head: str, body: bytes) -> bytes:
    return plain(f"{backend.port}")


async def busy(backend: Backend, head: str, body: bytes) -> bytes:
    return plain("busy", "503 Service Unavailable")


async def mute(backend: Backend, head: str, body: bytes) -> bytes:
    return b""  # closes the connection without a response


class Backend:
    """A minimal HTTP server that answers as the test says."""

    def __init__(self, answer: Answer = well, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.callers: list[tuple[str, int]] = []
        """The client address of each request; requests on one connection have the same."""
        self.port = 0
        self._tls = tls
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Backend:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await close_server(self._server)
        for writer in self._writers:
            writer.close()
        if self._serving:
            await asyncio.wait(self._serving)

    @property
    def instance(self) -> Instance:
        return Instance("Common/Echo", "127.0.0.1", self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                body = await self._body(reader, head)
                self.callers.append(writer.get_extra_info("peername"))
                self.heads.append(head)
                self.bodies.append(body)
                answer = await self.answer(self, head, body)
                writer.write(answer)
                await writer.drain()
                if not answer or b"Content-Length" not in answer:
                    break
        writer.close()
        self._writers.discard(writer)
        self._serving.discard(task)

    async def _body(self, reader: asyncio.StreamReader, head: str) -> bytes:
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        if "content-length" in fields:
            return await reader.readexactly(int(fields["content-length"]))
        body = b""
        while fields.get("transfer-encoding") == "chunked":
            size = int(await reader.readline(), 16)
            body += (await reader.readexactly(size + 2))[:-2]
            if not size:
                break
        return body


@pytest.fixture
async def hub() -> AsyncIterator[mooring.Hub]:
    async with mooring.connect("memory://") as opened:
        yield opened


@pytest.fixture
async def serve(
    hub: mooring.Hub,
) -> AsyncIterator[Callable[..., Awaitable[Backend]]]:
    """Start and register backends."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(answer: Answer = well) -> Backend:
            backend = await stack.enter_async_context(Backend(answer))
            await stack.enter_async_context(hub.register(backend.instance))
            return backend

        yield start


Serve = Callable[..., Awaitable[Backend]]


async def refusing(hub: mooring.Hub) -> mooring.Registration:
    """An instance whose port is closed."""
    return await hub.register(Instance("Common/Echo", "127.0.0.1", free_port())).__aenter__()


def client(hub: mooring.Hub, **options: object) -> httpx.AsyncClient:
    options.setdefault("policy", "round_robin")
    transport = AsyncTransport(hub, **options)  # type: ignore[arg-type]
    return httpx.AsyncClient(
        mounts={"http+mooring://": transport, "https+mooring://": transport}, timeout=30
    )


ECHO = url("Common/Echo", "/path?query=1")


def view_of(using: httpx.AsyncClient) -> View:
    (view,) = using._transport_for_url(httpx.URL(ECHO))._balancer._views.values()  # type: ignore[attr-defined]
    assert isinstance(view, View)
    return view


async def test_requests_reach_all_instances_unchanged(hub: mooring.Hub, serve: Serve):
    backends = [await serve() for _ in range(3)]
    async with client(hub) as using:
        answers = [await using.post(ECHO, content=b"body") for _ in range(6)]
    assert sorted(int(answer.text) for answer in answers) == sorted(2 * [b.port for b in backends])
    for backend in backends:
        assert backend.bodies == [b"body"] * 2
        assert "POST /path?query=1 HTTP/1.1" in backend.heads[0]
        assert f"Host: 127.0.0.1:{backend.port}" in backend.heads[0]
    assert isinstance(answers[0].extensions["mooring_instance"], Instance)
    assert answers[0].url == ECHO


async def test_a_host_header_of_the_caller_is_kept(hub: mooring.Hub, serve: Serve):
    backend = await serve()
    async with client(hub) as using:
        await using.get(ECHO, headers={"Host": "echo.example"})
    assert "echo.example" in backend.heads[0]


async def test_the_port_for_http_is_preferred(hub: mooring.Hub):
    """[D8]"""
    async with Backend() as backend, client(hub) as using:
        me = Instance("Common/Echo", "127.0.0.1", 1, ports={"http": backend.port})
        async with hub.register(me):
            assert (await using.get(ECHO)).text == str(backend.port)


async def test_https(hub: mooring.Hub, certificates: Path):
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    trust = ssl.create_default_context(cafile=certificates / "ca.pem")
    below = httpx.AsyncHTTPTransport(verify=trust)
    async with (
        Backend(tls=tls) as backend,
        hub.register(backend.instance),
        client(hub, transport=below) as using,
    ):
        answer = await using.get(url("Common/Echo", scheme="https"))
        assert answer.text == str(backend.port)


@pytest.mark.parametrize(
    ("services", "asked"),
    [
        (["Common/VerifyCodeService"], "Common/VerifyCodeService"),
        (["verify", "Verify"], "verify"),
        (["default-bare"], "default-bare"),
        (["通用/验证码"], "通用/验证码"),
        (["Odd Name/a@b:c%d"], "Odd Name/a@b:c%d"),
    ],
)
async def test_a_service_is_found_by_its_name(hub: mooring.Hub, services: list[str], asked: str):
    async with Backend() as right, Backend() as wrong, contextlib.AsyncExitStack() as stack:
        for name in services:
            port = right.port if name == asked else wrong.port
            await stack.enter_async_context(hub.register(Instance(name, "127.0.0.1", port)))
        async with client(hub) as using:
            assert (await using.get(url(asked))).text == str(right.port)


async def test_services_that_differ_only_in_case_must_be_spelled_exactly(hub: mooring.Hub):
    async with (
        Backend() as one,
        Backend() as two,
        hub.register(Instance("EchoA", "127.0.0.1", one.port)),
        hub.register(Instance("eCHOa", "127.0.0.1", two.port)),
    ):
        async with client(hub) as using:
            with pytest.raises(httpx.ConnectError, match="EchoA or eCHOa"):
                await using.get(url("EchoA"))
        async with client(hub, services=["eCHOa"]) as using:
            assert (await using.get(url("EchoA"))).text == str(two.port)


async def test_an_unknown_service_is_looked_up_again_later(
    hub: mooring.Hub, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mooring.httpx._UNKNOWN_FOR", 0.05)
    async with Backend() as backend, client(hub) as using:
        async with hub.register(Instance("Common/Ecco", "127.0.0.1", 1)):
            with pytest.raises(httpx.ConnectError, match="did you mean 'Common/Ecco'") as caught:
                await using.get(ECHO)
            assert isinstance(caught.value.__cause__, NoInstance)
        async with hub.register(backend.instance):

            async def known() -> bool:
                with contextlib.suppress(httpx.ConnectError):
                    return (await using.get(ECHO)).is_success
                return False

            await eventually(known)


async def test_a_service_is_found_although_the_registry_was_unavailable_at_first(
    etcd: Callable[[str], EtcdServer], tmp_path: Path
):
    server, name = etcd("3.5"), f"namespace=/{tmp_path.name}"
    async with (
        FaultProxy(server.address) as proxy,
        Backend() as backend,
        mooring.connect(f"{server.url}?{name}") as near,
        near.register(backend.instance),
        mooring.connect(f"etcd://{proxy.address}?{name}&timeout=1s") as far,
        client(far, wait=20) as using,
    ):
        proxy.refuse()
        first = asyncio.ensure_future(using.get(ECHO))
        await eventually(lambda: bool(far._created))  # a view waits for its first list
        proxy.heal()
        assert (await first).text == str(backend.port)
        assert view_of(using).service == "Common/Echo"
        opened = [
            view for view in far._created if isinstance(view, View) and not view._mirror.closed
        ]
        assert opened == [view_of(using)]


async def test_unknown_names_are_forgotten(hub: mooring.Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mooring.httpx._UNKNOWN_FOR", 0.001)
    async with client(hub) as using:
        balancer = using._transport_for_url(httpx.URL(ECHO))._balancer  # type: ignore[attr-defined]
        for number in range(50):
            with contextlib.suppress(httpx.ConnectError):
                await using.get(url(f"nobody-{number}"))
        gc.collect()  # errors keep references to the view
        assert len(balancer._opening) == 0
        assert len(balancer._unknown) < 50


async def test_without_an_instance_the_error_states_the_reason(hub: mooring.Hub, serve: Serve):
    await serve()
    async with client(hub, version="7") as using:
        why = r"^[^:]+: none of its instances \(1\) can be called: .*version is 0.0.0, not 7"
        with pytest.raises(httpx.ConnectError, match=why) as caught:
            await using.get(ECHO)
        assert isinstance(caught.value.__cause__, NoInstance)
        assert caught.value.request.url == ECHO


async def test_retrying_without_a_pause_does_not_starve_the_loop(hub: mooring.Hub, serve: Serve):
    await serve()
    async with client(hub, version="7") as using:
        await retried_at_once(lambda: using.get(ECHO), httpx.ConnectError)


class Clock:
    """The clock by which httpcore expires connections; only the test advances it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("httpcore._async.http11.time", clock)
    monkeypatch.setattr("httpcore._sync.http11.time", clock)
    return clock


async def test_idle_connections_expire_before_servers_close_them(
    hub: mooring.Hub, serve: Serve, clock: Clock
):
    """A request on a connection that the server is closing is lost: gunicorn closes idle
    connections after 2 s, uvicorn after 5 s."""
    backend = await serve()
    async with client(hub) as using:
        for clock.now in (0.0, 1.4, 3.2):
            await using.post(ECHO)
    first, second, third = backend.callers
    assert first == second != third


async def test_limits_of_the_caller_are_kept(hub: mooring.Hub):
    own = httpx.AsyncHTTPTransport(limits=httpx.Limits(keepalive_expiry=60))
    async with AsyncTransport(hub, transport=own) as transport:
        assert transport._transport is own


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
async def test_a_failed_connection_moves_the_request_to_another_instance(
    hub: mooring.Hub, serve: Serve, method: str
):
    backend = await serve()
    dead = await refusing(hub)
    async with client(hub) as using:
        for _ in range(4):
            answer = await using.request(method, ECHO, content=b"body")
            assert answer.text == str(backend.port)
    await dead.aclose()


@pytest.mark.parametrize("failing", [busy, mute])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
async def test_safe_requests_are_repeated_on_another_instance(
    hub: mooring.Hub, serve: Serve, failing: Answer, method: str
):
    good, bad = await serve(), await serve(failing)
    async with client(hub) as using:
        for _ in range(4):
            answer = await using.request(method, ECHO)
            assert answer.text == str(good.port)
    assert bad.heads


async def test_unsafe_requests_are_not_repeated(hub: mooring.Hub, serve: Serve):
    bad = [await serve(busy), await serve(busy)]
    async with client(hub) as using:
        assert (await using.post(ECHO)).status_code == 503
        for backend in bad:
            backend.answer = mute
        with pytest.raises(httpx.RemoteProtocolError):
            await using.post(ECHO)
    assert sum(len(backend.heads) for backend in bad) == 2


async def test_a_streamed_body_is_sent_once(hub: mooring.Hub, serve: Serve):
    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    bad = [await serve(busy), await serve(busy)]
    async with client(hub) as using:
        assert (await using.put(ECHO, content=parts())).status_code == 503
        assert sum(len(backend.bodies) for backend in bad) == 1
        for backend in bad:
            backend.answer = well
        dead = await refusing(hub)
        for _ in range(6):  # an unread body can be sent elsewhere
            assert (await using.put(ECHO, content=parts())).is_success
        await dead.aclose()
    assert all(body == b"ab" for backend in bad for body in backend.bodies)


async def test_retries_are_limited_by_number(hub: mooring.Hub, serve: Serve):
    backends = [await serve(busy) for _ in range(5)]
    for retries in (0, 1, 2):
        before = sum(len(backend.heads) for backend in backends)
        async with client(hub, retries=retries) as using:
            assert (await using.get(ECHO)).status_code == 503
        assert sum(len(backend.heads) for backend in backends) - before == retries + 1


async def test_retries_are_limited_by_the_budget(hub: mooring.Hub, serve: Serve):
    backends = [await serve(busy), await serve(busy)]
    none = Resilience(retry_ratio=0, retry_least=0)
    async with client(hub, resilience=none) as using:
        assert (await using.get(ECHO)).status_code == 503
    assert sum(len(backend.heads) for backend in backends) == 1


async def test_without_another_instance_the_first_answer_counts(hub: mooring.Hub, serve: Serve):
    backend = await serve(busy)
    async with client(hub) as using:
        assert (await using.get(ECHO)).text == "busy"
        assert len(backend.heads) == 1
        backend.answer = mute
        with pytest.raises(httpx.RemoteProtocolError):
            await using.get(ECHO)
        assert len(backend.heads) == 2


async def test_a_failing_instance_is_ejected(hub: mooring.Hub, serve: Serve):
    _, bad = await serve(), await serve(busy)
    async with client(hub, resilience=Resilience(consecutive_failures=3)) as using:
        for _ in range(20):
            assert (await using.get(ECHO)).is_success
        assert len(bad.heads) == 3
        (candidate,) = [listed for listed in view_of(using).explain() if not listed.called]
        assert candidate.instance.port == bad.port
        assert "ejected" in candidate.reasons[0]


async def slowly(backend: Backend, head: str, body: bytes) -> bytes:
    await asyncio.sleep(1)
    return plain()


async def test_a_call_is_in_progress_until_its_response_is_closed(hub: mooring.Hub, serve: Serve):
    backend = await serve()
    async with client(hub, policy="p2c") as using:
        async with using.stream("GET", ECHO) as response:
            (member,) = view_of(using).rotation
            assert member.node.active == 1
            await asyncio.sleep(3)  # a slow reader
            await response.aread()
        assert member.node.active == 0
        assert member.node.latency < 3
        backend.answer = slowly
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(using.get(ECHO), 0.1)
        assert member.node.active == 0


async def test_an_interrupted_body_counts_against_the_instance(hub: mooring.Hub, serve: Serve):
    async def half(backend: Backend, head: str, body: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"

    await serve(half)
    await serve(half)
    async with client(hub, resilience=Resilience(consecutive_failures=1)) as using:
        with pytest.raises(httpx.RemoteProtocolError):
            await using.get(ECHO)
        assert sum(not candidate.called for candidate in view_of(using).explain()) == 1


async def test_the_views_end_with_the_client(hub: mooring.Hub, serve: Serve):
    await serve()
    async with client(hub) as using:
        await using.get(ECHO)
        view = view_of(using)
    assert view._tasks._running == set()


async def test_a_view_is_opened_once_for_many_requests(hub: mooring.Hub, serve: Serve):
    await serve()
    async with client(hub) as using:
        answers = await asyncio.gather(*(using.get(ECHO) for _ in range(50)))
        assert all(answer.is_success for answer in answers)
        assert len(view_of(using).instances) == 1


async def test_a_cancelled_request_does_not_interrupt_the_opening_for_others(
    hub: mooring.Hub, serve: Serve, monkeypatch: pytest.MonkeyPatch
):
    await serve()
    held = asyncio.Event()
    services = hub.registry.services

    async def slow(group: str = "") -> object:
        await held.wait()
        return await services(group)

    monkeypatch.setattr(hub.registry, "services", slow)
    async with client(hub) as using:
        first = asyncio.ensure_future(using.get(ECHO))
        second = asyncio.ensure_future(using.get(ECHO))
        await asyncio.sleep(0.05)
        first.cancel()
        held.set()
        assert (await second).is_success


@pytest.mark.parametrize("absolute", [False, True])
async def test_a_redirect_to_the_same_server_stays_with_the_service(
    hub: mooring.Hub, serve: Serve, absolute: bool
):
    async def moved(backend: Backend, head: str, body: bytes) -> bytes:
        if "/new" in head.split("\r\n")[0]:
            return plain("here")
        base = f"http://127.0.0.1:{backend.port}" if absolute else ""
        return plain("", "302 Found", f"Location: {base}/new\r\n")

    await serve(moved)
    await serve(moved)
    async with client(hub) as using:
        answer = await using.get(ECHO, follow_redirects=True)
    assert answer.text == "here"
    assert answer.url == url("Common/Echo", "/new")


async def test_a_key_stays_with_an_instance(hub: mooring.Hub, serve: Serve):
    for _ in range(3):
        await serve()
    async with client(hub, policy="consistent_hash") as using:
        answers = {
            (await using.get(ECHO, extensions={"mooring_key": "user 7"})).text for _ in range(10)
        }
    assert len(answers) == 1


def test_errors_of_the_caller_are_not_blamed_on_the_instance():
    assert blames(httpx.ReadTimeout("slow"))
    assert blames(httpx.ConnectError("away"))
    for mine in (httpx.PoolTimeout, httpx.LocalProtocolError, httpx.UnsupportedProtocol):
        assert not blames(mine("mine"))
    assert not blames(asyncio.CancelledError())


def test_a_streamed_body_can_be_sent_again_until_it_is_read():
    request = httpx.Request("PUT", ECHO, content=iter([b"a"]))
    attempts = Attempts(request, 2)
    sent = attempts.to(Instance("Common/Echo", "::1", 80))
    assert sent.url == "http://[::1]:80/path?query=1"
    assert attempts.try_retry(httpx.ReadError("early"))
    assert list(sent.stream) == [b"a"]  # type: ignore[arg-type]
    assert not attempts.try_retry(httpx.ReadError("late"))


@pytest.fixture
def blocking() -> Iterator[mooring.sync.Hub]:
    with mooring.sync.connect("memory://") as opened:
        yield opened


@pytest.fixture
def backends() -> Iterator[list[Backend]]:
    """Three backends on a separate loop."""
    ready: concurrent.futures.Future[list[Backend]] = concurrent.futures.Future()
    stop = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with contextlib.AsyncExitStack() as stack:
            started = [await stack.enter_async_context(Backend()) for _ in range(3)]
            ready.set_result(started)
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    yield ready.result(timeout=20)
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def test_idle_connections_of_the_blocking_transport_expire_as_early(
    blocking: mooring.sync.Hub, backends: list[Backend], clock: Clock
):
    backend, mounts = backends[0], {"http+mooring://": mooring.httpx.Transport(blocking)}
    with blocking.register(backend.instance), httpx.Client(mounts=mounts) as using:
        for clock.now in (0.0, 1.4, 3.2):
            using.post(ECHO)
    first, second, third = backend.callers
    assert first == second != third


def test_the_blocking_transport_in_threads(blocking: mooring.sync.Hub, backends: list[Backend]):
    with contextlib.ExitStack() as stack:
        for backend in backends:
            stack.enter_context(blocking.register(backend.instance))
        backends[0].answer = busy
        stack.enter_context(blocking.register(Instance("Common/Echo", "127.0.0.1", free_port())))
        transport = mooring.httpx.Transport(blocking, policy="round_robin")
        using = stack.enter_context(httpx.Client(mounts={"http+mooring://": transport}, timeout=30))

        def ask(_: int) -> str:
            return using.get(ECHO).text

        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            answers = set(threads.map(ask, range(200)))
        assert answers == {str(backend.port) for backend in backends[1:]}
        (view,) = transport._balancer._views.values()
        until(lambda: all(member.node.active == 0 for member in view.rotation))
        with using.stream("GET", ECHO) as response:
            assert sum(member.node.active for member in view.rotation) == 1
            response.read()
        until(lambda: all(member.node.active == 0 for member in view.rotation))
        with pytest.raises(httpx.ConnectError, match="unknown service"):
            using.get(url("nobody"))
    with pytest.raises(httpx.ConnectError, match="not open"):
        mooring.httpx.Transport(mooring.sync.connect()).handle_request(httpx.Request("GET", ECHO))


@pytest.mark.parametrize("backend", ["redis", "served"])
async def test_the_last_replica_is_called_while_it_lingers(
    backend: str, redis: Callable[[str], RedisServer], served: Callable[[], str]
):
    registry = redis("7.0").url if backend == "redis" else served()
    async with (
        mooring.connect(registry) as hub,
        mooring.connect(registry) as caller,
        Backend() as server,
        client(caller, hold=2) as http,
    ):
        instance = Instance(f"Common/Last-{server.port}", "127.0.0.1", server.port)
        async with hub.register(instance) as last:
            where = url(instance.service)
            assert (await http.get(where)).status_code == 200
            draining = asyncio.ensure_future(last.drain(linger=1.5))
            while not draining.done():
                assert (await http.get(where)).status_code == 200
                await asyncio.sleep(0.02)
        with pytest.raises(httpx.ConnectError):
            await until_it_fails(http, where)


async def until_it_fails(http: httpx.AsyncClient, where: str) -> None:
    for _ in range(500):
        await http.get(where)
        await asyncio.sleep(0.02)
