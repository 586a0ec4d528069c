"""Health checkers for TCP, HTTP, gRPC and WebSocket."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import ssl
import time
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol

import grpc
import grpc.aio

from mooring import __version__, addresses
from mooring.durations import show
from mooring.errors import InvalidRequest
from mooring.formatting import describe, quoted
from mooring.grpc.health import SERVICE, Status, encoded
from mooring.names import nearest
from mooring.server.settings import NONE
from mooring.store.etcd.grpc_shutdown import settled


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be probed. Its `address` was looked up and allowed: a checker connects to that
    very one, and never looks up the host again, which may lead somewhere else by then."""

    service: str
    id: str
    protocol: str
    host: str
    """As it is registered: for the `Host` header and for the name in a certificate."""
    address: str
    """The IP address to connect to."""
    port: int
    path: str = "/"
    """Where the protocol knows paths."""

    @property
    def authority(self) -> str:
        return addresses.join(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Outcome:
    ok: bool
    ms: float
    """Until it was certain, from the first packet on."""
    failure: str = ""
    """Why not, in our own words: what a remote says is never shown. Empty where it is `ok`."""


class Checker(Protocol):
    async def check(self, target: Target, *, timeout: float) -> Outcome:
        """Try the target for at most `timeout` seconds. It follows no redirect, sends no
        credentials, and keeps nothing open. It raises only where the checker itself is broken:
        that the target is down is an outcome. Cancelled, it closes what it opened."""
        ...


_CERTIFICATES = {
    9: "its certificate is not valid yet",
    10: "its certificate has expired",
    62: "its certificate is for another name",
    64: "its certificate is for another address",
}
"""By the codes of OpenSSL."""


class CheckFailed(Exception):
    """A target answered, and not as one that is well does; the message says how."""


def failure_text(error: BaseException, *, timeout: float) -> str:
    """The failure that an error means. Nothing of what a remote sent is in it."""
    match error:
        case CheckFailed():
            return str(error)
        case TimeoutError():
            return f"no answer within {show(timeout)}"
        case ssl.SSLCertVerificationError():
            untrusted = "its certificate is not signed by an authority that is trusted here"
            return _CERTIFICATES.get(error.verify_code, untrusted)
        case ssl.SSLError():
            return "it does not speak TLS as it should"
        case ConnectionRefusedError():
            return "it refused the connection"
        case ConnectionError() | EOFError():
            return "it broke the connection off"
        case _:
            return "it cannot be reached"


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

LIMIT = 4096
"""Bytes of a line that are read; a stream holds no more than twice as many."""


def tls(ca: str = "") -> ssl.SSLContext:
    """Verifies certificates by name, with the authorities of a file or of the system."""
    context = ssl.create_default_context(cafile=ca or None)
    context.set_alpn_protocols(["http/1.1"])
    return context


@asynccontextmanager
async def connected(target: Target, context: ssl.SSLContext | None) -> AsyncIterator[Streams]:
    """A connection that is cut off when this is left: nobody waits for a remote to agree."""
    name = target.host.removesuffix(".") if context else None
    reader, writer = await asyncio.open_connection(
        target.address, target.port, ssl=context, server_hostname=name, limit=LIMIT
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def attempt(work: Callable[[], Awaitable[None]], *, timeout: float) -> Outcome:
    """The outcome of what returns where a target is well, and raises where it is not."""
    started = time.perf_counter()
    failure = ""
    try:
        async with asyncio.timeout(timeout):
            await work()
    except (OSError, EOFError, CheckFailed) as error:
        failure = failure_text(error, timeout=timeout)
    return Outcome(not failure, (time.perf_counter() - started) * 1000, failure)


class TCPChecker:
    async def check(self, target: Target, *, timeout: float) -> Outcome:
        async def connect() -> None:
            async with connected(target, None):
                pass

        return await attempt(connect, timeout=timeout)


_OPTIONS = (
    # A proxy of the environment would connect elsewhere, to where it looks up itself.
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 4096),
    ("grpc.absolute_max_metadata_size", 8192),
)


class GRPCChecker:
    """With credentials over TLS, as grpcs."""

    def __init__(self, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._credentials = credentials

    async def check(self, target: Target, *, timeout: float) -> Outcome:
        async def ask() -> None:
            channel = self._channel(target)
            try:
                answer: bytes = await channel.unary_unary(f"/{SERVICE}/Check")(b"", timeout=timeout)
            except grpc.aio.AioRpcError as error:
                _judge(error)
            else:
                if answer != encoded(Status.SERVING):
                    raise CheckFailed("it says that it is not serving")
            finally:
                await channel.close()
                await settled()

        return await attempt(ask, timeout=timeout)

    def _channel(self, target: Target) -> grpc.aio.Channel:
        scheme = "ipv6" if ":" in target.address else "ipv4"
        place = f"{scheme}:{addresses.join(target.address, target.port)}"
        options = [*_OPTIONS, ("grpc.default_authority", target.authority)]
        if self._credentials is None:
            return grpc.aio.insecure_channel(place, options)
        options.append(("grpc.ssl_target_name_override", target.host.removesuffix(".")))
        return grpc.aio.secure_channel(place, self._credentials, options)


def credentials(ca: str = "") -> grpc.ChannelCredentials:
    """With the authorities of a file or of the system, where gRPC would take those it brings."""
    file = ca or ssl.get_default_verify_paths().cafile
    return grpc.ssl_channel_credentials(Path(file).read_bytes() if file else None)


def _judge(error: grpc.aio.AioRpcError) -> None:
    """Raise what an answer other than OK means; its details are a remote's words, and stay here."""
    match error.code():
        case grpc.StatusCode.UNIMPLEMENTED:
            return
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            raise TimeoutError
        case grpc.StatusCode.UNAVAILABLE:
            raise CheckFailed("it cannot be reached by gRPC") from None
        case code:
            raise CheckFailed(f"it answered {code.name}") from None


HEADERS = 64
"""Lines of a head that are read."""

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [^\r\n]*)?\r?\n")


class HTTPChecker:
    """With a context over TLS, as https."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context

    async def check(self, target: Target, *, timeout: float) -> Outcome:
        async def get() -> None:
            async with connected(target, self._context) as (reader, writer):
                writer.write(request(target, "Accept: */*", "Connection: close"))
                status = await final_status(reader)
                if not 200 <= status < 400:
                    raise CheckFailed(f"it answered {status}")

        return await attempt(get, timeout=timeout)


def request(target: Target, *headers: str) -> bytes:
    lines = (
        f"GET {target.path} HTTP/1.1",
        f"Host: {target.authority}",
        f"User-Agent: mooring/{__version__}",
        *headers,
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii")


async def final_status(reader: StreamReader) -> int:
    """The status of the answer, past those that only announce it."""
    for _ in range(4):
        status = await read_status(reader)
        if status >= 200 or status == 101:
            return status
        await read_headers(reader)
    raise CheckFailed("it announces an answer again and again")


async def read_status(reader: StreamReader) -> int:
    """Raises `CheckFailed` where what comes first is no status line."""
    found = _STATUS.fullmatch(await _line(reader))
    if found is None:
        raise CheckFailed("its answer is no HTTP/1.1")
    return int(found[1])


async def read_headers(reader: StreamReader) -> dict[bytes, bytes]:
    """By name in small letters; of one that comes twice both values, with a comma."""
    headers: dict[bytes, bytes] = {}
    for _ in range(HEADERS):
        line = (await _line(reader)).strip()
        if not line:
            return headers
        name, colon, value = line.partition(b":")
        if not colon:
            raise CheckFailed("its answer is no HTTP/1.1")
        name, value = name.lower(), value.strip()
        headers[name] = b", ".join((headers[name], value)) if name in headers else value
    raise CheckFailed("its answer has too many headers")


async def _line(reader: StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except LimitOverrunError:
        raise CheckFailed("its answer has a line without an end") from None
    except IncompleteReadError as error:
        if not error.partial:
            raise
        raise CheckFailed("its answer is no HTTP/1.1") from None


_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CLOSE = b"\x88\x82\x00\x00\x00\x00\x03\xe8"
"""Masked, as every frame of a client: 1000, normal closure."""


class WebSocketChecker:
    """With a context over TLS, as wss."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context

    async def check(self, target: Target, *, timeout: float) -> Outcome:
        async def shake_hands() -> None:
            key = base64.b64encode(os.urandom(16)).decode()
            async with connected(target, self._context) as (reader, writer):
                writer.write(
                    request(
                        target,
                        "Upgrade: websocket",
                        "Connection: Upgrade",
                        f"Sec-WebSocket-Key: {key}",
                        "Sec-WebSocket-Version: 13",
                    )
                )
                status = await final_status(reader)
                if status != 101:
                    raise CheckFailed(f"it answered {status} and opened no WebSocket")
                if problem := handshake_error(await read_headers(reader), key):
                    raise CheckFailed(problem)
                writer.write(_CLOSE)

        return await attempt(shake_hands, timeout=timeout)


def accept(key: str) -> bytes:
    """What a server that read the key answers."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest())


def handshake_error(headers: Mapping[bytes, bytes], key: str) -> str:
    """Why an answer 101 opens no WebSocket; "" where it does."""
    upgrade = headers.get(b"upgrade", b"").lower()
    connection = {word.strip() for word in headers.get(b"connection", b"").lower().split(b",")}
    if upgrade != b"websocket" or b"upgrade" not in connection:
        return "it changed to a protocol that is no WebSocket"
    if headers.get(b"sec-websocket-accept") != accept(key):
        return "its answer to the handshake of a WebSocket is wrong"
    return ""


GROUP = "mooring.health_checkers"
"""Of entry points: the name is the protocol, and what is called without arguments its checker."""


class Checkers:
    """By protocol. One without a checker is not probed: udp, where silence says nothing, and any
    that nobody told us how to speak. To connect is a check only for those that are told so
    (`protocols: {redis: tcp}`)."""

    def __init__(self, by_protocol: Mapping[str, Checker] | None = None) -> None:
        self._by_protocol = dict(by_protocol or {})

    def register(self, protocol: str, checker: Checker) -> None:
        """Let this one check a protocol from now on, in the place of any other."""
        self._by_protocol[protocol] = checker

    def remove(self, protocol: str) -> None:
        """Let nobody check a protocol."""
        self._by_protocol.pop(protocol, None)

    def get(self, protocol: str) -> Checker | None:
        return self._by_protocol.get(protocol)

    def protocols(self) -> list[str]:
        return sorted(self._by_protocol)


def built_in(ca: str = "") -> dict[str, Checker]:
    context = tls(ca)
    return {
        "http": HTTPChecker(),
        "https": HTTPChecker(context),
        "ws": WebSocketChecker(),
        "wss": WebSocketChecker(context),
        "tcp": TCPChecker(),
        "grpc": GRPCChecker(),
        "grpcs": GRPCChecker(credentials(ca)),
    }


def load_checkers(protocols: Mapping[str, str] | None = None, *, ca: str = "") -> Checkers:
    """Those of entry points over those that come with Mooring, and over both what the settings
    say: a protocol and the name of the one whose checker it shares, or "none".

    Raises `InvalidRequest` for a name that nobody has, and for one that cannot be loaded.
    """
    known = built_in(ca)
    known.update({point.name: _load(point) for point in entry_points(group=GROUP)})
    checkers = Checkers(known)
    for protocol, name in (protocols or {}).items():
        if name == NONE:
            checkers.remove(protocol)
        elif name in known:
            checkers.register(protocol, known[name])
        else:
            raise InvalidRequest(
                f"checks.protocols.{protocol}: no checker "
                f"{quoted(name)}{nearest(name, [*known, NONE])}"
            )
    return checkers


def _load(point: EntryPoint) -> Checker:
    try:
        make: Callable[[], Checker] = point.load()
        return make()
    except Exception as error:
        raise InvalidRequest(
            f"the health checker {quoted(point.name)} of the entry point {point.value} cannot be "
            f"loaded: {describe(error)}"
        ) from error
