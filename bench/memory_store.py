"""The embedded store in one process, through the async interface, and how its cost grows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median

from bench.load import VALUE
from bench.measure import (
    Line,
    Plan,
    Section,
    Target,
    interleaved,
    microseconds_each,
    per_second,
    rate,
    ratio,
)
from mooring.backends import open_store
from mooring.store import Put, Range, Store, between, key, prefix

SIZES = {"1 k keys": 1_000, "100 k keys": 100_000, "1 M keys": 1_000_000}
WATCHERS = 10_000

_HISTORY = 100_000
_VALUE = VALUE.encode()
_STRIDE = 7919  # a prime, so that consecutive calls do not use adjacent keys

Rates = Mapping[str, list[float]]
Call = Callable[[int], Awaitable[object]]


async def run(plan: Plan) -> list[Section]:
    plan = plan.finer(4)
    # Small stores first: a million keys in the process slow down garbage collection for all.
    watched = await _watched(plan)
    rates = await _sized(plan)
    return [_targets(rates, watched), _growth(rates)]


def _targets(rates: Mapping[str, Rates], watched: Rates) -> Section:
    few, many = "1 k keys", "1 M keys"
    lines = [
        Line(
            operation,
            per_second(median(rates[operation][few])),
            target=Target("≥", bound, per_second),
            value=median(rates[operation][few]),
        )
        for operation, bound in (("get", 200_000), ("put", 50_000))
    ]
    lines.append(
        _slower("read 100 of 1 M keys", rates["read"][many], "of 1 k", rates["read"][few], 2)
    )
    lines.append(_slower("put, 10 k watchers", watched["10 k"], "none", watched["none"], 1.5))
    text = (
        "`memory://`, one caller that awaits each call. The store holds 1 k keys and a full "
        "history unless stated otherwise. Reads of 100 keys start in the middle of the range. "
        "The watchers watch other keys, each its own prefix. Ratios compare the time of the "
        "first to the second."
    )
    return Section("Memory store", text, lines)


def _growth(rates: Mapping[str, Rates]) -> Section:
    few = "1 k keys"
    lines: list[Line] = []
    for operation in ("put", "get"):
        base = rates[operation][few]
        lines.append(Line(f"{operation}, {few}", microseconds_each(median(base))))
        lines += [
            _slower(f"{operation}, {size}", rates[operation][size], few, base)
            for size in SIZES
            if size != few
        ]
    text = "Time per call as the store grows, and its ratio to the time with 1 k keys."
    return Section("Memory store, by size", text, lines)


def _slower(
    what: str, these: list[float], name: str, those: list[float], most: float | None = None
) -> Line:
    """A row that compares two rates as times."""
    return Line(
        what,
        microseconds_each(median(these)),
        f"{name} {microseconds_each(median(those))}",
        ratio(those, these),
        None if most is None else Target("≤", most),
    )


async def _sized(plan: Plan) -> Mapping[str, Rates]:
    """The rates of every operation, by the size of the store."""
    rates: dict[str, Rates] = {}
    async with AsyncExitStack() as stack:
        stores: dict[str, Store] = {}
        for name, count in SIZES.items():
            plan.say(f"memory: filling a store with {name}")
            stores[name] = await stack.enter_async_context(_filled(count))
        for operation in ("get", "put", "read"):
            sides = {
                name: partial(rate, _call(operation, store, SIZES[name]), plan.seconds)
                for name, store in stores.items()
            }
            rates[operation] = await interleaved(plan, f"memory {operation}", sides, per_second)
    return rates


async def _watched(plan: Plan) -> Rates:
    """The rate of puts with watchers on other keys, and without watchers."""
    count = SIZES["1 k keys"]
    async with _filled(count) as alone, _filled(count) as watched, AsyncExitStack() as watches:
        for number in range(WATCHERS):
            await watches.enter_async_context(watched.watch(prefix(b"/svc/%d/" % number)))
        sides = {
            "none": partial(rate, _call("put", alone, count), plan.seconds),
            "10 k": partial(rate, _call("put", watched, count), plan.seconds),
        }
        return await interleaved(plan, "memory put beside watchers", sides, per_second)


def _call(operation: str, store: Store, count: int) -> Call:
    names = [_name(number * _STRIDE % count) for number in range(min(count, 100_000))]
    if operation == "get":
        return lambda n: store.read(key(names[n % len(names)]))
    if operation == "put":
        return lambda n: store.commit(Put(names[n % len(names)], _VALUE))
    middle = _upper_half(count)
    return lambda n: store.read(middle, limit=100)


def _name(number: int) -> bytes:
    return b"/bench/%07d" % number


def _upper_half(count: int) -> Range:
    return between(_name(count // 2), _name(count))


@asynccontextmanager
async def _filled(count: int) -> AsyncIterator[Store]:
    """A store with this many keys and a full history."""
    async with open_store(f"memory://?history={_HISTORY}") as store:
        for start in range(0, count, 100):
            puts = [Put(_name(number), _VALUE) for number in range(start, start + 100)]
            revision = (await store.commit(*puts)).revision
        await store.compact(revision)
        # Until the history is full, a put evicts nothing and looks too cheap.
        call = _call("put", store, count)
        for number in range(_HISTORY + _HISTORY // 50):
            await call(number)
        yield store
