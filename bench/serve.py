"""`mooring serve` over the network, against a no-op server and etcd."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from bench.durable_store import scratch_folder
from bench.load import KEYS, VALUE, Load, in_flight
from bench.measure import Line, Plan, Section, Target, interleaved, milliseconds, per_second, ratio
from mooring.backends import open_store
from mooring.store import Put, Store, key
from mooring.testing.etcd import EtcdServer
from mooring.testing.servers import free_port

IN_FLIGHT = 64
WATCHERS = 1000

_NAMES = [name.encode() for name in KEYS]
_VALUE = VALUE.encode()


async def run(plan: Plan) -> list[Section]:
    with scratch_folder() as folder:
        return [await _puts(plan, folder), await _fan_out(plan, folder)]


async def _puts(plan: Plan, folder: Path) -> Section:
    with (
        _mooring(f"sqlite://{folder}/served") as ours,
        _python("bench.noop_server") as nothing,
        EtcdServer(folder / "etcd") as etcd,
    ):
        etcd.start()
        async with (
            open_store(f"etcd://{ours}") as mooring,
            open_store(f"etcd://{nothing}") as idle,
            open_store(etcd.url) as real,
        ):
            stores = {"ours": mooring, "nothing": idle, "etcd": real}
            sides = {
                name: partial(in_flight, partial(_put, store), IN_FLIGHT, plan.seconds)
                for name, store in stores.items()
            }
            for side in sides.values():
                await side()
            taken = await interleaved(plan, "served put", sides, _show)
    rates = {name: [load.ops_per_s for load in loads] for name, loads in taken.items()}
    shown = {name: per_second(median(values)) for name, values in rates.items()}
    lines = [
        Line(
            "durable put",
            shown["ours"],
            f"no-op server {shown['nothing']}",
            ratio(rates["ours"], rates["nothing"]),
            Target("≥", 0.6),
        ),
        Line(
            "durable put",
            shown["ours"],
            f"etcd {shown['etcd']}",
            ratio(rates["ours"], rates["etcd"]),
        ),
    ]
    text = (
        f"Puts with {IN_FLIGHT} in flight from one process, with our client for all servers. "
        "Each server is a separate process; ours and etcd store their files on the same disk, "
        "both with fsync."
    )
    return Section("mooring serve: puts over the network", text, lines)


async def _fan_out(plan: Plan, folder: Path) -> Section:
    with _mooring("memory://") as ours, EtcdServer(folder / "fan-out") as etcd:
        etcd.start()
        async with (
            open_store(f"etcd://{ours}") as mooring,
            open_store(etcd.url) as real,
            _watchers(mooring) as our_event,
            _watchers(real) as their_event,
        ):
            sides = {"ours": our_event, "etcd": their_event}
            for side in sides.values():
                await side()
            taken = await interleaved(
                plan.finer(4), "one event to 1,000 watches", sides, milliseconds
            )
    line = Line(
        f"one event to {WATCHERS:,} watches",
        milliseconds(median(taken["ours"])),
        f"etcd {milliseconds(median(taken['etcd']))}",
        ratio(taken["ours"], taken["etcd"]),
    )
    text = (
        "From just before a put is sent until all watches of the key, on one stream, have "
        "received its event, with our client for both. Ratios compare times."
    )
    return Section("mooring serve: one event to many watches", text, [line])


async def _put(store: Store, number: int) -> object:
    return await store.commit(Put(_NAMES[number % len(_NAMES)], _VALUE))


@asynccontextmanager
async def _watchers(store: Store) -> AsyncIterator[Callable[[], Awaitable[float]]]:
    watches = [store.watch(key(b"/fan-out")) for _ in range(WATCHERS)]
    await asyncio.gather(*(watch.__aenter__() for watch in watches))

    async def event() -> float:
        sent = time.perf_counter()
        await store.commit(Put(b"/fan-out", _VALUE))
        async with asyncio.timeout(20):
            await asyncio.gather(*(anext(watch) for watch in watches))
        return (time.perf_counter() - sent) * 1000

    yield event
    for watch in watches:
        await watch.__aexit__(None, None, None)


@contextmanager
def _mooring(store: str) -> Iterator[str]:
    port = free_port()
    flags = [f"--store={store}", f"--etcd=127.0.0.1:{port}", "--http=off"]
    with _running([sys.executable, "-m", "mooring.cli", "serve", *flags]):
        yield f"127.0.0.1:{port}"


@contextmanager
def _python(module: str) -> Iterator[str]:
    port = free_port()
    with _running([sys.executable, "-m", module, str(port)]):
        yield f"127.0.0.1:{port}"


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while not process.stdout.readline().startswith("ready"):
                if process.poll() is not None:
                    raise RuntimeError(f"{command} did not start")
            yield
        finally:
            process.kill()


def _show(load: Load) -> str:
    return per_second(load.ops_per_s)
