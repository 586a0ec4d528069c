"""Heartbeats, registrations, deregistrations and cleanup at once, in every order that a real Redis
can see them: the order does not matter."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mooring.errors import Removed
from mooring.model import JSON
from mooring.registry.evictions import CleanupReport
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.live_service import ServiceWriter
from mooring.testing.redis import RedisCluster, RedisServer
from tests.faults.redis_actors import NO_BRAKE, Process, World

PATIENT = type(NO_BRAKE)(brake_least=1_000_000)


SERIES = (
    "6.2",
    "7.0",
    pytest.param("valkey-9", marks=pytest.mark.extended("it runs scripts as Redis 7.0 does")),
)


@pytest.fixture(params=SERIES)
async def world(
    request: pytest.FixtureRequest, redis: Callable[[str], RedisServer]
) -> AsyncIterator[World]:
    async with World(redis(request.param), cleanup=PATIENT) as made:
        yield made


async def expire(world: World, id: str) -> None:
    """Make it silent for an hour."""
    keys = world.keys.of(world.service)
    await world.call("ZADD", keys.heartbeats, int(time.time() * 1000) - 3_600_000, id)


async def test_a_heartbeat_of_an_evicted_instance_creates_nothing(world: World):
    one = world.process("a")
    await one.step()
    await expire(world, "a")
    assert (await world.sweeper().sweep()).removed == [("echo", "a")]
    for update in (False, True):
        await one.record.beat(one.with_status({}), update=update)
        assert one.record.disturbed
        await world.check()
        assert await world.hashes() == set()
    assert await one.step() == "registered"
    await world.check()
    assert await world.hashes() == {"a"}


async def test_cleanup_skips_instances_that_changed_since_it_listed_the_overdue(world: World):
    """The first one has sent a heartbeat since, and another sweeper has evicted the second."""
    one, other = world.process("a"), world.process("b")
    for process in (one, other):
        await process.step()
        await expire(world, process.id)
    await one.step()
    assert (await world.sweeper().sweep()).removed == [("echo", "b")]
    swept, oldest = CleanupReport(), int(time.time() * 1000) - 60_000
    await world.sweeper()._run_script(world.keys.of("echo"), ["a", "b"], swept, oldest)
    assert (swept.removed, swept.orphans) == ([], [])
    assert await world.hashes() == {"a"}


async def test_a_registration_that_arrives_after_its_own_withdrawal_is_refused(world: World):
    """Sent before and executed after: two connections, and Redis executes the later one first."""
    one = world.process("a")
    await one.step()
    await one.leave()
    for fresh in (False, True):
        with pytest.raises(Removed):
            await one.record.put(one.instance, fresh=fresh)
    assert await world.hashes() == set()
    await world.check()


async def test_an_instance_can_register_again_after_it_left(world: World):
    one = world.process("a")
    await one.step()
    await one.leave()
    again = world.process("a")
    again.record._incarnation = one.incarnation
    again.instance = one.instance
    assert await again.step() == "registered"
    assert (await world.record("a"))["incarnation"] == one.incarnation


async def test_a_repeated_first_registration_revives_nothing(world: World):
    """The reply to the first was lost, and an operator evicted it before the repetition."""
    one = world.process("a")
    await one.record.put(one.instance, fresh=True)
    assert await world.remove("a")
    with pytest.raises(Removed):
        await one.record.put(one.instance, fresh=True)
    assert await world.hashes() == set()


async def test_withdrawing_an_unconfirmed_registration_removes_it(world: World):
    one = world.process("a")
    await one.record.put(one.instance, fresh=True)
    one.record._registered, one.record._entered = "", False  # as if the reply had been lost
    await one.record.withdraw()
    assert await world.hashes() == set()
    await world.check()


async def test_an_evicted_instance_stays_out_even_if_half_of_its_record_was_lost(world: World):
    one = world.process("a")
    await one.step()
    await world.call("DEL", world.keys.of("echo").instance("a"))
    assert await world.remove("a")
    assert await one.settle() == "removed"
    await world.check()
    other = world.process("a")
    assert await other.settle() == "registered"
    await world.call("DEL", world.keys.of("echo").instance("a"))
    assert await other.settle() == "registered"


async def test_an_older_process_takes_over_if_its_successor_died(world: World):
    """Only a live instance is a successor."""
    older, newer = world.process("a"), world.process("a")
    await older.step()
    await newer.step()
    await expire(world, "a")
    assert await older.settle() == "registered"
    assert (await world.record("a"))["incarnation"] == older.incarnation
    assert await newer.settle() == "registered"  # it is alive after all, and is the newer one
    assert await older.settle() == "superseded"


async def test_of_two_that_start_in_the_same_moment_one_wins(world: World):
    for _ in range(10):
        both = [world.process("a", world.connection) for _ in range(2)]
        await asyncio.gather(*(one.step() for one in both))
        for one in both:
            await one.settle()
        for one in both:
            await one.settle()
        older, newer = sorted(both, key=lambda one: one.registered)
        assert (older.state, newer.state) == ("superseded", "registered")
        assert (await world.record("a"))["incarnation"] == newer.incarnation


@pytest.mark.parametrize("ephemeral", [True, False])
async def test_a_clock_that_is_behind_moves_no_score(world: World, ephemeral: bool):
    """As after a failover to a master whose clock is a minute behind, which is less than the
    timeout."""
    one = world.process("a", ephemeral=ephemeral)
    await one.step()
    keys, ahead = world.keys.of("echo"), int(time.time() * 1000) + 60_000
    sets = (keys.heartbeats,) if ephemeral else (keys.heartbeats, keys.persistent)
    for key in sets:
        await world.call("ZADD", key, ahead, "a")

    async def unmoved() -> bool:
        held = [float(await world.call("ZSCORE", key, "a")) for key in sets]
        return {*held, float((await world.record("a"))["heartbeat"])} == {ahead}

    await one.step()
    assert await unmoved()
    await one.step(update=True)
    assert await unmoved()
    one.record.disturbed = True
    await one.step()
    assert await unmoved()
    swept = await world.sweeper().sweep()
    assert (swept.removed, swept.lowered) == ([], [])
    assert await unmoved()


@pytest.mark.parametrize("ephemeral", [True, False])
async def test_cleanup_lowers_a_score_further_ahead_than_the_timeout(world: World, ephemeral: bool):
    one = world.process("a", ephemeral=ephemeral)
    await one.step()
    keys, ahead = world.keys.of("echo"), int(time.time() * 1000) + 3_600_000
    sets = (keys.heartbeats,) if ephemeral else (keys.heartbeats, keys.persistent)
    for key in sets:
        await world.call("ZADD", key, ahead, "a")
    swept = await world.sweeper().sweep()
    assert (swept.removed, swept.lowered) == ([], [("echo", "a")])
    held = {float(await world.call("ZSCORE", key, "a")) for key in sets}
    held.add(float((await world.record("a"))["heartbeat"]))
    assert len(held) == 1
    assert held.pop() == pytest.approx(time.time() * 1000, abs=20_000)
    assert await world.call("ZCARD", keys.persistent) == (0 if ephemeral else 1)


@pytest.mark.parametrize("update", [False, True])
async def test_a_heartbeat_for_a_hash_without_its_member_creates_nothing(
    world: World, update: bool
):
    """An incomplete record does not count: the instance registers again, and both halves are
    back."""
    one, other = world.process("a"), world.process("b")
    await one.step()
    await other.step()
    keys = world.keys.of("echo")
    await world.call("ZREM", keys.heartbeats, "a")
    before = await world.record("a")
    beats = [process.record._beat_of(process.instance) for process in (one, other)]
    assert await ServiceWriter(world.connection, keys).send(beats) == ["gone", "ok"]
    await one.record.beat(one.with_status({"load": 1}), update=update)
    assert one.record.disturbed
    assert await world.record("a") == before
    assert [*await world.scores()] == ["b"]
    assert await one.step() == "registered"
    await world.check()
    assert sorted(await world.scores()) == ["a", "b"]


async def test_a_timeout_counts_from_when_the_heartbeat_was_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """For a registration and for a heartbeat, no matter how late the reply of Redis is."""
    one, run, delay = world.process("a"), world.connection.run, 0.0
    one.record._service.timeout = 1

    async def late(*arguments: Any, **options: Any) -> Any:
        reply = await run(*arguments, **options)
        await asyncio.sleep(delay)
        return reply

    monkeypatch.setattr(world.connection, "run", late)
    for _ in range(2):
        delay = 1.1
        assert await one.step() == "registered"
        assert one.record.expired
        delay = 0.0
        await one.step()
        assert not one.record.expired


async def unhealthy_after_a_check(world: World) -> None:
    one = world.process("a")
    await one.step()
    ill = one.with_status({}, healthy=False)
    await asyncio.gather(one.record.beat(ill, update=True), one.record.verify())
    assert (await world.record("a"))["healthy"] == "false"
    await one.record.verify()
    assert (await world.record("a"))["healthy"] == "false"
    assert not one.record.disturbed


async def test_a_check_does_not_undo_a_concurrent_status(world: World):
    await unhealthy_after_a_check(world)


async def test_a_check_does_not_undo_a_concurrent_status_on_a_cluster(
    redis_cluster: RedisCluster,
):
    async with World(redis_cluster, cleanup=PATIENT) as world:
        await unhealthy_after_a_check(world)


async def test_fields_of_removed_metadata_are_deleted(world: World):
    one = world.process("a", metadata={"team": "x"})
    await one.step(metrics={"memory": {"used": 1, "free": 2}})
    await one.step(update=True, metrics={"memory": {"used": 3}})
    record = await world.record("a")
    assert record["metadata_memory_used"] == "3"
    assert record["metadata_team"] == "x"
    assert "metadata_memory_free" not in record


async def test_an_invalid_record_does_not_affect_its_neighbours(world: World):
    processes = [world.process(id) for id in "abcd"]
    for one in processes:
        await one.step()
    keys = world.keys.of("echo")
    await world.call("DEL", keys.instance("b"))
    await world.call("SET", keys.instance("b"), "junk")
    await world.call("DEL", keys.instance("c"))
    for fields in ({}, {"metadataJson": "{}", "metricsJson": "{}", "metadata_x": "1"}):
        before = await world.scores()
        await asyncio.sleep(0.002)
        beats = [one.record._beat_of(one.instance, dict(fields)) for one in processes]
        results = await ServiceWriter(world.connection, keys).send(beats)
        assert results[0] == results[3] == "ok"
        assert "WRONGTYPE" in results[1]
        assert results[2] == "gone"
        after = await world.scores()
        assert {id for id in after if after[id] > before[id]} == {"a", "d"}


async def test_a_foreign_member_of_the_heartbeats_is_removed(world: World):
    """Also one that is not UTF-8, and an invalid name in the list of services."""
    one = world.process("a")
    await one.step()
    keys = world.keys.of("echo")
    await world.call("ZADD", keys.heartbeats, 1, b"\xff\xfe")
    await world.call("ZADD", keys.heartbeats, 1, "ghost")
    await world.call("SADD", world.keys.services, b"no name {}", b"\xff")
    swept = await world.sweeper().sweep()
    assert len(swept.orphans) == 2
    assert [*await world.scores()] == ["a"]
    assert any("no name" in problem for problem in swept.problems)
    assert await world.sweeper().brakes() == {}


async def test_both_halves_of_a_record_are_removed_on_a_cluster(redis_cluster: RedisCluster):
    async with World(redis_cluster, cleanup=PATIENT) as world:
        await world.process("a").step()
        keys = world.keys.of("echo")
        await world.call("ZADD", keys.heartbeats, 1, "ghost")
        await world.call("HSET", keys.instance("zombie"), "host", "h")
        swept = await world.sweeper().sweep()
        assert {id for _, id in swept.orphans} == {"ghost", "zombie"}
        await world.check()


class Round:
    """Some processes, a few with the same id, an operator and sweepers, all at once."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.processes: list[Process] = []
        self.seen: dict[str, float] = {}
        """The last score of each instance."""
        self.over = False

    async def run(self) -> None:
        lives = [self.live(self.random.choice("aab")) for _ in range(self.random.randint(2, 5))]
        others = [self.operate, self.sweep, self.sweep, self.batch]
        chosen = self.random.sample(others, self.random.randint(1, len(others)))
        looking = asyncio.ensure_future(self.look())
        await asyncio.gather(*lives, *(other() for other in chosen))
        self.over = True
        await looking
        await self.check()

    async def pause(self) -> None:
        await asyncio.sleep(self.random.choice((0, 0, 0.001, 0.003)))

    async def live(self, id: str) -> None:
        await self.pause()
        one = self.world.process(id, self.random.choice(self.connections))
        self.processes.append(one)
        for _ in range(self.random.randint(1, 8)):
            metrics: dict[str, JSON] = {f"m{self.random.randint(0, 2)}": self.random.random()}
            await one.step(update=self.random.random() < 0.5, metrics=metrics)
            await self.pause()
        if self.random.random() < 0.4:
            # What was sent before may be executed after what is sent now.
            late = asyncio.ensure_future(self.again(one)) if self.random.random() < 0.5 else None
            await self.pause()
            await one.leave()
            if late is not None:
                await late

    async def again(self, one: Process) -> None:
        """A repair that is in progress while its process leaves."""
        if one.state == "registered":
            try:
                await one.record.put(one.instance, fresh=False)
            except Exception:  # noqa: BLE001 - no caller is left to get the error
                return

    async def operate(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            await self.pause()
            await self.world.remove(self.random.choice("ab"), self.random.choice(self.connections))

    async def sweep(self) -> None:
        sweeper = self.world.sweeper(self.random.choice(self.connections))
        for _ in range(self.random.randint(1, 4)):
            overdue = self.random.random() < 0.5
            oldest = int(time.time() * 1000) + (60_000 if overdue else -60_000)
            await sweeper._run_script(
                self.world.keys.of("echo"), ["a", "b"], CleanupReport(), oldest
            )
            await self.pause()

    async def batch(self) -> None:
        """Many heartbeats in one call."""
        for _ in range(self.random.randint(1, 4)):
            beats = [one.record._beat_of(one.instance) for one in self.processes]
            if beats:
                keys = self.world.keys.of("echo")
                await ServiceWriter(self.world.connection, keys).send(beats)
            await self.pause()

    async def look(self) -> None:
        """Assert that no score moves backwards."""
        while not self.over:
            for id, score in (await self.world.scores()).items():
                assert score >= self.seen.get(id, 0)
                self.seen[id] = score
            await asyncio.sleep(0.001)

    @property
    def connections(self) -> list[Connection]:
        return self.world.several

    async def check(self) -> None:
        world = self.world
        await world.check(tier1=not world.keys.cluster)
        keys = world.keys.of("echo")
        removed = {m.decode() for m in await world.call("ZRANGE", keys.removed, 0, -1)}
        for id in await world.hashes():
            assert f"{id} {(await world.record(id))['incarnation']}" not in removed
        for one in self.processes * 2:
            await one.settle()
        await world.check(tier1=not world.keys.cluster)
        gone = {one.incarnation for one in self.processes if one.state in ("left", "removed")}
        for id in "ab":
            mine = [one for one in self.processes if one.id == id]
            alive = [one for one in mine if one.state == "registered"]
            record = await world.record(id)
            assert len(alive) <= 1, f"{id}: {[(o.state, o.registered) for o in mine]}"
            assert record.get("incarnation") == (alive[0].incarnation if alive else None)
            assert record.get("incarnation") not in gone
            for older in mine:
                if older.state == "superseded":
                    assert any(one.age > older.age for one in mine)


async def rounds(where: RedisServer | RedisCluster, seeds: range) -> None:
    async with World(where, cleanup=PATIENT) as world:
        for seed in seeds:
            round = Round(world, seed)
            try:
                await round.run()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
            if world.keys.cluster:  # there tier 1 is correct in the end
                await world.sweeper().sweep(orphans=False)
                await world.check()
            for one in round.processes:
                await one.leave()
            assert await world.hashes() == set(), f"seed {seed}"
            await world.call("DEL", world.keys.of("echo").removed)


@pytest.mark.parametrize("series", SERIES)
async def test_any_order_leaves_no_partial_state(redis: Callable[[str], RedisServer], series: str):
    await rounds(redis(series), range(30))


async def test_any_order_leaves_no_partial_state_on_a_cluster(redis_cluster: RedisCluster):
    await rounds(redis_cluster, range(1000, 1020))


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_thousands_of_orders(redis: Callable[[str], RedisServer], soak_seconds: float):
    end, seed = time.monotonic() + soak_seconds, random.randrange(1 << 30)
    while time.monotonic() < end:
        await rounds(redis("7.0"), range(seed, seed + 100))
        seed += 100
