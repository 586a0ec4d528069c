"""Metrics collected in the background, by collectors that hang, fail and recover. [R9]"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from mooring.errors import InvalidRequest
from mooring.heartbeat import Collecting, Cost
from mooring.heartbeat.collectors import LOOP_LIMIT
from mooring.settings import MetricsSettings
from tests.waiting import eventually

FAST = 0.02


class Source:
    """A collector that does what the test says, and counts its calls."""

    def __init__(self, type: str, measure: Callable[[], object], cost: Cost = Cost.MEDIUM) -> None:
        self.type = type
        self.cost = cost
        self.measure = measure
        self.is_available = True
        self.calls = 0
        self.threads: set[str] = set()

    def available(self) -> bool:
        return self.is_available

    def collect(self) -> Mapping[str, object]:
        self.calls += 1
        self.threads.add(threading.current_thread().name)
        values = self.measure()
        assert isinstance(values, Mapping | list)
        return values  # type: ignore[return-value]  # a wrong type is a case of its own


def one() -> dict[str, object]:
    return {"value": 1}


def fail() -> dict[str, object]:
    raise ValueError("boom")


def collecting(*sources: Source, timeout: float = 5.0, interval: float = FAST) -> Collecting:
    names = tuple(source.type for source in sources)
    settings = MetricsSettings(
        enabled_metrics=names,
        collection_intervals=dict.fromkeys(names, interval),
        collection_timeout=timeout,
    )
    return Collecting(settings, sources)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """The event on which hanging collectors wait; set when the test ends."""
    event = threading.Event()
    yield event
    event.set()


async def test_the_built_in_collectors_provide_the_documented_names():
    names = ("memory", "cpu", "disk", "network", "application")
    async with Collecting(MetricsSettings(enabled_metrics=names)) as running:
        await eventually(lambda: running.metrics.keys() == set(names))
        metrics = running.metrics
    for branch, name in (
        ("memory", "usagePercent"),
        ("cpu", "processCpuLoad"),
        ("application", "threadCount"),
    ):
        values = metrics[branch]
        assert isinstance(values, dict)
        assert name in values


async def test_every_collector_has_its_own_interval():
    quick, slow = Source("quick", one), Source("slow", one)
    settings = MetricsSettings(
        enabled_metrics=("quick", "slow"), collection_intervals={"quick": FAST, "slow": 3600.0}
    )
    async with Collecting(settings, [quick, slow]) as running:
        await eventually(lambda: quick.calls >= 5 and "slow" in running.metrics)
        assert slow.calls == 1
        assert running.metrics == {"quick": {"value": 1}, "slow": {"value": 1}}


async def test_all_subscribers_are_notified():
    source = Source("a", one)
    notified: list[str] = []
    async with collecting(source) as running:
        end = running.subscribe(lambda: notified.append("first"))
        running.subscribe(lambda: notified.append("second"))
        await eventually(lambda: notified[:2] == ["first", "second"])
        assert running.metrics == {"a": {"value": 1}}
        end()
        notified.clear()
        await eventually(lambda: len(notified) >= 2)
        assert set(notified) == {"second"}


async def test_low_cost_collectors_run_in_the_loop_and_others_in_threads():
    low = Source("low", one, Cost.LOW)
    medium = Source("medium", one, Cost.MEDIUM)
    high = Source("high", one, Cost.HIGH)
    # Once each: a collector that is delayed by a busy machine would be moved to a thread.
    async with collecting(low, medium, high, interval=3600.0) as running:
        await eventually(lambda: len(running.metrics) == 3)
    here = threading.current_thread().name
    assert low.threads == {here}
    assert here not in medium.threads | high.threads


async def test_high_cost_collectors_run_alone():
    together, most = [0], [0]

    def measure() -> dict[str, object]:
        together[0] += 1
        most[0] = max(most[0], together[0])
        time.sleep(0.05)
        together[0] -= 1
        return {}

    sources = [Source(f"high{n}", measure, Cost.HIGH) for n in range(4)]
    async with collecting(*sources) as running:
        await eventually(lambda: len(running.metrics) == 4)
    assert most == [1]


async def test_a_hanging_collector_delays_no_other_and_is_not_called_again(
    released: threading.Event,
):
    def hang() -> dict[str, object]:
        released.wait()
        return {"value": 2}

    hanging = [Source(f"hang{n}", hang) for n in range(3)]
    dear, good = Source("dear", hang, Cost.HIGH), Source("good", one)
    high = Source("high", one, Cost.HIGH)
    async with collecting(*hanging, dear, good, high, timeout=0.5) as running:
        await eventually(lambda: good.calls >= 20 and "high" in running.metrics)
        await eventually(lambda: all(source.calls for source in (*hanging, dear)))
        assert [source.calls for source in (*hanging, dear)] == [1, 1, 1, 1]
        released.set()
        await eventually(lambda: all(source.type in running.metrics for source in hanging))
    assert running.metrics["hang0"] == {"value": 2}


@pytest.mark.deadline
async def test_a_hanging_collector_does_not_block_the_loop(released: threading.Event):
    def hang() -> dict[str, object]:
        released.wait()
        return {}

    async with collecting(Source("hang", hang)):
        ticks = 0
        async with asyncio.timeout(5):
            for _ in range(50):
                await asyncio.sleep(0.001)
                ticks += 1
        assert ticks == 50
        started = time.monotonic()
    assert time.monotonic() - started < 2, "leaving waited for the collector"


async def test_the_last_value_is_kept_for_three_intervals_and_then_dropped():
    source = Source("a", one)
    async with collecting(source) as running:
        await eventually(lambda: bool(running.metrics))
        kept: list[int] = []

        def failing() -> dict[str, object]:
            kept.append(len(running.metrics))
            return fail()

        source.measure = failing
        await eventually(lambda: running.metrics == {})
        assert kept[:3] == [1, 1, 1]
        notified = asyncio.Event()
        running.subscribe(notified.set)
        source.measure = one
        await asyncio.wait_for(notified.wait(), 20)
        assert running.metrics == {"a": {"value": 1}}


async def test_a_failure_and_its_end_are_logged_once(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="mooring")
    source = Source("a", fail)
    async with collecting(source) as running:
        await eventually(lambda: source.calls >= 6)
        source.measure = one
        await eventually(lambda: bool(running.metrics))
    messages = [
        record.getMessage() for record in caplog.records if record.name.startswith("mooring")
    ]
    assert len(messages) == 2
    assert "boom" in messages[0]
    assert "works again" in messages[1]


async def test_an_unavailable_collector_is_not_called(caplog: pytest.LogCaptureFixture):
    source, other = Source("a", one), Source("other", one)
    source.is_available = False
    async with collecting(source, other) as running:
        await eventually(lambda: other.calls >= 5)
        assert source.calls == 0
        assert "a" not in running.metrics
        source.is_available = True
        await eventually(lambda: "a" in running.metrics)
    assert caplog.text.count("not available") == 1


@pytest.mark.parametrize("cost", [Cost.LOW, Cost.MEDIUM])
@pytest.mark.parametrize(
    "odd",
    [
        [1],
        {"value": object()},
        {"value": {"deep": {1, 2}}},
        {"value": "a\udcff"},
        {"k\udcff": 1},
    ],
)
async def test_values_that_cannot_be_sent_are_a_failure(
    odd: object, cost: Cost, caplog: pytest.LogCaptureFixture
):
    source, good = Source("odd", lambda: odd, cost), Source("good", one)
    async with collecting(source, good) as running:
        await eventually(lambda: source.calls >= 2 and "good" in running.metrics)
        assert "odd" not in running.metrics
    assert "collector odd failed" in caplog.text


async def test_a_collector_cannot_change_its_values_afterwards():
    values: dict[str, object] = {"list": [1], "deep": {"x": 1}}
    source = Source("a", lambda: values)
    async with collecting(source, interval=3600.0) as running:
        await eventually(lambda: bool(running.metrics))
        values["list"] = values["deep"] = None
        assert running.metrics == {"a": {"list": [1], "deep": {"x": 1}}}


async def test_a_collector_that_blocks_the_loop_is_moved_to_a_thread(
    caplog: pytest.LogCaptureFixture,
):
    def slow() -> dict[str, object]:
        time.sleep(2 * LOOP_LIMIT)
        return {}

    source = Source("a", slow, Cost.LOW)
    async with collecting(source):
        await eventually(lambda: len(source.threads) >= 2)
    assert caplog.text.count("blocked the event loop") == 1


async def test_an_unknown_name_is_an_error_at_once():
    with pytest.raises(InvalidRequest, match="did you mean 'memory'"):
        async with Collecting(MetricsSettings(enabled_metrics=("memry",))):
            pass


async def test_a_thread_that_ends_after_the_loop_is_harmless(released: threading.Event):
    ended = threading.Event()

    def hang() -> dict[str, object]:
        released.wait()
        ended.set()
        raise ValueError("too late")

    source = Source("hang", hang)

    async def run() -> None:
        async with collecting(source):
            await eventually(lambda: source.calls == 1)

    await asyncio.to_thread(asyncio.run, run())
    released.set()
    await eventually(ended.is_set)


def test_the_process_ends_despite_a_hanging_collector():
    script = """
import asyncio, threading
from mooring.heartbeat import Collecting, Cost
from mooring.settings import MetricsSettings

class Hanging:
    type, cost = "hanging", Cost.MEDIUM
    asked = threading.Event()
    def available(self): return True
    def collect(self):
        self.asked.set()
        threading.Event().wait()

async def main():
    async with Collecting(MetricsSettings(enabled_metrics=("hanging",)), [Hanging()]):
        while not Hanging.asked.is_set():
            await asyncio.sleep(0.01)

asyncio.run(main())
print("ended")
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    assert run.stdout == "ended\n"
    assert run.stderr == ""
