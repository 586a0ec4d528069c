"""Tests of a promised deadline (mark `deadline`): was Mooring late, or the machine?

A reference process wakes up every 20 ms and does a little work. If a test fails while that process
was delayed too, the attempt is inconclusive and is repeated, up to three attempts in total. After
the third one the test fails, and its report says so. If the reference process was on time, the
failure stands. So do failures of fixtures, and of tests that exceeded their timeout. The run prints
every inconclusive attempt with its error, so that no failure stays hidden. No other test is ever
repeated.

A pass stands: a busy machine makes a deadline harder to meet, not easier. So only tests that
assert a promised time may have the mark.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import mmap
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.virtual_time import on_virtual_time

ATTEMPTS = 3
HELD_UP_AT_ONCE = 0.1
"""Seconds by which the reference process may be late once."""
HELD_UP_ON_AVERAGE = 0.005
"""Seconds by which the reference process may be late on average when it wakes up."""

_SAMPLES = 16384
_SAMPLE = struct.Struct("dd")
_PERIOD = 0.02
_REFERENCE = """
import mmap, os, struct, sys, time
path, samples, period = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with open(path, "r+b") as file:
    ring = mmap.mmap(file.fileno(), 0)
parent, number, due = os.getppid(), 0, time.monotonic()
while os.getppid() == parent:
    due = max(due + period, time.monotonic())
    time.sleep(max(due - time.monotonic(), 0))
    cpu = time.process_time()
    while time.process_time() - cpu < 0.0005:
        sum(range(1000))
    now = time.monotonic()
    struct.pack_into("dd", ring, number % samples * 16, now, now - due - 0.0005)
    number += 1
"""


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late a test's own loop (None if it has none) and the reference process were, in
    seconds."""

    loop: float | None
    most: float
    average: float

    @property
    def is_conclusive(self) -> bool:
        return self.most <= HELD_UP_AT_ONCE and self.average <= HELD_UP_ON_AVERAGE

    def __str__(self) -> str:
        reference = (
            f"the reference process was held up for {self.most * 1000:.0f} ms at most and "
            f"{self.average * 1000:.1f} ms on average"
        )
        if self.loop is None:
            return reference
        return f"{reference}, the test's own loop for {self.loop * 1000:.0f} ms at most"


class Reference:
    """The reference process and its measurements."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mooring-")
        path = Path(self._folder.name, "samples")
        path.write_bytes(bytes(_SAMPLES * _SAMPLE.size))
        with path.open("r+b") as file:
            self._ring = mmap.mmap(file.fileno(), 0)
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", _REFERENCE, str(path), str(_SAMPLES), str(_PERIOD)]
        )
        self.since(0.0)  # it has started

    def since(self, moment: float) -> list[float]:
        """How late it was at each wake-up since then, including a delay in progress: returns after
        the process has woken up once more."""
        now = time.monotonic()
        while True:
            samples = list(_SAMPLE.iter_unpack(self._ring[:]))
            if any(when > now for when, _ in samples):
                return [held_up for when, held_up in samples if when > moment]
            if self._process.poll() is not None:
                raise RuntimeError("the reference process of the deadline tests has ended")
            time.sleep(_PERIOD)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._ring.close()
        self._folder.cleanup()


class Deadlines:
    """The plugin that repeats inconclusive attempts and counts them."""

    def __init__(self) -> None:
        self._reference: Reference | None = None
        self._loop_late: float | None = None
        self._lateness: Lateness | None = None
        self._inconclusive: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if not _measured(item):
            return None
        self._reference = self._reference or Reference()
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        inconclusive: list[str] = []
        while True:
            reports, lateness = self._attempt(item, nextitem)
            failed = [report for report in reports if report.failed]
            if lateness is None or lateness.is_conclusive or not failed:
                break
            if not all(map(_may_be_late, failed)):
                break
            inconclusive.append(f"{lateness}; {'; '.join(map(_error, failed))}")
            if len(inconclusive) == ATTEMPTS:
                break
            item._initrequest()  # type: ignore[attr-defined]
        for report in failed:
            verdict = "The machine was on time."
            if lateness is None:
                continue
            if len(inconclusive) == ATTEMPTS:
                verdict = f"Inconclusive: in each of {ATTEMPTS} attempts the machine was late."
            elif not lateness.is_conclusive:
                verdict = "The machine was late, but no fixture and no timeout is repeated."
            report.longrepr = f"{report.longreprtext}\n\n{verdict} In this one {lateness}."
        for report in reports:
            if report.when == "teardown":
                report.user_properties += [("inconclusive", reason) for reason in inconclusive]
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _attempt(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> tuple[list[pytest.TestReport], Lateness | None]:
        """No lateness if a fixture failed before the test began."""
        self._lateness = None
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        return reports, self._lateness

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Generator[None, object, object]:
        """Measure the test itself, without its fixtures."""
        if not _measured(item) or self._reference is None:
            return (yield)
        test, self._loop_late = item.obj, None
        if inspect.iscoroutinefunction(test):
            item.obj = self._watched(test)
        began = time.monotonic()
        try:
            return (yield)
        finally:
            item.obj = test
            held_up = self._reference.since(began)
            average = sum(held_up) / len(held_up)
            self._lateness = Lateness(self._loop_late, max(held_up), average)

    def _watched(self, test: Any) -> Any:
        """The test, with a timer in its loop that measures how late it goes off."""

        @functools.wraps(test)
        async def watched(*arguments: object, **named: object) -> None:
            loop = asyncio.get_running_loop()

            timers: list[asyncio.Handle] = []

            def tick(due: float) -> None:
                self._loop_late = max(self._loop_late or 0.0, loop.time() - due)
                timers[:] = [loop.call_later(_PERIOD, tick, loop.time() + _PERIOD)]

            tick(loop.time())
            try:
                await test(*arguments, **named)
            finally:
                timers[0].cancel()

        return watched

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "inconclusive" and report.when == "teardown":
                self._inconclusive.append(f"{report.nodeid}: {value}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        count = len(self._inconclusive)
        terminalreporter.write_line(f"inconclusive attempts of deadline tests: {count}")
        for line in self._inconclusive:
            terminalreporter.write_line(f"  {line}")

    def pytest_unconfigure(self) -> None:
        if self._reference is not None:
            self._reference.close()


def _measured(item: pytest.Item) -> bool:
    """In virtual time, no machine is late."""
    return item.get_closest_marker("deadline") is not None and not on_virtual_time(item)


def _may_be_late(report: pytest.TestReport) -> bool:
    """Whether a failure can be a missed deadline. Fixtures assert no deadline, and after a timeout
    of pytest-timeout there is no timer for another attempt."""
    return report.when == "call" and "Timeout (>" not in report.longreprtext


def _error(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else report.longreprtext
    return f"{report.when}: {text.partition(chr(10))[0]}"
