"""What each collector measures, and how collectors are selected. [R9]"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest
from mooring.heartbeat.builtin_collectors import (
    ApplicationCollector,
    CpuCollector,
    CpuSample,
    DatabaseCollector,
    DiskCollector,
    MemoryCollector,
    NetworkCollector,
    loads,
)
from mooring.heartbeat.collectors import BUILT_IN, Collector, Cost, choose, pace


def number(values: Mapping[str, object], name: str) -> float:
    value = values[name]
    assert isinstance(value, int | float)
    return value


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_collector_is_called_as_it_is_named(name: str):
    [(collector, _)] = choose([name], {})
    assert collector.type == name


def test_memory_is_in_percent_and_bytes():
    values = MemoryCollector().collect()
    assert 0 < number(values, "usagePercent") <= 100
    assert 0 < number(values, "available") <= number(values, "total")
    assert 0 < number(values, "used") <= number(values, "total")
    assert 2**20 < number(values, "processResident") < number(values, "total")


def test_the_load_of_a_busy_process_is_known_from_the_first_collection():
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        collector = CpuCollector()
        values = collector.collect()
        assert 0 < number(values, "processCpuLoad") <= 100
        assert 0 < number(values, "systemCpuLoad") <= 100
        assert number(values, "count") >= 1
        assert values["loadAverage"]
    finally:
        stop.set()
        thread.join()


samples = st.builds(CpuSample, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))


def test_only_the_first_collection_waits_for_a_load(monkeypatch: pytest.MonkeyPatch):
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    collector = CpuCollector()
    for _ in range(3):
        assert 0 <= number(collector.collect(), "processCpuLoad") <= 100
    assert len(waits) == 1


def test_a_load_is_the_share_of_the_elapsed_time():
    values = loads(CpuSample(1, 10, 100), CpuSample(2, 14, 108))
    assert values == {"processCpuLoad": 12.5, "systemCpuLoad": 50.0}


@given(samples, samples)
def test_loads_are_percentages_for_any_counters(before: CpuSample, after: CpuSample):
    assert all(0 <= load <= 100 for load in loads(before, after).values())


def test_disk_measures_its_path(tmp_path: Path):
    values = DiskCollector(tmp_path).collect()
    assert values["path"] == str(tmp_path)
    assert 0 <= number(values, "usagePercent") <= 100
    assert number(values, "free") <= number(values, "total")
    assert not DiskCollector(tmp_path / "missing").available()


def test_network_counts_the_connections_of_this_process():
    collector = NetworkCollector()
    if not collector.available():
        pytest.fail("this machine shows no network interface, not even the loopback one")
    before = collector.collect()
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            after = collector.collect()
    assert number(after, "listening") >= 1
    assert number(after, "established") >= 2
    assert number(after, "connections") >= 3
    assert number(after, "bytesReceived") >= number(before, "bytesReceived")


def test_application_describes_this_process():
    collector = ApplicationCollector()
    first = collector.collect()
    assert first["pid"] == os.getpid()
    assert number(first, "threadCount") >= 1
    assert number(first, "uptimeSeconds") > 0
    time.sleep(0.01)
    assert number(collector.collect(), "uptimeSeconds") > number(first, "uptimeSeconds")


def test_a_database_that_answers_has_a_latency():
    collector = DatabaseCollector(lambda: None)
    assert collector.available()
    values = collector.collect()
    assert values["reachable"] is True
    assert number(values, "latencySeconds") >= 0


def test_an_unreachable_database_is_logged_once(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    answers: list[object] = [OSError("refused"), OSError("refused"), False, True]

    def check() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    collector = DatabaseCollector(check)
    assert [collector.collect() for _ in range(3)] == [{"reachable": False}] * 3
    assert collector.collect()["reachable"] is True
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "refused" in caplog.text


def test_without_a_check_the_database_collector_does_not_run():
    assert not DatabaseCollector().available()
    assert DatabaseCollector().collect() == {}


class Queue:
    """A collector as a user writes it."""

    type = "queue"
    cost = Cost.LOW

    def available(self) -> bool:
        return True

    def collect(self) -> Mapping[str, object]:
        return {"length": 3}


def test_enabled_collectors_are_selected_with_their_intervals():
    own: list[Collector] = [Queue()]
    chosen = choose(["memory", "disk", "queue", "memory"], {"disk": 7.0}, own)
    assert [(c.type, interval) for c, interval in chosen] == [
        ("memory", 30.0),
        ("disk", 7.0),
        ("queue", 60.0),
    ]


@pytest.mark.parametrize(
    ("name", "interval"),
    [("memory", 30), ("cpu", 60), ("disk", 300), ("application", 120), ("network", 60)],
)
def test_every_collector_has_its_own_interval(name: str, interval: float):
    assert [every for _, every in choose([name], {})] == [interval]


def test_a_custom_collector_replaces_a_built_in_one():
    mine = DatabaseCollector(lambda: True)
    assert choose(["database"], {}, [mine]) == [(mine, 60.0)]


def test_the_error_for_an_unknown_name_suggests_the_nearest():
    with pytest.raises(InvalidRequest, match=r"enabled-metrics.*'memori'.*mean 'memory'"):
        choose(["memori"], {})
    with pytest.raises(InvalidRequest, match=r"collection-intervals.*'queu'.*mean 'queue'"):
        choose([], {"queu": 5.0}, [Queue()])


def test_a_collector_passed_in_code_runs_without_being_named():
    chosen = choose(["memory"], {"queue": 5.0}, [Queue()])
    assert [(collector.type, every) for collector, every in chosen] == [
        ("memory", 30.0),
        ("queue", 5.0),
    ]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with three entry points; one of them works."""
    info = tmp_path / "plugged-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[mooring.collectors]\n"
        "gpu = plugged_collectors:Gpu\n"
        "alias = plugged_collectors:Gpu\n"
        "broken = plugged_collectors:Missing\n"
    )
    (tmp_path / "plugged_collectors.py").write_text(
        "from mooring.heartbeat import Cost\n"
        "class Gpu:\n"
        "    type = 'gpu'\n"
        "    cost = Cost.MEDIUM\n"
        "    def available(self): return True\n"
        "    def collect(self): return {'usagePercent': 7}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_an_entry_point_provides_a_collector():
    ((collector, interval),) = choose(["gpu"], {})
    assert collector.collect() == {"usagePercent": 7}
    assert interval == 60.0


@pytest.mark.usefixtures("installed")
def test_a_broken_entry_point_is_an_error_only_if_it_is_enabled():
    assert len(choose(["gpu", "memory"], {})) == 2
    with pytest.raises(InvalidRequest, match=r"'broken'.*plugged_collectors:Missing"):
        choose(["broken"], {})
    with pytest.raises(InvalidRequest, match=r"'alias'.*'gpu'"):
        choose(["alias"], {})


def test_high_cost_collectors_run_at_most_once_a_minute():
    assert pace(Cost.HIGH, 5.0) == 60.0
    assert pace(Cost.HIGH, 90.0) == 90.0
    assert pace(Cost.MEDIUM, 5.0) == pace(Cost.LOW, 5.0) == 5.0
