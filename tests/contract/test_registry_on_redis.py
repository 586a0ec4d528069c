"""What lies in Redis and what is told there (contract R), seen by a client that is not ours."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

import mooring
from mooring import Instance
from mooring.errors import Closed, InvalidName, InvalidRequest, StoreError
from mooring.hub import Hub
from mooring.registry.redis.registry import RedisRegistry
from mooring.settings import parse
from mooring.testing.redis import RedisCluster, RedisServer
from tests.contract.registries import QUICK, REDIS, hands_of
from tests.waiting import eventually


@pytest.fixture(params=REDIS)
def server(request: pytest.FixtureRequest, redis: Callable[[str], RedisServer]) -> RedisServer:
    return redis(request.param)


@pytest.fixture
def space() -> str:
    return uuid.uuid4().hex


@pytest.fixture
async def hub(server: RedisServer, space: str) -> AsyncIterator[Hub]:
    async with mooring.connect(f"{server.url}?namespace={space}", settings=QUICK) as opened:
        yield opened


def pairs(reply: object) -> dict[str, str]:
    assert isinstance(reply, list)
    return dict(zip(reply[::2], reply[1::2], strict=True))


async def test_the_three_tiers_are_as_the_document_has_them(
    server: RedisServer, hub: Hub, space: str
):
    me = Instance("Common/user-service", "10.0.0.1", 8080, "http", "1.2", "z1", 2.5, id="u-1")
    async with hub.register(me) as registered:
        registered.update(metrics={"memory": {"usagePercent": 65.5}, "build_no": 123456789012345})
        base = f"{space}:registry:services"
        assert server.command("SMEMBERS", base) == ["Common/user-service"]
        where = f"{base}:Common/user-service"

        def updated() -> bool:
            told = pairs(server.command("HGETALL", f"{where}:instance:u-1"))
            return "metadata_memory_usagePercent" in told

        await eventually(updated)
        record = pairs(server.command("HGETALL", f"{where}:instance:u-1"))
        assert record["metadata_memory_usagePercent"] == "65.5"
        assert record["metadata_build_no"] == "123456789012345"
        assert json.loads(record["metricsJson"])["build_no"] == 123456789012345
        expected = {
            "host": "10.0.0.1",
            "port": "8080",
            "protocol": "http",
            "version": "1.2",
            "zone": "z1",
            "weight": "2.5",
            "healthy": "true",
            "enabled": "true",
            "ephemeral": "true",
            "state": "up",
            "metadataJson": "{}",
        }
        assert expected.items() <= record.items()
        assert {"heartbeat", "incarnation", "registrationTime", "lastMetadataUpdate"} <= set(record)
        score = server.command("ZSCORE", f"{where}:heartbeats", "u-1")
        assert isinstance(score, str)
        assert float(score) >= float(record["heartbeat"])
        registered.update(metrics={})

        def dropped() -> bool:
            told = pairs(server.command("HGETALL", f"{where}:instance:u-1"))
            return "metadata_memory_usagePercent" not in told and "metadata_build_no" not in told

        await eventually(dropped)
    # That it left is remembered for a while, so that no late call of its own brings it back.
    assert server.command("KEYS", f"{space}:*") in ([], [f"{where}:removed"])


async def test_a_record_of_the_document_is_read(server: RedisServer, hub: Hub, space: str):
    """Somebody else writes only what the document names."""
    where = f"{space}:registry:services:user-service"
    server.command("SADD", f"{space}:registry:services", "user-service")
    now = server.command("TIME")
    assert isinstance(now, list)
    server.command("ZADD", f"{where}:heartbeats", f"{now[0]}000", "instance-1")
    server.command(
        *("HSET", f"{where}:instance:instance-1", "host", "192.168.1.100", "port", "8080"),
        *("protocol", "HTTP", "heartbeat", f"{now[0]}000", "healthy", "true"),
        *("metadata_memory_usagePercent", "65.5", "metadata_region", "南"),
    )
    (instance,) = (await hub.registry.instances("user-service")).instances
    assert (instance.id, instance.address) == ("instance-1", "192.168.1.100:8080")
    assert instance.protocol == "http"
    assert instance.metadata == {"memory_usagePercent": "65.5", "region": "南"}
    assert await hub.registry.services() == [("user-service", 1)]


async def test_the_change_channel_tells_what_the_document_says(
    server: RedisServer, hub: Hub, space: str
):
    heard: list[dict[str, object]] = []
    from redis.asyncio import Redis

    client = Redis(host="127.0.0.1", port=server.port)
    listening = client.pubsub()
    await listening.subscribe(f"{space}:registry:services:echo:changes")
    await listening.get_message(timeout=5)

    async def hear(count: int) -> None:
        async with asyncio.timeout(20):
            while len(heard) < count:
                message = await listening.get_message(timeout=1, ignore_subscribe_messages=True)
                if message is not None:
                    heard.append(json.loads(message["data"]))

    async with hub.register(Instance("echo", "10.0.0.1", 1, metadata={"a": "b"})) as one:
        await hear(1)
        one.update(healthy=False)
        await hear(2)
        one.update(healthy=True)
        await hear(3)
        one.update(weight=3)
        await hear(4)
    await hear(5)
    assert [message["action"] for message in heard] == [
        "added",
        "health_failure",
        "health_recovery",
        "updated",
        "removed",
    ]
    first = heard[0]
    assert set(first) == {"serviceName", "action", "instanceId", "timestamp", "instance"}
    assert (first["serviceName"], first["instanceId"]) == ("echo", "10.0.0.1:1")
    instance = first["instance"]
    assert isinstance(instance, dict)
    assert (instance["host"], instance["port"]) == ("10.0.0.1", 1)
    assert instance["metadata"] == {"a": "b"}
    await listening.aclose()  # type: ignore[no-untyped-call]
    await client.aclose()


async def test_instances_are_asked_for_by_the_time_of_their_heartbeat(hub: Hub):
    registry = hub.registry
    assert isinstance(registry, RedisRegistry)
    async with hub.register(Instance("echo", "10.0.0.1", 1)):
        await asyncio.sleep(0.02)
        async with hub.register(Instance("echo", "10.0.0.1", 2)):
            found = await registry.heard_between("echo", 0)
            assert len(found) == 2
            assert found[0][1] <= found[1][1]
            oldest = found[0][1]
            earlier = await registry.heard_between("echo", 0, oldest - 1)
            assert earlier == []


async def test_a_consumer_filters_with_its_own_timeout(server: RedisServer, space: str):
    url = f"{server.url}?namespace={space}"
    silent = parse({"registry": {"metrics": {"enabled-metrics": []}}})
    async with (
        mooring.connect(url, settings=silent) as hub,
        mooring.connect(f"{url}&expire=4s", settings=silent) as impatient,
    ):
        await hub.registry.enter(Instance("echo", "10.0.0.1", 1))  # which never beats
        async with impatient.discover("echo") as view:
            assert len(view.instances) == 1
            await eventually(lambda: not view.instances)
        assert (await impatient.registry.instances("echo")).instances == ()
        assert len((await hub.registry.instances("echo")).instances) == 1
        assert await impatient.registry.services() == [("echo", 0)]


async def test_on_a_cluster_the_keys_of_a_service_share_a_slot(redis_cluster: RedisCluster):
    space = uuid.uuid4().hex
    async with mooring.connect(f"{redis_cluster.url}?namespace={space}", settings=QUICK) as hub:
        registry = hub.registry
        assert isinstance(registry, RedisRegistry)
        async with hub.register(Instance("a/echo", "10.0.0.1", 1)):
            await registry.configure("a/echo", set={"weight": 1})
            found = await registry.connection.scan(f"{space}:*")
            keys = [key for key in found if ":{a/echo}:" in key]
            member = redis_cluster.members[0]
            assert len({member.command("CLUSTER", "KEYSLOT", key) for key in keys}) == 1
            assert len(keys) == 3
            assert f"{space}:registry:services" in found


async def test_names_that_tell_keys_apart_are_refused(hub: Hub):
    for service in ("a:b", "a b", "a{b}", "x/a:b"):
        with pytest.raises(InvalidName):
            hub.register(Instance(service, "10.0.0.1", 1))
        with pytest.raises(InvalidName):
            await hub.registry.instances(service)


async def test_too_much_metadata_is_refused_before_anything_is_written(
    server: RedisServer, hub: Hub, space: str
):
    much = Instance("echo", "10.0.0.1", 1, metadata={"a": "x" * 65_530})
    with pytest.raises(InvalidRequest, match=r"over the limit of 65536.*metadata-limit"):
        hub.register(much)
    assert server.command("KEYS", f"{space}:*") == []


async def test_with_redis_alone_there_is_no_store(hub: Hub):
    with pytest.raises(InvalidRequest, match=r'registry="redis://'):
        _ = hub.store
    with pytest.raises(InvalidRequest, match="locks, tenants"):
        hub.lock("a")
    with pytest.raises(InvalidRequest, match="contains only a registry"):
        mooring.connect("redis://127.0.0.1", registry="redis://127.0.0.1")


async def test_a_hub_of_two_has_both(server: RedisServer, space: str):
    url = f"{server.url}?namespace={space}"
    async with (
        mooring.connect("memory://", registry=url, settings=QUICK) as hub,
        hub.register(Instance("echo", "10.0.0.1", 1)),
        hub.lock("reindex") as held,
        hub.discover("echo") as view,
        view.pick() as instance,
    ):
        assert held.token > 0
        assert isinstance(hub.registry, RedisRegistry)
        assert instance.port == 1


async def test_who_leaves_while_a_view_is_opened_is_not_kept(server: RedisServer, space: str):
    url = f"{server.url}?namespace={space}"
    async with mooring.connect(url, settings=QUICK) as hub:
        for number in range(10):
            one = hub.register(Instance("echo", "10.0.0.1", 1 + number))
            await one.__aenter__()
            async with mooring.connect(url, settings=QUICK) as other:
                leaving = asyncio.create_task(one.aclose())
                async with other.discover("echo") as view:
                    await leaving
                    while view.instances:
                        assert not view.stale
                        await asyncio.sleep(0.01)


@pytest.mark.parametrize("backend", ["redis-7.0", "redis-cluster"], indirect=True)
async def test_what_cannot_be_sent_is_refused_to_who_asked_and_to_nobody_else(store_url: str):
    async with mooring.connect(store_url, settings=QUICK) as hub:
        good = [hub.registry.info(service="echo") for _ in range(5)]
        bad = [
            hub.registry.config("echo", "\ud800"),
            hub.registry.configure("echo", "\ud800", set={"weight": 1}),
            hub.registry.deregister("echo", "\udcff:1"),
        ]
        told = await asyncio.gather(*good, *bad, return_exceptions=True)
        assert [type(each) for each in told[5:]] == [InvalidRequest] * 3
        assert all("is not valid UTF-8" in str(each) for each in told[5:])
        assert not any(isinstance(each, Exception) for each in told[:5])


async def test_a_mistake_of_ours_is_not_taken_for_the_end(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    registry = hub.registry
    assert isinstance(registry, RedisRegistry)
    async with hub.register(Instance("echo", "10.0.0.1", 1)) as one:

        async def broken(*_: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(registry.connection, "_answer_within", broken)
            with pytest.raises(StoreError, match="zero division error") as told:
                await registry.services()
            assert not isinstance(told.value, Closed)
            await eventually(lambda: one.state == "suspended")
        await eventually(lambda: one.state == "registered")


async def test_instances_that_vanish_are_kept_for_two_heartbeats_and_five_seconds(
    hub: Hub, caplog: pytest.LogCaptureFixture
):
    """Counted from the look that misses them."""
    for port in (1, 2):
        await hub.registry.enter(Instance("echo", "10.0.0.1", port), ttl=60)
    async with hub.discover("echo") as view:
        await hands_of(hub).delete_all()
        await eventually(lambda: view.stale)
        assert view.seen.kept
        kept = await eventually(lambda: not view.instances)
        assert kept > 2 * 0.4 + 5 - 0.5
        assert not view.seen.kept
        assert "2 instances are dropped: they were missing for 5.8 s" in caplog.text
        assert "no instance is missing any more" not in caplog.text


async def test_instances_that_vanished_and_come_back_are_no_longer_kept(
    server: RedisServer, hub: Hub, space: str, caplog: pytest.LogCaptureFixture
):
    there = [
        (await hub.registry.enter(Instance("echo", "10.0.0.1", port), ttl=60)).instance
        for port in (1, 2)
    ]
    async with hub.discover("echo") as view:
        server.command("DEL", f"{space}:registry:services:echo:instance:{there[0].id}")
        server.command("ZREM", f"{space}:registry:services:echo:heartbeats", there[0].id)
        await eventually(lambda: view.seen.kept)
        reasons = {each.instance.id: each.reasons for each in view.explain()}
        assert not reasons[there[1].id]
        (kept,) = reasons[there[0].id]
        assert view.seen.reason in kept
        await hub.registry.enter(there[0], ttl=60)
        await eventually(lambda: not view.seen.kept)
        assert "no instance is missing any more" in caplog.text
