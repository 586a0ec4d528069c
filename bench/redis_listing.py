"""Listing a large service on Redis: against reading one hash at a time."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from bench.bare_redis import driver, fresh_redis, register, registry_at, slow_log
from bench.measure import Line, Plan, Section, Target, interleaved, milliseconds, per_second, ratio
from bench.population import SERVICE
from mooring.model import Instance
from mooring.registry.redis import layout as fields
from mooring.registry.redis.registry import RedisRegistry

INSTANCES = 10_000


async def run(plan: Plan) -> list[Section]:
    with fresh_redis() as server:
        async with (
            registry_at(server.address) as registry,
            driver(server, decode_responses=True) as bare,
        ):
            plan.say(f"listing on Redis: registering {INSTANCES:,}")
            await register(registry, range(INSTANCES))
            longest: list[float] = []

            async def ours() -> float:
                start = time.perf_counter()
                listing = await registry.instances(SERVICE)
                elapsed = time.perf_counter() - start
                assert len(listing.instances) == INSTANCES
                with slow_log(server) as ran:
                    await registry.instances(SERVICE)
                longest.append(next((took for took, name in ran if name == "EVALSHA"), 0.0))
                return INSTANCES / elapsed

            async def theirs() -> float:
                start = time.perf_counter()
                listed = await _one_by_one(registry, bare)
                elapsed = time.perf_counter() - start
                assert len(listed) == INSTANCES
                return INSTANCES / elapsed

            sides = {"ours": ours, "one at a time": theirs}
            taken = await interleaved(plan, f"listing of {INSTANCES:,}", sides, _show)
    mine, other, worst = median(taken["ours"]), median(taken["one at a time"]), median(longest)
    lines = [
        Line(
            f"listing of {INSTANCES:,}",
            _show(mine),
            f"one hash at a time {_show(other)}",
            ratio(taken["ours"], taken["one at a time"]),
            Target("≥", 5.0),
        ),
        Line(
            "longest script call",
            milliseconds(worst),
            target=Target("≤", 10.0, milliseconds),
            value=worst,
        ),
    ]
    text = (
        f"Lists all {INSTANCES:,} instances of a service with `registry.instances`: the "
        "membership, the operator overrides, and the details in batches of a hundred, decoded "
        "into instances. The comparison reads the membership and then calls `HGETALL` for each "
        "instance sequentially with redis-py, and decodes with the same code. The longest "
        "script call comes from Redis' slow log, in the median round."
    )
    return [Section("Listing on Redis", text, lines)]


async def _one_by_one(registry: RedisRegistry, bare: Any) -> list[Instance]:
    keys = registry.keys.of(SERVICE)
    oldest = (time.time() - registry.timeout) * 1000
    return [
        fields.decode(SERVICE, id, await bare.hgetall(keys.instance(id)))
        for id in await bare.zrangebyscore(keys.heartbeats, oldest, "+inf")
    ]


def _show(value: float) -> str:
    return per_second(value, " instances")
