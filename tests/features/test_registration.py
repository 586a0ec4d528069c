"""A registration through its life: states, heartbeats, draining, forks, outages of the store."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

import mooring
from mooring import Instance
from mooring.errors import Closed, InvalidRequest
from mooring.heartbeat import Decision
from mooring.hub import Hub
from mooring.model import NO_STATUS, Config, RecordedMetadata
from mooring.settings import parse
from mooring.store import everything, key
from mooring.testing.proxy import FaultProxy
from mooring.testing.redis import RedisServer
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

ONE = Instance("echo", "10.0.0.1", 80)
QUIET = parse({"registry": {"metrics": {"enabled-metrics": []}}})
STATUS = b"/registry/default/echo/10.0.0.1:80/status"


async def status_writes(hub: Hub) -> int:
    entry = (await hub.store.read(key(STATUS))).first
    assert entry is not None
    return entry.version


async def test_the_state_is_a_property_a_callback_and_a_metric():
    seen: list[str] = []
    async with mooring.connect() as hub:
        registration = hub.register(ONE)
        registration.subscribe(seen.append)
        async with registration:
            labels = {
                "service": "echo",
                "instance": "10.0.0.1:80",
                "mooring_registration": "registered",
            }
            assert str(registration.state) == "registered"
            assert REGISTRY.get_sample_value("mooring_registration", labels) == 1
        assert str(registration.state) == "closed"
        assert REGISTRY.get_sample_value("mooring_registration", labels) is None
    assert seen == ["registering", "registered", "closed"]


async def test_waiting_for_the_registration_fails_when_it_is_closed():
    async with mooring.connect("etcd://127.0.0.1:1?timeout=1s") as hub:
        registration = hub.register(ONE, wait=0.1)
        async with registration:
            waiting = asyncio.ensure_future(registration.registered())
            await asyncio.sleep(0)
        with pytest.raises(Closed, match="echo"):
            await asyncio.wait_for(waiting, 20)


def fail(state: str) -> None:
    raise ZeroDivisionError(state)


async def test_a_failing_subscriber_is_harmless(caplog: pytest.LogCaptureFixture):
    async with mooring.connect() as hub:
        registration = hub.register(ONE)
        registration.subscribe(fail)
        async with registration:
            assert registration.state == "registered"
    assert "a subscriber failed" in caplog.text


async def test_fields_that_a_layout_cannot_store_are_logged_once(caplog: pytest.LogCaptureFixture):
    async with (
        mooring.connect(layout="plain:/s/") as hub,
        hub.register(Instance("echo", "10.0.0.1", 80, zone="z", weight=2)),
    ):
        pass
    assert caplog.text.count("cannot store its zone, weight") == 1


async def test_fields_reserved_for_operators_are_reported_to_the_registering_process(
    caplog: pytest.LogCaptureFixture,
):
    given = Instance("echo", "10.0.0.1", 80, enabled=False, config=Config(weight=0))
    async with mooring.connect() as hub, hub.register(given):
        pass
    assert caplog.text.count("cannot store its enabled, config") == 1


@pytest.mark.parametrize("layout", ["plain:/s/", "endpoints:/e/"])
async def test_later_fields_that_a_layout_cannot_store_are_logged_once(
    layout: str, caplog: pytest.LogCaptureFixture
):
    async with mooring.connect(layout=layout) as hub, hub.register(ONE) as one:
        one.update(healthy=True, metrics={})
        assert "cannot hold" not in caplog.text
        one.update(healthy=False)
        one.update(metrics={"queue": {"length": 7}})
        assert caplog.text.count("cannot store its status") == 1
        one.update(weight=2)
        one.update(weight=3)
    assert caplog.text.count("cannot store its weight") == (layout == "plain:/s/")


async def test_a_missing_host_is_determined():
    async with mooring.connect() as hub, hub.register(Instance("echo", port=80)) as registration:
        assert registration.instance.host not in ("", "0.0.0.0")


async def test_an_instance_can_be_updated():
    async with mooring.connect() as hub, hub.register(ONE) as one, hub.discover("echo") as view:
        one.update(weight=5, metadata={"a": "b"}, healthy=False, metrics={"queue": {"length": 7}})

        def is_updated() -> bool:
            (seen,) = view.instances
            return (seen.weight, seen.metadata, seen.status.healthy) == (5.0, {"a": "b"}, False)

        await eventually(is_updated)
        await eventually(lambda: view.instances[0].status.metrics["queue"] == {"length": 7})
        with pytest.raises(InvalidRequest):
            one.update(weight=-1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"healthy": 0},
        {"healthy": "no"},
        {"metrics": ["x"]},
        {"metrics": {1: 2.0}},
        {"metrics": {"queue": {1: 2.0}}},
        {"metrics": {"queue": object()}},
        {"metrics": {"queue": [{1, 2}]}},
        {"metadata": {"a": "x" * 2_000_000}},
        {"metadata": ["a"]},
        {"weight": "heavy"},
    ],
)
async def test_an_invalid_update_is_refused_and_changes_nothing(wrong: dict[str, Any]):
    async with mooring.connect() as hub, hub.register(ONE) as one:
        before = msgspec.structs.replace(one.instance, status=NO_STATUS)
        with pytest.raises(InvalidRequest):
            one.update(**{"version": "9", "healthy": False, **wrong})
        assert msgspec.structs.replace(one.instance, status=NO_STATUS) == before
        assert one.instance.status.healthy


async def test_metrics_are_published_by_the_policy_and_not_more_often():
    """A change beyond its threshold is sent at once, a small one waits."""
    settings = parse(
        {
            "registry": {
                "metrics": {
                    "enabled-metrics": [],
                    "change-thresholds": {"queue.length": {"threshold": 10, "type": "absolute"}},
                }
            }
        }
    )
    async with mooring.connect(settings=settings) as hub, hub.register(ONE) as one:
        one.update(metrics={"queue": {"length": 100}})
        await eventually_writes(hub, 2)
        for length in (101, 105, 110):
            one.update(metrics={"queue": {"length": length}})
            await asyncio.sleep(0.02)
        assert await status_writes(hub) == 2
        one.update(metrics={"queue": {"length": 111}})
        await eventually_writes(hub, 3)


async def eventually_writes(hub: Hub, count: int) -> None:
    async def written() -> bool:
        return await status_writes(hub) >= count

    await eventually(written)
    assert await status_writes(hub) == count


async def test_draining_takes_effect_before_it_returns():
    async with mooring.connect(settings=QUIET) as hub, hub.discover("echo", hold=0) as view:
        async with hub.register(ONE) as one:
            states: list[str] = []
            view.subscribe(
                lambda update: states.extend(
                    change.after.status.state if change.after else "gone"
                    for change in update.changes
                )
            )
            await one.drain(linger=1)
            assert one.state == "closed"
            assert (await hub.registry.instances("echo")).instances == ()
            await eventually(lambda: states[-2:] == ["draining", "gone"])
        assert not any(entry.lease for entry in (await hub.store.read(everything())).entries)


async def test_draining_waits_until_consumers_can_have_seen_it():
    async with mooring.connect(settings=QUIET) as hub, hub.register(ONE) as one:
        started = time.monotonic()
        draining = asyncio.create_task(one.drain(linger=0.5))

        async def states() -> list[str]:
            listing = await hub.registry.instances("echo")
            return [instance.status.state for instance in listing.instances]

        async def is_draining() -> bool:
            return await states() == ["draining"]

        await eventually(is_draining)
        while await is_draining():  # callers without another instance still call it
            assert not draining.done()
            await asyncio.sleep(0.01)
        assert time.monotonic() - started >= 0.5
        assert await states() == []
        await draining


@pytest.mark.deadline
async def test_an_unavailable_store_does_not_keep_a_service_from_starting(
    etcd: Callable[[str], object], caplog: pytest.LogCaptureFixture
):
    server = etcd("3.5")
    async with FaultProxy(server.url.removeprefix("etcd://")) as proxy:  # type: ignore[attr-defined]
        proxy.refuse()
        url = f"etcd://{proxy.address}?timeout=1s&namespace=/{os.getpid()}-{time.monotonic_ns()}"
        async with mooring.connect(url) as hub, hub.register(ONE, wait=0.5) as one:
            assert one.state == "registering"
            assert "not registered yet, retrying" in caplog.text
            proxy.heal()
            await eventually(lambda: one.state == "registered", within=2)


async def test_why_an_instance_is_not_registered_is_logged_once_known(
    redis: Callable[[str], RedisServer], caplog: pytest.LogCaptureFixture
):
    def is_updated() -> list[str]:
        return [line for line in caplog.messages if "not registered yet" in line]

    async with FaultProxy(redis("7.0").address) as proxy:
        proxy.refuse()
        url = f"redis://{proxy.address}?timeout=300ms&namespace={time.monotonic_ns()}"
        async with mooring.connect(url) as hub, hub.register(ONE, wait=0) as one:
            assert is_updated()[0].endswith("no response in time")
            await eventually(lambda: any(proxy.address in line for line in is_updated()))
            tried = proxy.accepted
            await eventually(lambda: proxy.accepted > tried + 3)
            assert all(line != after for line, after in pairwise(is_updated()))
            proxy.heal()
            await eventually(lambda: one.state == "registered")


async def test_a_silent_store_suspends_a_registration_until_it_answers(
    etcd: Callable[[str], object],
):
    server = etcd("3.5")
    async with FaultProxy(server.url.removeprefix("etcd://")) as proxy:  # type: ignore[attr-defined]
        url = f"etcd://{proxy.address}?timeout=1s&namespace=/{os.getpid()}-{time.monotonic_ns()}"
        states: list[str] = []
        async with mooring.connect(url) as hub:
            registration = hub.register(ONE, ttl=30)
            registration.subscribe(states.append)
            async with registration:
                proxy.blackhole()
                await eventually(lambda: registration.state == "suspended")
                proxy.heal()
                await eventually(lambda: registration.state == "registered")
    assert states == ["registering", "registered", "suspended", "registered", "closed"]


@pytest.mark.real_time
@pytest.mark.deadline
async def test_a_process_stalled_for_three_ttls_notices_and_registers_again():
    """Its state is correct before any code of ours has run since, and its record is gone."""
    async with mooring.connect() as hub, hub.register(ONE, ttl=1) as one:
        time.sleep(3)  # noqa: ASYNC251 - that is what is tested
        assert one.state == "suspended"
        assert "TTL" in one.reason
        await eventually(lambda: one.state == "registered" and one.instance.id != "", within=2)

        async def listed() -> bool:
            return len((await hub.registry.instances("echo")).instances) == 1

        await eventually(listed, within=2)


@pytest.mark.deadline
async def test_the_state_on_redis_is_correct_before_a_blocked_loop_runs_again(
    redis: Callable[[str], RedisServer],
):
    settings = parse(
        {
            "registry": {
                "heartbeat": {"heartbeat-interval": "200ms"},
                "metrics": {"enabled-metrics": []},
                "cleanup": {"global-timeout": "1s"},
            }
        }
    )
    url = f"{redis('7.0').url}?namespace={uuid.uuid4().hex}"
    async with mooring.connect(url, settings=settings) as hub, hub.register(ONE) as one:
        time.sleep(1.5)  # noqa: ASYNC251 - that is what is tested
        assert one.state == "suspended"
        await eventually(lambda: one.state == "registered", within=2)


async def moments() -> list[float]:
    """The times at which processes with these numbers send heartbeats."""
    times = []
    for number in (1, 2):  # as in a container, and in a child that was forked there
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda number=number: number)
            async with mooring.connect() as hub:
                beats = hub.register(ONE)._beats
                beats.sent(0.0, Decision.HEARTBEAT_ONLY, {}, crowded=True)
                times.append(beats.next_due(0.0))
    return times


@pytest.mark.real_time
async def test_every_process_sends_heartbeats_at_different_times():
    """Even if containers give all processes the same number, or one process forked them."""
    code = (
        "import asyncio; from tests.features.test_registration import moments;"
        "print(*asyncio.run(moments()))"
    )
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    printed, _ = await other.communicate()
    assert len({*await moments(), *map(float, printed.split())}) == 4


FORKED = """
import asyncio, os, sys
import mooring

async def main():
    async with mooring.connect("sqlite://" + sys.argv[1]) as hub:
        async with hub.register(mooring.Instance("echo", "10.0.0.1", 80)) as registration:
            child = os.fork()
            if not child:
                try:
                    assert registration.state == "closed", registration.state
                    for broken in (lambda: hub.store, lambda: hub.registry):
                        try:
                            broken()
                        except mooring.errors.Closed as error:
                            assert "fork" in str(error)
                        else:
                            raise AssertionError("usable after a fork")
                    closing = registration.aclose()
                    try:
                        closing.send(None)
                    except StopIteration:
                        pass
                    os._exit(0)
                finally:
                    os._exit(1)
            _, status = os.waitpid(child, 0)
            assert status == 0, status
            assert registration.state == "registered"
            assert len((await hub.registry.instances("echo")).instances) == 1

asyncio.run(main())
"""


def test_a_forked_child_does_not_act_for_its_parents_instance(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path / "store")], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


SERVICE = """
import asyncio, logging, sys, time
import mooring

async def main(url):
    async with mooring.connect(url) as hub:
        async with hub.register(mooring.Instance("echo", "10.0.0.1", 80), wait=1) as registration:
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: print("ready", registration.state, flush=True))
            await mooring.until_stopped(registration, grace=4, linger=0.5)
            print("stop", registration.state, flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.deadline
@pytest.mark.parametrize("reachable", [True, False])
async def test_sigterm_drains_and_ends_within_its_grace(
    etcd: Callable[[str], object], reachable: bool
):
    server = etcd("3.5")
    async with FaultProxy(server.url.removeprefix("etcd://")) as proxy:  # type: ignore[attr-defined]
        url = f"etcd://{proxy.address}?namespace=/{os.getpid()}-{time.monotonic_ns()}"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SERVICE, url, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready registered\n"
        if not reachable:
            proxy.blackhole()
        process.send_signal(signal.SIGTERM)
        signalled = time.monotonic()
        assert (await process.stdout.readline()).startswith(b"stop")
        assert time.monotonic() - signalled < 4 * 2 / 3 + 0.5  # a third is left to the caller
        assert await process.wait() == 0
        if reachable:
            async with mooring.connect(url) as hub:
                assert (await hub.registry.instances("echo")).instances == ()


def test_settings_of_another_type_are_refused():
    with pytest.raises(InvalidRequest, match="did you mean"):
        mooring.connect(settings=parse({"registry": {"heartbeets": {}}}))


def metrics_of(instance: Instance) -> Mapping[str, object]:
    return instance.status.metrics


@pytest.mark.real_time
async def test_host_metrics_are_part_of_the_status():
    async with mooring.connect() as hub, hub.register(ONE), hub.discover("echo") as view:
        await eventually(lambda: {"memory", "cpu"} <= set(metrics_of(view.instances[0])))


async def test_a_registration_that_was_never_entered_closes_without_a_trace():
    async with mooring.connect() as hub:
        registration = hub.register(ONE)
    await registration.drain()
    assert registration.state == "closed"


async def test_a_registration_survives_a_cancellation_inside_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with mooring.connect() as hub:
        whole, calls = hub.store.commit, 0

        async def commit(*writes: object, **rest: object) -> object:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise asyncio.CancelledError
            return await whole(*writes, **rest)  # type: ignore[arg-type]

        monkeypatch.setattr(hub.store, "commit", commit)
        async with hub.register(ONE) as one:
            assert one.state == "registered"
    assert "retrying" in caplog.text


async def test_an_oversized_instance_is_refused():
    async with mooring.connect() as hub:
        large = Instance("echo", "10.0.0.1", 80, metadata=RecordedMetadata({"a": "x" * 2_000_000}))
        with pytest.raises(InvalidRequest, match="metadata"):
            await asyncio.wait_for(hub.register(large).__aenter__(), 20)
        async with hub.register(ONE) as one:
            assert one.state == "registered"


@pytest.mark.parametrize("url", ["memory://", "redis"])
async def test_a_second_close_waits_for_the_first(
    url: str, redis: Callable[[str], RedisServer], monkeypatch: pytest.MonkeyPatch
):
    """A hub that is left meanwhile must not close the store before the deregistration."""
    if url == "redis":
        url = f"{redis('7.0').url}?namespace={time.monotonic_ns()}"
    async with mooring.connect(url) as hub:
        one = await hub.register(ONE).__aenter__()
        held, at_work = asyncio.Event(), asyncio.Event()
        withdraw = one._record.withdraw

        async def slow() -> None:
            at_work.set()
            await held.wait()
            await withdraw()

        monkeypatch.setattr(one._record, "withdraw", slow)
        first = asyncio.ensure_future(one.aclose())
        await at_work.wait()
        second = asyncio.ensure_future(one.aclose())
        await asyncio.sleep(0.05)
        assert not second.done()
        held.set()
        await second
        assert one.state == "closed"
        assert (await hub.registry.instances("echo")).instances == ()
        await first


async def test_closing_a_registration_while_it_opens_is_reported_at_once():
    async with mooring.connect("etcd://127.0.0.1:1?timeout=1s") as hub:
        registration = hub.register(ONE, wait=60)
        opening = asyncio.ensure_future(registration.__aenter__())
        await eventually(lambda: registration.state == "registering")
        await registration.aclose()
        with pytest.raises(Closed, match="echo"):
            await asyncio.wait_for(opening, 20)


async def test_a_second_drain_does_not_revive_the_instance():
    states: list[str] = []
    async with mooring.connect(settings=QUIET) as hub, hub.discover("echo") as view:
        one = await hub.register(ONE).__aenter__()
        await view.wait(timeout=20)
        view.subscribe(
            lambda update: states.extend(
                change.after.status.state if change.after else "gone" for change in update.changes
            )
        )
        first = asyncio.ensure_future(one.drain(linger=0.3))
        await eventually(lambda: "gone" in states)
        await one.drain(linger=0.1)
        assert one.state == "closed"
        await first
        await asyncio.sleep(0.1)
    assert states == ["draining", "gone"]


async def test_closing_during_a_drain_waits_until_the_instance_left(
    monkeypatch: pytest.MonkeyPatch,
):
    async with mooring.connect() as hub:
        one = await hub.register(ONE).__aenter__()
        held, at_work = asyncio.Event(), asyncio.Event()
        put = one._record.put

        async def slow(instance: Instance, *, fresh: bool) -> None:
            at_work.set()
            await held.wait()
            await put(instance, fresh=fresh)

        monkeypatch.setattr(one._record, "put", slow)
        draining = asyncio.ensure_future(one.drain(linger=0.1))
        await at_work.wait()
        closing = asyncio.ensure_future(one.aclose())
        await asyncio.sleep(0.05)
        assert not closing.done()
        held.set()
        await closing
        await draining
        assert not any(entry.lease for entry in (await hub.store.read(everything())).entries)
