"""An event loop whose clock jumps to the next timer: an hour of waiting takes a millisecond.

While the loop is open, `time.monotonic()`, `time.time()` and `CLOCK_BOOTTIME` follow its clock,
because Mooring reads them. The clock stands still while a thread of the loop's executor works and
while sockets deliver data. A test that waits for another process, or for a thread that the loop
does not know, needs the real clock: mark it `real_time`.

All of tests/unit uses it. So do tests marked `virtual_time`, unless they ask a server.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

import pytest

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_REAL_MONOTONIC, _REAL_TIME, _REAL_CLOCK = time.monotonic, time.time, time.clock_gettime

_QUIET = 0.005
"""Real seconds without an event after which open sockets count as idle."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._selector_of_files = _Selector()
        self._started = _REAL_MONOTONIC()
        super().__init__(self._selector_of_files)
        self._selector_of_files.own_files = len(self._selector_of_files.get_map())
        since = _REAL_TIME() - self._started
        time.monotonic = self.time
        time.time = lambda: since + self.time()
        time.clock_gettime = self._clock_gettime

    def time(self) -> float:
        return self._started + self._selector_of_files.passed

    def _clock_gettime(self, clock: int) -> float:
        return self.time() if clock == time.CLOCK_BOOTTIME else _REAL_CLOCK(clock)

    def close(self) -> None:
        time.monotonic, time.time = _REAL_MONOTONIC, _REAL_TIME
        time.clock_gettime = _REAL_CLOCK
        super().close()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._selector_of_files.threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: asyncio.Future[Any]) -> None:
        self._selector_of_files.threads -= 1


class _Selector(selectors.DefaultSelector):
    """Waits for files, and lets the virtual time pass in place of real time."""

    passed = 0.0
    threads = 0
    own_files = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or self.threads:
            # Only a thread can wake the loop up, or nothing ever does.
            return super().select(timeout if timeout == 0 else None)
        quiet = _QUIET if timeout > 0 and len(self.get_map()) > self.own_files else 0
        events = super().select(quiet)
        if not events and timeout > 0:
            self.passed += timeout + 1e-9  # floats are rounded, and no timer may be early
        return events


class Clocks:
    """The plugin that chooses the event loop of each test."""

    def __init__(self) -> None:
        self._jumps = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._jumps = on_virtual_time(item)

    def pytest_asyncio_loop_factories(
        self, config: pytest.Config, item: pytest.Item
    ) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
        return {"the test's": self._new_loop}

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualTimeLoop() if self._jumps else asyncio.new_event_loop()


def on_virtual_time(item: pytest.Item) -> bool:
    """Whether a test runs on a clock that jumps to the next timer."""
    if item.get_closest_marker("real_time"):
        return False
    pure = item.path.parent.name == "unit"
    return pure or bool(item.get_closest_marker("virtual_time") and not _asks_a_server(item))


def _asks_a_server(item: pytest.Item) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if backend := params.get("backend", params.get("place", [""])[0]):
        return bool(backend != "memory")
    return bool(_SERVERS.intersection(getattr(item, "fixturenames", ())))


_SERVERS = {
    *("etcd", "redis", "redis_cluster", "redis_sentinel", "served", "store_url"),
    *("fresh_etcd", "fresh_redis"),
}
