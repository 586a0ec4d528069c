"""Only the clock of Redis counts: that of a client, an admin or a consumer may be hours off. If the
clock of Redis steps, no live instance is lost and no dead one stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import mooring
from mooring.discovery.last_known_good import InstanceCache
from mooring.discovery.view import View
from mooring.hub import Hub
from mooring.mirror import Mirror
from mooring.testing.redis import RedisServer
from tests.contract.registry.test_registry import at
from tests.faults.redis_actors import (
    World,
    crash,
    evictions_of,
    fleet,
    namespaced,
    quick,
    registry_of,
    silence,
    sweeping,
)
from tests.faults.test_redis_races import PATIENT
from tests.stepped_redis import SteppedRedis
from tests.waiting import eventually

SETTINGS = quick(timeout=6.0, interval=0.3)

PROCESS_WITH_CLOCK = """
import datetime, json, sys, time
shift, url = float(sys.argv[1]), sys.argv[2]
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + shift
time.time_ns = lambda: real_ns() + int(shift * 1e9)

class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls):
        return cls.fromtimestamp(time.time(), datetime.timezone.utc).replace(tzinfo=None)

datetime.datetime = Shifted

import asyncio
import mooring
from mooring import Instance
from tests.faults.redis_actors import evictions_of, quick, registry_of

async def main():
    loop = asyncio.get_running_loop()
    reading = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reading), sys.stdin)
    async with mooring.connect(url, settings=quick(timeout=6.0, interval=0.3)) as hub:
        sweeping = asyncio.ensure_future(evictions_of(registry_of(hub)).run())
        async with hub.register(Instance("echo", "10.0.0.2", 1)) as own:
            async with hub.discover("echo") as view:
                while await reading.readline():
                    listing = await hub.registry.instances("echo")
                    seen = [sorted(f"{i.host}:{i.port}" for i in found)
                            for found in (view.instances, listing.instances)]
                    print(json.dumps([own.state, *seen]), flush=True)
        sweeping.cancel()

asyncio.run(main())
"""


class ProcessWithClock:
    """A process that registers, sweeps and consumes by another clock."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def report(self) -> tuple[str, list[str], list[str]]:
        """The state of its registration, what its view contains, and what it lists."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        state, seen, listed = json.loads(await self._process.stdout.readline())
        return state, seen, listed


@contextlib.asynccontextmanager
async def process_with_clock(url: str, shift: float) -> AsyncIterator[ProcessWithClock]:
    command = [sys.executable, "-c", PROCESS_WITH_CLOCK, str(shift), url]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield ProcessWithClock(process)
    finally:
        await process.communicate(b"")


def connect(url: str) -> Hub:
    return mooring.connect(url, settings=SETTINGS)


@pytest.mark.parametrize("shift", [-3600.0, 3600.0])
async def test_clients_with_clocks_an_hour_off_change_nothing(
    redis: Callable[[str], RedisServer], shift: float
):
    url = namespaced(redis("7.0").url)
    expected = [f"10.0.0.1:{port}" for port in (1, 2, 3)] + ["10.0.0.2:1"]
    async with (
        connect(url) as hub,
        fleet(hub, 3),
        sweeping(hub),
        process_with_clock(url, shift) as other,
    ):
        end = time.monotonic() + 1
        while time.monotonic() < end:
            state, seen, listed = await other.report()
            assert state == "registered"
            assert seen == listed == expected
            own = (await hub.registry.instances("echo")).instances
            assert sorted(f"{instance.host}:{instance.port}" for instance in own) == expected
            await asyncio.sleep(0.1)
        scores = await registry_of(hub).reader.scores(registry_of(hub).keys.of("echo"))
        assert all(abs(score - time.time() * 1000) < 5000 for score in scores.values())
        async with fleet(hub, 1, first=4) as dying:
            await silence(hub, dying)

            async def gone() -> bool:
                return (await other.report())[1:] == (expected, expected)

            await eventually(gone)


async def test_a_successor_on_a_master_whose_clock_is_behind_is_the_later_one(
    redis: Callable[[str], RedisServer],
):
    """The record was written an hour in the future; its successor must be later still."""
    async with World(redis("7.0"), cleanup=PATIENT) as world:
        older, newer = world.process("a"), world.process("a")
        await older.step()
        ahead = int(time.time() * 1000) + 3_600_000
        key = world.keys.of("echo").instance("a")
        await world.call("HSET", key, "registrationTime", ahead)
        older.record._registered = str(ahead)
        await newer.step()
        assert newer.registered > ahead
        assert await older.settle() == "superseded"
        assert await newer.settle() == "registered"


STEPPED = quick(timeout=4.0, interval=0.3)
UNATTENDED = quick(timeout=60.0)
"""For instances without heartbeats: they are silent after a minute, or after a step."""


VALKEY = "the clock is judged by our scripts and clients, the same on each server"


@pytest.fixture(params=["6.2", pytest.param("valkey-9", marks=pytest.mark.extended(VALKEY))])
def steppable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SteppedRedis]:
    with SteppedRedis(tmp_path / "stepped", series=request.param) as server:
        server.start()
        yield server


def looks(server: RedisServer) -> int:
    """How often the heartbeats of a service were read."""
    calls = re.search(r"cmdstat_zcard:calls=(\d+)", str(server.command("INFO", "commandstats")))
    return int(calls[1]) if calls else 0


async def test_no_instance_is_silent_because_the_clock_steps_forward(steppable: SteppedRedis):
    async with (
        mooring.connect(steppable.url, settings=quick(timeout=6.0, beat=1.5)) as hub,
        fleet(hub, 2),
        hub.discover("echo") as view,
        Mirror(hub.registry.follow_all()) as mirror,
        sweeping(hub),
    ):
        await asyncio.gather(*(hub.registry.instances("echo") for _ in range(2)))
        before = looks(steppable)
        steppable.command("PUBLISH", "registry:services:echo:changes", "{}")
        await eventually(lambda: looks(steppable) > before)  # just before the step
        steppable.step_clock(3600)
        end = time.monotonic() + 7
        while time.monotonic() < end:
            steppable.command("PUBLISH", "registry:services:echo:changes", "{}")
            assert len((await hub.registry.instances("echo")).instances) == 2
            assert await hub.registry.services() == [("echo", 2)]
            assert max((await hub.registry.silence("echo")).values()) < 6
            assert len(view.instances) == len(mirror.items) == 2
            await asyncio.sleep(0.1)


async def step_forward(server: SteppedRedis) -> None:
    """By an hour. Scripts see it when the server next updates the time that it caches."""

    def now() -> int:
        return int(str(server.command("EVAL", "return redis.call('TIME')[1]", "0")))

    before = now()
    server.step_clock(3600)
    await eventually(lambda: now() >= before + 3600)


async def test_a_process_that_starts_after_the_clock_stepped_forward_lists_instances_in_doubt(
    steppable: SteppedRedis, caplog: pytest.LogCaptureFixture
):
    """It cannot know of the step: all instances seem silent for an hour."""
    async with (
        mooring.connect(steppable.url, settings=UNATTENDED) as hub,
        mooring.connect(steppable.url, settings=UNATTENDED) as newcomer,
    ):
        entered = [await hub.registry.enter(at(port), ttl=60) for port in (1, 2)]
        await step_forward(steppable)
        async with (
            newcomer.discover("echo") as view,
            Mirror(newcomer.registry.follow_all()) as mirror,
        ):
            assert len(view.instances) == len(mirror.items) == 2
            assert view.stale
            assert "all instances (2) were silent at the first read" in view.seen.reason
            await hub.registry.enter(entered[0].instance, ttl=60)
            await hub.registry.enter(entered[1].instance, ttl=60)
            await eventually(lambda: not view.stale)
            assert len(view.instances) == len(mirror.items) == 2
            assert view.seen.reason == ""
        assert caplog.text.count("at the first read") == 2  # the view's, and the mirror's


@pytest.mark.deadline
async def test_a_service_whose_instances_died_long_ago_is_empty_after_the_grace_period(
    steppable: SteppedRedis,
):
    async with (
        mooring.connect(steppable.url, settings=UNATTENDED) as hub,
        mooring.connect(steppable.url, settings=UNATTENDED) as newcomer,
    ):
        await hub.registry.enter(at(1), ttl=60)
        await hub.registry.enter(at(2), ttl=60)
        await step_forward(steppable)
        async with (
            newcomer.discover("echo") as view,
            Mirror(newcomer.registry.follow_all()) as mirror,
        ):
            assert view.stale
            assert view.seen.kept
            await eventually(lambda: not view.instances, within=2 * 0.3 + 5 + 1)
            await eventually(lambda: not mirror.items)
            await eventually(lambda: not view.stale)
            assert not view.seen.kept
            async with newcomer.discover("echo") as later:  # the clock is known by now
                assert not later.instances
                assert not later.stale
            await hub.registry.enter(at(1), ttl=60)
            await eventually(lambda: len(view.instances) == len(mirror.items) == 1)
            assert not view.stale


async def test_an_instance_that_never_expires_is_not_in_doubt_after_the_grace_period(
    steppable: SteppedRedis, tmp_path: Path
):
    """Nothing else changes then, but the copy on disk is saved."""
    cache = InstanceCache(tmp_path, "test", "echo")
    async with (
        mooring.connect(steppable.url, settings=UNATTENDED) as hub,
        mooring.connect(steppable.url, settings=UNATTENDED) as newcomer,
    ):
        await hub.registry.enter(msgspec.structs.replace(at(1), ephemeral=False), ttl=60)
        await step_forward(steppable)
        async with View(newcomer.registry.follow("echo"), "echo", cache=cache) as view:
            assert view.stale
            before = looks(steppable)
            await eventually(lambda: not view.stale)
            assert len(view.instances) == 1
            assert looks(steppable) - before < 10
            await eventually(lambda: cache.load() is not None)


async def test_silent_instances_beside_live_ones_are_omitted_at_the_first_read(
    steppable: SteppedRedis,
):
    async with (
        mooring.connect(steppable.url, settings=UNATTENDED) as hub,
        mooring.connect(steppable.url, settings=UNATTENDED) as newcomer,
    ):
        await hub.registry.enter(at(1), ttl=60)
        await step_forward(steppable)
        await hub.registry.enter(at(2), ttl=60)
        async with newcomer.discover("echo") as view:
            assert [instance.port for instance in view.instances] == [2]
            assert not view.stale


@pytest.mark.deadline
async def test_an_instance_that_died_before_the_clock_stepped_forward_is_omitted(
    steppable: SteppedRedis,
):
    async with (
        mooring.connect(steppable.url, settings=STEPPED) as hub,
        fleet(hub, 2),
        fleet(hub, 1, first=3) as dying,
        hub.discover("echo") as view,
    ):
        await crash(dying)
        steppable.step_clock(3600)
        await eventually(lambda: len(view.instances) == 2, within=4 + 5)


async def test_an_instance_that_died_before_the_clock_stepped_back_is_omitted_and_evicted(
    steppable: SteppedRedis, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    async with (
        mooring.connect(steppable.url, settings=STEPPED) as hub,
        fleet(hub, 2),
        fleet(hub, 1, first=3, ephemeral=False) as staying,
        fleet(hub, 1, first=4) as dying,
        hub.discover("echo") as view,
    ):
        await crash((*dying, *staying))
        steppable.step_clock(-3600)
        sweeper = evictions_of(registry_of(hub))
        swept = await sweeper.sweep()
        assert sorted(swept.lowered) == [("echo", f"10.0.0.1:{port}") for port in (1, 2, 3, 4)]
        assert "4 heartbeats ahead of Redis' clock lowered" in str(swept)
        messages = [record.getMessage() for record in caplog.records]
        assert (
            sum(
                "the heartbeats of 4 instances were more than 4s ahead" in line for line in messages
            )
            == 1
        )
        assert sum("stepped back by 1h" in line for line in messages) == 1
        scores = await registry_of(hub).reader.scores(registry_of(hub).keys.of("echo"))
        assert all(abs(score / 1000 + 3600 - time.time()) < 60 for score in scores.values())
        record = steppable.command(
            "HGET", "registry:services:echo:instance:10.0.0.1:4", "heartbeat"
        )
        assert float(str(record)) == scores["10.0.0.1:4"]
        assert len(view.instances) == 4
        assert (await sweeper.sweep()).lowered == []
        async with sweeping(hub):
            await eventually(lambda: len(view.instances) == 3)
            await eventually(
                lambda: "10.0.0.1:4" not in {instance.id for instance in view.instances}
            )
            gone = "registry:services:echo:instance:10.0.0.1:4"
            await eventually(lambda: steppable.command("EXISTS", gone) == 0)
            ill = "registry:services:echo:instance:10.0.0.1:3"
            await eventually(lambda: steppable.command("HGET", ill, "healthy") == "false")
