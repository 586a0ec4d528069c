"""How soon a watcher receives a change: our watch against the bare driver's stream."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from statistics import median

from bench.bare_etcd import METADATA, TIMEOUT, bare, fresh_etcd
from bench.load import VALUE
from bench.measure import Line, Plan, Section, Target, in_rounds, milliseconds, ratio
from mooring.backends import open_store
from mooring.store import Store, prefix
from mooring.store.etcd.proto import Methods, PutRequest, WatchCreateRequest, WatchRequest

_VALUE = VALUE.encode()
_clock = time.perf_counter

Next = Callable[[], Awaitable[tuple[bytes, bytes]]]
"""The key and the value of a watch's next event."""
Arrivals = asyncio.Queue[tuple[bytes, float]]
"""The key of each event, and when its reader received it."""


async def run(plan: Plan) -> list[Section]:
    with fresh_etcd() as server:
        async with (
            bare(server) as puts,
            bare(server) as streams,
            open_store(server.url) as store,
            _our_watch(store, _prefix("ours")) as ours,
            _bare_watch(streams, _prefix("bare")) as theirs,
            _consumed(ours) as our_arrivals,
            _consumed(theirs) as their_arrivals,
        ):
            measure = partial(_round, puts, {"ours": our_arrivals, "bare": their_arrivals})
            await measure(0.5)
            measure = partial(measure, 2 * plan.seconds)
            taken = await in_rounds(plan, "watch delivery, p50", measure, milliseconds)
    line = Line(
        "put to event, p50",
        milliseconds(median(taken["ours"])),
        f"bare stream {milliseconds(median(taken['bare']))}",
        ratio(taken["ours"], taken["bare"]),
        Target("≤", 1.1),
        remark=(
            "Many watches share one stream, so the stream's reader passes each event on to the "
            "reader of the watch. That takes one more iteration of the event loop than reading "
            "the stream directly."
        ),
    )
    text = (
        "From just before a put is sent until the reader of an open watch has its event, one "
        "put at a time, alternating between a key that our watch sees and one that the bare "
        "stream sees. The bare driver sends both puts, on a separate connection."
    )
    return [Section("Watch delivery on etcd", text, [line])]


async def _round(
    puts: Methods, arrivals: Mapping[str, Arrivals], seconds: float
) -> dict[str, float]:
    """The median time of a delivery to each of the watches, in milliseconds."""
    latencies: dict[str, list[float]] = {name: [] for name in arrivals}
    end = _clock() + seconds
    async with asyncio.timeout(seconds + 20):
        for number in itertools.takewhile(lambda _: _clock() < end, itertools.count()):
            for name in arrivals:
                request = PutRequest(key=_prefix(name) + b"%d" % (number % 1000), value=_VALUE)
                sent = _clock()
                await puts.put(request, timeout=TIMEOUT, metadata=METADATA)
                key, arrived = await arrivals[name].get()
                assert key == request.key
                latencies[name].append(arrived - sent)
    return {name: median(taken) * 1000 for name, taken in latencies.items()}


@asynccontextmanager
async def _consumed(next_event: Next) -> AsyncIterator[Arrivals]:
    """A running reader. Rounds do not cancel it, because that would end the bare stream."""
    arrivals: Arrivals = asyncio.Queue()

    async def consume() -> None:
        while True:
            key, value = await next_event()
            arrivals.put_nowait((key, _clock()))
            assert value == _VALUE

    async with asyncio.TaskGroup() as tasks:
        consumer = tasks.create_task(consume())
        yield arrivals
        consumer.cancel()


def _prefix(name: str) -> bytes:
    return b"/bench/watch/%s/" % name.encode()


@asynccontextmanager
async def _our_watch(store: Store, start: bytes) -> AsyncIterator[Next]:
    async with store.watch(prefix(start)) as watch:

        async def next_event() -> tuple[bytes, bytes]:
            (event,) = (await anext(watch)).events
            assert event.entry is not None
            return event.key, event.entry.value

        yield next_event


@asynccontextmanager
async def _bare_watch(methods: Methods, start: bytes) -> AsyncIterator[Next]:
    create = WatchCreateRequest(key=start, range_end=prefix(start).end)
    call = methods.watch(metadata=METADATA)
    await call.write(WatchRequest(create_request=create))
    assert (await call.read()).created

    async def next_event() -> tuple[bytes, bytes]:
        (event,) = (await call.read()).events
        return event.kv.key, event.kv.value

    try:
        yield next_event
    finally:
        call.cancel()
