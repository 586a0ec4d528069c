"""Metadata and metrics through a real Redis, and the limits of their size."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

import mooring
from mooring import Instance
from mooring.errors import InvalidRequest
from mooring.hub import Hub
from mooring.model import JSON
from mooring.testing.redis import RedisServer
from tests.faults.redis_actors import namespaced, quick, registry_of
from tests.waiting import eventually

METRICS: dict[str, JSON] = {
    "big": 123456789012345,
    "none": None,
    "yes": True,
    "no": False,
    "nested": {"a.b": {"c_d": [1, None, {"e": "é"}], "": 0.1}, "空": "\u2028 \x00 \\ \" '"},
    "empty": {},
    "list": [],
}
METADATA = {"a_b": "1", "a.b": "2", "": "", "空": "值\n", "_": "x" * 1000}


@pytest.fixture(params=["redis-6.2", "redis-valkey-9", "redis-cluster"])
def url(request: pytest.FixtureRequest, redis: Callable[[str], RedisServer]) -> str:
    if request.param == "redis-cluster":
        return namespaced(request.getfixturevalue("redis_cluster").url)
    return namespaced(redis(request.param.removeprefix("redis-")).url)


async def only(hub: Hub) -> Instance:
    (instance,) = (await hub.registry.instances("echo")).instances
    return instance


async def test_metadata_and_metrics_are_read_as_written(url: str):
    settings = quick()
    async with (
        mooring.connect(url, settings=settings) as hub,
        mooring.connect(url, settings=settings) as other,
        hub.register(Instance("echo", "10.0.0.1", 1, metadata=METADATA)) as one,
        other.discover("echo") as view,
    ):
        assert (await only(other)).metadata == METADATA
        one.update(metrics=METRICS, healthy=False)

        async def complete() -> bool:
            return (await only(other)).status.metrics == METRICS

        await eventually(complete)
        await eventually(lambda: view.instances[0].status.metrics == METRICS)
        assert view.instances[0].metadata == METADATA
        one.update(metrics={"big": 1}, metadata={"b": "1"}, healthy=True)

        async def less() -> bool:
            now = await only(other)
            return (now.metadata, now.status.metrics) == ({"b": "1"}, {"big": 1})

        await eventually(less)
        registry = registry_of(other)
        key = registry.keys.of("echo").instance(one.instance.id)
        names = await registry.connection.call("HKEYS", key, what="test")
        assert {n for n in names if n.startswith(b"metadata_")} == {b"metadata_b", b"metadata_big"}


async def test_oversized_metadata_is_refused_before_any_write(
    redis: Callable[[str], RedisServer],
):
    async with mooring.connect(
        namespaced(redis("7.0").url), settings=quick(metadata_limit=100)
    ) as hub:
        large = Instance("echo", "10.0.0.1", 1, metadata={"a": "x" * 200})
        with pytest.raises(InvalidRequest, match=r"over the limit of 100.*metadata-limit"):
            hub.register(large)
        assert await hub.registry.services() == []


async def test_metrics_that_grow_too_large_are_omitted_and_heartbeats_continue(
    redis: Callable[[str], RedisServer], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    url = namespaced(redis("7.0").url)
    settings = quick(beat=0.1, timeout=4.0, metadata_limit=100)
    small = Instance("echo", "10.0.0.1", 1, metadata={"a": "1"})
    async with mooring.connect(url, settings=settings) as hub, hub.register(small) as one:
        one.update(metrics={"m": "x" * 200}, healthy=False)

        async def unhealthy() -> bool:
            return not (await only(hub)).status.healthy

        await eventually(unhealthy)
        assert (await only(hub)).status.metrics == {}
        await eventually(lambda: "no metrics are sent" in caplog.text)
        with pytest.raises(InvalidRequest, match="over the limit of 100"):
            one.update(metadata={"a": "y" * 200})
        for _ in range(30):  # longer than the timeout
            await asyncio.sleep(0.15)
            assert (await only(hub)).metadata == {"a": "1"}
        assert one.state == "registered"
        assert caplog.text.count("no metrics are sent") == 1
        one.update(metadata={"a": "2"}, metrics={})

        async def better() -> bool:
            return (await only(hub)).metadata == {"a": "2"}

        await eventually(better)


async def test_a_change_before_the_subscription_is_seen_soon(
    redis: Callable[[str], RedisServer],
):
    """No message reaches the consumer between its first list and its subscription."""
    url, settings = namespaced(redis("7.0").url), quick()
    async with (
        mooring.connect(url, settings=settings) as hub,
        hub.register(Instance("echo", "10.0.0.1", 1)) as one,
    ):
        for number in range(3):
            metadata = {"n": str(number)}
            async with (
                mooring.connect(url, settings=settings) as other,
                other.discover("echo") as view,
            ):
                one.update(metadata=metadata)
                await eventually(lambda: view.instances[0].metadata == metadata)  # noqa: B023
