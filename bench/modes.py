"""The four balancing modes: in-process, local proxy, central proxy and sidecar, compared with a
plain channel to one instance."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import grpc.aio
import psutil
from tests.envoy import EnvoyServer

from bench.control_plane import control_plane
from bench.durable_store import scratch_folder
from bench.load import Load, in_flight
from bench.measure import Line, Plan, Section, interleaved, microseconds, per_second, ratio
from bench.processes import script
from bench.roles.echo_server import ECHO
from mooring import Instance, connect
from mooring.xds.bootstrap import Identity, for_grpc

INSTANCES = 2
IN_FLIGHT = 64
OTHERS = 16
SERVICE = "echo"

_BODY = b"x" * 100
_WITHIN = 20.0


class Mode(NamedTuple):
    call: Any
    envoy: EnvoyServer | None = None


class Cost(NamedTuple):
    load: Load
    proxy: float
    """Envoy's own time for a call, in microseconds; 0 without one."""


async def run(plan: Plan) -> list[Section]:
    async with _modes() as modes:
        alone = {name: partial(_calls, mode, 1, plan.seconds) for name, mode in modes.items()}
        busy = {
            name: partial(_calls, mode, IN_FLIGHT, plan.seconds) for name, mode in modes.items()
        }
        alone["central proxy"] = partial(_among_others, modes["local proxy"], plan.seconds)
        for side in (*alone.values(), *busy.values()):
            await side()
        one = await interleaved(plan, "one call at a time", alone, _show_latency)
        many = await interleaved(plan, f"{IN_FLIGHT} in flight", busy, _show_rate)
        memory = max(_memory(mode.envoy) for mode in modes.values() if mode.envoy)
    lines = [*_latencies(one), *_rates(many)]
    text = (
        f"A unary call of 100 bytes from a Python asyncio process to one of {INSTANCES} Python "
        "gRPC servers on the same machine, compared with a plain channel to one of them. With "
        "many calls in flight, that compares two servers with one. In-process is a gRPC "
        "`xds:///` channel fed by `mooring serve --xds`. The other modes use one Envoy with "
        "one worker thread, fed by the same control plane: the local proxy listens on "
        "loopback, the sidecar on a Unix socket. The central proxy is the local proxy with "
        f"{OTHERS} other calls in flight. The network round trip to a real central proxy comes "
        f"on top and is not included. Envoy uses {memory:.0f} MiB. Ratios compare times or "
        "rates."
    )
    return [Section("The four balancing modes", text, lines)]


def _latencies(taken: Mapping[str, list[Cost]]) -> list[Line]:
    plain = [cost.load.p50_ms * 1000 for cost in taken["plain"]]
    lines = []
    for name, costs in taken.items():
        if name != "plain":
            mine = [cost.load.p50_ms * 1000 for cost in costs]
            shown = (microseconds(median(mine)), microseconds(median(plain)))
            lines.append(Line(f"p50, {name}", *shown, ratio(mine, plain)))
    return lines


def _rates(taken: Mapping[str, list[Cost]]) -> list[Line]:
    plain = [cost.load.ops_per_s for cost in taken["plain"]]
    lines = []
    for name, costs in taken.items():
        if name == "plain":
            continue
        mine = [cost.load.ops_per_s for cost in costs]
        shown = (per_second(median(mine)), per_second(median(plain)))
        lines.append(Line(f"{IN_FLIGHT} in flight, {name}", *shown, ratio(mine, plain)))
        if proxy := median(cost.proxy for cost in costs):
            lines.append(Line(f"Envoy CPU time per call, {name}", microseconds(proxy)))
    return lines


def _show_latency(cost: Cost) -> str:
    return microseconds(cost.load.p50_ms * 1000)


def _show_rate(cost: Cost) -> str:
    return per_second(cost.load.ops_per_s)


async def _calls(mode: Mode, workers: int, seconds: float) -> Cost:
    busy = _cpu(mode.envoy)
    load = await in_flight(lambda _: mode.call(_BODY), workers, seconds)
    calls = load.ops_per_s * seconds
    return Cost(load, (_cpu(mode.envoy) - busy) / calls * 1e6)


async def _among_others(mode: Mode, seconds: float) -> Cost:
    """One call at a time, while other calls keep the proxy busy. These pause between calls, since
    this process would otherwise be the bottleneck."""
    stop = asyncio.Event()

    async def others() -> None:
        while not stop.is_set():
            await mode.call(_BODY)
            await asyncio.sleep(0.02)

    running = asyncio.gather(*(others() for _ in range(OTHERS)))
    try:
        return await _calls(mode, 1, seconds)
    finally:
        stop.set()
        await running


@asynccontextmanager
async def _modes() -> AsyncIterator[dict[str, Mode]]:
    async with AsyncExitStack() as stack:
        plane = stack.enter_context(control_plane())
        folder = stack.enter_context(scratch_folder())
        hub = await stack.enter_async_context(connect(plane.url))
        port = 0
        for _ in range(INSTANCES):
            server = await stack.enter_async_context(script("bench.roles.echo_server"))
            port = int(str(await server.receive(within=_WITHIN)))
            instance = Instance(SERVICE, host="127.0.0.1", port=port)
            await stack.enter_async_context(hub.register(instance))
        local = stack.enter_context(EnvoyServer(folder / "local", plane.xds))
        at = f"unix:{folder}/calls"
        sidecar = stack.enter_context(EnvoyServer(folder / "sidecar", plane.xds, listen=at))
        for envoy in (local, sidecar):
            await asyncio.to_thread(envoy.start)

        async def mode(target: str, envoy: EnvoyServer | None = None) -> Mode:
            options = [("grpc.default_authority", SERVICE)]
            channel = grpc.aio.insecure_channel(target, options if envoy else None)
            await stack.enter_async_context(channel)
            call = channel.unary_unary(ECHO)
            await call(_BODY, timeout=_WITHIN, wait_for_ready=True)
            return Mode(call, envoy)

        with _bootstrapped(folder / "bootstrap.json", plane.xds):
            in_process = await mode(f"xds:///{SERVICE}")
        yield {
            "plain": await mode(f"127.0.0.1:{port}"),
            "in-process": in_process,
            "local proxy": await mode(local.address, local),
            "sidecar": await mode(sidecar.address, sidecar),
        }


@contextmanager
def _bootstrapped(file: Path, server: str) -> Any:
    """gRPC reads this file when a process first uses an `xds:///` channel, and only then."""
    file.write_text(json.dumps(for_grpc(server, Identity("bench"))))
    os.environ["GRPC_XDS_BOOTSTRAP"] = str(file)
    try:
        yield
    finally:
        del os.environ["GRPC_XDS_BOOTSTRAP"]


def _cpu(envoy: EnvoyServer | None) -> float:
    if envoy is None or envoy.process is None:
        return 0.0
    times = psutil.Process(envoy.process.pid).cpu_times()
    return float(times.user + times.system)


def _memory(envoy: EnvoyServer) -> float:
    assert envoy.process is not None
    return float(psutil.Process(envoy.process.pid).memory_info().rss) / 2**20
