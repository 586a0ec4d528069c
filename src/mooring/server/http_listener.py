"""The HTTP listener: uvicorn on one socket, with TLS and limits on clients."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
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

from mooring.connection_limit import ConnectionLimit
from mooring.errors import InvalidRequest, StoreError
from mooring.formatting import reason
from mooring.server.settings import ServerSettings, split
from mooring.tasks import Tasks

_ROUNDS = 4
"""Of words that each side says: one more than the longest handshake takes."""


class Names(NamedTuple):
    dns: tuple[str, ...] = ()
    """Without those that stand for many, `*.example.com`."""
    addresses: tuple[str, ...] = ()


def names(cert: Path, key: Path) -> Names:
    """Whom a certificate is for; nobody where it cannot be told, as of one that has expired.

    Python reads certificates only of a peer: so a client here asks a server here.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        server.load_cert_chain(cert, key)
        client.load_verify_locations(cafile=cert)
        told = _greet(client, server).getpeercert() or {}
    except (OSError, ValueError):
        return Names()
    named = [pair for pair in told.get("subjectAltName", ()) if isinstance(pair, tuple)]
    return Names(
        tuple(str(name) for kind, name in named if kind == "DNS" and "*" not in str(name)),
        tuple(_address(str(name)) for kind, name in named if kind == "IP Address"),
    )


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text.strip()))
    except ValueError:
        return text


def _greet(asking: ssl.SSLContext, asked: ssl.SSLContext) -> ssl.SSLObject:
    """A client that has shaken hands with a server, in memory. Raises `ssl.SSLError`."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(to_client, to_server)
    server = asked.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_ROUNDS):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client


log = logging.getLogger(__name__)

GRACE = 10.0
"""Seconds that calls under way have to finish when it is told to stop."""
LARGEST_HEAD = 64 * 1024
"""Bytes of a request before its body."""
PATIENCE = 30.0
"""Seconds for a request's head, from its first byte or from the connection."""
KEPT_ALIVE = 75
"""Seconds for which a connection is kept that is not used."""
CONNECTIONS = 5_000
"""At once; more are told to come back."""
_FILES = CONNECTIONS + 1_000
"""Open files, of which each connection is one."""
_ANSWER = b"HTTP/1.1 %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@contextlib.asynccontextmanager
async def listen(application: ASGIApp, settings: ServerSettings) -> AsyncIterator[str]:
    """Serve over HTTP, and yield the URL. Raises `StoreError` if it cannot listen there, and
    `InvalidRequest` if that is not a host."""
    _allow_files()
    host, port = split("--http", settings.http)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        place = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
        listening = _Listening(
            socket.create_server(place, family=family, backlog=1024),
            settings.connections.limit(),
            refusal=b"" if settings.tls else _ANSWER % b"429 Too Many Requests",
        )
    except OSError as error:
        why = "the host is unknown" if isinstance(error, socket.gaierror) else reason(error)
        raise StoreError(
            f"cannot listen at {settings.http} ({why}): choose another with --http"
        ) from error
    except UnicodeError as error:
        raise InvalidRequest(f"--http {settings.http}: {host} is no host's name") from error
    # Connections have it from here. asyncio sets it only on sockets that name their protocol, which
    # this one does not; without it every answer waits 40 ms for the client to acknowledge its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tls = settings.tls
    config = uvicorn.Config(
        application,
        http=_Connection,
        ws="none",
        log_level="error",  # it would warn of each request that is none: anybody could fill a disk
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=KEPT_ALIVE,
        timeout_graceful_shutdown=int(GRACE),
        ssl_certfile=tls.cert if tls else None,
        ssl_keyfile=tls.key if tls else None,
        ssl_ca_certs=tls.client_ca or None if tls else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
    )
    server = _Uvicorn(config)
    tasks = Tasks()
    running = tasks.start(server.serve(sockets=[listening]), name="http")
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"{'https' if tls else 'http'}://{shown}:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait([running], timeout=GRACE)
        await tasks.aclose()
        listening.close()


def _allow_files() -> None:
    """Let this process have as many open files as it may, if it needs them: by default it is some
    1,000, and whoever opens as many connections and says nothing would lock out all others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Uvicorn(uvicorn.Server):
    """Signals are `serve`'s business, for all faces alike."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Listening(socket.socket):
    """Of an address it accepts a bounded number of connections. They count before any TLS
    handshake, which asyncio awaits before it tells of a connection. `refusal` is the answer to one
    beyond the limit."""

    def __init__(self, opened: socket.socket, limit: ConnectionLimit, *, refusal: bytes) -> None:
        super().__init__(fileno=opened.detach())
        self._limit, self._refusal = limit, refusal

    def accept(self) -> tuple[socket.socket, Any]:
        """Raises `ConnectionAbortedError` for one beyond the limit: asyncio then looks again."""
        connection, peer = super().accept()
        site = self._limit.accept(peer)
        if site is not None:
            return _Accepted(connection, partial(self._limit.release, site)), peer
        with connection, contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.send(self._refusal)
        raise ConnectionAbortedError


class _Accepted(socket.socket):
    def __init__(self, opened: socket.socket, closed: Callable[[], None]) -> None:
        super().__init__(fileno=opened.detach())
        self._closed = closed

    def close(self) -> None:
        if self.fileno() != -1:
            self._closed()
        super().close()


class _Connection(HttpToolsProtocol):
    """A connection whose requests have heads of a bounded size that come in bounded time."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head = 0
        self._late: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._come()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._late is not None and self._head > LARGEST_HEAD:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._late is None:
            self._wait()

    def on_headers_complete(self) -> None:
        self._come()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._head = 0
        self._late = self.loop.call_later(PATIENCE, self._too_late)

    def _come(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        self._come()
        if not self.transport.is_closing():
            self.transport.write(_ANSWER % status)
            self.transport.close()
