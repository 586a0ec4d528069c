"""The cost of a view of a large service that changes constantly."""

from __future__ import annotations

import math
from statistics import median
from typing import NamedTuple, cast

from bench.bare_etcd import fresh_etcd
from bench.measure import Line, Plan, Section, Target, in_rounds, milliseconds, per_second, percent
from bench.processes import Script, script

INSTANCES = 10_000
CHANGES = 1_000  # per second

_WITHIN = 60.0
_SETTLED = 30.0  # seconds until as many instances have warmed up as have joined


class Cost(NamedTuple):
    share: float
    changes: float
    instances: float
    held_up: float


async def run(plan: Plan) -> list[Section]:
    seconds = 5 * plan.seconds
    with fresh_etcd() as server:
        arguments = (server.url, str(INSTANCES), str(CHANGES))
        async with script("bench.roles.churn", *arguments) as producer:
            assert await producer.receive(within=_WITHIN) == "ready"
            async with script("bench.roles.view_holder", server.url, str(seconds)) as follower:
                assert await follower.receive(within=_WITHIN) == "ready"
                for _ in range(math.ceil(_SETTLED / seconds)):
                    await cost(follower, seconds)

                async def measure() -> dict[str, Cost]:
                    return {"view": await cost(follower, seconds)}

                taken = (await in_rounds(plan, "following", measure, show_cost))["view"]
    typical = Cost(*map(median, zip(*taken, strict=True)))
    followed = f"{per_second(typical.changes, ' changes')}, {typical.instances:,.0f} instances"
    share = Line(
        "share of one core",
        percent(typical.share),
        followed,
        target=Target("≤", 0.5, percent),
        value=typical.share,
    )
    if typical.changes < 0.95 * CHANGES:
        share = Line("share of one core", "", remark=f"the machine is too busy: {followed}")
    held_up = Line("longest event loop stall", milliseconds(typical.held_up * 1000), followed)
    text = (
        f"A process holds a view of {INSTANCES:,} instances on etcd while another process makes "
        f"{CHANGES:,} changes per second, each in its own commit: half are status changes, a "
        "quarter are joins and a quarter are departures. The share is the CPU time of all "
        "threads. A stall is the time during which nothing else in the process could run; the "
        f"table shows the longest in {seconds:g} s, from the median round."
    )
    return [Section("Following a large service", text, [share, held_up])]


async def cost(follower: Script, seconds: float) -> Cost:
    measured = cast("list[float]", await follower.receive(within=seconds + _WITHIN))
    return Cost(*measured)


def show_cost(cost: Cost) -> str:
    held_up = milliseconds(cost.held_up * 1000)
    return f"{percent(cost.share)} of a core at {per_second(cost.changes)}, held up {held_up}"
