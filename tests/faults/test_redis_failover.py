"""Masters that die, replicas that lag, a Redis that restarts empty: every live instance is back
within a heartbeat, and consumers notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import mooring
from mooring.discovery.view import View
from mooring.errors import StoreError
from mooring.hub import Hub
from mooring.model import Instance
from mooring.registry.redis.cluster import ClusterClient
from mooring.registry.redis.instance_record import RedisInstanceRecord
from mooring.testing.redis import CommandFailed, RedisCluster, RedisServer, SentinelGroup
from tests.faults.redis_actors import counted_looks, fleet, quick, registry_of
from tests.waiting import PATIENCE, eventually

BEAT = 0.5
SETTINGS = quick(beat=BEAT, timeout=30.0, connection_timeout=1.0)


def connect(url: str) -> Hub:
    return mooring.connect(url, settings=SETTINGS)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    with SentinelGroup(tmp_path, down_after=1.5) as servers:
        servers.start()
        yield servers


@contextlib.asynccontextmanager
async def watched(view: View, count: int) -> AsyncIterator[None]:
    """Assert that the view always contains all of them."""
    fewest = count

    def look(_: object) -> None:
        nonlocal fewest
        fewest = min(fewest, len(view.instances))

    end = view.subscribe(look)
    yield
    end()
    assert fewest == count
    assert len(view.instances) == count


async def back(hub: Hub, registrations: list[Any], *, within: float = PATIENCE) -> None:
    """Wait until all are registered again, by their own state and in Redis."""
    service = registrations[0].instance.service
    wanted = {
        registration.instance.id: registration.instance.incarnation
        for registration in registrations
    }

    async def all_registered() -> bool:
        try:
            instances = (await hub.registry.instances(service)).instances
        except StoreError:
            return False
        return {instance.id: instance.incarnation for instance in instances} == wanted

    await eventually(all_registered, within=within)
    await eventually(
        lambda: {registration.state for registration in registrations} == {"registered"}
    )


@pytest.mark.deadline
async def test_an_emptied_redis_is_filled_within_a_heartbeat(
    fresh_redis: Callable[..., RedisServer],
):
    server = fresh_redis()
    async with (
        connect(server.url) as hub,
        connect(server.url) as other,
        fleet(hub, 5) as echo,
        other.discover("echo") as view,
        watched(view, 5),
    ):
        for _ in range(2):
            server.kill()
            await asyncio.to_thread(server.start)
            await back(other, echo, within=BEAT + 3)
        names = [service.name for service in await other.registry.services()]
        assert names == ["echo"]


@pytest.mark.deadline
async def test_deleted_keys_are_restored_within_a_heartbeat(
    fresh_redis: Callable[..., RedisServer],
):
    server = fresh_redis()
    async with connect(server.url) as hub, connect(server.url) as other, fleet(hub, 5) as echo:
        server.command("FLUSHDB")
        await back(other, echo, within=BEAT + 2)


RESUMED = "Sentinel takes ten seconds to make a replica of it; without that it runs by default"


@pytest.mark.parametrize(
    "fault", ["kill", "pause", pytest.param("resume", marks=pytest.mark.extended(RESUMED))]
)
async def test_a_failover_loses_no_instance(group: SentinelGroup, fault: str):
    async with (
        connect(group.url) as hub,
        connect(group.url) as other,
        fleet(hub, 5) as echo,
        other.discover("echo") as view,
        watched(view, 5),
    ):
        old = group.master()
        old.kill() if fault == "kill" else old.pause()
        await eventually(lambda: group.master() is not old)
        await back(other, echo)
        if fault == "resume":  # and returns as if nothing had happened
            old.resume()
            await asyncio.to_thread(group.settle)
            await back(other, echo)


def offset(server: RedisServer, role: str) -> int:
    """Its position in the stream of replication."""
    return int(str(server.command("INFO")).split(f"{role}_repl_offset:")[1].split()[0])


async def test_writes_that_a_failover_lost_are_repeated(group: SentinelGroup):
    """The replica missed the last writes, and that a newer process took over an id."""
    async with (
        connect(group.url) as old_process,
        connect(group.url) as hub,
        connect(group.url) as other,
        fleet(hub, 3, first=10) as echo,
        fleet(old_process, 1) as older,
    ):
        replica = next(server for server in group.servers if server is not group.master())
        written = offset(group.master(), "master")
        await eventually(lambda: offset(replica, "slave") >= written)  # all of this is replicated
        replica.pause()
        async with fleet(hub, 1) as newer, fleet(hub, 2, first=20) as late:
            await eventually(lambda: older[0].state == "superseded")
            async with other.discover("echo") as view, watched(view, 6):
                group.kill_master()
                replica.resume()
                await asyncio.to_thread(group.settle)
                assert group.master() is replica
                await back(other, [*echo, *newer, *late])
            assert newer[0].state == "registered"
            assert older[0].state == "superseded"


async def test_hanging_sentinels_do_not_block_new_clients(group: SentinelGroup):
    for silent in group.sentinels[:2]:  # the first that are asked
        silent.pause()
    async with connect(group.url) as hub, fleet(hub, 1) as echo, hub.discover("echo") as view:
        assert echo[0].state == "registered"
        assert len(view.instances) == 1
    async with connect(group.url) as hub:
        assert await hub.registry.services() == []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path, replicas=1, node_timeout=2.0) as members:
        members.start()
        yield members


def elsewhere(cluster: RedisCluster, hub: Hub, service: str) -> str:
    """The name of a service whose keys are on another master."""
    keys = registry_of(hub).keys
    mine = cluster.master_of(keys.of(service).heartbeats)
    return next(
        name
        for name in (f"other{number}" for number in range(50))
        if cluster.master_of(keys.of(name).heartbeats) is not mine
    )


KILLED = "a paused one is harder to tell, and a killed one is tested with Sentinel"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "fault", ["pause", pytest.param("kill", marks=pytest.mark.extended(KILLED))]
)
async def test_a_dead_master_of_a_cluster_loses_no_instance(cluster: RedisCluster, fault: str):
    async with connect(cluster.url) as hub, connect(cluster.url) as other:
        name = elsewhere(cluster, hub, "echo")
        async with (
            fleet(hub, 5) as echo,
            fleet(hub, 5, service=name) as rest,
            other.discover("echo") as view,
            other.discover(name) as second,
            watched(view, 5),
            watched(second, 5),
        ):
            registry = registry_of(other)
            dead = cluster.master_of(registry.keys.of("echo").heartbeats)
            states: list[str] = []
            for registration in rest:
                registration.subscribe(states.append)
            dead.kill() if fault == "kill" else dead.pause()
            for _ in range(5):
                async with asyncio.timeout(20):
                    assert len((await other.registry.instances(name)).instances) == 5
                await asyncio.sleep(0.1)
            await eventually(
                lambda: cluster.master_of(registry.keys.of("echo").heartbeats) is not dead
            )
            await back(other, echo)
            await back(other, rest)
            assert states == [], "those on other masters are not affected"
            await eventually(lambda: _known(other, {"echo", name}))
            dead.resume()


@pytest.mark.timeout(120)
async def test_clients_follow_a_cluster_whose_nodes_are_replaced_one_by_one(cluster: RedisCluster):
    """The nodes of the URL, which were masters at first, are all gone in the end."""
    old, new = cluster.members[:3], cluster.members[3:]
    url = "redis+cluster://" + ",".join(member.address for member in old)
    async with connect(url) as hub, connect(url) as idle, fleet(hub, 2) as echo:
        registry = registry_of(idle)
        before: list[str] = []

        async def knows_all_nodes() -> bool:
            before[:] = sorted(await registry.connection.scan("registry:*"))
            return len(cast("ClusterClient", registry.connection._client)._known) == 6

        await eventually(knows_all_nodes)
        for member in new:
            member.command("CLUSTER", "FAILOVER")
            await eventually(lambda: "role:master" in str(member.command("INFO")))  # noqa: B023
        await back(hub, echo)
        known = cast("ClusterClient", registry_of(hub).connection._client)

        async def knows_the_new_masters() -> bool:
            for number in range(20):  # it learns of a new master when it calls the former one
                await hub.registry.instances(f"other{number}")
            return {node[2][1] for node in known._ranges} == {member.port for member in new}

        await eventually(knows_the_new_masters)
        for member in old:
            member.kill()
        await eventually(
            lambda: all("cluster_state:ok" in str(m.command("CLUSTER", "INFO")) for m in new)
        )
        await back(hub, echo)
        for one in (hub, idle):
            for number in range(6):  # on different masters
                assert (await one.registry.instances(f"other{number}")).instances == ()
            assert sorted(await registry_of(one).connection.scan("registry:*")) == before


async def _known(hub: Hub, names: set[str]) -> bool:
    return {service.name for service in await hub.registry.services()} == names


@pytest.mark.timeout(120)
async def test_a_moved_slot_moves_its_service(redis_cluster: RedisCluster):
    """Moved live, key by key, with heartbeats in progress: with ASK and TRYAGAIN on the way."""
    url = f"{redis_cluster.url}?namespace=moving"
    async with (
        connect(url) as hub,
        connect(url) as other,
        fleet(hub, 5) as echo,
        other.discover("echo") as view,
        watched(view, 5),
    ):
        keys = registry_of(other).keys.of("echo")
        source = redis_cluster.master_of(keys.heartbeats)
        target = next(member for member in redis_cluster.members if member is not source)
        await asyncio.to_thread(_move, source, target, keys.heartbeats, redis_cluster)
        assert redis_cluster.master_of(keys.heartbeats) is target
        await back(other, echo)
        async with fleet(hub, 1, first=9):
            pass
        await asyncio.to_thread(_move, target, source, keys.heartbeats, redis_cluster)
        await back(other, echo)


def _move(source: RedisServer, target: RedisServer, key: str, cluster: RedisCluster) -> None:
    slot = cast("int", source.command("CLUSTER", "KEYSLOT", key))
    source_id, target_id = (cast("str", m.command("CLUSTER", "MYID")) for m in (source, target))
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    while keys := cast("list[str]", source.command("CLUSTER", "GETKEYSINSLOT", slot, 1)):
        with contextlib.suppress(CommandFailed):
            source.command("MIGRATE", "127.0.0.1", target.port, keys[0], 0, 1000)
        time.sleep(0.1)
    for member in (target, source, *cluster.members):
        member.command("CLUSTER", "SETSLOT", slot, "NODE", target_id)


@pytest.mark.deadline
async def test_a_view_stays_stale_while_redis_is_unavailable(
    fresh_redis: Callable[..., RedisServer],
):
    server = fresh_redis()
    with counted_looks() as looks:
        async with connect(server.url) as hub, fleet(hub, 1), hub.discover("echo") as view:
            server.kill()
            await eventually(lambda: view.stale, within=5)
            tries = looks.total()

            def tried_again() -> bool:
                assert view.stale
                assert len(view.instances) == 1
                return looks.total() > tries + 1

            await eventually(tried_again)
            await asyncio.to_thread(server.start)
            await eventually(lambda: not view.stale)


@pytest.mark.deadline
async def test_pauses_between_retries_grow_and_recovery_takes_one_heartbeat(
    fresh_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
):
    tries: list[float] = []
    put = RedisInstanceRecord.put

    async def counted(self: RedisInstanceRecord, instance: Instance, *, fresh: bool) -> None:
        tries.append(time.monotonic())
        await put(self, instance, fresh=fresh)

    monkeypatch.setattr(RedisInstanceRecord, "put", counted)
    server, beat = fresh_redis(), 3.0
    settings = quick(beat=beat, timeout=30.0, connection_timeout=0.1)
    async with mooring.connect(server.url, settings=settings) as hub, fleet(hub, 1) as made:
        server.kill()

        def pauses() -> list[float]:
            return [after - before for before, after in itertools.pairwise(tries)]

        await eventually(lambda: max(pauses()[1:], default=0) > 0.7)
        assert max(pauses()[1:]) < beat / 2 + 1
        server.start()
        await back(hub, made, within=beat)
