"""Connections of probes: to the very address of a target, for a short time."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from mooring.server.checks.contract import Outcome, Target
from mooring.server.checks.failures import Unhealthy, in_words

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
