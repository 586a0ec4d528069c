"""What is stored and published in Redis (contract R), as seen by a foreign client."""

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
from tests.contract.registries import QUICK, REDIS, raw_records_of
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


async def test_the_three_tiers_are_stored_as_documented(server: RedisServer, hub: Hub, space: str):
    me = Instance("Common/user-service", "10.0.0.1", 8080, "http", "1.2", "z1", 2.5, id="u-1")
    async with hub.register(me) as registered:
        registered.update(metrics={"memory": {"usagePercent": 65.5}, "build_no": 123456789012345})
        base = f"{space}:registry:services"
        assert server.command("SMEMBERS", base) == ["Common/user-service"]
        where = f"{base}:Common/user-service"

        def updated() -> bool:
            fields = pairs(server.command("HGETALL", f"{where}:instance:u-1"))
            return "metadata_memory_usagePercent" in fields

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
            fields = pairs(server.command("HGETALL", f"{where}:instance:u-1"))
            return (
                "metadata_memory_usagePercent" not in fields and "metadata_build_no" not in fields
            )

        await eventually(dropped)
    # The departure is remembered for a while, so that no late call of the instance revives it.
    assert server.command("KEYS", f"{space}:*") in ([], [f"{where}:removed"])


async def test_a_minimal_documented_record_is_read(server: RedisServer, hub: Hub, space: str):
    """Another program writes only the fields that the documentation names."""
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


async def test_the_change_channel_publishes_what_is_documented(
    server: RedisServer, hub: Hub, space: str
):
    messages: list[dict[str, object]] = []
    from redis.asyncio import Redis

    client = Redis(host="127.0.0.1", port=server.port)
    listening = client.pubsub()
    await listening.subscribe(f"{space}:registry:services:echo:changes")
    await listening.get_message(timeout=5)

    async def received(count: int) -> None:
        async with asyncio.timeout(20):
            while len(messages) < count:
                message = await listening.get_message(timeout=1, ignore_subscribe_messages=True)
                if message is not None:
                    messages.append(json.loads(message["data"]))

    async with hub.register(Instance("echo", "10.0.0.1", 1, metadata={"a": "b"})) as one:
        await received(1)
        one.update(healthy=False)
        await received(2)
        one.update(healthy=True)
        await received(3)
        one.update(weight=3)
        await received(4)
    await received(5)
    assert [message["action"] for message in messages] == [
        "added",
        "health_failure",
        "health_recovery",
        "updated",
        "removed",
    ]
    first = messages[0]
    assert set(first) == {"serviceName", "action", "instanceId", "timestamp", "instance"}
    assert (first["serviceName"], first["instanceId"]) == ("echo", "10.0.0.1:1")
    instance = first["instance"]
    assert isinstance(instance, dict)
    assert (instance["host"], instance["port"]) == ("10.0.0.1", 1)
    assert instance["metadata"] == {"a": "b"}
    await listening.aclose()  # type: ignore[no-untyped-call]
    await client.aclose()


async def test_instances_can_be_queried_by_their_last_heartbeat(hub: Hub):
    registry = hub.registry
    assert isinstance(registry, RedisRegistry)
    async with hub.register(Instance("echo", "10.0.0.1", 1)):
        await asyncio.sleep(0.02)
        async with hub.register(Instance("echo", "10.0.0.1", 2)):
            by_heartbeat = await registry.heard_between("echo", 0)
            assert len(by_heartbeat) == 2
            assert by_heartbeat[0][1] <= by_heartbeat[1][1]
            oldest = by_heartbeat[0][1]
            earlier = await registry.heard_between("echo", 0, oldest - 1)
            assert earlier == []


async def test_a_consumer_applies_its_own_timeout(server: RedisServer, space: str):
    url = f"{server.url}?namespace={space}"
    silent = parse({"registry": {"metrics": {"enabled-metrics": []}}})
    async with (
        mooring.connect(url, settings=silent) as hub,
        mooring.connect(f"{url}&expire=4s", settings=silent) as impatient,
    ):
        await hub.registry.enter(Instance("echo", "10.0.0.1", 1))  # it never sends a heartbeat
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
            names = await registry.connection.scan(f"{space}:*")
            keys = [key for key in names if ":{a/echo}:" in key]
            member = redis_cluster.members[0]
            assert len({member.command("CLUSTER", "KEYSLOT", key) for key in keys}) == 1
            assert len(keys) == 3
            assert f"{space}:registry:services" in names


async def test_names_that_would_make_keys_ambiguous_are_refused(hub: Hub):
    for service in ("a:b", "a b", "a{b}", "x/a:b"):
        with pytest.raises(InvalidName):
            hub.register(Instance(service, "10.0.0.1", 1))
        with pytest.raises(InvalidName):
            await hub.registry.instances(service)


async def test_oversized_metadata_is_refused_before_any_write(
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


async def test_a_hub_of_a_store_and_a_redis_has_both(server: RedisServer, space: str):
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


async def test_an_instance_that_leaves_while_a_view_opens_is_not_kept(
    server: RedisServer, space: str
):
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
async def test_an_invalid_request_fails_only_its_own_caller(store_url: str):
    async with mooring.connect(store_url, settings=QUICK) as hub:
        good = [hub.registry.info(service="echo") for _ in range(5)]
        bad = [
            hub.registry.config("echo", "\ud800"),
            hub.registry.configure("echo", "\ud800", set={"weight": 1}),
            hub.registry.deregister("echo", "\udcff:1"),
        ]
        results = await asyncio.gather(*good, *bad, return_exceptions=True)
        assert [type(result) for result in results[5:]] == [InvalidRequest] * 3
        assert all("is not valid UTF-8" in str(result) for result in results[5:])
        assert not any(isinstance(result, Exception) for result in results[:5])


async def test_an_internal_error_is_not_reported_as_closed(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    registry = hub.registry
    assert isinstance(registry, RedisRegistry)
    async with hub.register(Instance("echo", "10.0.0.1", 1)) as one:

        async def broken(*_: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(registry.connection, "_answer_within", broken)
            with pytest.raises(StoreError, match="zero division error") as failed:
                await registry.services()
            assert not isinstance(failed.value, Closed)
            await eventually(lambda: one.state == "suspended")
        await eventually(lambda: one.state == "registered")


async def test_vanished_instances_are_kept_for_two_heartbeats_and_five_seconds(
    hub: Hub, caplog: pytest.LogCaptureFixture
):
    """Counted from the first listing that misses them."""
    for port in (1, 2):
        await hub.registry.enter(Instance("echo", "10.0.0.1", port), ttl=60)
    async with hub.discover("echo") as view:
        await raw_records_of(hub).delete_all()
        await eventually(lambda: view.stale)
        assert view.seen.kept
        kept = await eventually(lambda: not view.instances)
        assert kept > 2 * 0.4 + 5 - 0.5
        assert not view.seen.kept
        assert "2 instances are dropped: they were missing for 5.8 s" in caplog.text
        assert "no instance is missing any more" not in caplog.text


async def test_vanished_instances_that_return_are_no_longer_kept(
    server: RedisServer, hub: Hub, space: str, caplog: pytest.LogCaptureFixture
):
    instances = [
        (await hub.registry.enter(Instance("echo", "10.0.0.1", port), ttl=60)).instance
        for port in (1, 2)
    ]
    async with hub.discover("echo") as view:
        server.command("DEL", f"{space}:registry:services:echo:instance:{instances[0].id}")
        server.command("ZREM", f"{space}:registry:services:echo:heartbeats", instances[0].id)
        await eventually(lambda: view.seen.kept)
        reasons = {candidate.instance.id: candidate.reasons for candidate in view.explain()}
        assert not reasons[instances[1].id]
        (kept,) = reasons[instances[0].id]
        assert view.seen.reason in kept
        await hub.registry.enter(instances[0], ttl=60)
        await eventually(lambda: not view.seen.kept)
        assert "no instance is missing any more" in caplog.text
