"""Following all services on Redis: failures that only Redis can cause."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import mooring
from mooring import Instance
from mooring.hub import Hub
from mooring.mirror import Mirror
from mooring.settings import parse
from tests.contract.registries import RawRecordsOnRedis, open_hub
from tests.waiting import eventually


@pytest.fixture(params=["redis-7.0", "redis-cluster"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def hub(store_url: str) -> AsyncIterator[Hub]:
    async with open_hub(store_url, "tree") as opened:
        yield opened


@pytest.fixture
def raw_records(hub: Hub) -> RawRecordsOnRedis:
    return RawRecordsOnRedis(hub)


def at(service: str, port: int) -> Instance:
    return Instance(service, "10.0.0.1", port)


async def test_an_unreadable_service_hides_no_other_and_returns_once_repaired(
    hub: Hub, raw_records: RawRecordsOnRedis
):
    keys = raw_records.registry.keys
    await raw_records.call("SADD", keys.services, "bad")
    await raw_records.call("SET", keys.of("bad").heartbeats, "no sorted set")
    async with hub.register(at("good", 1)), Mirror(hub.registry.follow_all()) as mirror:
        assert [service for service, _ in mirror.items] == ["good"]
        async with hub.register(at("good", 2)):
            await eventually(lambda: len(mirror.items) == 2)
            assert not mirror.stale
        await raw_records.call("DEL", keys.of("bad").heartbeats)
        async with hub.register(at("bad", 1)):
            await eventually(lambda: ("bad", "10.0.0.1:1") in mirror.items)


async def test_invalid_service_names_are_ignored(hub: Hub, raw_records: RawRecordsOnRedis):
    await raw_records.call("SADD", raw_records.registry.keys.services, "a:b", "x/y/z", b"\xff")
    async with hub.register(at("good", 1)), Mirror(hub.registry.follow_all()) as mirror:
        assert [service for service, _ in mirror.items] == ["good"]
        assert await raw_records.registry.evictions.brakes() == {}


async def test_a_silent_instance_is_omitted_after_the_timeout_of_the_consumer(store_url: str):
    quick = parse({"registry": {"redis": {"consumer-timeout": "1s"}}})
    slow = parse(
        {
            "registry": {
                "heartbeat": {"heartbeat-interval": "1h"},
                "cleanup": {"global-timeout": "2h"},
            }
        }
    )
    async with (
        mooring.connect(store_url, settings=slow) as silent,
        mooring.connect(store_url, settings=quick) as other,
        silent.register(at("a", 1)),
        Mirror(other.registry.follow_all()) as mirror,
    ):
        await eventually(lambda: not mirror.items)
        (seconds,) = (await other.registry.silence("a")).values()
        assert seconds >= 1


async def test_a_holding_brake_is_explained(hub: Hub, raw_records: RawRecordsOnRedis):
    async with hub.register(at("a", 1)), hub.register(at("b", 1)):
        await raw_records.call(
            *("HSET", raw_records.registry.keys.of("a").brake, "state", "holding"),
            *("silent", "3", "total", "4", "since", "1", "until", "2"),
        )
        (brake,) = (await raw_records.registry.evictions.brakes()).items()
        assert brake[0] == "a"
        assert "3 of 4 instances are silent" in str(brake[1])
