"""How many instances a process registers per second: ours on etcd, kazoo's on ZooKeeper."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from bench.bare_etcd import fresh_etcd
from bench.etcd_client import IN_FLIGHT, compared, show
from bench.etcd_peers import run_peer
from bench.measure import Line, Plan, Section, Target, interleaved
from bench.processes import ProcessFailed
from bench.zookeeper import fresh_zookeeper

_TARGET = Target("≥", 2.0)
_PYTHON = Path(sys.executable)
_REMARK = (
    "Measured separately: 0.32 to 0.41 ms of CPU time per registration in our process, with "
    "6,000 registered. In a profile, no function takes more than 8 % of it: validating and "
    "encoding the instance, its task and timers, the keys, and the watch that guards it."
)


async def run(plan: Plan) -> list[Section]:
    try:
        lines = await _compare(plan)
    except ProcessFailed as problem:
        lines = [Line("registrations", "", remark=f"not measured: {problem}")]
    text = (
        f"{IN_FLIGHT} registrations in flight from one process, each of a different instance of "
        "the same service, which stays registered. Ours call `hub.register`: two keys on a "
        "lease, checks that no other process owns them, and a watch that guards them from then "
        "on. kazoo asynchronously creates one ephemeral node per instance, or the equivalent "
        "of both our keys in one transaction; nothing watches them."
    )
    return [Section("Concurrent registrations", text, lines)]


async def _compare(plan: Plan) -> list[Line]:
    with fresh_etcd() as etcd:
        async with fresh_zookeeper() as zookeeper:
            kazoo = partial(run_peer, "kazoo", _PYTHON, zookeeper.address)
            sides = {
                "kazoo, one node": partial(kazoo, "register one", plan.seconds),
                "ours": partial(
                    run_peer, "mooring", _PYTHON, etcd.address, "register", plan.seconds
                ),
                "kazoo, both nodes": partial(kazoo, "register both", plan.seconds),
            }
            taken = await interleaved(plan, "registrations", sides, show)
    return [
        compared(f"registrations, {name}", taken["ours"], theirs, _TARGET, _REMARK)
        for name, theirs in taken.items()
        if name != "ours"
    ]
