"""HTTP: one GET that is answered with 2xx or 3xx.

It is written by hand, since it must do less than a client does: connect to an address that was
allowed and to no other, follow nothing, and read no more than the head of one answer.
"""

from __future__ import annotations

import re
import ssl
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader

from mooring import __version__
from mooring.server.health_checks.checker import Outcome, Target
from mooring.server.health_checks.connect import Unhealthy, attempt, connected

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
                    raise Unhealthy(f"it answered {status}")

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
    raise Unhealthy("it announces an answer again and again")


async def read_status(reader: StreamReader) -> int:
    """Raises `Unhealthy` where what comes first is no status line."""
    found = _STATUS.fullmatch(await _line(reader))
    if found is None:
        raise Unhealthy("its answer is no HTTP/1.1")
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
            raise Unhealthy("its answer is no HTTP/1.1")
        name, value = name.lower(), value.strip()
        headers[name] = b", ".join((headers[name], value)) if name in headers else value
    raise Unhealthy("its answer has too many headers")


async def _line(reader: StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except LimitOverrunError:
        raise Unhealthy("its answer has a line without an end") from None
    except IncompleteReadError as error:
        if not error.partial:
            raise
        raise Unhealthy("its answer is no HTTP/1.1") from None
