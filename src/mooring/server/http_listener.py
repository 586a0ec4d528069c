"""The HTTP listener: uvicorn with TLS and limits on connections and heads of requests."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from asyncio import TimerHandle
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mooring.addresses import join
from mooring.connection_limit import ConnectionLimit
from mooring.errors import InvalidRequest, StoreError
from mooring.formatting import reason
from mooring.server.auth.host_and_csrf import normalized
from mooring.server.settings import ServerSettings, TLSFiles, split_address
from mooring.tasks import Tasks

GRACE = 10.0
"""Seconds that running requests have to finish when the server stops."""
MAX_HEAD = 64 * 1024
"""Bytes of a request before its body."""
HEAD_TIMEOUT = 30.0
"""Seconds for the head of a request, from its first byte or from the connection."""
KEEPALIVE = 75
"""Seconds after which an idle connection is closed."""
CONNECTIONS = 5_000
"""Concurrent connections; further ones receive 503."""
_FILES = CONNECTIONS + 1_000
"""Open files, including one for each connection."""
_ANSWER = b"HTTP/1.1 %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

_HANDSHAKE_ROUNDS = 4
"""One more than the longest handshake takes."""


class CertificateNames(NamedTuple):
    dns: tuple[str, ...] = ()
    """Without wildcards such as `*.example.com`."""
    addresses: tuple[str, ...] = ()


def certificate_names(cert: Path, key: Path) -> CertificateNames:
    """The names in a certificate; none if it is unreadable or has expired.

    Python parses only the certificate of a peer, so this performs a handshake in memory.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        server.load_cert_chain(cert, key)
        client.load_verify_locations(cafile=cert)
        peer = _handshake(client, server).getpeercert() or {}
    except (OSError, ValueError):
        return CertificateNames()
    names = [pair for pair in peer.get("subjectAltName", ()) if isinstance(pair, tuple)]
    return CertificateNames(
        tuple(str(name) for kind, name in names if kind == "DNS" and "*" not in str(name)),
        tuple(normalized(str(name).strip()) for kind, name in names if kind == "IP Address"),
    )


def _handshake(client_context: ssl.SSLContext, server_context: ssl.SSLContext) -> ssl.SSLObject:
    """The client after a handshake with the server. Raises `ssl.SSLError`."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_HANDSHAKE_ROUNDS):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client


@contextlib.asynccontextmanager
async def listen(application: ASGIApp, settings: ServerSettings) -> AsyncIterator[str]:
    """Serve over HTTP, and yield the URL. Raises `StoreError` if the address cannot be bound, and
    `InvalidRequest` if its host is invalid."""
    _allow_files()
    listening = _listening_socket(settings)
    server = _Uvicorn(_uvicorn_config(application, settings.tls))
    tasks = Tasks()
    running = tasks.start(server.serve(sockets=[listening]), name="http")
    host, _ = split_address("--http", settings.http)
    scheme = "https" if settings.tls else "http"
    try:
        yield f"{scheme}://{join(host, listening.getsockname()[1])}"
    finally:
        server.should_exit = True
        await asyncio.wait([running], timeout=GRACE)
        await tasks.aclose()
        listening.close()


def _listening_socket(settings: ServerSettings) -> _ListeningSocket:
    host, port = split_address("--http", settings.http)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
        listening = _ListeningSocket(
            socket.create_server(address, family=family, backlog=1024),
            settings.connections.limit(),
            refusal=b"" if settings.tls else _ANSWER % b"429 Too Many Requests",
        )
    except OSError as error:
        cause = "the host is unknown" if isinstance(error, socket.gaierror) else reason(error)
        raise StoreError(
            f"cannot listen at {settings.http} ({cause}): choose another address with --http"
        ) from error
    except UnicodeError as error:
        raise InvalidRequest(f"--http {settings.http}: invalid host name {host}") from error
    # Connections inherit it. asyncio sets it only on sockets with an explicit protocol, unlike this
    # one; without it each response waits 40 ms until the client acknowledges its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _uvicorn_config(application: ASGIApp, tls: TLSFiles | None) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http=_LimitedConnection,
        ws="none",
        log_level="error",  # a warning for each invalid request could fill the disk
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=KEEPALIVE,
        timeout_graceful_shutdown=int(GRACE),
        ssl_certfile=tls.cert if tls else None,
        ssl_keyfile=tls.key if tls else None,
        ssl_ca_certs=tls.client_ca or None if tls else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
    )


def _allow_files() -> None:
    """Raise the limit of open files, if needed and possible. With the default of about 1,000, a
    client with as many idle connections would lock out all others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class _Uvicorn(uvicorn.Server):
    """Leaves signals to `serve`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _ListeningSocket(socket.socket):
    """Limits the connections of each address. They count before the TLS handshake, unlike in a
    protocol, which asyncio creates after it. `refusal` is sent to connections over the limit."""

    def __init__(self, opened: socket.socket, limit: ConnectionLimit, *, refusal: bytes) -> None:
        super().__init__(fileno=opened.detach())
        self._limit, self._refusal = limit, refusal

    def accept(self) -> tuple[socket.socket, Any]:
        """Raises `ConnectionAbortedError` if the limit is exceeded; asyncio then continues."""
        connection, peer = super().accept()
        key = self._limit.accept(peer)
        if key is not None:
            return _AcceptedSocket(connection, partial(self._limit.release, key)), peer
        with connection, contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.send(self._refusal)
        raise ConnectionAbortedError


class _AcceptedSocket(socket.socket):
    def __init__(self, opened: socket.socket, closed: Callable[[], None]) -> None:
        super().__init__(fileno=opened.detach())
        self._closed = closed

    def close(self) -> None:
        if self.fileno() != -1:
            self._closed()
        super().close()


class _LimitedConnection(HttpToolsProtocol):
    """A connection that limits the size and the time of the heads of requests."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_size = 0
        self._head_timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_size += len(data)
        super().data_received(data)
        if self._head_timer is not None and self._head_size > MAX_HEAD:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def _start_timer(self) -> None:
        self._head_size = 0
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_timeout(self) -> None:
        self._head_timer = None
        self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self.transport.write(_ANSWER % status)
            self.transport.close()
