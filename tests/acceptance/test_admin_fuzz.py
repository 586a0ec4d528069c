"""Malformed requests to a real `mooring serve`: they are refused or cut off, and the server
survives."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import random
import re
import resource
import socket
import urllib.parse
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest

from mooring.server import http_listener as listening
from mooring.server.api import all_endpoints
from mooring.server.api.endpoint import ApiEndpoint
from mooring.server.http.routing import SAFE
from tests.acceptance.serving import Served
from tests.admin import Admin
from tests.wording import PYTHONS

PATIENCE = 60.0

TABLE = all_endpoints()
GUARDED = [endpoint for endpoint in TABLE if endpoint.needs.roles is not None]
WITH_BODY = [endpoint for endpoint in TABLE if endpoint.body is not None]
"""The endpoints that read a body."""

OWN = "Host: localhost\r\n"
CLOSE = f"{OWN}Connection: close\r\n"

NO_HTTP = [
    b"\r\n\r\n\r\n\r\n",
    b"\x00" * 1000,
    b"\xff\xfe\xfd" * 1000,
    b"GET\r\n\r\n",
    b"GET /healthz\r\n\r\n",  # as of HTTP/0.9
    b"GET /healthz HTTP/1.1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"get /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"NOTHING /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /healthz\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /heal\tthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /\xe4\xb8\xad HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http:// HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://localhost:99999999/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n Host: localhost\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n: empty\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    b"GET /healthz HTTP/1.1\nHost: localhost\rX: y\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"<policy-file-request/>\x00",
]
"""Data that is not an HTTP request."""

LENGTHS = [
    b"Content-Length: -1",
    b"Content-Length: +5",
    b"Content-Length: 0x5",
    b"Content-Length: five",
    b"Content-Length: 5, 5",
    b"Content-Length: 5\r\nContent-Length: 6",
    b"Content-Length: 99999999999999999999999",
    b"Content-Length: 5\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: 5",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity, chunked\r\nContent-Length: 3",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
]
"""Invalid lengths of a body."""

CHUNKS = [
    b"x\r\n",
    b"-1\r\n",
    b"FFFFFFFFFFFFFFFFFFFFFFFF\r\n",
    b"5;" + b"e" * 200_000 + b"\r\n",
    b"5\r\nhello!!",
    b"5\r\nhello\r\n0\r\nTrailer",
    b"0\r\n\r\nGARBAGE",
    b"\r\n\r\n\r\n",
]

BODIES = [
    b"",
    b" ",
    b"\x00",
    bytes(range(256)),
    b"{",
    b'{"name": "a", "role": ',
    b'{"name": "a"} {"name": "b"}',
    b"{'name': 'a'}",
    b"NaN",
    b'{"weight": NaN, "port": NaN, "version": NaN}',
    b'{"weight": 1e999, "port": 1e999, "version": 1e999, "ttl": 1e999}',
    b'{"weight": -Infinity}',
    b'{"version": %s, "port": %s}' % (b"9" * 5000, b"9" * 5000),
    b'{"name": "\xff\xfe"}',
    b'{"name": "\\ud800", "token": "\\ud800", "host": "\\ud800", "incarnation": "\\ud800"}',
    b'{"set": {"a": "\\udfff"}, "displayName": "\\ud800", "meta": {"code": "\\ud800"}}',
    b'{"\\ud800": 1}',
    b'{"set": {"a": %s}}' % (b"[" * 700 + b"]" * 700),
    b'{"meta": %s}' % (b'{"a":' * 900 + b"1" + b"}" * 900),
    b'{"metrics": %s, "incarnation": "a"}' % (b'{"a":' * 950 + b"1" + b"}" * 950),
    b"[" * 500_000,
    b'{"a":' * 200_000,
    b'"' + b'\\"' * 400_000,
    b"[]",
    b"null",
    b"0",
    b'""',
    b"\xef\xbb\xbf{}x",
    '{"name": "a"}'.encode("utf-16"),
    gzip.compress(b'{"name": "a", "role": "viewer"}'),
    b"name=a&role=admin",
    b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
    b"--x\r\nContent-Disposition: form-data; name=role\r\n\r\nadmin\r\n--x--",
    b'{"__proto__": {"role": "admin"}, "constructor": 1}',
    b'{"name": {"$gt": ""}, "role": ["admin"], "host": {}, "token": []}',
]

PROXIES = """
X-Forwarded-For: 127.0.0.1
X-Forwarded-Host: localhost
X-Forwarded-Proto: https
X-Forwarded-User: admin
X-Forwarded-Prefix: /healthz
X-Real-IP: 127.0.0.1
X-Remote-User: admin
X-Authenticated-User: admin
X-Original-URL: /healthz
X-Rewrite-URL: /healthz
X-Original-Method: GET
X-HTTP-Method: GET
X-HTTP-Method-Override: GET
X-Method-Override: GET
X-Api-Key: admin
Forwarded: for=127.0.0.1;host=localhost;proto=https
Via: 1.1 localhost
Remote-User: admin
Proxy-Authorization: Basic YWRtaW46YWRtaW4=
Connection: authorization
"""


class Response(NamedTuple):
    status: int
    body: bytes
    headers: Message


class Watched(Served):
    """A server whose standard error is checked."""

    def __init__(self, store: str, *arguments: str, folder: Path, files: int = 0) -> None:
        """`files`: limit the number of files that it may open."""
        super().__init__(store, *arguments, folder=folder, interpreter=True)
        self.complaints = folder / "complaints"
        few = f"ulimit -S -n {files}; " if files else ""
        script = f'{few}exec "$@" 2>>{self.complaints}'
        self.command = ["sh", "-c", script, "sh", *self.command]

    @property
    def place(self) -> tuple[str, int]:
        host, port = self.http.split(":")
        return host, int(port)

    def check(self) -> None:
        """Assert that it is alive and has logged nothing: requests must not be able to fill a
        disk."""
        assert self.process.poll() is None
        logged = self.complaints.read_text()
        assert logged == "", logged[-5000:]
        answer = request(self, "GET", "/healthz")
        assert (answer.status, answer.body) == (200, b"ok\n")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("fuzz")
    settings = folder / "settings.yaml"
    settings.write_text("rates: {reads: 0, writes: 0, failures: 0}\n")
    with Watched("memory://", "--etcd=off", f"--config={settings}", folder=folder) as started:
        yield started


@pytest.fixture(autouse=True)
def it_lives(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").check()


def request(
    server: Watched,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    with contextlib.closing(http.client.HTTPConnection(*server.place, timeout=PATIENCE)) as to:
        to.request(method, path, body, headers or {})
        answer = to.getresponse()
        response = Response(answer.status, answer.read(), answer.headers)
    if response.status >= 400 and response.body.startswith(b"{"):
        message = json.loads(response.body)["error"]["message"]
        assert not PYTHONS.search(message), message
    return response


@contextlib.contextmanager
def line(server: Watched) -> Iterator[socket.socket]:
    with socket.create_connection(server.place, timeout=PATIENCE) as connected:
        yield connected


def receive_all(connected: socket.socket) -> bytes:
    """All data until the other side closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connected.recv(65536):
            received += data
    return received


def statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", received)]


def send_raw(server: Watched, data: bytes, *, end: bool = True) -> list[int]:
    """The statuses of the responses to this data, until the connection is closed. `end`: the client
    closes its side."""
    with line(server) as connected:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connected.sendall(data)
            if end:
                connected.shutdown(socket.SHUT_WR)
        return statuses(receive_all(connected))


def refused(received: list[int]) -> bool:
    return all(400 <= status < 500 for status in received)


def bearer(server: Watched) -> str:
    return f"Authorization: Bearer {server.admin_token}\r\n"


def path_of(endpoint: ApiEndpoint) -> str:
    values = {"tenant": "1", "service": "Common%2FAuth", "id": "10.0.0.1:80", "version": "1"}
    return endpoint.path.format(**{name: values.get(name, "x") for name in endpoint.parameters})


class TestMalformedRequests:
    @pytest.mark.parametrize("data", NO_HTTP, ids=lambda data: repr(data[:30]))
    def test_malformed_data_is_refused_or_cut_off(self, server: Watched, data: bytes):
        assert refused(send_raw(server, data))

    def test_random_data_is_refused_or_cut_off(self, server: Watched):
        chance = random.Random(1)
        begun = [b"", b"GET / HTTP/1.1\r\n", f"POST /admin/tokens HTTP/1.1\r\n{OWN}".encode()]
        for _ in range(100):
            junk = chance.randbytes(chance.randrange(1, 2000))
            assert refused(send_raw(server, chance.choice(begun) + junk)), junk

    def test_a_truncated_request_has_no_effect(self, server: Watched):
        body = b'{"name": "cut short", "role": "admin"}'
        head = (
            f"POST /admin/tokens HTTP/1.1\r\n{CLOSE}{bearer(server)}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        whole = head.encode() + body
        for cut in range(1, len(whole), 7):
            assert refused(send_raw(server, whole[:cut]))
        assert send_raw(server, whole, end=False) == [201]
        listed = request(server, "GET", "/admin/tokens", headers=authorized(server)).body
        assert listed.count(b"cut short") == 1

    def test_an_oversized_head_is_cut_off(self, server: Watched):
        for filler in (b"X: " + b"x" * 20_000_000, b"X: y\r\n" * 2_000_000, b"a" * 5_000_000):
            data = b"GET /healthz HTTP/1.1\r\n" + OWN.encode() + filler
            assert send_raw(server, data) in ([], [431], [400])
        target = b"GET /" + b"a" * 5_000_000 + b" HTTP/1.1\r\n\r\n"
        assert send_raw(server, target) in ([], [431], [400])

    def test_pipelined_requests_are_answered_in_order(self, server: Watched):
        one = f"GET /healthz HTTP/1.1\r\n{OWN}\r\n".encode()
        none = f"GET /nowhere HTTP/1.1\r\n{OWN}\r\n".encode()
        last = f"GET /admin/whoami HTTP/1.1\r\n{CLOSE}\r\n".encode()
        assert send_raw(server, one * 300 + none + last, end=False) == [200] * 300 + [404, 401]

    def test_data_after_a_request_is_never_part_of_it(self, server: Watched):
        hidden = f"GET /admin/tokens HTTP/1.1\r\n{CLOSE}{bearer(server)}\r\n".encode()
        head = f"POST /login HTTP/1.1\r\n{CLOSE}Content-Length: {len(hidden)}\r\n\r\n".encode()
        assert refused(send_raw(server, head + hidden, end=False))
        for length in LENGTHS:
            head = f"POST /login?code=x HTTP/1.1\r\n{OWN}".encode() + length
            assert refused(send_raw(server, head + b"\r\n\r\n0\r\n\r\n" + hidden)), length


class TestBodies:
    @pytest.mark.parametrize("length", LENGTHS, ids=repr)
    def test_a_body_with_an_invalid_length_is_refused(self, server: Watched, length: bytes):
        head = f"POST /admin/tokens HTTP/1.1\r\n{CLOSE}{bearer(server)}".encode()
        assert refused(send_raw(server, head + length + b"\r\n\r\nhello"))

    @pytest.mark.parametrize("chunk", CHUNKS, ids=lambda chunk: repr(chunk[:20]))
    def test_an_invalid_chunk_is_refused(self, server: Watched, chunk: bytes):
        head = (
            f"POST /admin/tokens HTTP/1.1\r\n{CLOSE}{bearer(server)}"
            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        assert refused(send_raw(server, head.encode() + chunk))

    def test_no_endpoint_accepts_an_invalid_body(self, server: Watched):
        connection = http.client.HTTPConnection(*server.place, timeout=PATIENCE)
        headers = {**authorized(server), "Content-Type": "application/json"}
        for endpoint in WITH_BODY:
            for body in BODIES:
                connection.request(endpoint.method, path_of(endpoint), body, headers)
                answer = connection.getresponse()
                content = json.loads(answer.read())
                assert answer.status in (400, 401, 403, 404), (endpoint.path, body[:50], content)
                assert content["error"]["message"]
                assert not PYTHONS.search(content["error"]["message"])
        connection.close()

    def test_garbage_in_a_path_is_answered_in_plain_words(self, server: Watched):
        garbage = "x%1B%5B31m%27%22%E2%80%AE%C2%9B"
        headers = {**authorized(server), "Content-Type": "application/json"}
        for endpoint in TABLE:
            for text in (garbage, f"{garbage}%FF", f"{garbage}%00") if endpoint.parameters else ():
                path = endpoint.path.format(**dict.fromkeys(endpoint.parameters, text))
                body = b"{}" if endpoint in WITH_BODY else None
                assert request(server, endpoint.method, path, body, headers).status < 500, path

    def test_other_media_types_are_refused(self, server: Watched):
        body = b'{"name": "a form", "role": "admin"}'
        for media in (
            *("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
            *("", "application/jsonx", "text/json", "application/xml", "json", "*/*", "\xe4"),
        ):
            headers = {**authorized(server), "Content-Type": media}
            assert request(server, "POST", "/admin/tokens", body, headers).status == 415
        packed = {**authorized(server), "Content-Encoding": "gzip"}
        packed["Content-Type"] = "application/json"
        answer = request(server, "POST", "/admin/tokens", gzip.compress(body), packed)
        assert answer.status == 400

    @pytest.mark.parametrize("chunked", [False, True])
    def test_a_body_of_ten_megabytes_is_too_large(self, server: Watched, chunked: bool):
        block = b"[" * 1024 * 1024
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {10 * len(block)}"
        head = (
            f"POST /admin/tokens HTTP/1.1\r\n{CLOSE}{bearer(server)}"
            f"Content-Type: application/json\r\n{length}\r\n\r\n"
        )
        with line(server) as connected:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                connected.sendall(head.encode())
                for _ in range(10):
                    size = f"{len(block):x}\r\n".encode() if chunked else b""
                    connected.sendall(size + block + (b"\r\n" if chunked else b""))
            assert statuses(receive_all(connected)) in ([413], [])

    def test_an_unexpected_body_is_refused(self, server: Watched):
        for endpoint in TABLE:
            if (
                endpoint.body is None
                and endpoint.method not in SAFE
                and endpoint.needs.roles is not None
            ):
                answer = request(
                    server, endpoint.method, path_of(endpoint), b'{"a": 1}', authorized(server)
                )
                assert answer.status == 400, endpoint.path


class TestPathsAndMethods:
    def test_no_other_spelling_of_a_path_matches(self, server: Watched):
        connection = http.client.HTTPConnection(*server.place, timeout=PATIENCE)
        for endpoint in GUARDED:
            path = path_of(endpoint)
            for other in set(variants(path)) - {path}:
                connection.putrequest(endpoint.method, other, skip_host=True)
                connection.putheader("Host", "localhost")
                connection.putheader("Authorization", f"Bearer {server.admin_token}")
                connection.putheader("Content-Length", "0")
                connection.endheaders()
                answer = connection.getresponse()
                answer.read()
                assert answer.status in (400, 404, 405, 415), (endpoint.method, other)
        connection.close()

    def test_no_other_method_has_an_effect(self, server: Watched):
        connection = http.client.HTTPConnection(*server.place, timeout=PATIENCE)
        methods_by_path: dict[str, set[str]] = {}
        for endpoint in TABLE:
            methods_by_path.setdefault(path_of(endpoint), set()).add(endpoint.method)
        for path, methods in methods_by_path.items():
            for method in ("OPTIONS", "TRACE", "PROPFIND", "MKCOL", "LINK", "PURGE", "SEARCH"):
                connection.request(method, path, headers=authorized(server))
                answer = connection.getresponse()
                body = answer.read()
                assert answer.status == 405
                assert server.admin_token.encode() not in body  # as TRACE would return it
                assert methods <= set(answer.headers["Allow"].split(", "))
        connection.close()
        assert refused(send_raw(server, f"CONNECT localhost:80 HTTP/1.1\r\n{CLOSE}\r\n".encode()))

    def test_head_requests_are_authorized_like_get(self, server: Watched):
        for endpoint in TABLE:
            if endpoint.method != "GET":
                continue
            path = path_of(endpoint) + ("?q=x" if endpoint.path == "/admin/search" else "")
            assert endpoint.needs.roles is None or request(server, "HEAD", path).status == 401
            if endpoint.path == "/admin/events":
                continue
            head = request(server, "HEAD", path, headers=authorized(server))
            whole = request(server, "GET", path, headers=authorized(server))
            assert (head.status, head.body) == (whole.status, b""), path
            assert head.headers["Content-Type"] == whole.headers["Content-Type"]

    def test_headers_of_proxies_are_ignored(self, server: Watched):
        headers = dict(row.split(": ", 1) for row in PROXIES.strip().splitlines())
        for endpoint in GUARDED:
            answer = request(server, endpoint.method, path_of(endpoint), headers=headers)
            assert answer.status == 401, endpoint.path
        headers["Host"] = "evil.example"
        assert request(server, "GET", "/healthz", headers=headers).status == 421

    def test_an_absolute_target_is_equal_to_its_path(self, server: Watched):
        for target, host, status in (
            ("http://localhost/admin/whoami", "localhost", 401),
            ("http://localhost/healthz", "localhost", 200),
            ("http://localhost/healthz", "evil.example", 421),
            ("http://localhost", "localhost", 400),
            ("http://localhost@evil.example/healthz", "localhost", 200),
            ("//localhost/healthz", "localhost", 404),
        ):
            data = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            assert send_raw(server, data.encode(), end=False) in ([status], [400]), target


def variants(path: str) -> list[str]:
    """Other spellings of a path, which a proxy in front of the server may treat as equal."""
    first = path[1]
    return [
        f"{path}/",
        f"/{path}",
        path.replace("/", "//"),
        f"{path}/.",
        f"/.{path}",
        f"/healthz/..{path}",
        f"/%2e%2e{path}",
        f"/console/%2e%2e{path}",
        f"{path}%00",
        f"{path}%0d%0aX:y",
        f"{path}%20",
        f"{path}%2f",
        f"{path}%252f",
        f"{path};a=b",
        f"{path}.json",
        f"{path}%3f",
        f"/%{ord(first):02x}{path[2:]}",
        f"/%25{ord(first):02x}{path[2:]}",
        f"/{first.upper()}{path[2:]}",
        path.replace("/", "\\"),
        f"/%2f{path[1:]}",
        urllib.parse.quote(path, safe=""),
        f"/{urllib.parse.quote(path, safe='')}",
        path.replace("s", "%C5%BF"),  # an S after case folding
        path.replace("/", "/%c0%af"),
    ]


def authorized(server: Watched) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.admin_token}"}


class TestSilentConnections:
    @pytest.fixture
    def many_files(self) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 4096 if before[1] == resource.RLIM_INFINITY else min(4096, before[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, before[0]), before[1]))
        yield
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    @pytest.mark.usefixtures("many_files")
    def test_two_thousand_silent_connections_block_no_other(self, tmp_path: Path):
        with Watched("memory://", "--etcd=off", folder=tmp_path, files=1024) as server:
            with contextlib.ExitStack() as opened:
                for number in range(2000):
                    silent = opened.enter_context(line(server))
                    if number % 2:
                        silent.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
                server.check()
                answer = request(server, "GET", "/admin/whoami", headers=authorized(server))
                assert answer.status == 200
            server.check()

    async def test_silent_connections_are_closed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(listening, "HEAD_TIMEOUT", 0.5)
        async with Admin("memory://", folder=tmp_path) as admin:
            host, port = admin.url.removeprefix("http://").split(":")
            for begun in (b"", b"GET /healthz HTTP/1.1\r\n", b"POST /login HTTP/1.1\r\nHost: loc"):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(begun)
                async with asyncio.timeout(PATIENCE):
                    assert statuses(await reader.read()) == [408]
                writer.close()

    async def test_slow_connections_are_closed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(listening, "HEAD_TIMEOUT", 0.5)
        async with Admin("memory://", folder=tmp_path) as admin:
            host, port = admin.url.removeprefix("http://").split(":")
            loop = asyncio.get_running_loop()
            # A letter that arrives after the answer resets the connection. A stream of asyncio
            # would then drop the answer; a socket returns it first.
            with socket.create_connection((host, int(port))) as connected:
                connected.setblocking(False)
                connected.send(b"GET /healthz HTTP/1.1\r\nX: ")
                hearing = asyncio.ensure_future(loop.sock_recv(connected, 65536))
                async with asyncio.timeout(PATIENCE):
                    while not hearing.done():
                        with contextlib.suppress(ConnectionError):
                            connected.send(b"y")
                        await asyncio.sleep(0.02)
                    assert statuses(await hearing) == [408]
                    with contextlib.suppress(ConnectionResetError):
                        assert await loop.sock_recv(connected, 65536) == b""
