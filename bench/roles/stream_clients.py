"""Many clients of the live stream, which report how late they receive changes.

python -m bench.roles.stream_clients HOST:PORT TOKEN SERVICE COUNT SECONDS

The CPU load of an instance is the time at which it was written, on the monotonic clock, which all
processes of a machine share. Prints "ready" once all clients are connected and have received their
hello; and after SECONDS [median lag, 99th percentile, changes received, frames], with lags in
seconds, over all clients.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
import urllib.parse
from functools import lru_cache

import uvloop

from bench.processes import emit
from mooring.addresses import split

_TIME = re.compile(rb'"processCpuLoad":([\d.]+)')
_INSTANCES = re.compile(rb"(?:id: [^\n]*\n)?event: instances\n")
_LIMIT = 1 << 24


class Heard:
    def __init__(self, count: int) -> None:
        self._missing = count
        self.greeted = asyncio.Event()
        """Set once all have received their hello."""
        self.lags: list[float] = []
        self.frames = 0
        self.since = float("inf")
        """Changes written before this time do not count."""

    def greet(self) -> None:
        self._missing -= 1
        if not self._missing:
            self.greeted.set()


@lru_cache(maxsize=64)
def written(block: bytes) -> tuple[float, ...]:
    """When the instances of a frame were written. Cached, because all clients receive it."""
    return tuple(float(moment) for moment in _TIME.findall(block))


async def listen(host: str, port: int, head: bytes, heard: Heard) -> None:
    reader, writer = await asyncio.open_connection(host, port, limit=_LIMIT)
    try:
        writer.write(head)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.partition(b"\r\n")[0]:
            raise ConnectionError(f"the stream is refused: {answer!r}")
        await reader.readuntil(b"event: hello\n")
        heard.greet()
        while True:
            block = await reader.readuntil(b"\n\n")
            now = time.monotonic()
            if not _INSTANCES.match(block):
                continue
            heard.frames += 1
            heard.lags += [now - moment for moment in written(block) if moment >= heard.since]
    finally:
        writer.transport.abort()


async def main(address: str, token: str, service: str, count: int, seconds: float) -> None:
    host, port = split(address)
    path = f"/admin/events?service={urllib.parse.quote(service, safe='')}"
    # HTTP/1.0, so that the response is not chunked.
    head = f"GET {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
    heard = Heard(count)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(listen(host, port, head.encode(), heard)) for _ in range(count)]
        await heard.greeted.wait()
        heard.since = time.monotonic()
        emit("ready")
        await asyncio.sleep(seconds)
        lags = sorted(heard.lags)
        for task in tasks:
            task.cancel()
    if not lags:
        raise SystemExit("no client received a change")
    at = min(int(len(lags) * 0.99), len(lags) - 1)
    emit([lags[len(lags) // 2], lags[at], len(lags), heard.frames])


if __name__ == "__main__":
    address, token, service, count, seconds = sys.argv[1:]
    uvloop.run(main(address, token, service, int(count), float(seconds)))
