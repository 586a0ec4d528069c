"""A client of a domain, and the transports for its calls: HTTP and TCP, one connection per call.

The package `hprose` encodes calls and decodes results. Its HTTP client is not used by default: it
cannot parse URLs with IPv6 addresses, leaves timed-out connections to the garbage collector, fails
on cookies with a date, and raises a proxy's 503 as if the function had raised it. It has no TCP
client.
"""

from __future__ import annotations

import ast
import asyncio
import http.client
import re
import socket
import struct
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypedDict, TypeVar, Unpack, overload

from hprose import HproseClient  # type: ignore[import-untyped]

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.hprose.failover import CallDispatcher, Connect, Server
from mooring.hub import Hub
from mooring.sync.portal import Caller, Portal
from mooring.sync.proxy import behind

if TYPE_CHECKING:
    import mooring.sync

R = TypeVar("R", covariant=True)

TIMEOUT = 30.0
"""Seconds for one try of a call, as in hprose's own client."""

_LENGTH = struct.Struct(">I")


class HproseTransport(HproseClient, ABC):  # type: ignore[misc]
    """A thread-safe client of one server."""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        super().__init__(url)
        self.timeout = timeout
        self._parts = urllib.parse.urlsplit(url)

    @abstractmethod
    def _exchange(self, data: bytes) -> bytes:
        """Send a call and return the response. Raises transport errors only."""

    def _sendAndReceive(self, data: bytes) -> bytes:
        response = self._exchange(data)
        if self.filter is None and not response.endswith(b"z"):
            raise ConnectionError(f"{self._uri} sent an invalid response: {quoted(response, 80)}")
        return repaired(response)


class HttpTransport(HproseTransport):
    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        super().__init__(url, timeout)
        self.headers: dict[str, str] = {}
        """Sent with every call."""

    def _exchange(self, data: bytes) -> bytes:
        parts = self._parts
        secure = parts.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {**self.headers, "Content-Type": "application/hprose", "Connection": "close"}
        with closing(connect(parts.hostname or "", parts.port, timeout=self.timeout)) as connection:
            connection.request("POST", path, data, headers)
            with connection.getresponse() as response:
                if response.status != http.client.OK:
                    raise ConnectionError(
                        f"{self._uri} returned {response.status} {response.reason}"
                    )
                return response.read()


class TcpTransport(HproseTransport):
    """Prefixes each message with its length in four bytes: half duplex in hprose's terms."""

    def _exchange(self, data: bytes) -> bytes:
        parts = self._parts
        family = {"tcp4": socket.AF_INET, "tcp6": socket.AF_INET6}.get(parts.scheme, 0)
        infos = socket.getaddrinfo(parts.hostname, parts.port, family, socket.SOCK_STREAM)
        address = str(infos[0][4][0]), parts.port
        with socket.create_connection(address, timeout=self.timeout) as connection:
            connection.sendall(_LENGTH.pack(len(data)) + data)
            with connection.makefile("rb") as response:
                (length,) = _LENGTH.unpack(self._check(response.read(4), 4))
                return self._check(response.read(length), length)

    def _check(self, data: bytes, length: int) -> bytes:
        if len(data) < length:
            raise ConnectionResetError(f"{self._uri} closed the connection within a response")
        return data


_TRANSPORTS = {
    "http": HttpTransport,
    "https": HttpTransport,
    "tcp": TcpTransport,
    "tcp4": TcpTransport,
    "tcp6": TcpTransport,
}


def transport(url: str, *, timeout: float = TIMEOUT) -> HproseTransport:
    """A client of hprose for one server, for `client(connect=…)` with your own filters and headers.
    Raises `InvalidRequest` for an unsupported scheme (ws, wss)."""
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme not in _TRANSPORTS:
        raise InvalidRequest(
            f"{url} cannot be called: {scheme or 'no scheme'} is not one of "
            f"{', '.join(_TRANSPORTS)}; pass a client for it with connect="
        )
    return _TRANSPORTS[scheme](url, timeout)


_MISCOUNTED = re.compile(rb"""Es([0-9]+)"(b(?:'.*'|".*"))"z""", re.DOTALL)


def repaired(response: bytes) -> bytes:
    """A response with a corrected error, if a server of hprose 1.4.3 on Python 3 sent it.

    Such a server sends the error of a function as `b'…'` but counts only the characters between the
    quotes, so its own client reports only "Wrong Response".
    """
    match = _MISCOUNTED.fullmatch(response)
    if match is None:
        return response
    try:
        message = ast.literal_eval(match[2].decode("ascii"))
        text = message.decode()
    except (ValueError, SyntaxError):
        return response
    if len(message) != int(match[1]):
        return response  # a correct count: the text only looks like `b'…'`
    return b'Es%d"%b"z' % (len(text.encode("utf-16-le")) // 2, message)


_THREADS = 64  # concurrent calls of one client; further calls wait


class InvokeOptions(TypedDict, total=False):
    """How a call is encoded: the keywords of hprose's own `invoke`."""

    byref: bool
    resultMode: int
    simple: bool | None


class RemoteMethod(Generic[R]):
    """A remote function: `remote.hello("x")`; `remote.user.get(3)` calls `user_get`."""

    def __init__(self, remote: Remote[R], name: str) -> None:
        self._remote, self._name = remote, name

    def __getattr__(self, name: str) -> RemoteMethod[R]:
        return RemoteMethod(self._remote, f"{self._name}_{name}")

    def __call__(self, *args: object, **options: Unpack[InvokeOptions]) -> R:
        return self._remote.invoke(self._name, list(args), **options)


class Remote(ABC, Generic[R]):
    """The remote functions of a domain, as attributes."""

    _calls: CallDispatcher

    def __getattr__(self, name: str) -> RemoteMethod[R]:
        if name.startswith("_"):
            raise AttributeError(f"{name} is not an attribute: call such a function with invoke")
        return RemoteMethod(self, name)

    @property
    def primary(self) -> Server | None:
        """The server that currently receives the calls."""
        return self._calls.primary

    @property
    def servers(self) -> tuple[Server, ...]:
        """The callable servers of the domain."""
        return self._calls.servers

    @abstractmethod
    def invoke(self, name: str, args: Sequence[object] = (), **options: Unpack[InvokeOptions]) -> R:
        """Call a remote function; the keywords are those of hprose's own `invoke`.

        Raises `HproseException` if the function raises. If the transport fails, the client reads
        the servers again and retries with another one, so the function may run twice. Raises
        `NoInstance` if there is no server, and the last transport error (`OSError`,
        `HTTPException`) after `tries` calls.
        """


class Client(Remote[Awaitable[object]]):
    """Created by `client`; an async context manager. Entering raises as `hub.discover` does.

    Calls run in threads of the client. A cancelled call is not retried, and its thread ends with
    the result or the timeout.
    """

    def __init__(self, calls: CallDispatcher) -> None:
        self._calls = calls
        self._threads = ThreadPoolExecutor(_THREADS, f"hprose {calls.domain}")

    async def invoke(
        self, name: str, args: Sequence[object] = (), **options: Unpack[InvokeOptions]
    ) -> object:
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._threads)
        return await self._calls.invoke(name, args, in_thread, **options)

    async def aclose(self) -> None:
        """Close the client. Calls in progress end with their result or timeout."""
        self._threads.shutdown(wait=False)
        await self._calls.aclose()

    async def __aenter__(self) -> Self:
        await self._calls.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class BlockingClient(Remote[object]):
    """Created by `client` from a hub of `mooring.sync`; a context manager. Thread-safe. Calls run
    in the calling thread."""

    def __init__(self, portal: Portal, calls: CallDispatcher) -> None:
        self._portal, self._calls = portal, calls

    def invoke(
        self, name: str, args: Sequence[object] = (), **options: Unpack[InvokeOptions]
    ) -> object:
        caller = Caller()
        call = partial(self._calls.invoke, name, args, caller.do, **options)
        return self._portal.call(call, caller=caller)

    def close(self) -> None:
        """Close the client."""
        if self._portal.running:
            self._portal.call(self._calls.aclose)

    def __enter__(self) -> Self:
        self._portal.call(self._calls.__aenter__, undo=self._calls.aclose)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ClientOptions(TypedDict, total=False):
    """The options of `client`."""

    tries: int
    pause: float
    timeout: float
    connect: Connect | None
    wait: float


@overload
def client(hub: Hub, domain: str, **options: Unpack[ClientOptions]) -> Client: ...
@overload
def client(
    hub: mooring.sync.Hub, domain: str, **options: Unpack[ClientOptions]
) -> BlockingClient: ...
def client(
    hub: Hub | mooring.sync.Hub,
    domain: str,
    *,
    tries: int = 10,
    pause: float = 3.0,
    timeout: float = TIMEOUT,
    connect: Connect | None = None,
    wait: float = 5.0,
) -> Client | BlockingClient:
    """A client of a domain that follows its servers.

    A call is sent at most `tries` times, with a timeout of `timeout` seconds each; `tries=1`
    disables retries. If all known servers have failed, the client pauses for `pause` seconds or
    until a new server appears. `connect` creates hprose's client for a URL: by default `transport`;
    pass your own for filters, headers or other schemes. `wait` limits the wait for the first list:
    see `hub.discover`.
    """
    make = partial(
        CallDispatcher,
        domain=domain,
        tries=tries,
        pause=pause,
        connect=connect or partial(transport, timeout=timeout),
        wait=wait,
    )
    if isinstance(hub, Hub):
        return Client(make(hub))
    portal, inner = behind(hub)

    async def make_on_loop() -> CallDispatcher:
        return make(inner)

    return BlockingClient(portal, portal.call(make_on_loop))
