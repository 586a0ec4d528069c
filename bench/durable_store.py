"""The embedded store in a file, in process: puts, start-up, and what a key costs in memory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.load import KEYS, VALUE, Load, in_flight
from bench.measure import Line, Plan, Section, Target, interleaved, per_second
from mooring.backends import open_store
from mooring.store import Put, Store

IN_FLIGHT = 64
SIZE = 1_000_000

_NAMES = [name.encode() for name in KEYS]
_VALUE = VALUE.encode()

_START = """
import asyncio, os, sys, time
from mooring.backends import open_store
from mooring.store import key

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

async def main():
    import mooring.store.embedded.durable, mooring.store.embedded.store
    before, started = resident(), time.perf_counter()
    async with open_store(sys.argv[1]) as store:
        await store.read(key(b"/none"))
        print(time.perf_counter() - started, resident() - before)

asyncio.run(main())
"""


async def run(plan: Plan) -> list[Section]:
    with scratch_folder() as folder:
        return [await _puts(plan, folder), await _start(plan, folder)]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """On the disk of the project: the temporary directory may be in memory."""
    Path(".bench").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=".bench") as folder:
        yield Path(folder).resolve()


async def _puts(plan: Plan, folder: Path) -> Section:
    async with open_store(f"sqlite://{folder}/store") as store:

        async def put(number: int) -> object:
            return await store.commit(Put(_NAMES[number % len(_NAMES)], _VALUE))

        async def ours() -> Load:
            return await in_flight(put, IN_FLIGHT, plan.seconds)

        async def disk() -> Load:
            return Load(_synchronisations(folder / "probe", plan.seconds), 0.0)

        sides = {"ours": ours, "disk": disk}
        taken = await interleaved(
            plan, "durable put", sides, lambda load: per_second(load.ops_per_s)
        )
    puts = median(load.ops_per_s for load in taken["ours"])
    syncs = median(load.ops_per_s for load in taken["disk"])
    bound = min(0.5 * IN_FLIGHT * syncs, 10_000)
    line = Line(
        "durable put",
        per_second(puts),
        f"disk fsyncs {per_second(syncs)}",
        target=Target("≥", bound, per_second),
        value=puts,
    )
    text = (
        f"`sqlite:///path`, {IN_FLIGHT} writes in flight in one process, each acknowledged once "
        "it is on disk. The target is half of what this many writers could achieve at the "
        "disk's fsync rate, or 10 k/s if that is lower."
    )
    return Section("Durable store", text, [line])


def _synchronisations(path: Path, seconds: float) -> float:
    """How many pages per second this disk can fsync."""
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    page, count, start = b"x" * 4096, 0, time.perf_counter()
    try:
        while (elapsed := time.perf_counter() - start) < seconds:
            os.pwrite(file, page, count % 1000 * 4096)
            os.fdatasync(file)
            count += 1
    finally:
        os.close(file)
    return count / elapsed


async def _start(plan: Plan, folder: Path) -> Section:
    url = f"sqlite://{folder}/million"
    async with open_store(url) as store:
        await _fill(store)
    times, sizes = [], []
    for number in range(min(plan.rounds, 3)):
        seconds, memory = await asyncio.to_thread(_open_once, url)
        times.append(seconds)
        sizes.append(memory / SIZE)
        plan.say(f"start with 1 M keys, round {number + 1}: {seconds:.1f} s")
    lines = [
        Line("start with 1 M keys", f"{median(times):.1f} s"),
        Line("memory per key", f"{median(sizes):.0f} bytes"),
    ]
    text = (
        f"Opening a file of a million keys with values of {len(_VALUE)} bytes. Memory is the "
        "growth of the process, including keys, values and their history."
    )
    return Section("Durable store, a million keys", text, lines)


def _open_once(url: str) -> tuple[float, float]:
    """Seconds and bytes, measured in a separate process."""
    command = [sys.executable, "-c", _START, url]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, memory = map(float, run.stdout.split())
    return seconds, memory


async def _fill(store: Store) -> None:
    for start in range(0, SIZE, 100):
        numbers = range(start, start + 100)
        await store.commit(*(Put(b"/million/%07d" % number, _VALUE) for number in numbers))
