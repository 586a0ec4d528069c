"""A Redis that refuses writes, forgets its scripts, cuts connections or holds foreign data: a clear
report, no effect on other services, and recovery without intervention."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import mooring
from mooring import Instance
from mooring.discovery.view import View
from mooring.errors import OutOfSpace, StoreError, Unavailable
from mooring.hub import Hub
from mooring.registry.contract import Listing
from mooring.settings import RegistrySettings
from mooring.testing.proxy import FaultProxy
from mooring.testing.redis import CommandFailed, RedisServer
from tests.faults.redis_actors import evictions_of, fleet, namespaced, quick, registry_of, sweeping
from tests.waiting import eventually

SETTINGS = quick(beat=0.2, timeout=60.0)
VALKEY = pytest.param(
    "valkey-9", marks=pytest.mark.extended("it answers scripts as Redis 7.0 does, which runs")
)
SERIES = ("6.2", "7.0", VALKEY)


class Work:
    """Two services of three instances, and a consumer of the first."""

    def __init__(
        self,
        server: RedisServer,
        hub: Hub,
        other: Hub,
        echo: list[Any],
        rest: list[Any],
        view: View,
    ) -> None:
        self.server, self.hub, self.other = server, hub, other
        self.echo, self.rest, self.view = echo, rest, view
        self.keys = registry_of(hub).keys

    async def beats(self, service: str) -> dict[str, float]:
        registry = registry_of(self.other)
        return await registry.reader.scores(registry.keys.of(service))

    async def all_healthy(self) -> None:
        """Wait until every instance is registered, listed, seen, and beats."""

        first: dict[str, float] = {}

        async def well() -> bool:
            if any(registration.state != "registered" for registration in (*self.echo, *self.rest)):
                return False
            try:
                echo, rest = await self.beats("echo"), await self.beats("rest")
                listing = await self.other.registry.instances("echo")
            except StoreError:
                return False
            beats = {**{f"echo {id}": at for id, at in echo.items()}, **rest}
            if first.keys() != beats.keys():
                first.clear()
                first.update(beats)
            return (
                len(echo) == len(rest) == 3
                and all(beats[name] > at for name, at in first.items())
                and len(listing.instances) == 3
                and not listing.problems
                and len(self.view.instances) == 3
                and not self.view.stale
            )

        await eventually(well)

    async def rest_is_unaffected(self) -> None:
        """Assert that the second service continues as usual."""
        before = await self.beats("rest")
        await eventually(lambda: self._newer("rest", before))
        assert all(registration.state == "registered" for registration in self.rest)

    async def _newer(self, service: str, before: dict[str, float]) -> bool:
        after = await self.beats(service)
        return all(after[id] > score for id, score in before.items())


@contextlib.asynccontextmanager
async def at_work(
    server: RedisServer, settings: RegistrySettings = SETTINGS
) -> AsyncIterator[Work]:
    url = namespaced(server.url)
    async with (
        mooring.connect(url, settings=settings) as hub,
        mooring.connect(url, settings=settings) as other,
        fleet(hub, 3) as echo,
        fleet(hub, 3, service="rest") as rest,
        other.discover("echo") as view,
    ):
        yield Work(server, hub, other, echo, rest, view)


async def suspended(registration: Any, *words: str) -> None:
    def is_reported() -> bool:
        reason = registration.reason
        return registration.state == "suspended" and all(word in reason for word in words)

    try:
        await eventually(is_reported)
    except AssertionError as error:
        raise AssertionError(f"{registration.state}: {registration.reason}") from error


@pytest.mark.parametrize("series", SERIES)
async def test_forgotten_scripts_are_loaded_again(redis: Callable[[str], RedisServer], series: str):
    async with at_work(redis(series)) as work:
        states: list[str] = []
        for registration in (*work.echo, *work.rest):
            registration.subscribe(states.append)
        reader, keys = registry_of(work.other).reader, work.keys.of("echo")
        for _ in range(5):
            redis(series).command("SCRIPT", "FLUSH")
            states_read = await asyncio.gather(*(reader.state(keys) for _ in range(50)))
            assert len(states_read) == 50
            await asyncio.sleep(0.02)
        await work.all_healthy()
        assert states == []


@pytest.mark.parametrize("kind", ["normal", "pubsub"])
async def test_killed_connections_are_replaced(redis: Callable[[str], RedisServer], kind: str):
    server = redis("7.0")
    async with at_work(server) as work:
        fewest = 3
        for _ in range(10):
            server.command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
            await asyncio.sleep(0.03)
            fewest = min(fewest, len(work.view.instances))
        await work.all_healthy()
        assert fewest == 3
        assert {registration.state for registration in (*work.echo, *work.rest)} == {"registered"}
        await eventually(lambda: registry_of(work.other)._channels.hears("echo"))
        async with fleet(work.hub, 1, first=50):
            await eventually(lambda: len(work.view.instances) == 4)


@pytest.mark.parametrize(
    ("series", "name"),
    [
        ("6.2", "heartbeats"),
        ("7.0", "persistent"),
        ("6.2", "instance"),
        ("7.0", "instance"),
    ],
)
async def test_a_key_of_another_type_stops_only_the_heartbeats_that_use_it(
    redis: Callable[[str], RedisServer], series: str, name: str
):
    server = redis(series)
    async with at_work(server) as work:
        keys = work.keys.of("echo")
        first = work.echo[0]
        key = {
            "heartbeats": keys.heartbeats,
            "persistent": keys.persistent,
            "instance": keys.instance(first.instance.id),
        }[name]
        server.command("DEL", key)
        server.command("SET", key, "junk")
        await suspended(first, key, "WRONGTYPE", "delete it")
        await work.rest_is_unaffected()
        if name == "instance":
            assert [registration.state for registration in work.echo[1:]] == ["registered"] * 2
            listing = await work.other.registry.instances("echo")
            assert len(listing.instances) == 2
            assert any(key in str(problem) for problem in listing.problems)
        server.command("DEL", key)
        await work.all_healthy()


@pytest.mark.parametrize(("series", "name"), [("6.2", "config"), ("7.0", "brake")])
async def test_an_unreadable_service_keeps_its_consumers(
    redis: Callable[[str], RedisServer], series: str, name: str
):
    server = redis(series)
    async with at_work(server) as work:
        key = getattr(work.keys.of("echo"), name)
        server.command("SET", key, "junk")
        with pytest.raises(StoreError, match=f"{key} is a string and should be a hash"):
            await work.other.registry.instances("echo")
        swept = await evictions_of(registry_of(work.other)).sweep()
        if name == "brake":
            assert any(key in problem for problem in swept.problems)
        assert {registration.state for registration in work.echo} == {"registered"}
        assert len(work.view.instances) == 3
        assert len((await work.other.registry.instances("rest")).instances) == 3
        server.command("DEL", key)
        await work.all_healthy()


@pytest.mark.parametrize("series", ["6.2", "7.0"])
async def test_a_list_of_services_of_another_type_stops_no_heartbeat(
    redis: Callable[[str], RedisServer], series: str
):
    server = redis(series)
    async with at_work(server) as work:
        key = work.keys.services
        server.command("DEL", key)
        server.command("SET", key, "junk")
        with pytest.raises(StoreError, match=f"{key} is a string and should be a set"):
            await work.other.registry.services()
        await work.all_healthy()
        newcomer = work.hub.register(Instance("echo", "10.0.0.9", 9), wait=2)
        async with newcomer:
            assert newcomer.state != "registered"
            assert key in newcomer._problem
            assert len(await work.beats("echo")) == 3  # no partial state
            server.command("DEL", key)
            await eventually(lambda: newcomer.state == "registered")

        async def known() -> bool:
            return [service.name for service in await work.other.registry.services()] == [
                "echo",
                "rest",
            ]

        await eventually(known)


@pytest.mark.parametrize("name", ["removed", "evictions"])
async def test_rarely_used_keys_fail_only_what_needs_them(
    redis: Callable[[str], RedisServer], name: str
):
    server = redis("7.0")
    async with at_work(server) as work:
        key = getattr(work.keys.of("echo"), name)
        server.command("RPUSH", key, "junk")
        await work.all_healthy()
        if name == "evictions":
            swept = await evictions_of(registry_of(work.other)).sweep()
            assert any(f"{key} is a list" in problem for problem in swept.problems)
        else:
            with pytest.raises(StoreError, match=f"{key} is a list"):
                await work.other.registry.deregister("echo", work.echo[0].instance.id)
            assert len(await work.beats("echo")) == 3
        server.command("DEL", key)


@pytest.mark.parametrize("series", SERIES)
async def test_without_memory_heartbeats_count_and_other_writes_are_refused(
    fresh_redis: Callable[..., RedisServer], series: str
):
    server = fresh_redis(series=series)
    async with at_work(server) as work:
        server.command("CONFIG", "SET", "maxmemory", 1)
        await work.all_healthy()
        work.echo[0].update(metadata={"team": "x"})
        await suspended(work.echo[0], "out of memory", "maxmemory")
        before = await work.beats("echo")
        await eventually(lambda: work._newer("echo", before))
        with pytest.raises(OutOfSpace, match="maxmemory"):
            await work.other.registry.configure("echo", set={"weight": 2})
        newcomer = work.hub.register(Instance("echo", "10.0.0.9", 9), wait=2)
        async with newcomer:
            assert "out of memory" in newcomer._problem
            assert len(await work.beats("echo")) == 3
            assert not (await evictions_of(registry_of(work.other)).sweep()).removed
            leaving = work.rest[2]
            await leaving.aclose()  # deletions are allowed
            assert len(await work.beats("rest")) == 2
            server.command("CONFIG", "SET", "maxmemory", 0)
            await eventually(lambda: newcomer.state == "registered")
            await eventually(lambda: work.echo[0].state == "registered")
        listing = await work.other.registry.instances("echo")
        assert {instance.port: instance.metadata for instance in listing.instances}[1] == {
            "team": "x"
        }


@pytest.mark.parametrize("series", ["6.2", "7.0"])
async def test_clients_wait_for_a_master_that_became_a_replica(
    fresh_redis: Callable[..., RedisServer], series: str
):
    server = fresh_redis(series=series)
    async with at_work(server) as work:
        server.command("REPLICAOF", "127.0.0.1", 1)
        await suspended(work.echo[0], "read only replica")
        assert len((await work.other.registry.instances("echo")).instances) == 3
        assert len(work.view.instances) == 3
        server.command("REPLICAOF", "NO", "ONE")
        await work.all_healthy()


async def test_the_reason_of_a_suspended_registration_is_the_latest_one(
    fresh_redis: Callable[..., RedisServer],
):
    server = fresh_redis()
    async with at_work(server) as work:
        server.command("CONFIG", "SET", "min-replicas-to-write", 1)
        await suspended(work.echo[0], "NOREPLICAS")
        server.command("REPLICAOF", "127.0.0.1", 1)
        await suspended(work.echo[0], "read only replica")
        server.command("CONFIG", "SET", "min-replicas-to-write", 0)
        server.command("REPLICAOF", "NO", "ONE")
        await work.all_healthy()


@pytest.mark.parametrize("series", ["6.2", VALKEY])
async def test_clients_wait_while_too_few_replicas_can_write(
    fresh_redis: Callable[..., RedisServer], series: str
):
    server = fresh_redis(series=series)
    async with at_work(server) as work:
        server.command("CONFIG", "SET", "min-replicas-to-write", 1)
        await suspended(work.echo[0], "replicas")
        with pytest.raises(Unavailable, match="replicas"):
            await work.other.registry.configure("echo", set={"weight": 2})
        server.command("CONFIG", "SET", "min-replicas-to-write", 0)
        await work.all_healthy()


@pytest.mark.deadline
async def test_a_call_refused_until_its_timeout_states_the_reason_on_a_slow_network_too(
    fresh_redis: Callable[..., RedisServer],
):
    server = fresh_redis()
    server.command("CONFIG", "SET", "min-replicas-to-write", 1)
    async with FaultProxy(server.address) as proxy:
        proxy.delay(0.1)
        url = namespaced(server.url.replace(server.address, proxy.address))
        async with mooring.connect(f"{url}&timeout=1s") as hub:
            for _ in range(3):
                with pytest.raises(Unavailable, match="replicas"):
                    await hub.registry.configure("echo", set={"weight": 2})


@pytest.mark.parametrize("series", ["6.2", VALKEY])
async def test_clients_wait_for_a_redis_that_is_busy_with_a_script(
    fresh_redis: Callable[..., RedisServer], series: str
):
    server = fresh_redis(series=series, flags=["--lua-time-limit", "50"])
    async with at_work(server) as work:
        busy = asyncio.ensure_future(
            asyncio.to_thread(_run, server, "EVAL", "while true do end", "0")
        )
        await eventually(lambda: _is_busy(server))
        listing = asyncio.ensure_future(work.other.registry.instances("echo"))
        await asyncio.sleep(0.5)
        assert not listing.done()
        assert len(work.view.instances) == 3
        server.command("SCRIPT", "KILL")
        assert len((await listing).instances) == 3
        await busy
        await work.all_healthy()


def _is_busy(server: RedisServer) -> bool:
    try:
        return server.command("PING") != "PONG"
    except CommandFailed as error:
        return "BUSY" in str(error)


def _run(server: RedisServer, *words: str) -> None:
    with contextlib.suppress(CommandFailed):
        server.command(*words, within=20)


async def test_clients_wait_for_a_redis_that_loads_its_data(
    fresh_redis: Callable[..., RedisServer],
):
    flags = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"]
    server = fresh_redis(persistent=True, flags=flags)
    async with at_work(server) as work:
        fill = "for i = 1, 1500 do redis.call('SET', 'k' .. i, i) end"
        server.command("EVAL", fill, 0)
        server.kill()
        server.start(wait=False)
        loading = 0

        async def loaded() -> bool:
            nonlocal loading
            with contextlib.suppress(OSError):
                try:
                    return server.command("PING") == "PONG"
                except Exception as error:  # noqa: BLE001 - LOADING is what is hoped for
                    loading += "LOADING" in str(error)
            return False

        listing = asyncio.ensure_future(work.other.registry.instances("echo"))
        await eventually(loaded)
        assert loading
        (result,) = await asyncio.gather(listing, return_exceptions=True)
        assert (
            len(result.instances) == 3
            if isinstance(result, Listing)
            else type(result) is Unavailable
        )
        assert len(work.view.instances) == 3
        await work.all_healthy()


@pytest.mark.parametrize("series", SERIES)
async def test_an_id_that_is_not_utf_8_does_not_hide_which_key_is_wrong(
    redis: Callable[[str], RedisServer], series: str
):
    server = redis(series)
    async with at_work(server) as work:
        keys = work.keys.of("echo")
        server.command("ZADD", keys.heartbeats, 1, b"\xff\xfe")
        server.command("RPUSH", keys.evictions, "junk")
        swept = await evictions_of(registry_of(work.other)).sweep()
        assert any(f"{keys.evictions} is a list" in problem for problem in swept.problems)
        server.command("DEL", keys.evictions)
        swept = await evictions_of(registry_of(work.other)).sweep()
        assert swept.problems == []
        assert swept.orphans == [("echo", r"\xff\xfe")]


def _refuse_writes(server: RedisServer, fault: str) -> None:
    if fault == "a replica without its master":
        server.command("REPLICAOF", "127.0.0.1", 1)
    elif fault == "no replica":
        server.command("CONFIG", "SET", "min-replicas-to-write", 1)
    elif fault == "too few replicas":
        server.command("CONFIG", "SET", "min-replicas-to-write", 2)
    else:
        shutil.rmtree(server.folder)
        server.command("CONFIG", "SET", "save", "3600 1")
        server.command("BGSAVE")


def _take_writes(server: RedisServer) -> None:
    server.command("REPLICAOF", "NO", "ONE")
    server.command("CONFIG", "SET", "min-replicas-to-write", 0)
    server.command("CONFIG", "SET", "save", "")


@pytest.mark.parametrize(
    ("fault", "series"),
    [
        ("a replica without its master", "7.0"),
        ("no replica", "6.2"),
        ("too few replicas", "7.0"),
        ("a save that failed", "7.0"),
        *(
            pytest.param(fault, series, marks=pytest.mark.extended("each fault runs on one series"))
            for fault in ("too few replicas", "a save that failed")
            for series in ("6.2", "valkey-9")
        ),
    ],
)
async def test_instances_without_possible_heartbeats_are_not_evicted(
    fresh_redis: Callable[..., RedisServer], fault: str, series: str
):
    """Redis refuses writes for longer than any timeout, but answers all the time."""
    server = fresh_redis(series=series)
    if fault == "too few replicas":
        replica = fresh_redis(series=series)
        replica.command("REPLICAOF", "127.0.0.1", server.port)
        await eventually(lambda: "master_link_status:up" in str(replica.command("INFO")))
    settings = quick(beat=0.2, interval=0.2, timeout=3.0)
    async with at_work(server, settings) as work, sweeping(work.other):
        fewest = 3
        removed: list[object] = []
        work.view.subscribe(lambda update: removed.extend(c for c in update.changes if not c.after))
        _refuse_writes(server, fault)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            fewest = min(fewest, len(work.view.instances))
            listing = await work.other.registry.instances("echo")
            assert len(listing.instances) == 3
            await asyncio.sleep(0.1)
        assert any("rejects writes" in str(problem) for problem in listing.problems)
        assert ("echo", 3) in await work.other.registry.services()
        _take_writes(server)
        await work.all_healthy()
        assert fewest == 3
        assert removed == []
