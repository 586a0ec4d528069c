"""Health checkers for TCP, HTTP, gRPC and WebSocket."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import ssl
import time
from abc import ABC, abstractmethod
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol

import grpc
import grpc.aio

from mooring import __version__, addresses
from mooring.durations import format_duration
from mooring.errors import InvalidRequest
from mooring.formatting import describe, quoted
from mooring.grpc.health import SERVICE, ServingStatus, encoded
from mooring.messages import Message, message
from mooring.names import nearest
from mooring.server.settings import NONE
from mooring.store.etcd.grpc_shutdown import settled


@dataclass(frozen=True, slots=True)
class Target:
    """What to probe. The `address` was resolved and allowed. A checker must connect to it and never
    resolve the host again, which could return another address."""

    service: str
    id: str
    protocol: str
    host: str
    """As registered, for the `Host` header and the name in the certificate."""
    address: str
    """The IP address to connect to."""
    port: int
    path: str = "/"
    """For protocols with paths."""

    @property
    def authority(self) -> str:
        """The host and the port, for the `Host` header."""
        return addresses.join(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a check."""

    ok: bool
    ms: float
    """From the start of the check to its result."""
    failure: str | Message = ""
    """Why the check failed, without any text from the remote; empty if it passed."""


class Checker(Protocol):
    """Checks instances of one protocol."""

    async def check(self, target: Target, *, timeout: float) -> Outcome:
        """Probe the target for at most `timeout` seconds. A checker follows no redirects, sends no
        credentials, and leaves nothing open, even if it is cancelled. It raises only if it is
        broken itself: that the target is down is an outcome."""
        ...


_CERTIFICATES = {
    9: "certificate_not_yet_valid",
    10: "certificate_expired",
    62: "certificate_of_another_name",
    64: "certificate_of_another_address",
}
"""The failures by OpenSSL error code."""


class CheckFailed(Exception):
    """The target did not answer as a healthy one does. The message becomes the failure."""

    def __init__(self, failure: Message) -> None:
        super().__init__(failure.text)
        self.message = failure


def failure_of(error: BaseException, *, timeout: float) -> Message:
    """The failure for an error, without any text from the remote."""
    match error:
        case CheckFailed():
            return error.message
        case TimeoutError():
            return message("probe_unanswered", duration=format_duration(timeout))
        case ssl.SSLCertVerificationError():
            return message(_CERTIFICATES.get(error.verify_code, "certificate_untrusted"))
        case ssl.SSLError():
            return message("tls_handshake_failed")
        case ConnectionRefusedError():
            return message("probe_refused")
        case ConnectionError() | EOFError():
            return message("probe_closed")
        case _:
            return message("probe_unreachable")


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

LIMIT = 4096
"""Bytes of a line; a stream buffers at most twice as many."""


def tls(ca: str = "") -> ssl.SSLContext:
    """Verifies host names, with the certificate authorities of a file or of the system."""
    context = ssl.create_default_context(cafile=ca or None)
    context.set_alpn_protocols(["http/1.1"])
    return context


@asynccontextmanager
async def connected(target: Target, context: ssl.SSLContext | None) -> AsyncIterator[Streams]:
    """A connection that is aborted on exit, without waiting for the remote to close."""
    name = target.host.removesuffix(".") if context else None
    reader, writer = await asyncio.open_connection(
        target.address, target.port, ssl=context, server_hostname=name, limit=LIMIT
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


class BuiltinChecker(ABC):
    """Times a probe."""

    async def check(self, target: Target, *, timeout: float) -> Outcome:
        started = time.perf_counter()
        failure: str | Message = ""
        try:
            async with asyncio.timeout(timeout):
                await self._probe(target, timeout)
        except (OSError, EOFError, CheckFailed) as error:
            failure = failure_of(error, timeout=timeout)
        return Outcome(not failure, (time.perf_counter() - started) * 1000, failure)

    @abstractmethod
    async def _probe(self, target: Target, timeout: float) -> None:
        """Returns if the target is healthy, and raises if not."""


class TCPChecker(BuiltinChecker):
    """Passes if the target accepts a connection."""

    async def _probe(self, target: Target, timeout: float) -> None:
        async with connected(target, None):
            pass


_OPTIONS = (
    # A proxy from the environment would resolve the name again.
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 4096),
    ("grpc.absolute_max_metadata_size", 8192),
)


class GRPCChecker(BuiltinChecker):
    """For `grpc`; with credentials, for `grpcs`."""

    def __init__(self, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._credentials = credentials

    async def _probe(self, target: Target, timeout: float) -> None:
        channel = self._channel(target)
        try:
            answer: bytes = await channel.unary_unary(f"/{SERVICE}/Check")(b"", timeout=timeout)
        except grpc.aio.AioRpcError as error:
            _judge(error)
        else:
            if answer != encoded(ServingStatus.SERVING):
                raise CheckFailed(message("grpc_not_serving"))
        finally:
            await channel.close()
            await settled()

    def _channel(self, target: Target) -> grpc.aio.Channel:
        scheme = "ipv6" if ":" in target.address else "ipv4"
        place = f"{scheme}:{addresses.join(target.address, target.port)}"
        options = [*_OPTIONS, ("grpc.default_authority", target.authority)]
        if self._credentials is None:
            return grpc.aio.insecure_channel(place, options)
        options.append(("grpc.ssl_target_name_override", target.host.removesuffix(".")))
        return grpc.aio.secure_channel(place, self._credentials, options)


def credentials(ca: str = "") -> grpc.ChannelCredentials:
    """With the certificate authorities of a file or of the system, instead of those of gRPC."""
    file = ca or ssl.get_default_verify_paths().cafile
    return grpc.ssl_channel_credentials(Path(file).read_bytes() if file else None)


def _judge(error: grpc.aio.AioRpcError) -> None:
    """Raise the failure for a status other than OK, without its details, which the remote chose."""
    match error.code():
        case grpc.StatusCode.UNIMPLEMENTED:
            return
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            raise TimeoutError
        case grpc.StatusCode.UNAVAILABLE:
            raise CheckFailed(message("grpc_unreachable")) from None
        case code:
            raise CheckFailed(message("answered", status=code.name)) from None


MAX_HEADERS = 64

_NOT_HTTP = message("answer_not_http")
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [^\r\n]*)?\r?\n")


class HTTPChecker(BuiltinChecker):
    """For `http`; with a context, for `https`."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context

    async def _probe(self, target: Target, timeout: float) -> None:
        async with connected(target, self._context) as (reader, writer):
            writer.write(request(target, "Accept: */*", "Connection: close"))
            status = await final_status(reader)
            if not 200 <= status < 400:
                raise CheckFailed(message("answered", status=status))


def request(target: Target, *headers: str) -> bytes:
    lines = (
        f"GET {target.path} HTTP/1.1",
        f"Host: {target.authority}",
        f"User-Agent: mooring/{__version__}",
        *headers,
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii")


async def final_status(reader: StreamReader) -> int:
    """The status of the response, after any informational responses."""
    for _ in range(4):
        status = await read_status(reader)
        if status >= 200 or status == 101:
            return status
        await read_headers(reader)
    raise CheckFailed(message("too_many_informational_responses"))


async def read_status(reader: StreamReader) -> int:
    """Raises `CheckFailed` for an invalid status line."""
    match = _STATUS.fullmatch(await _line(reader))
    if match is None:
        raise CheckFailed(_NOT_HTTP)
    return int(match[1])


async def read_headers(reader: StreamReader) -> dict[bytes, bytes]:
    """By lowercase name. The values of repeated headers are joined with a comma."""
    headers: dict[bytes, bytes] = {}
    for _ in range(MAX_HEADERS):
        line = (await _line(reader)).strip()
        if not line:
            return headers
        name, colon, value = line.partition(b":")
        if not colon:
            raise CheckFailed(_NOT_HTTP)
        name, value = name.lower(), value.strip()
        headers[name] = b", ".join((headers[name], value)) if name in headers else value
    raise CheckFailed(message("too_many_headers"))


async def _line(reader: StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except LimitOverrunError:
        raise CheckFailed(message("line_too_long")) from None
    except IncompleteReadError as error:
        if not error.partial:
            raise
        raise CheckFailed(_NOT_HTTP) from None


_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CLOSE = b"\x88\x82\x00\x00\x00\x00\x03\xe8"
"""A masked close frame with code 1000, normal closure."""


class WebSocketChecker(BuiltinChecker):
    """For `ws`; with a context, for `wss`."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context

    async def _probe(self, target: Target, timeout: float) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        async with connected(target, self._context) as (reader, writer):
            upgrade = request(
                target,
                "Upgrade: websocket",
                "Connection: Upgrade",
                f"Sec-WebSocket-Key: {key}",
                "Sec-WebSocket-Version: 13",
            )
            writer.write(upgrade)
            status = await final_status(reader)
            if status != 101:
                raise CheckFailed(message("websocket_not_opened", status=status))
            if problem := handshake_error(await read_headers(reader), key):
                raise CheckFailed(problem)
            writer.write(_CLOSE)


def accept(key: str) -> bytes:
    """The value of `Sec-WebSocket-Accept` for a key."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest())


def handshake_error(headers: Mapping[bytes, bytes], key: str) -> Message | None:
    """Why a 101 response does not open a WebSocket; None if it does."""
    upgrade = headers.get(b"upgrade", b"").lower()
    connection = {word.strip() for word in headers.get(b"connection", b"").lower().split(b",")}
    if upgrade != b"websocket" or b"upgrade" not in connection:
        return message("websocket_other_protocol")
    if headers.get(b"sec-websocket-accept") != accept(key):
        return message("websocket_wrong_key")
    return None


GROUP = "mooring.health_checkers"
"""Entry points: the name is the protocol, the value a callable that returns its checker."""


def load_checkers(
    protocols: Mapping[str, str] | None = None, *, ca: str = ""
) -> dict[str, Checker]:
    """The checkers by protocol: the built-in ones, those of entry points, and last what the
    settings choose: for each protocol, another one whose checker it uses, or "none". Protocols
    without a checker are not probed.

    Raises `InvalidRequest` for an unknown name, and for a checker that cannot be loaded.
    """
    context = tls(ca)
    known: dict[str, Checker] = {
        "http": HTTPChecker(),
        "https": HTTPChecker(context),
        "ws": WebSocketChecker(),
        "wss": WebSocketChecker(context),
        "tcp": TCPChecker(),
        "grpc": GRPCChecker(),
        "grpcs": GRPCChecker(credentials(ca)),
    }
    known.update({point.name: _load(point) for point in entry_points(group=GROUP)})
    chosen = dict(known)
    for protocol, name in (protocols or {}).items():
        if name == NONE:
            chosen.pop(protocol, None)
        elif name in known:
            chosen[protocol] = known[name]
        else:
            raise InvalidRequest(
                f"checks.protocols.{protocol}: no checker "
                f"{quoted(name)}{nearest(name, [*known, NONE])}"
            )
    return chosen


def _load(point: EntryPoint) -> Checker:
    try:
        make: Callable[[], Checker] = point.load()
        return make()
    except Exception as error:
        raise InvalidRequest(
            f"the health checker {quoted(point.name)} of the entry point {point.value} cannot be "
            f"loaded: {describe(error)}"
        ) from error
