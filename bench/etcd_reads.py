"""Reading a whole prefix from etcd: how the cost grows with its size."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from statistics import median

from bench.bare_etcd import fresh_etcd
from bench.load import VALUE
from bench.measure import Line, Plan, Section, interleaved, per_second, ratio
from mooring.backends import open_store
from mooring.store import MAX_OPERATIONS, Put, Range, Store, prefix

SIZES = {"1 k keys": 1_000, "10 k keys": 10_000, "100 k keys": 100_000}

_VALUE = VALUE.encode()


async def run(plan: Plan) -> list[Section]:
    with fresh_etcd() as server:
        async with open_store(server.url) as store:
            plan.say("etcd reads: filling the store")
            for count in SIZES.values():
                await _fill(store, count)
            sides = {
                name: partial(_read, store, _range(count), count, plan.seconds)
                for name, count in SIZES.items()
            }
            shown = partial(per_second, unit=" keys")
            taken = await interleaved(plan, "etcd read of a prefix", sides, shown)
    few = "1 k keys"
    lines = [Line(f"read of {few}", shown(median(taken[few])))]
    lines += [
        Line(
            f"read of {name}",
            shown(median(taken[name])),
            f"{few} {shown(median(taken[few]))}",
            ratio(taken[name], taken[few]),
        )
        for name in SIZES
        if name != few
    ]
    text = (
        "Reads a whole prefix through `store.read`, in keys per second. The ratio is relative "
        "to 1 k keys."
    )
    return [Section("Reading an etcd prefix, by size", text, lines)]


async def _read(store: Store, range: Range, count: int, seconds: float) -> float:
    """Keys per second, over as many full reads as fit, at least one."""
    clock, read = time.perf_counter, 0
    start = clock()
    async with asyncio.timeout(seconds + 30):
        while (elapsed := clock() - start) < seconds:
            snapshot = await store.read(range)
            assert len(snapshot.entries) == count
            read += count
    return read / elapsed


def _range(count: int) -> Range:
    return prefix(b"/bench/%d/" % count)


async def _fill(store: Store, count: int) -> None:
    async with asyncio.timeout(60):
        for start in range(0, count, MAX_OPERATIONS):
            numbers = range(start, min(start + MAX_OPERATIONS, count))
            puts = [Put(b"/bench/%d/%07d" % (count, number), _VALUE) for number in numbers]
            await store.commit(*puts)
