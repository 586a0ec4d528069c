"""Connections of probes: to the very address of a target, for a short time."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from mooring.durations import show
from mooring.server.health_checks.checker import Outcome, Target

_CERTIFICATES = {
    9: "its certificate is not valid yet",
    10: "its certificate has expired",
    62: "its certificate is for another name",
    64: "its certificate is for another address",
}
"""By the codes of OpenSSL."""


class Unhealthy(Exception):
    """A target answered, and not as one that is well does; the message says how."""


def in_words(error: BaseException, *, timeout: float) -> str:
    """The failure that an error means. Nothing of what a remote sent is in it."""
    match error:
        case Unhealthy():
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
    except (OSError, EOFError, Unhealthy) as error:
        failure = in_words(error, timeout=timeout)
    return Outcome(not failure, (time.perf_counter() - started) * 1000, failure)
