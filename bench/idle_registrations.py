"""The cost of idle registrations."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import NamedTuple, cast

from bench.bare_etcd import fresh_etcd
from bench.measure import Line, Plan, Section, Target, per_second, percent
from bench.processes import script

FEW, MANY = 1, 1_000

# An unchanged status is written once a minute, so a shorter measurement would miss it.
_MINUTE = 60.0
_WITHIN = 120.0


class Rest(NamedTuple):
    share: float
    wakeups: float
    registered: float


async def run(plan: Plan) -> list[Section]:
    seconds = _MINUTE * max(plan.seconds, 0.1)
    plan.say(f"at rest: {2 * seconds:g} s")
    with fresh_etcd() as server:
        async with AsyncExitStack() as stack:
            processes = {}
            # Sequentially: their instances have the same names, and the later one wins.
            for count, url in ((FEW, f"{server.url}?namespace=/few"), (MANY, server.url)):
                arguments = (url, str(count), str(seconds), str(seconds))
                resident = script("bench.roles.idle_instances", *arguments)
                processes[count] = await stack.enter_async_context(resident)
                assert await processes[count].receive(within=_WITHIN) == "ready"
            few, many = [
                Rest(*cast("list[float]", await process.receive(within=2 * seconds + _WITHIN)))
                for process in processes.values()
            ]
    share = Line(
        f"{MANY:,} registrations, share of one core",
        percent(many.share),
        f"{FEW} registration {percent(few.share)}",
        target=Target("≤", 0.02, percent),
        value=many.share,
    )
    if many.registered < MANY:
        remark = f"only {many.registered:,.0f} of them stayed registered"
        share = Line(share.what, "", remark=remark)
    lines = [
        share,
        Line(
            f"{MANY:,} registrations, wake-ups",
            per_second(many.wakeups),
            f"{FEW} registration {per_second(few.wakeups)}",
        ),
    ]
    text = (
        "A process holds the given number of registrations on etcd, with default settings and "
        f"metrics, for {seconds:g} s, starting at a fixed time after the last registration. The "
        "table shows the CPU time of all threads and how often any of them blocked."
    )
    return [Section("Idle registrations", text, lines)]
