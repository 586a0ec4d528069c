"""How a call travels: over HTTP or TCP, with a connection of its own.

The package `hprose` makes bytes of calls and results of bytes. Its own HTTP client is not used by
default: it cannot parse the URL of an IPv6 address, leaves a connection that timed out to the
garbage collector, fails on cookies with a date, and raises a proxy's 503 as if the function had
raised it. For TCP it has none.
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
"""Seconds for one try of a call: as in hprose's own client."""

_LENGTH = struct.Struct(">I")


class Transport(HproseClient, ABC):  # type: ignore[misc]
    """A client of one server. It may be used by many threads at once."""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        super().__init__(url)
        self.timeout = timeout
        self._where = urllib.parse.urlsplit(url)

    @abstractmethod
    def _exchange(self, data: bytes) -> bytes:
        """Send a call and read its answer. What it raises is an error of the way, not of the
        function that is called."""

    def _sendAndReceive(self, data: bytes) -> bytes:
        answer = self._exchange(data)
        if self.filter is None and not answer.endswith(b"z"):
            raise ConnectionError(f"{self._uri} gave an answer that is none: {quoted(answer, 80)}")
        return repaired(answer)


class Http(Transport):
    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        super().__init__(url, timeout)
        self.headers: dict[str, str] = {}
        """Sent with every call."""

    def _exchange(self, data: bytes) -> bytes:
        where = self._where
        secure = where.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        path = (where.path or "/") + (f"?{where.query}" if where.query else "")
        headers = {**self.headers, "Content-Type": "application/hprose", "Connection": "close"}
        with closing(kind(where.hostname or "", where.port, timeout=self.timeout)) as connection:
            connection.request("POST", path, data, headers)
            with connection.getresponse() as answer:
                if answer.status != http.client.OK:
                    raise ConnectionError(f"{self._uri} answered {answer.status} {answer.reason}")
                return answer.read()


class Tcp(Transport):
    """Each message is preceded by its length, in four bytes: what hprose calls half duplex."""

    def _exchange(self, data: bytes) -> bytes:
        where = self._where
        family = {"tcp4": socket.AF_INET, "tcp6": socket.AF_INET6}.get(where.scheme, 0)
        found = socket.getaddrinfo(where.hostname, where.port, family, socket.SOCK_STREAM)
        address = str(found[0][4][0]), where.port
        with socket.create_connection(address, timeout=self.timeout) as connection:
            connection.sendall(_LENGTH.pack(len(data)) + data)
            with connection.makefile("rb") as answer:
                (length,) = _LENGTH.unpack(self._read(answer.read(4), 4))
                return self._read(answer.read(length), length)

    def _read(self, data: bytes, length: int) -> bytes:
        if len(data) < length:
            raise ConnectionResetError(f"{self._uri} closed the connection within an answer")
        return data


_KINDS = {"http": Http, "https": Http, "tcp": Tcp, "tcp4": Tcp, "tcp6": Tcp}


def transport(url: str, *, timeout: float = TIMEOUT) -> Transport:
    """A client of hprose for one server, to be given filters and headers, as `client(connect=…)`
    wants it. Raises `InvalidRequest` for a scheme that is not spoken here (ws, wss)."""
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme not in _KINDS:
        raise InvalidRequest(
            f"{url} cannot be called: {scheme or 'no scheme'} is not one of {', '.join(_KINDS)}; "
            "give a client that can, with connect="
        )
    return _KINDS[scheme](url, timeout)


_MISCOUNTED = re.compile(rb"""Es([0-9]+)"(b(?:'.*'|".*"))"z""", re.DOTALL)


def repaired(answer: bytes) -> bytes:
    """An answer with its error put right, where a server of hprose 1.4.3 on Python 3 gave it.

    Such a server sends a function's error as `b'…'` and counts only what is between the quotes, so
    that its own client can say no more than "Wrong Response".
    """
    found = _MISCOUNTED.fullmatch(answer)
    if found is None:
        return answer
    try:
        message = ast.literal_eval(found[2].decode("ascii"))
        text = message.decode()
    except (ValueError, SyntaxError):
        return answer
    if len(message) != int(found[1]):
        return answer  # a server that counts right, and a text that looks like this
    return b'Es%d"%b"z' % (len(text.encode("utf-16-le")) // 2, message)
