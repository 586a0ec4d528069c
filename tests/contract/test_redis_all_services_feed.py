"""Everything registered on Redis, seen at once: what Redis alone can do to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import mooring
from mooring import Instance
from mooring.hub import Hub
from mooring.mirror import Mirror
from mooring.settings import parse
from tests.contract.registries import OnRedis, open_hub
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
def hands(hub: Hub) -> OnRedis:
    return OnRedis(hub)


def at(service: str, port: int) -> Instance:
    return Instance(service, "10.0.0.1", port)


async def test_a_service_that_cannot_be_read_hides_no_other_and_comes_back(
    hub: Hub, hands: OnRedis
):
    keys = hands.registry.keys
    await hands.call("SADD", keys.services, "bad")
    await hands.call("SET", keys.of("bad").heartbeats, "no sorted set")
    async with hub.register(at("good", 1)), Mirror(hub.registry.follow_all()) as mirror:
        assert [service for service, _ in mirror.items] == ["good"]
        async with hub.register(at("good", 2)):
            await eventually(lambda: len(mirror.items) == 2)
            assert not mirror.stale
        await hands.call("DEL", keys.of("bad").heartbeats)
        async with hub.register(at("bad", 1)):
            await eventually(lambda: ("bad", "10.0.0.1:1") in mirror.items)


async def test_what_is_no_name_of_a_service_is_left_alone(hub: Hub, hands: OnRedis):
    await hands.call("SADD", hands.registry.keys.services, "a:b", "x/y/z", b"\xff")
    async with hub.register(at("good", 1)), Mirror(hub.registry.follow_all()) as mirror:
        assert [service for service, _ in mirror.items] == ["good"]
        assert await hands.registry.evictions.brakes() == {}


async def test_who_falls_silent_is_left_out_after_the_time_of_this_consumer(store_url: str):
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


async def test_a_brake_that_holds_is_told_in_words(hub: Hub, hands: OnRedis):
    async with hub.register(at("a", 1)), hub.register(at("b", 1)):
        await hands.call(
            *("HSET", hands.registry.keys.of("a").brake, "state", "holding"),
            *("silent", "3", "total", "4", "since", "1", "until", "2"),
        )
        (brake,) = (await hands.registry.evictions.brakes()).items()
        assert brake[0] == "a"
        assert "3 of 4 instances are silent" in str(brake[1])
