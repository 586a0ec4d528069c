"""The load on every client: the same keys, value and number of calls in flight.

The standard library only: the peers run this with an interpreter of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import NamedTuple

KEYS = [f"/bench/{number:04}" for number in range(1000)]
VALUE = "v" * 100

_WARM_UP = 0.3
_GRACE = 20.0  # seconds that a call may exceed the end of the measurement


class Load(NamedTuple):
    """What a client did under load."""

    ops_per_s: float
    p50_ms: float


class Order(NamedTuple):
    """The command line of a peer."""

    host: str
    port: int
    operation: str
    in_flight: int
    seconds: float


async def in_flight(call: Callable[[int], Awaitable[object]], workers: int, seconds: float) -> Load:
    """Runs `workers` coroutines that call in a loop. `call` receives the number of the call."""
    numbers, latencies = itertools.count(), list[float]()
    clock = time.perf_counter
    start = clock()
    end = start + seconds

    async def work() -> None:
        while (sent := clock()) < end:
            await call(next(numbers))
            latencies.append(clock() - sent)

    async with asyncio.timeout(seconds + _GRACE):
        await asyncio.gather(*(work() for _ in range(workers)))
    return _load(latencies, clock() - start)


def in_threads(
    connect: Callable[[], Callable[[int], object]], workers: int, seconds: float
) -> Load:
    """The same for a blocking client: threads, each with its own connection."""
    clock = time.perf_counter
    all_connected = threading.Barrier(workers + 1, timeout=_GRACE)

    def work(number: int) -> list[float]:
        call, latencies = connect(), list[float]()
        numbers = itertools.count(number, workers)
        call(next(numbers))  # excludes connecting from the measurement
        all_connected.wait()
        end = clock() + seconds
        while (sent := clock()) < end:
            call(next(numbers))
            latencies.append(clock() - sent)
        return latencies

    with ThreadPoolExecutor(workers) as pool:
        working = [pool.submit(work, number) for number in range(workers)]
        all_connected.wait()
        start = clock()
        latencies = [latency for work in working for latency in work.result(seconds + _GRACE)]
    return _load(latencies, clock() - start)


def _load(latencies: list[float], elapsed: float) -> Load:
    return Load(len(latencies) / elapsed, median(latencies) * 1000)


def order() -> Order:
    """The order on this process's command line: ADDRESS OPERATION IN_FLIGHT SECONDS."""
    address, operation, workers, seconds = sys.argv[1:]
    host, _, port = address.rpartition(":")
    return Order(host, int(port), operation, int(workers), float(seconds))


async def measure(order: Order, call: Callable[[int], Awaitable[object]]) -> None:
    """Warms up, measures and prints the result, once a peer's script is connected."""
    await in_flight(call, order.in_flight, _WARM_UP)
    answer(await in_flight(call, order.in_flight, order.seconds))


def answer(load: Load) -> None:
    print(json.dumps(load._asdict()), flush=True)
