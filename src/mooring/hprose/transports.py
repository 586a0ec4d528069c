"""Transports for calls: HTTP and TCP, with one connection per call.

The package `hprose` encodes calls and decodes results. Its HTTP client is not used by default: it
cannot parse URLs with IPv6 addresses, leaves timed-out connections to the garbage collector, fails
on cookies with a date, and raises a proxy's 503 as if the function had raised it. It has no TCP
client.
"""

from __future__ import annotations

import ast
import http.client
import re
import socket
import struct
import urllib.parse
from abc import ABC, abstractmethod
from contextlib import closing

from hprose import HproseClient  # type: ignore[import-untyped]

from mooring.errors import InvalidRequest
from mooring.formatting import quoted

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
