"""How soon a consumer sees an instance that registers: ours, the bare driver's, and kazoo's."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count, takewhile
from statistics import median, quantiles
from typing import NamedTuple, Protocol

from bench.bare_etcd import METADATA, TIMEOUT, bare, fresh_etcd
from bench.measure import Line, Plan, Section, Target, in_rounds, milliseconds, ratio
from bench.population import LAYOUT, here, instance, populate
from bench.processes import ProcessFailed, Script, script
from bench.roles.consumer import BARE, NODES
from bench.zookeeper import KazooClient, client, fresh_zookeeper
from mooring import Hub, connect
from mooring.registry.registration import Registration
from mooring.store.etcd.proto import DeleteRangeRequest, Methods, PutRequest, RequestOp, TxnRequest
from mooring.testing.etcd import EtcdServer

OTHERS = 100
"""Instances that are already registered, on each side."""

_WITHIN = 20.0
_clock = time.monotonic  # the consumers are other processes, with the same clock


class Latency(NamedTuple):
    """Latencies of one side in one round, in milliseconds."""

    p50: float
    p99: float


class Side(Protocol):
    """A way to register one instance at a time."""

    async def join(self, number: int) -> str:
        """Registers an instance and returns the name that the consumer sees."""

    async def leave(self, number: int) -> None: ...


async def run(plan: Plan) -> list[Section]:
    async with AsyncExitStack() as stack:
        sides = await stack.enter_async_context(_on_etcd())
        problem = ""
        try:
            sides["kazoo"] = await stack.enter_async_context(_on_zookeeper())
        except ProcessFailed as failed:
            problem = str(failed)
        await _round(sides, 2.0)
        measure = partial(_round, sides, 4 * plan.seconds)
        taken = await in_rounds(plan, "registered until seen", measure, _show)
    ours, driver = taken["ours"], taken["bare"]
    lines = [
        _line("p50, bare driver", ours, driver, Target("≤", 1.5)),
        _line("p99, bare driver", ours, driver),
        _line("p50, bare driver with our writes", ours, taken["same"]),
        _line("p50 of the first registration, bare driver", taken["first"], driver),
    ]
    if problem:
        lines.append(Line("kazoo", "", remark=f"not measured: {problem}"))
    else:
        lines.append(_line("p50, kazoo", ours, taken["kazoo"], Target("≤", 1.0)))
        lines.append(_line("p99, kazoo", ours, taken["kazoo"]))
    text = (
        "From just before `hub.register` until a view in another process has the instance. "
        f"Instances register one at a time next to {OTHERS} others, and each leaves before the "
        "next registers. Bare is a put of one key with the bare driver until its event is read "
        'from the bare stream in another process; "with our writes" is one transaction with '
        "everything a registration writes, two puts and a deletion. kazoo creates one "
        "ephemeral node, until `ChildrenWatch` reports it in another process. The registering "
        "process already has another instance of the service, except for the first "
        "registration, which must also obtain a lease. Ratios compare times."
    )
    return [Section("Registration to discovery", text, lines)]


def _line(
    what: str, ours: Sequence[Latency], theirs: Sequence[Latency], target: Target | None = None
) -> Line:
    field = what[:3]
    mine = [getattr(latency, field) for latency in ours]
    other = [getattr(latency, field) for latency in theirs]
    return Line(
        what,
        milliseconds(median(mine)),
        milliseconds(median(other)),
        ratio(mine, other),
        target,
        remark=_REMARK,
    )


def _show(latency: Latency) -> str:
    return f"{milliseconds(latency.p50)} (p99 {milliseconds(latency.p99)})"


_REMARK = (
    "The cost is not in etcd: the bare driver takes no longer with our writes. Timestamps "
    "along the path, on a busy machine, show 0.36 to 0.42 ms before our commit is sent and "
    "0.34 to 0.37 ms from the consumer's read to its view."
)


Sides = dict[str, tuple[Side, Script]]
"""Each side with its consumer."""


async def _round(sides: Sides, seconds: float) -> dict[str, Latency]:
    latencies: dict[str, list[float]] = {name: [] for name in sides}
    end = _clock() + seconds
    for number in takewhile(lambda _: _clock() < end, count(1)):
        for name, (side, consumer) in sides.items():
            sent = _clock()
            seen = await side.join(number)
            latencies[name].append((await _moment_of_change(consumer, seen, True) - sent) * 1000)
            await side.leave(number)
            await _moment_of_change(consumer, seen, False)
    return {
        name: Latency(median(taken), quantiles(taken, n=100)[98])
        for name, taken in latencies.items()
    }


async def _moment_of_change(consumer: Script, name: str, there: bool) -> float:
    """When the consumer saw the instance join or leave. No other instance may change meanwhile."""
    message = await consumer.receive(within=_WITHIN)
    assert isinstance(message, list)
    assert message[:2] == [name, there]
    moment: float = message[2]
    return moment


@asynccontextmanager
async def _consumer(kind: str, address: str) -> AsyncIterator[Script]:
    async with script("bench.roles.consumer", kind, address) as consumer:
        assert await consumer.receive(within=_WITHIN) == "ready"
        yield consumer


@asynccontextmanager
async def _on_etcd() -> AsyncIterator[Sides]:
    with fresh_etcd() as server:
        async with (
            connect(server.url) as hub,
            connect(server.url) as another,
            bare(server) as methods,
        ):
            await populate(hub.store, range(OTHERS))
            async with (
                hub.register(here(0)),
                _consumers(server) as (view, stream),
            ):
                yield {
                    "ours": (_Ours(hub), view),
                    "first": (_Ours(another), view),
                    "bare": (_Bare(methods), stream),
                    "same": (_SameKeys(methods), stream),
                }


@asynccontextmanager
async def _consumers(server: EtcdServer) -> AsyncIterator[tuple[Script, Script]]:
    async with (
        _consumer("mooring", server.address) as view,
        _consumer("bare", server.address) as stream,
    ):
        yield view, stream


class _Ours:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._registration: Registration | None = None

    async def join(self, number: int) -> str:
        registration = self._registration = self._hub.register(here(number))
        await registration.__aenter__()
        return registration.instance.id

    async def leave(self, number: int) -> None:
        assert self._registration is not None
        await self._registration.aclose()


class _Bare:
    def __init__(self, methods: Methods) -> None:
        self._methods = methods

    async def join(self, number: int) -> str:
        request = PutRequest(key=BARE.start + b"%d" % number, value=_data(number))
        await self._methods.put(request, timeout=TIMEOUT, metadata=METADATA)
        return f"{BARE.start.decode()}{number}"

    async def leave(self, number: int) -> None:
        request = DeleteRangeRequest(key=BARE.start + b"%d" % number)
        await self._methods.delete_range(request, timeout=TIMEOUT, metadata=METADATA)


class _SameKeys(_Bare):
    """Everything that a registration writes; the stream sees one key of it."""

    async def join(self, number: int) -> str:
        puts = [PutRequest(key=name, value=_data(number)) for name in self._names(number)[:2]]
        deletion = DeleteRangeRequest(key=self._names(number)[2])
        operations = [RequestOp(request_put=put) for put in puts]
        operations.append(RequestOp(request_delete_range=deletion))
        request = TxnRequest(success=operations)
        await self._methods.txn(request, timeout=TIMEOUT, metadata=METADATA)
        return self._names(number)[0].decode()

    def _names(self, number: int) -> tuple[bytes, bytes, bytes]:
        watched = BARE.start + b"%d" % number
        return watched, b"/bench/status/%d" % number, b"/bench/gone/%d" % number


@asynccontextmanager
async def _on_zookeeper() -> AsyncIterator[tuple[Side, Script]]:
    async with fresh_zookeeper() as server:
        with client(server.address) as kazoo:
            kazoo.ensure_path(NODES)
            side = _Kazoo(kazoo)
            for number in range(OTHERS):
                kazoo.create(f"{NODES}/{instance(number).id}", ephemeral=True)
            async with _consumer("kazoo", server.address) as consumer:
                yield side, consumer


class _Kazoo:
    """Blocks the loop, which is otherwise idle."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client

    async def join(self, number: int) -> str:
        name = here(number).id
        self._client.create(f"{NODES}/{name}", _data(number), ephemeral=True)
        return name

    async def leave(self, number: int) -> None:
        self._client.delete(f"{NODES}/{here(number).id}")


def _data(number: int) -> bytes:
    return next(iter(LAYOUT.encode(here(number)).values()))
