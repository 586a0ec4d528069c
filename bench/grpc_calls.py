"""The cost of a channel to a service, compared with a plain gRPC channel to one instance."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from statistics import median, quantiles
from typing import Any, cast

import grpc
import grpc.aio

from bench.bare_etcd import fresh_etcd
from bench.grpc_echo import ECHO
from bench.load import in_flight
from bench.measure import (
    Line,
    Plan,
    Section,
    Target,
    interleaved,
    microseconds,
    microseconds_each,
    milliseconds,
    per_second,
    percent,
    ratio,
)
from bench.processes import script
from mooring import Hub, Instance, connect
from mooring.grpc.aio import Channel, channel

MANY = 500
IN_FLIGHT = (1, 16)
_WITHIN = 60.0
_STRETCH = 1000
_TURNS = 30
_REST = 20.0  # seconds for each second of the plan


async def run(plan: Plan) -> list[Section]:
    return [await _calls(plan), await _coming(plan), await _resting(plan)]


async def _calls(plan: Plan) -> Section:
    lines: list[Line] = []
    finer = plan.finer(10)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(script("bench.grpc_echo", "1"))
        (port,) = cast("list[int]", await server.receive(within=_WITHIN))
        hub = await stack.enter_async_context(connect("memory://"))
        await stack.enter_async_context(hub.register(_instance("echo", port)))
        ours = await stack.enter_async_context(channel("etcdv3:///echo", hub=hub))
        plain = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
        await asyncio.gather(ours.channel_ready(), plain.channel_ready())
        for workers in IN_FLIGHT:
            sides = {
                "ours": _load(ours, workers, finer.seconds),
                "plain": _load(plain, workers, finer.seconds),
            }
            what = f"{workers} in flight"
            taken = await interleaved(finer, f"gRPC, {what}", sides, per_second)
            lines.append(
                Line(
                    f"unary calls, {what}",
                    per_second(median(taken["ours"])),
                    per_second(median(taken["plain"])),
                    ratio(taken["ours"], taken["plain"]),
                    Target("≥", 0.95),
                    remark=_REMARK,
                )
            )
        lines.append(await _thrift(plan, ours, plain))
        lines += await _parts(plan, ours)
    text = (
        "Unary asyncio calls of a few bytes to one instance in another process: through a "
        "channel to the service, which picks an instance for each call, and through a plain "
        "gRPC channel to its address. The dispatch rows are measured separately, against a "
        "stub of gRPC's call that does nothing."
    )
    return Section("gRPC, calls", text, lines)


def _instance(service: str, port: int) -> Instance:
    return Instance(service, host="127.0.0.1", port=port)


def _load(opened: grpc.aio.Channel, workers: int, seconds: float) -> Callable[[], Awaitable[float]]:
    echo = opened.unary_unary(ECHO)

    async def measure() -> float:
        return (await in_flight(lambda _: echo(b"hello"), workers, seconds)).ops_per_s

    return measure


_REMARK = (
    "Our share of a call is the last row, about a hundredth of the duration of a call. It does "
    "not explain the rest of the difference."
)


async def _thrift(plan: Plan, ours: Channel, plain: grpc.aio.Channel) -> Line:
    """The same in CPU time of this process, which is more reliable on a busy machine."""

    def side(opened: grpc.aio.Channel) -> Callable[[], Awaitable[float]]:
        echo = opened.unary_unary(ECHO)

        async def work() -> None:
            for _ in range(_TURNS):
                await echo(b"hello")

        async def measure() -> float:
            start = time.process_time()
            await asyncio.gather(*(work() for _ in range(IN_FLIGHT[-1])))
            return _TURNS * IN_FLIGHT[-1] / (time.process_time() - start)

        return measure

    sides = {"ours": side(ours), "plain": side(plain)}
    taken = await interleaved(plan.finer(10), "gRPC, processor time", sides, microseconds_each)
    return Line(
        f"{IN_FLIGHT[-1]} in flight, per second of the caller's CPU time",
        per_second(median(taken["ours"])),
        per_second(median(taken["plain"])),
        ratio(taken["ours"], taken["plain"]),
    )


class _Nothing:
    """A call that does nothing and ends on request."""

    def __init__(self) -> None:
        self._cython_call = self  # as in gRPC's own calls, which read the outcome from it

    def is_ok(self) -> bool:
        return True

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.over = callback

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK


async def _parts(plan: Plan, opened: Channel) -> list[Line]:
    """The time until gRPC has the call, and the time to record its outcome."""
    method, call = opened.unary_unary(ECHO), _Nothing()
    (subchannel,) = opened.subchannels
    method.callables[subchannel] = lambda request, **_: call

    def directly(request: bytes) -> _Nothing:
        made: _Nothing = method.callables[subchannel](
            request, timeout=None, metadata=None, credentials=None, compression=None
        )
        return made

    async def to_gRPC() -> float:
        def once() -> None:
            method(b"hello")

        return _cpu_per_call(once, plan.seconds / 8) - _cpu_per_call(
            lambda: directly(b"hello"), plan.seconds / 8
        )

    async def to_the_end() -> float:
        def once() -> None:
            method(b"hello")
            call.over(call)

        return _cpu_per_call(once, plan.seconds / 8) - _cpu_per_call(
            lambda: directly(b"hello"), plan.seconds / 8
        )

    sides = {"dispatch": to_gRPC, "whole": to_the_end}
    taken = await interleaved(plan.finer(4), "gRPC, parts", sides, microseconds)
    dispatch, whole = median(taken["dispatch"]), median(taken["whole"])
    return [
        Line(
            "dispatch: pick and hand-over to gRPC",
            microseconds(dispatch),
            target=Target("≤", 3.0, microseconds),
            value=dispatch,
        ),
        Line("dispatch, and recording the outcome", microseconds(whole)),
    ]


def _cpu_per_call(call: Callable[[], object], seconds: float) -> float:
    """CPU time per call in microseconds."""
    clock, done = time.thread_time, 0
    start = clock()
    while (elapsed := clock() - start) < seconds:
        for _ in range(_STRETCH):
            call()
        done += _STRETCH
    return elapsed / done * 1e6


async def _coming(plan: Plan) -> Section:
    taken: list[float] = []
    with fresh_etcd() as etcd:
        async with (
            script("bench.grpc_echo", "1") as server,
            connect(etcd.url) as hub,
            connect(etcd.url) as other,
            hub.register(_instance("lease", 1)),
        ):
            (port,) = cast("list[int]", await server.receive(within=_WITHIN))
            async with channel("etcdv3:///echo", hub=other) as opened:
                echo = opened.unary_unary(ECHO)
                end = time.monotonic() + plan.rounds * plan.seconds
                while time.monotonic() < end:
                    taken.append(await _until_called(hub, opened, echo, port))
    plan.say(f"registered until called: p50 {milliseconds(median(taken))}, {len(taken)} times")
    text = (
        "From just before `hub.register` on etcd until the new instance answers a call that "
        "waited for it (`wait_for_ready`): the registration, the connection, the health check "
        "and the call. The channel has its own connection to etcd, and there is no other "
        "instance."
    )
    return Section(
        "gRPC, registration to first call",
        text,
        [
            Line("p50", milliseconds(median(taken))),
            Line("p99", milliseconds(quantiles(taken, n=100)[98])),
        ],
    )


async def _until_called(hub: Hub, opened: Channel, echo: Any, port: int) -> float:
    while opened.subchannels:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.001)
    call = echo(b"hello", wait_for_ready=True)
    await asyncio.sleep(0.005)
    began = time.perf_counter()
    async with hub.register(_instance("echo", port)):
        await call
        return (time.perf_counter() - began) * 1000


async def _resting(plan: Plan) -> Section:
    seconds = _REST * plan.seconds
    plan.say(f"gRPC, {MANY} instances at rest: {seconds:g} s")
    with fresh_etcd() as etcd:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(script("bench.grpc_echo", str(MANY)))
            hub = await stack.enter_async_context(connect(etcd.url))
            for port in cast("list[int]", await server.receive(within=_WITHIN)):
                await stack.enter_async_context(hub.register(_instance("echo", port)))
            arguments = (etcd.url, "echo", str(MANY), str(seconds))
            resident = await stack.enter_async_context(script("bench.grpc_idle", *arguments))
            ready = cast("float", await resident.receive(within=_WITHIN))
            share = cast("float", await resident.receive(within=_WITHIN + seconds))
    text = (
        f"A process opens a channel to {MANY} instances on etcd, which another process keeps "
        "registered. The time until ready runs from before the channel is created until all "
        "instances are connected and report that they serve. The process then makes no calls "
        f"for {seconds:g} s; the share is the CPU time of all threads."
    )
    return Section(
        "gRPC, many instances",
        text,
        [
            Line(
                f"{MANY} instances until all are ready",
                milliseconds(ready * 1000),
                target=Target("≤", 1000, milliseconds),
                value=ready * 1000,
            ),
            Line(
                f"{MANY} idle instances, share of one core",
                percent(share),
                target=Target("≤", 0.01, percent),
                value=share,
            ),
        ],
    )
