"""The size of heartbeats and lists on the connection to Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

import mooring
from mooring import Instance
from mooring.hub import Hub
from mooring.registry.redis import layout as fields
from mooring.registry.redis.instance_record import RedisInstanceRecord
from mooring.registry.redis.pipeline import HEARTBEAT, LIST
from mooring.registry.redis.registry import RedisRegistry
from mooring.testing.redis import RedisServer
from tests.contract.registries import QUICK, REDIS

MUCH = {"a": "x" * 60_000}


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


async def test_a_heartbeat_carries_no_metadata(server: RedisServer, hub: Hub):
    registry = hub.registry
    me, _ = registry.prepare(Instance("echo", "10.0.0.1", 1, metadata=MUCH))
    record = registry.instance_record(me)
    record.open(lambda: None)
    await record.put(me, fresh=True)

    def received() -> int:
        stats = str(server.command("INFO", "stats"))
        return int(stats.split("total_net_input_bytes:")[1].split()[0])

    await record.beat(me, update=False)
    before = received()
    for _ in range(20):
        await record.beat(me, update=False)
    assert received() - before < 20 * 2000
    assert (await registry.instances("echo")).instances[0].metadata == MUCH
    await record.withdraw()
    await record.aclose(within=1)


async def test_a_heartbeat_that_restores_health_publishes_the_instance(
    server: RedisServer, hub: Hub, space: str
):
    """Cleanup marked it unhealthy; its next heartbeat reports it healthy."""
    from redis.asyncio import Redis

    key = f"{space}:registry:services:Common/echo"
    client = Redis(host="127.0.0.1", port=server.port)
    listening = client.pubsub()
    await listening.subscribe(f"{key}:changes")
    await listening.get_message(timeout=5)

    async def publications() -> dict[str, object]:
        async with asyncio.timeout(20):
            while True:
                message = await listening.get_message(timeout=1, ignore_subscribe_messages=True)
                if message is not None:
                    publication: dict[str, object] = json.loads(message["data"])
                    return publication

    me = Instance(
        *("Common/echo", "10.0.0.1", 8080, "http", "1.2", 'z"1', 2.5),
        metadata={"a": "é/\n"},
        id="u/1",
    )
    async with hub.register(me):
        added = await publications()
        server.command("HSET", f"{key}:instance:u/1", "healthy", "false")
        assert await publications() == {
            **added,
            "action": "health_recovery",
            "timestamp": pytest.approx(added["timestamp"], abs=20_000),
        }
    await listening.aclose()  # type: ignore[no-untyped-call]
    await client.aclose()


async def test_large_metadata_does_not_delay_others(fresh_redis: Callable[..., RedisServer]):
    """The metadata of many instances is written and read in parts."""
    server = fresh_redis()
    async with mooring.connect(server.url, settings=QUICK) as hub:
        registry = hub.registry
        assert isinstance(registry, RedisRegistry)
        made = [Instance("echo", "10.0.0.1", 1 + n, metadata=MUCH) for n in range(60)]
        async with contextlib.AsyncExitStack() as stack:
            for one in made:
                await stack.enter_async_context(hub.register(one))
            server.command("CONFIG", "SET", "slowlog-log-slower-than", 0, "slowlog-max-len", 10_000)
            server.command("SLOWLOG", "RESET")
            live = registry._services["echo"]
            beats = [
                member._beat_of(one, {**fields.encode(one), "incarnation": member._incarnation})
                for member, one in zip(live._records, made, strict=True)
                if isinstance(member, RedisInstanceRecord)
            ]
            assert await asyncio.gather(*map(live.heartbeats.beat, beats)) == ["ok"] * 60
            assert len((await registry.instances("echo")).instances) == 60
            log = server.command("SLOWLOG", "GET", 10_000)
            assert isinstance(log, list)
            calls = [entry[3] for entry in log if isinstance(entry, list)]
            scripts = [call[1] for call in calls if isinstance(call, list) and len(call) > 1]
            assert scripts.count(HEARTBEAT.digest) > 10
            assert scripts.count(LIST.digest) > 3
