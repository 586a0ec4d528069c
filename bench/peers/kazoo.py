"""kazoo: creates ephemeral nodes asynchronously; replies arrive in its own thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Protocol

from bench.load import Load, Order, answer, order
from bench.population import LAYOUT, here
from bench.zookeeper import KazooClient, client

_WARM_UP = 0.3
_GRACE = 20.0
_FOLDER = "/bench/registered"
_VALUES = tuple(LAYOUT.encode(here(0)).values())


class Result(Protocol):
    """What kazoo calls an `IAsyncResult`."""

    def get(self) -> object: ...

    def rawlink(self, callback: Callable[[Result], None]) -> None: ...


def run(order: Order) -> None:
    with client(f"{order.host}:{order.port}") as kazoo:
        kazoo.ensure_path(_FOLDER)
        numbers = itertools.count()
        call = {"register one": _one, "register both": _both}[order.operation]
        create = partial(call, kazoo, numbers)
        in_callbacks(create, order.in_flight, _WARM_UP)
        answer(in_callbacks(create, order.in_flight, order.seconds))


def _one(kazoo: KazooClient, numbers: itertools.count[int]) -> Result:
    """One node, as programs that register with kazoo create it."""
    made: Result = kazoo.create_async(f"{_FOLDER}/{next(numbers)}", _VALUES[0], ephemeral=True)
    return made


def _both(kazoo: KazooClient, numbers: itertools.count[int]) -> Result:
    """The two keys of our registrations, data and status, in one transaction."""
    name = f"{_FOLDER}/{next(numbers)}"
    transaction = kazoo.transaction()
    transaction.create(f"{name}-data", _VALUES[0], ephemeral=True)
    transaction.create(f"{name}-status", _VALUES[1], ephemeral=True)
    made: Result = transaction.commit_async()
    return made


def in_callbacks(call: Callable[[], Result], workers: int, seconds: float) -> Load:
    """Keeps `workers` calls in flight: the callback of each reply sends the next call."""
    latencies: list[float] = []
    clock, left, ended = time.perf_counter, workers, threading.Event()
    start = clock()
    end = start + seconds

    def send() -> None:
        call().rawlink(partial(done, clock()))

    def done(sent: float, result: Result) -> None:
        nonlocal left
        outcome = result.get()
        assert not isinstance(outcome, list) or all(isinstance(path, str) for path in outcome)
        latencies.append(clock() - sent)
        if clock() < end:
            send()
        else:
            left -= 1
            if not left:
                ended.set()

    for _ in range(workers):
        send()
    if not ended.wait(seconds + _GRACE):
        raise TimeoutError(f"{left} calls have no reply")
    return Load(len(latencies) / (clock() - start), median(latencies) * 1000)


if __name__ == "__main__":
    run(order())
