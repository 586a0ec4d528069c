"""Pushing one change to many clients of the control plane, compared with a bare broadcast."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import grpc.aio
import psutil

from bench.control_plane import control_plane
from bench.measure import Line, Plan, Section, interleaved, milliseconds, ratio
from bench.processes import script
from bench.roles.echo_server import LISTEN, SEND
from mooring import Instance, connect
from mooring.xds import proto
from mooring.xds.resources import XdsClient, endpoints

SUBSCRIBERS = 200
INSTANCES = 20
SERVICE = "bench"

_WITHIN = 20.0


class Push(NamedTuple):
    """Median push times of one side in one round, in milliseconds."""

    first: float
    """Until the first client has it."""
    last: float
    """Until all of them have it."""
    cpu: float
    """The CPU time of the server for a push."""


async def run(plan: Plan) -> list[Section]:
    async with AsyncExitStack() as stack:
        sides = {
            "world": await stack.enter_async_context(_plane(incremental=False)),
            "incremental": await stack.enter_async_context(_plane(incremental=True)),
            "bare": await stack.enter_async_context(_bare()),
        }
        for side in sides.values():
            await side(0.5)
        measured = {name: partial(side, plan.seconds) for name, side in sides.items()}
        taken = await interleaved(plan, f"push to {SUBSCRIBERS} clients", measured, _show)
    lines = [
        _line(f"{what}, {name}", taken[name], taken["bare"], field)
        for name in ("world", "incremental")
        for what, field in (
            ("first client", "first"),
            ("last client", "last"),
            ("CPU time of the server", "cpu"),
        )
    ]
    text = (
        f"An operator changes the weight of one of {INSTANCES} instances. Measured from just "
        f"before the change is sent to the registry until {SUBSCRIBERS} clients, each with its "
        "own connection and all in one other process, have the new endpoints: as state of the "
        "world, which gRPC uses, and incrementally, as Envoy does. Bare is a Python gRPC "
        "server that, on request, writes the same prebuilt bytes to as many streams and reads "
        "as many acknowledgements. Much of the time is spent in the single process that runs "
        "the clients. Ratios compare times."
    )
    return [Section(f"Pushing one change to {SUBSCRIBERS} xDS clients", text, lines)]


def _line(what: str, ours: list[Push], bare: list[Push], field: str) -> Line:
    mine, other = ([getattr(push, field) for push in side] for side in (ours, bare))
    return Line(what, milliseconds(median(mine)), milliseconds(median(other)), ratio(mine, other))


def _show(push: Push) -> str:
    return f"{milliseconds(push.last)} (CPU {milliseconds(push.cpu)})"


Side = Callable[[float], Awaitable[Push]]


@asynccontextmanager
async def _plane(*, incremental: bool) -> AsyncIterator[Side]:
    with control_plane() as plane:
        async with connect(plane.url) as hub, AsyncExitStack() as stack:
            for number in range(INSTANCES):
                instance = Instance(SERVICE, host="127.0.0.1", port=1000 + number)
                await stack.enter_async_context(hub.register(instance))
            streams = [
                await stack.enter_async_context(_subscriber(plane.xds, incremental))
                for _ in range(SUBSCRIBERS)
            ]
            weights = itertools.cycle([2, 3])

            async def change() -> None:
                await hub.registry.configure(
                    SERVICE, "127.0.0.1:1000", set={"weight": next(weights)}
                )

            yield partial(_pushes, change, [stream.read for stream in streams], plane.pid)


class _Subscriber:
    def __init__(self, stream: Any, kind: str, incremental: bool) -> None:
        self._stream, self._kind, self._incremental = stream, kind, incremental
        self.endpoints = 0

    async def ask(self, **fields: Any) -> None:
        agent = "envoy" if self._incremental else "gRPC"
        node = proto.message("Node", id="bench", user_agent_name=agent)
        await self._stream.write(
            proto.message(self._kind, node=node, type_url=proto.ENDPOINTS, **fields)
        )

    async def read(self) -> float:
        """The time of the next response, which is acknowledged."""
        response = await self._stream.read()
        moment = time.perf_counter()
        if self.endpoints < INSTANCES:
            self.endpoints = _count(response)
        names = {} if self._incremental else {"resource_names": [SERVICE]}
        await self.ask(response_nonce=response.nonce, **names)
        return moment


def _count(response: Any) -> int:
    (resource,) = response.resources
    assignment = proto.parser("ClusterLoadAssignment")(
        getattr(resource, "resource", resource).value
    )
    return sum(len(locality.lb_endpoints) for locality in assignment.endpoints)


@asynccontextmanager
async def _subscriber(address: str, incremental: bool) -> AsyncIterator[_Subscriber]:
    prefix = "Delta" if incremental else ""
    async with _channel(address) as channel:
        stream = channel.stream_stream(
            proto.DELTA if incremental else proto.STREAM,
            request_serializer=proto.serializer(f"{prefix}DiscoveryRequest"),
            response_deserializer=proto.parser(f"{prefix}DiscoveryResponse"),
        )()
        subscriber = _Subscriber(stream, f"{prefix}DiscoveryRequest", incremental)
        name = "resource_names_subscribe" if incremental else "resource_names"
        await subscriber.ask(**{name: [SERVICE]})
        while subscriber.endpoints < INSTANCES:
            await subscriber.read()
        yield subscriber
        stream.cancel()


@asynccontextmanager
async def _bare() -> AsyncIterator[Side]:
    instances = [Instance(SERVICE, host="127.0.0.1", port=n + 1) for n in range(INSTANCES)]
    body = endpoints(SERVICE, instances, XdsClient("grpc")).body
    message = proto.serializer("DiscoveryResponse")(
        proto.message("DiscoveryResponse", resources=[body], type_url=proto.ENDPOINTS)
    )
    async with script("bench.roles.echo_server") as server, AsyncExitStack() as stack:
        address = f"127.0.0.1:{await server.receive(within=_WITHIN)}"
        reads: list[Callable[[], Awaitable[float]]] = []
        for _ in range(SUBSCRIBERS):
            channel = await stack.enter_async_context(_channel(address))
            stream = channel.stream_stream(LISTEN)()
            stack.callback(stream.cancel)
            await stream.read()
            reads.append(partial(_read, stream))
        send = (await stack.enter_async_context(_channel(address))).unary_unary(SEND)

        async def change() -> None:
            await send(message)

        yield partial(_pushes, change, reads, server.pid)


async def _read(stream: Any) -> float:
    await stream.read()
    moment = time.perf_counter()
    await stream.write(b"taken")
    return moment


def _channel(address: str) -> grpc.aio.Channel:
    # gRPC channels to the same address would share a connection.
    return grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])


async def _pushes(
    change: Callable[[], Awaitable[None]],
    reads: list[Callable[[], Awaitable[float]]],
    pid: int,
    seconds: float,
) -> Push:
    process = psutil.Process(pid)
    first: list[float] = []
    last: list[float] = []
    busy = _cpu(process)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(last) < 3:
        waiting = asyncio.gather(*(read() for read in reads))
        sent = time.perf_counter()
        await change()
        async with asyncio.timeout(_WITHIN):
            moments = await waiting
        first.append((min(moments) - sent) * 1000)
        last.append((max(moments) - sent) * 1000)
    return Push(median(first), median(last), (_cpu(process) - busy) / len(last) * 1000)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
