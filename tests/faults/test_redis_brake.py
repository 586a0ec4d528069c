"""Cleanup and its brake on a real Redis: silent instances are evicted, and never a live one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

import mooring
from mooring import Instance
from mooring.discovery.view import View
from mooring.hub import Hub
from mooring.registry.evictions import CleanupReport
from mooring.settings import RegistrySettings
from mooring.testing.proxy import FaultProxy
from mooring.testing.redis import RedisServer
from tests.backends import usual
from tests.faults.redis_actors import (
    evictions_of,
    fleet,
    namespaced,
    quick,
    registry_of,
    silence,
    sweeping,
)
from tests.waiting import eventually

SETTINGS = quick(timeout=3.0)
TIMEOUT = SETTINGS.cleanup.global_timeout


@pytest.fixture
def url(redis: Callable[[str], RedisServer]) -> str:
    return namespaced(redis("7.0").url)


def connect(url: str, settings: RegistrySettings = SETTINGS) -> Hub:
    return mooring.connect(url, settings=settings)


async def listed(hub: Hub, service: str = "echo") -> set[int]:
    instances = (await hub.registry.instances(service)).instances
    return {instance.port for instance in instances}


async def kept(hub: Hub, service: str = "echo") -> int:
    """The number of instances in Redis, overdue or not."""
    registry = registry_of(hub)
    return len(await registry.reader.scores(registry.keys.of(service)))


async def overdue(hub: Hub, count: int) -> bool:
    """Whether this number of instances has been silent for too long."""
    registry = registry_of(hub)
    keys = registry.keys.of("echo")
    oldest = (await registry.reader.state(keys)).now - TIMEOUT * 1000
    scores = await registry.reader.scores(keys)
    return sum(score < oldest for score in scores.values()) == count


async def brakes(hub: Hub) -> set[str]:
    return {*await evictions_of(registry_of(hub)).brakes()}


async def test_an_instance_with_a_long_heartbeat_interval_is_not_silent(
    url: str, caplog: pytest.LogCaptureFixture
):
    rare = quick(beat=90.0, interval=30.0, timeout=120.0)
    async with connect(url, rare) as hub, fleet(hub, 4) as echo:
        registry = registry_of(hub)
        keys = registry.keys.of("echo")

        async def last_heard(ago: float) -> CleanupReport:
            moment = (await registry.reader.state(keys)).now - ago * 1000
            for one in echo:
                words = ("ZADD", keys.heartbeats, moment, one.instance.id)
                await registry.connection.call(*words, what="the test")
            return await evictions_of(registry).sweep()

        assert (await last_heard(85)).brakes == {}
        assert "set registry.cleanup.global-timeout to at least twice" in caplog.text
        assert set((await last_heard(125)).brakes) == {"echo"}
        assert len(await listed(hub)) == 4


async def test_silent_persistent_instances_are_counted_as_listed(url: str):
    async with connect(url) as hub, fleet(hub, 2, ephemeral=False) as stays, fleet(hub, 1, first=5):
        await silence(hub, stays)
        assert await overdue(hub, 2)
        assert await listed(hub) == {1, 2, 5}
        assert await hub.registry.services() == [("echo", 3)]


@contextlib.asynccontextmanager
async def never_fewer(view: View, count: int) -> AsyncIterator[None]:
    """A consumer always sees at least this number of instances."""
    seen: set[int] = set()

    async def look() -> None:
        while True:
            seen.add(len(view.instances))
            await asyncio.sleep(0.005)

    task = asyncio.ensure_future(look())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert min(seen) >= count


async def holds(hub: Hub, count: int, seconds: float) -> None:
    """Assert that this number of instances stays in Redis for this time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert await kept(hub) == count
        await asyncio.sleep(0.05)


async def test_silent_instances_are_evicted_and_live_ones_stay(url: str):
    async with (
        connect(url) as hub,
        connect(url) as other,
        fleet(hub, 5),
        sweeping(other),
        other.discover("echo") as view,
        fleet(hub, 2, first=10) as dying,
    ):
        await silence(hub, dying)

        async def gone() -> bool:
            return await kept(other) == 5

        await eventually(gone)
        await eventually(lambda: len(view.instances) == 5)
        assert not await brakes(other)


@pytest.mark.parametrize("sweepers", usual([3], [1], reason="several do what one does"))
async def test_a_partition_of_sixty_percent_evicts_no_instance(url: str, sweepers: int):
    address, _, rest = url.removeprefix("redis://").partition("?")
    async with (
        FaultProxy(address) as proxy,
        connect(url) as near,
        connect(f"redis://{proxy.address}?{rest}") as far,
        connect(url) as consumer,
        fleet(near, 4),
        fleet(far, 6, first=5) as cut_off,
        consumer.discover("echo") as view,
        sweeping(consumer, sweepers),
        never_fewer(view, 10),
    ):
        proxy.blackhole()

        async def braked() -> bool:
            return await brakes(consumer) == {"echo"}

        await eventually(braked)
        await holds(consumer, 10, TIMEOUT)
        listing = await consumer.registry.instances("echo")
        assert len(listing.instances) == 10
        assert any("6 of 10 instances are silent" in str(problem) for problem in listing.problems)
        before = {one.instance.incarnation for one in cut_off}
        proxy.heal()

        async def released() -> bool:
            assert await kept(consumer) == 10
            return not await brakes(consumer)

        await eventually(released)
        after = {i.incarnation for i in (await consumer.registry.instances("echo")).instances}
        assert before < after


async def test_instances_that_do_not_return_are_evicted_after_the_rest_returned(url: str):
    """The brake waits for stragglers first, and then releases."""
    async with (
        connect(url) as hub,
        connect(url) as other,
        fleet(hub, 4),
        sweeping(other),
        fleet(hub, 6, first=5) as dying,
    ):
        await silence(hub, dying)

        async def braked() -> bool:
            return bool(await brakes(other))

        await eventually(braked)
        before = time.monotonic()
        async with connect(url) as restarted, fleet(restarted, 4, first=5):  # at the same addresses
            await eventually(lambda: _not(braked()))
            assert time.monotonic() - before > 0.95 * TIMEOUT  # by another clock than that of Redis

            async def gone() -> bool:
                return await listed(other) == {1, 2, 3, 4, 5, 6, 7, 8}

            await eventually(gone)
            assert await kept(other) == 8


async def _not(answer: object) -> bool:
    return not await answer  # type: ignore[misc]


async def test_the_brake_releases_after_its_time(url: str):
    settings = quick(timeout=TIMEOUT, release=1.5)
    async with (
        connect(url, settings) as hub,
        connect(url, settings) as other,
        fleet(hub, 2),
        fleet(hub, 4, first=5) as dying,
    ):
        await silence(hub, dying)
        assert set((await evictions_of(registry_of(other)).sweep()).brakes) == {"echo"}
        assert await kept(other) == 6

        async def gone() -> bool:
            return await kept(other) == 2

        async with sweeping(other):
            await eventually(gone)
        assert not await brakes(other)


async def _holding(hub: Hub) -> bool:
    return bool(await brakes(hub))


@pytest.mark.parametrize("kind", ["single", "cluster"])
async def test_an_operator_releases_the_brake_and_silent_instances_are_evicted(
    kind: str, request: pytest.FixtureRequest
):
    if kind == "cluster":
        url = namespaced(request.getfixturevalue("redis_cluster").url)
    else:
        url = request.getfixturevalue("url")
    async with (
        connect(url) as hub,
        connect(url) as other,
        fleet(hub, 2),
        fleet(hub, 4, first=5) as dying,
        sweeping(other, 2),
    ):
        await silence(hub, dying)
        await eventually(lambda: _holding(other))
        assert await evictions_of(registry_of(other)).release("echo")

        async def gone() -> bool:
            return await kept(other) == 2

        await eventually(gone)
        assert not await evictions_of(registry_of(other)).release("echo")
        assert not await brakes(other)


async def test_a_brake_without_sweepers_ends(url: str):
    """All sweepers died while it held: consumers do not keep silent instances forever."""
    settings = quick(timeout=TIMEOUT, release=0.5)
    async with connect(url, settings) as hub, fleet(hub, 4) as dying:
        await silence(hub, dying)
        assert set((await evictions_of(registry_of(hub)).sweep()).brakes) == {"echo"}

        async def over() -> bool:
            return await listed(hub) == set()

        await eventually(over)


async def test_a_scale_in_by_deregistration_does_not_engage_the_brake(url: str):
    async with connect(url) as hub, connect(url) as other, sweeping(other, 2), fleet(hub, 2):
        async with fleet(hub, 8, first=3):
            assert await kept(other) == 10
        for _ in range(3):
            swept = await evictions_of(registry_of(other)).sweep()
            assert (swept.removed, swept.brakes) == ([], {})
            assert await listed(other) == {1, 2}
            assert not await brakes(other)


async def test_a_stalled_redis_evicts_no_instance(fresh_redis: Callable[..., RedisServer]):
    """It stalls for longer than the timeout, also for services of one and two instances."""
    server = fresh_redis()
    url = namespaced(server.url)
    async with (
        connect(url) as hub,
        connect(url) as other,
        fleet(hub, 1, service="one") as one,
        fleet(hub, 2, service="two") as two,
        fleet(hub, 5, service="five") as five,
        other.discover("one") as view1,
        other.discover("two") as view2,
        other.discover("five") as view5,
        sweeping(other, 2),
    ):
        removed: list[object] = []
        for view in (view1, view2, view5):
            view.subscribe(lambda update: removed.extend(c for c in update.changes if not c.after))
        incarnations = {registration.instance.incarnation for registration in (*one, *two, *five)}
        async with never_fewer(view1, 1), never_fewer(view2, 2), never_fewer(view5, 5):
            server.pause()
            await asyncio.sleep(1.3 * TIMEOUT)
            server.resume()

            async def back() -> bool:
                return await listed(hub, "five") == {1, 2, 3, 4, 5}

            await eventually(back)
            await asyncio.sleep(1)
        assert removed == []
        held = [i for v in (view1, view2, view5) for i in v.instances]
        assert {instance.incarnation for instance in held} == incarnations
        for name, count in (("one", 1), ("two", 2), ("five", 5)):
            assert await kept(other, name) == count
        states = {"registered"}
        await eventually(
            lambda: {registration.state for registration in (*one, *two, *five)} == states
        )


async def test_persistent_instances_are_marked_and_recover(url: str):
    async with (
        connect(url) as hub,
        connect(url) as other,
        sweeping(other),
        fleet(hub, 4, ephemeral=False) as dying,
        fleet(hub, 1, first=9),
        other.discover("echo") as view,
    ):
        await silence(hub, dying)

        async def marked() -> bool:
            assert not await brakes(other)
            instances = (await other.registry.instances("echo")).instances
            assert len(instances) == 5
            return sum(not instance.status.healthy for instance in instances) == 4

        await eventually(marked)
        await eventually(lambda: sum(not i.status.healthy for i in view.instances) == 4)
        async with connect(url) as again:
            for one in dying:  # the same process, after a long sleep
                record = one._record
                await record.beat(one.instance, update=False)
            instances = (await again.registry.instances("echo")).instances
            assert all(instance.status.healthy for instance in instances)
            await eventually(lambda: all(i.status.healthy for i in view.instances))


async def test_persistent_instances_do_not_keep_the_brake_from_holding(url: str):
    """Ten that are persistent and four that are not: three of the four are more than half."""
    async with connect(url) as hub, connect(url) as other:
        registry = registry_of(other)
        async with fleet(hub, 10, ephemeral=False), fleet(hub, 4, first=20) as ephemeral:
            await silence(hub, ephemeral[1:])
            async with sweeping(other):
                await eventually(lambda: _holding(other))
                await asyncio.sleep(1)
                assert await kept(other) == 14
        keys = registry.keys.of("echo")
        assert await registry.connection.call("ZCARD", keys.persistent, what="test") == 0


async def test_a_sweeper_that_dies_between_batches_leaves_no_partial_state(url: str):
    settings = quick(timeout=60.0)  # live instances stay, however slow the machine is
    async with connect(url, settings) as hub:
        registry = registry_of(hub)
        keys = registry.keys.of("echo")
        async with fleet(hub, 1):
            for number in range(250):
                record = keys.instance(f"i{number}")
                await registry.connection.call("HSET", record, "host", "h", what="t", writes=True)
                command = ("ZADD", keys.heartbeats, number + 1, f"i{number}")
                await registry.connection.call(*command, what="t", writes=True)
            sweeper = evictions_of(registry)
            sweeper.settings = msgspec.structs.replace(settings.cleanup, brake_least=1000)
            oldest = await sweeper._now(keys) - 60_000
            first = [f"i{number}" for number in range(100)]
            await sweeper._run_script(keys, first, CleanupReport(), oldest)  # and then it dies
            assert await kept(hub) == 151
            removed: list[tuple[str, str]] = []

            async def swept() -> bool:
                other = evictions_of(registry)  # one that saw Redis stall stops evicting
                other.settings = sweeper.settings
                removed.extend((await other.sweep()).removed)
                return bool(removed)

            await eventually(swept)
            assert len(removed) == 150
            assert await kept(hub) == 1
            names = await registry.connection.scan(f"{keys.base}:instance:*")
            assert len(names) == 1


async def test_the_brake_of_one_service_does_not_delay_others(url: str):
    async with (
        connect(url) as hub,
        connect(url) as other,
        fleet(hub, 4) as dying,
        fleet(hub, 1, service="b") as single,
        fleet(hub, 1, service="c", first=3),
        sweeping(other),
    ):
        await silence(hub, [*dying, *single])
        await eventually(lambda: _holding(other))

        async def gone() -> bool:
            return await kept(other, "b") == 0

        await eventually(gone)
        assert await brakes(other) == {"echo"}
        names = [service.name for service in await other.registry.services()]
        assert names == ["c", "echo"]
        assert Instance("c", "10.0.0.1", 3).id in {
            i.id for i in (await other.registry.instances("c")).instances
        }
