"""Evicting many expired instances of a large service on Redis: how long other clients wait."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple, cast

from bench.bare_redis import Member, fresh_redis, put, register, registry_at, slow_log
from bench.measure import Line, Plan, Section, Target, in_rounds, milliseconds
from bench.population import SERVICE
from bench.processes import Script, script
from mooring.registry.redis.registry import RedisRegistry

INSTANCES = 100_000
EXPIRED = 10_000

_LONG_AGO = 3_600_000  # ms
_WITHIN = 30.0


class Pass(NamedTuple):
    seconds: float
    command: float
    """The longest command in ms; the waits are in ms too."""
    waited: float
    at_rest: float


async def run(plan: Plan) -> list[Section]:
    with fresh_redis() as server:
        async with (
            registry_at(server.address) as registry,
            script("bench.roles.pinger", str(server.port)) as pinger,
        ):
            plan.say(f"cleanup on Redis: registering {INSTANCES:,}")
            members = await register(registry, range(INSTANCES))
            dead = members[:: INSTANCES // EXPIRED]
            waits = _Waits(pinger)

            async def sweep() -> dict[str, Pass]:
                await put(dead)
                await _age(registry, dead)
                started = time.monotonic()
                swept = await registry.evictions.sweep()
                took = time.monotonic() - started
                assert len(swept.removed) == EXPIRED, str(swept)
                waited = await waits.longest(started, started + took)
                await asyncio.sleep(took)
                at_rest = await waits.longest(time.monotonic() - took, time.monotonic())
                await put(dead)
                await _age(registry, dead)
                with slow_log(server) as ran:
                    await registry.evictions.sweep()
                return {"sweep": Pass(took, ran[0][0] if ran else 0.0, waited, at_rest)}

            taken = (await in_rounds(plan, "cleanup", sweep, _show))["sweep"]
    typical = Pass(*map(median, zip(*taken, strict=True)))
    bound = Target("≤", 10.0, milliseconds)
    lines = [
        Line(
            "longest command",
            milliseconds(typical.command),
            target=bound,
            value=typical.command,
        ),
        Line(
            "longest wait of another client",
            milliseconds(typical.waited),
            f"without cleanup {milliseconds(typical.at_rest)}",
            target=bound,
            value=typical.waited,
            remark="If the wait without cleanup is as long, the machine is the cause.",
        ),
        Line("full pass", f"{typical.seconds:.2f} s"),
    ]
    text = (
        f"One pass of `mooring cleanup` over a service of {INSTANCES:,} instances, {EXPIRED:,} "
        "of which have expired, including the search for leftover keys across all of Redis. "
        "The longest command comes from Redis' slow log, in a separate pass. The other client "
        "is a process that sends `PING` about a thousand times per second. Each row is the "
        "worst value of a pass, from the median round."
    )
    return [Section("Cleanup on Redis", text, lines)]


async def _age(registry: RedisRegistry, members: Sequence[Member]) -> None:
    """Moves their last heartbeat into the past."""
    keys, then = registry.keys.of(SERVICE), int(time.time() * 1000) - _LONG_AGO
    for first in range(0, len(members), 500):
        marks = [part for member in members[first:][:500] for part in (then, member.instance.id)]
        await registry.connection.call("ZADD", keys.heartbeats, *marks, what="bench", writes=True)


class _Waits:
    """The waits that a pinger reports."""

    def __init__(self, pinger: Script) -> None:
        self._pinger = pinger
        self._waits: deque[tuple[float, float]] = deque(maxlen=10_000)

    async def longest(self, since: float, until: float) -> float:
        """The longest wait within a past interval."""
        while not self._waits or self._waits[-1][0] < until:
            when, waited = cast("list[float]", await self._pinger.receive(within=_WITHIN))
            self._waits.append((when, waited))
        return max(waited for when, waited in self._waits if since - 0.05 <= when < until)


def _show(cleanup: Pass) -> str:
    return (
        f"{cleanup.seconds:.2f} s, longest command {milliseconds(cleanup.command)}, PING "
        f"{milliseconds(cleanup.waited)}, at rest {milliseconds(cleanup.at_rest)}"
    )
