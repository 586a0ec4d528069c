"""The bridge between version 1.0 of the Redis registry and ours, while Redis or a node is down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.testing.redis import RedisCluster, RedisServer
from tests.features.test_migrate_redis_v1 import WITHIN, bridging, place
from tests.waiting import eventually


async def test_a_bridge_survives_an_outage_of_redis(fresh_redis: Callable[..., RedisServer]):
    server = fresh_redis(series="6.2", persistent=True)
    async with place(server) as here, bridging(here):
        server.stop()
        await asyncio.sleep(0.2)
        server.start()
        here.v1.register("svc", "a")

        async def is_copied() -> bool:
            return await here.ids("svc") == ["a"]

        await eventually(is_copied, within=30)


@pytest.mark.deadline
@pytest.mark.parametrize("tier1", [False, True], ids=["other keys", "tier 1"])
async def test_a_node_that_is_down_affects_only_its_own_services(tmp_path: Path, tier1: bool):
    flags = ["--cluster-require-full-coverage", "no"]
    with RedisCluster(tmp_path, series="6.2", node_timeout=3.0, flags=flags) as cluster:
        cluster.start()
        async with place(cluster, timeout="8s") as here:
            v1, keys = here.v1, here.registry.keys
            home = cluster.master_of(keys.services)
            down = home if tier1 else next(m for m in cluster.members if m is not home)

            def away(name: str) -> bool:
                where = [f"{v1.root}{kind}:{name}" for kind in ("service_instances", "heartbeat")]
                where += [f"{v1.root}services:{name}:a", keys.of(name).heartbeats]
                return all(cluster.master_of(key) is not down for key in where)

            good, later = [name for name in (f"s{n}" for n in range(200)) if away(name)][:2]
            for name in (good, *(f"t{n}" for n in range(20))):
                v1.register(name, "a")
            async with bridging(here):

                async def is_copied(name: str) -> bool:
                    return await here.ids(name) == ["a"]

                await eventually(lambda: is_copied(good), within=WITHIN)
                down.kill()
                if not tier1:
                    v1.register(later, "a")
                until = time.monotonic() + 10
                while time.monotonic() < until:
                    v1.beat(good, "a")
                    if not tier1:
                        v1.beat(later, "a")
                    await asyncio.sleep(0.5)
                    assert await is_copied(good)
                if not tier1:
                    await eventually(lambda: is_copied(later))
