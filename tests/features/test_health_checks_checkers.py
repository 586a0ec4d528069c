"""Each checker against real servers: healthy, unhealthy, slow, silent and malicious."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from mooring.grpc import Health
from mooring.server.health_checks import checkers
from mooring.server.health_checks.checkers import (
    Checker,
    GRPCChecker,
    HTTPChecker,
    Outcome,
    Target,
    TCPChecker,
    WebSocketChecker,
    credentials,
)
from mooring.testing.proxy import close_server
from mooring.testing.servers import free_port

SOON = 0.3
"""The timeout of tests in which it expires."""
LONG = 20.0
"""The timeout of all others, however busy the machine is."""

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listening:
    """The connections to a port."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.heads: list[bytes] = []


@asynccontextmanager
async def serving(handler: Handler, context: ssl.SSLContext | None = None):
    """A server whose connections end with it."""
    listening = Listening()
    running: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listening.connections += 1
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            running.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    listening.port = server.sockets[0].getsockname()[1]
    try:
        yield listening
    finally:
        await close_server(server)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        await server.wait_closed()


def answering(answer: bytes, heads: list[bytes] | None = None) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heads is not None:
            heads.append(head)
        writer.write(answer)
        await writer.drain()
        await reader.read()

    return handle


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for letter in itertools.cycle(b"HTTP/1.1 200 OK"):
        writer.write(bytes([letter]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


def target(
    port: int, protocol: str = "http", *, host: str = "127.0.0.1", path: str = "/"
) -> Target:
    return Target("orders", "a", protocol, host, "127.0.0.1", port, path)


async def checked(
    checker: Checker, handler: Handler, *, timeout: float = LONG, path: str = "/"
) -> Outcome:
    async with serving(handler) as server:
        outcome = await checker.check(target(server.port, path=path), timeout=timeout)
    outcome = replace(outcome, failure=str(outcome.failure))
    assert outcome.ok is (outcome.failure == "")
    assert outcome.ms >= 0
    return outcome


@pytest.mark.parametrize("status", [b"200 OK", b"204 No Content", b"299", b"304 Not Modified"])
async def test_http_with_a_good_status_is_healthy(status: bytes):
    assert (await checked(HTTPChecker(), answering(b"HTTP/1.1 %s\r\n\r\n" % status))).ok


async def test_http_of_an_older_version_is_healthy():
    assert (await checked(HTTPChecker(), answering(b"HTTP/1.0 200 OK\nA: b\n\n"))).ok


@pytest.mark.parametrize("status", [400, 404, 500, 503, 101])
async def test_http_with_another_status_is_unhealthy(status: int):
    answer = answering(b"HTTP/1.1 %d <script>alert(1)</script>\r\n\r\n" % status)
    assert (await checked(HTTPChecker(), answer)).failure == f"it answered {status}"


async def test_http_requests_have_the_path_and_the_host_but_no_credentials():
    heads: list[bytes] = []
    async with serving(answering(b"HTTP/1.1 200 OK\r\n\r\n", heads)) as server:
        asked = target(server.port, host="orders.internal", path="/up?a=b")
        assert (await HTTPChecker().check(asked, timeout=LONG)).ok
    first, *headers = heads[0].decode().split("\r\n")
    assert first == "GET /up?a=b HTTP/1.1"
    names = {header.partition(":")[0] for header in headers if header}
    assert f"Host: orders.internal:{server.port}" in headers
    assert names == {"Host", "User-Agent", "Accept", "Connection"}


async def test_informational_responses_are_skipped():
    answer = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
    assert (await checked(HTTPChecker(), answering(answer))).ok
    endless = answering(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
    assert "too many informational responses" in str(
        (await checked(HTTPChecker(), endless)).failure
    )


async def test_a_redirect_is_not_followed():
    async with serving(never) as forbidden:
        elsewhere = f"http://127.0.0.1:{forbidden.port}/latest/meta-data/"
        answer = f"HTTP/1.1 302 Found\r\nLocation: {elsewhere}\r\n\r\n".encode()
        assert (await checked(HTTPChecker(), answering(answer))).ok
        assert forbidden.connections == 0


NO_HTTP = [
    b"+OK Dovecot ready.\r\n",
    b"\x00\x01\x02\n",
    b"HTTP/2 200\r\n\r\n",
    b"HTTP/1.1 2000 OK\r\n\r\n",
    b"HTTP/1.1 -20 OK\r\n\r\n",
    b"\n\n\n",
]


@pytest.mark.parametrize("garbage", NO_HTTP)
@pytest.mark.parametrize("checker", [HTTPChecker(), WebSocketChecker()])
async def test_a_response_that_is_not_http_is_reported_in_plain_words(
    checker: Checker, garbage: bytes
):
    assert (await checked(checker, answering(garbage))).failure == "its answer is not HTTP/1.1"


@pytest.mark.parametrize("checker", [HTTPChecker(), WebSocketChecker()])
async def test_a_silent_server_times_out(checker: Checker):
    outcome = await checked(checker, never, timeout=SOON)
    assert str(outcome.failure) == "no answer within 300ms"


@pytest.mark.parametrize("checker", [HTTPChecker(), WebSocketChecker()])
async def test_a_server_that_sends_byte_by_byte_times_out(checker: Checker):
    assert not (await checked(checker, drip, timeout=SOON)).ok


@pytest.mark.parametrize("checker", [HTTPChecker(), WebSocketChecker()])
async def test_only_the_beginning_of_an_endless_response_is_read(checker: Checker):
    outcome = await checked(checker, flood)
    assert str(outcome.failure) == "its answer has a line that is too long"


async def test_the_body_is_not_read():
    sent = 0

    async def huge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.transport.set_write_buffer_limits(0)
        while sent < 1 << 30:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    assert (await checked(HTTPChecker(), huge)).ok
    assert sent < 1 << 26, "the most that the sockets hold"


async def test_a_closed_connection_is_unhealthy():
    assert "closed the connection" in str((await checked(HTTPChecker(), hang_up)).failure)


@pytest.mark.parametrize(
    "checker", [HTTPChecker(), WebSocketChecker(), TCPChecker()], ids=["http", "ws", "tcp"]
)
async def test_a_closed_port_is_a_refused_connection(checker: Checker):
    outcome = await checker.check(target(free_port()), timeout=LONG)
    assert str(outcome.failure) == "it refused the connection"


async def test_tcp_is_healthy_if_the_port_accepts_connections():
    assert (await checked(TCPChecker(), never)).ok


def websocket(
    *, wrong_key: bool = False, head: bytes = b"Upgrade: WebSocket\r\nConnection: upgrade\r\n"
) -> tuple[Handler, asyncio.Future[bytes]]:
    """A server that performs the handshake, and the frame that it receives."""
    frame: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        key = next(line for line in asked if line.startswith(b"Sec-WebSocket-Key: ")).split()[1]
        if wrong_key:
            key += b"!"
        digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\n%sSec-WebSocket-Accept: %s\r\n\r\n"
            % (head, base64.b64encode(digest))
        )
        received = await reader.read()
        if not frame.done():
            frame.set_result(received)

    return handle, frame


async def test_a_websocket_is_opened_and_closed():
    handler, frame = websocket()
    async with serving(handler) as server:
        assert (await WebSocketChecker().check(target(server.port), timeout=LONG)).ok
        async with asyncio.timeout(LONG):
            assert await frame == b"\x88\x82\0\0\0\0\x03\xe8"


async def test_a_websocket_server_must_prove_that_it_read_the_key():
    handler, _ = websocket(wrong_key=True)
    assert "wrong accept key" in str((await checked(WebSocketChecker(), handler)).failure)


@pytest.mark.parametrize("head", [b"", b"Upgrade: h2c\r\nConnection: Upgrade\r\n"])
async def test_another_protocol_is_no_websocket(head: bytes):
    handler, _ = websocket(head=head)
    assert "another protocol than WebSocket" in str(
        (await checked(WebSocketChecker(), handler)).failure
    )


async def test_plain_http_is_no_websocket():
    answer = answering(b"HTTP/1.1 200 OK\r\n\r\n")
    outcome = await checked(WebSocketChecker(), answer)
    assert str(outcome.failure) == "it answered 200 instead of opening a WebSocket"


async def test_a_websocket_with_endless_headers_is_unhealthy():
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n")
        while True:
            writer.write(b"A: b\r\n" * 10_000)
            await writer.drain()

    assert "too many headers" in str((await checked(WebSocketChecker(), handle)).failure)


def secure(certificates: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    return context


@pytest.mark.parametrize("host", ["127.0.0.1", "etcd.test"])
async def test_https_is_verified_by_the_registered_name(certificates: Path, host: str):
    context = checkers.tls(str(certificates / "ca.pem"))
    answer = answering(b"HTTP/1.1 200 OK\r\n\r\n")
    async with serving(answer, secure(certificates)) as server:
        there_ = target(server.port, "https", host=host)
        assert (await HTTPChecker(context).check(there_, timeout=LONG)).ok


@pytest.mark.parametrize("kind", [HTTPChecker, WebSocketChecker])
@pytest.mark.parametrize(
    ("ca", "host", "message"),
    [
        ("ca.pem", "orders.internal", "its certificate is for another name"),
        ("ca.pem", "127.0.0.2", "its certificate is for another address"),
        ("other-ca.pem", "etcd.test", "not signed by an authority that is trusted here"),
        ("", "etcd.test", "not signed by an authority that is trusted here"),
    ],
)
async def test_a_certificate_of_another_host_or_authority_is_refused(
    certificates: Path, kind: type[HTTPChecker], ca: str, host: str, message: str
):
    checker = kind(checkers.tls(str(certificates / ca) if ca else ""))
    heads: list[bytes] = []
    answer = answering(b"HTTP/1.1 200 OK\r\n\r\n", heads)
    async with serving(answer, secure(certificates)) as server:
        outcome = await checker.check(target(server.port, host=host), timeout=LONG)
    assert message in str(outcome.failure)
    assert heads == [], "nothing is sent before the server is verified"


async def test_plain_http_fails_the_tls_handshake(certificates: Path):
    checker = HTTPChecker(checkers.tls(str(certificates / "ca.pem")))
    outcome = await checked(checker, flood)
    assert str(outcome.failure) == "its TLS handshake failed"


async def test_a_silent_tls_handshake_times_out(certificates: Path):
    checker = HTTPChecker(checkers.tls(str(certificates / "ca.pem")))
    assert (await checked(checker, never, timeout=SOON)).failure == "no answer within 300ms"


async def test_wss_opens_over_tls(certificates: Path):
    handler, _ = websocket()
    checker = WebSocketChecker(checkers.tls(str(certificates / "ca.pem")))
    async with serving(handler, secure(certificates)) as server:
        assert (await checker.check(target(server.port, "wss"), timeout=LONG)).ok


@asynccontextmanager
async def grpc_server(
    health: Health | None, certificates: Path | None = None
) -> AsyncIterator[int]:
    server = grpc.aio.server()
    if health is not None:
        health.serve(server)
    if certificates is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = (
            (certificates / "server.key").read_bytes(),
            (certificates / "server.pem").read_bytes(),
        )
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def test_grpc_health_follows_the_health_service():
    health = Health()
    async with grpc_server(health) as port:
        assert (await GRPCChecker().check(target(port), timeout=LONG)).ok
        health.set("", False)
        outcome = await GRPCChecker().check(target(port), timeout=LONG)
        assert str(outcome.failure) == "it reports that it is not serving"


async def test_grpc_without_the_health_service_is_healthy():
    async with grpc_server(None) as port:
        assert (await GRPCChecker().check(target(port), timeout=LONG)).ok


async def test_grpc_is_not_sent_to_a_proxy(monkeypatch: pytest.MonkeyPatch):
    async with serving(never) as proxy, grpc_server(Health()) as port:
        for name in ("http_proxy", "grpc_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "")
        assert (await GRPCChecker().check(target(port), timeout=LONG)).ok
        assert proxy.connections == 0


@pytest.mark.parametrize("handler", [answering(b"HTTP/1.1 200 OK\r\n\r\n"), flood])
async def test_a_response_that_is_not_grpc_is_unhealthy(handler: Handler):
    async with serving(handler) as server:
        assert not (await GRPCChecker().check(target(server.port), timeout=2.0)).ok


async def test_grpc_at_a_closed_port_is_unhealthy():
    outcome = await GRPCChecker().check(target(free_port()), timeout=LONG)
    assert str(outcome.failure) == "it cannot be reached over gRPC"


async def test_a_silent_grpc_server_times_out():
    async with serving(never) as server:
        outcome = await GRPCChecker().check(target(server.port), timeout=SOON)
    assert str(outcome.failure) == "no answer within 300ms"


async def test_a_refusal_of_grpc_is_reported_without_its_message():
    async def check(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "<b>root password is 1234</b>")
        raise AssertionError

    server = grpc.aio.server()
    handlers = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    handler = grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        outcome = await GRPCChecker().check(target(port), timeout=LONG)
    finally:
        await server.stop(None)
    assert str(outcome.failure) == "it answered PERMISSION_DENIED"


@pytest.mark.parametrize(
    ("host", "ca", "well"),
    [
        ("etcd.test", "ca.pem", True),
        ("127.0.0.1", "ca.pem", True),
        ("orders.internal", "ca.pem", False),
        ("etcd.test", "other-ca.pem", False),
    ],
)
async def test_grpcs_is_verified_by_name(certificates: Path, host: str, ca: str, well: bool):
    checker = GRPCChecker(credentials(str(certificates / ca)))
    async with grpc_server(Health(), certificates) as port:
        outcome = await checker.check(target(port, "grpcs", host=host), timeout=LONG)
    assert outcome.ok is well, outcome
