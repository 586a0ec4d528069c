"""What it costs to follow a large service that changes all the time."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple, cast

from bench.bare_etcd import fresh_etcd
from bench.measure import Line, Plan, Section, Target, in_rounds, per_second, percent
from bench.processes import Script, script

INSTANCES = 10_000
CHANGES = 1_000  # a second

_WITHIN = 60.0


class Cost(NamedTuple):
    share: float
    changes: float
    instances: float


async def run(plan: Plan) -> list[Section]:
    seconds = 5 * plan.seconds
    with fresh_etcd() as server:
        arguments = (server.url, str(INSTANCES), str(CHANGES))
        async with script("bench.roles.producer", *arguments) as producer:
            assert await producer.told(within=_WITHIN) == "ready"
            async with script("bench.roles.follower", server.url, str(seconds)) as follower:
                assert await follower.told(within=_WITHIN) == "ready"
                await _cost(follower, seconds)  # the first one warms up

                async def measure() -> dict[str, Cost]:
                    return {"view": await _cost(follower, seconds)}

                taken = (await in_rounds(plan, "following", measure, _show))["view"]
    typical = Cost(*map(median, zip(*taken, strict=True)))
    line = Line(
        "share of one core",
        percent(typical.share),
        f"{per_second(typical.changes)} changes, {typical.instances:,.0f} instances",
        target=Target("≤", 0.5, percent),
        value=typical.share,
    )
    text = (
        f"A process with a view of {INSTANCES:,} instances on etcd, while another process makes "
        f"{CHANGES:,} changes a second: half of them of a status, a quarter joins and a quarter "
        "leaves, each a commit of its own. What is told is the processor time of all threads."
    )
    return [Section("Following a large service", text, [line])]


async def _cost(follower: Script, seconds: float) -> Cost:
    told = cast("list[float]", await follower.told(within=seconds + _WITHIN))
    return Cost(*told)


def _show(cost: Cost) -> str:
    return f"{percent(cost.share)} of a core at {per_second(cost.changes)}"
