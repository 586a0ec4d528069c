"""The cost of a service on Redis by its size, and the cost of a view of a large service."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from statistics import median

from bench.bare_redis import Member, fresh_redis, number_in, register, registry_at
from bench.large_views import Cost, cost, show_cost
from bench.measure import (
    Line,
    Plan,
    Section,
    in_rounds,
    interleaved,
    milliseconds,
    per_second,
    percent,
    ratio,
)
from bench.population import SERVICE
from bench.processes import script
from mooring.registry.redis.registry import RedisRegistry

SIZES = {"1 k": 1_000, "10 k": 10_000, "100 k": 100_000}
FOLLOWED = 10_000
CHANGES = 100  # per second

_FEW = "1 k"
_WITHIN = 60.0
_SETTLED = 15.0


async def run(plan: Plan) -> list[Section]:
    return [*await _growing(plan), *await _following(plan)]


async def _growing(plan: Plan) -> list[Section]:
    registered: dict[str, float] = {}
    memory: dict[str, float] = {}
    lines: list[Line] = []
    with fresh_redis() as server:
        async with AsyncExitStack() as stack:
            beats: dict[str, Callable[[], Awaitable[float]]] = {}
            lists: dict[str, Callable[[], Awaitable[float]]] = {}
            for name, count in SIZES.items():
                plan.say(f"growing on Redis: registering {name}")
                registry = await stack.enter_async_context(
                    registry_at(server.address, f"of-{count}")
                )
                await register(registry, [count])  # excludes one-time costs
                used, started = number_in(server, "memory", "used_memory"), time.perf_counter()
                members = await register(registry, range(count))
                registered[name] = count / (time.perf_counter() - started)
                memory[name] = (number_in(server, "memory", "used_memory") - used) / count
                beats[name] = partial(_beat, members, plan.seconds)
                lists[name] = partial(_list, registry, count + 1, plan.seconds)
            for what, sides in (("one round of heartbeats", beats), ("listing", lists)):
                taken = await interleaved(plan, f"{what} on Redis", sides, per_second)
                lines += [_line(what, name, taken[name], taken[_FEW]) for name in SIZES]
    first = [Line(f"registering, {name}", per_second(rate)) for name, rate in registered.items()]
    last = [Line(f"Redis memory, {name}", _bytes(size)) for name, size in memory.items()]
    text = (
        "A service of the given size with realistic metadata and metrics: registering all "
        "instances once, sending one heartbeat for each as the registry does, and listing and "
        "decoding all of them. Rates are instances per second from one process: at a constant "
        "rate, cost grows linearly. The ratio is relative to a thousand instances. Memory is "
        "what Redis reports, per instance."
    )
    return [Section("A service on Redis, by size", text, [*first, *lines, *last])]


async def _beat(members: Sequence[Member], seconds: float) -> float:
    """Heartbeats per second, in as many full rounds as fit, at least one."""
    started, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        beats = (member.record.beat(member.instance, update=False) for member in members)
        await asyncio.gather(*beats)
        done += len(members)
    return done / elapsed


async def _list(registry: RedisRegistry, count: int, seconds: float) -> float:
    started, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        listing = await registry.instances(SERVICE)
        assert len(listing.instances) == count
        done += count
    return done / elapsed


def _line(what: str, name: str, taken: Sequence[float], few: Sequence[float]) -> Line:
    rate = per_second(median(taken))
    if name == _FEW:
        return Line(f"{what}, {name}", rate)
    return Line(f"{what}, {name}", rate, f"{_FEW} {per_second(median(few))}", ratio(taken, few))


def _bytes(value: float) -> str:
    return f"{value:,.0f} bytes per instance"


async def _following(plan: Plan) -> list[Section]:
    seconds = 5 * plan.seconds
    with fresh_redis() as server:
        arguments = (server.address, str(FOLLOWED), str(CHANGES))
        async with script("bench.roles.redis_churn", *arguments) as producer:
            assert await producer.receive(within=_WITHIN) == "ready"
            async with script("bench.roles.view_holder", server.url, str(seconds)) as follower:
                assert await follower.receive(within=_WITHIN) == "ready"
                for _ in range(math.ceil(_SETTLED / seconds)):
                    await cost(follower, seconds)

                async def measure() -> dict[str, Cost]:
                    return {"view": await cost(follower, seconds)}

                taken = (await in_rounds(plan, "following on Redis", measure, show_cost))["view"]
    typical = Cost(*map(median, zip(*taken, strict=True)))
    followed = f"{per_second(typical.changes, ' changes')}, {typical.instances:,.0f} instances"
    lines = [
        Line("share of one core", percent(typical.share), followed),
        Line("longest event loop stall", milliseconds(typical.held_up * 1000), followed),
    ]
    if typical.changes < 0.95 * CHANGES:
        lines = [Line("share of one core", "", remark=f"the machine is too busy: {followed}")]
    text = (
        f"A process holds a view of {FOLLOWED:,} instances on Redis that send a heartbeat every "
        f"10 s, while another process makes {CHANGES} changes per second: half are status "
        "changes, a quarter are joins and a quarter are departures. The view learns of each "
        "change from the change channel and reads it. It also polls the membership every 4 s, "
        "and all details every 24 s. A stall is the time during which nothing else in the "
        f"process could run; the table shows the longest in {seconds:g} s, from the median "
        "round."
    )
    return [Section("Following a large service on Redis", text, lines)]
