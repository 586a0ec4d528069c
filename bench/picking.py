"""The cost of picking a node, among few and among many nodes."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count, cycle, islice, repeat
from statistics import median

from bench.measure import Line, Plan, Section, Target, interleaved, microseconds, ratio
from bench.population import SERVICE, populate
from mooring import connect
from mooring.discovery.balance import NAMES, Node, Picker, make
from mooring.discovery.view import View

FEW, MANY = "10 nodes", "10 k nodes"
SIZES = {FEW: 10, MANY: 10_000}
TARGETS = {"round_robin": 0.5, "p2c": 2.0}
"""The limit for a pick, in microseconds."""
VIEW_TARGETS = {"p2c": 3.0}
"""The same through a view, for its default policy."""

_STRETCH = 1000  # calls between clock reads

Call = Callable[[], object]
Rates = Mapping[str, list[float]]


async def run(plan: Plan) -> list[Section]:
    plan = plan.finer(4)
    return [
        await _section(
            plan,
            "Picking",
            "The choice alone, among nodes of equal weight with different latencies.",
            _pick,
            targets=TARGETS,
        ),
        await _section(
            plan,
            "Picking, unequal weights",
            "The same, among nodes with weights 5, 3 and 2.",
            _pick,
            weights=(5.0, 3.0, 2.0),
        ),
        await _section(
            plan,
            "Picking, with feedback",
            "A pick plus the start and the end of a request, among nodes of equal weight.",
            _request,
        ),
        await _section(
            plan,
            "Picking, membership changes",
            "One node leaves and rejoins, among nodes of equal weight.",
            _change,
        ),
        await _through_views(plan),
    ]


async def _section(
    plan: Plan,
    title: str,
    text: str,
    call: Callable[[str, Picker, Sequence[Node]], Call],
    *,
    weights: Sequence[float] = (1.0,),
    targets: Mapping[str, float] | None = None,
) -> Section:
    lines: list[Line] = []
    for policy in NAMES:
        sides: dict[str, Callable[[], Awaitable[float]]] = {}
        for size, nodes in SIZES.items():
            sides[size] = _side(call(policy, *_filled(policy, nodes, weights)), plan.seconds)
        rates = await interleaved(plan, f"{title.lower()}, {policy}", sides, _time_per_call)
        lines += _lines(policy, rates, (targets or {}).get(policy))
    return Section(title, text, lines)


async def _through_views(plan: Plan) -> Section:
    lines: list[Line] = []
    for policy in NAMES:
        async with AsyncExitStack() as stack:
            sides: dict[str, Callable[[], Awaitable[float]]] = {}
            for size, instances in SIZES.items():
                view = await stack.enter_async_context(_view(policy, instances))
                sides[size] = _calls(policy, view, plan.seconds)
            rates = await interleaved(plan, f"view.pick, {policy}", sides, _time_per_call)
        lines += _lines(policy, rates, VIEW_TARGETS.get(policy))
    empty = await interleaved(plan, "an empty context", {"": _empty(plan.seconds)}, _time_per_call)
    lines.append(Line("an empty `async with`", _time_per_call(median(empty[""]))))
    text = (
        "`async with view.pick()` with an empty body: the choice, the start and the end of a "
        "call, and recording its outcome."
    )
    return Section("Picking, through a view", text, lines)


@asynccontextmanager
async def _view(policy: str, instances: int) -> AsyncIterator[View]:
    async with connect("memory://") as hub:
        await populate(hub.store, range(instances))
        async with hub.discover(SERVICE, policy=policy) as view:
            yield view


def _calls(policy: str, view: View, seconds: float) -> Callable[[], Awaitable[float]]:
    keys = cycle([f"user-{number}" for number in range(1000)])
    sticky = policy == "consistent_hash"

    async def measure() -> float:
        clock, done, pick = time.perf_counter, 0, view.pick
        start = clock()
        while (elapsed := clock() - start) < seconds:
            if sticky:
                for key in islice(keys, _STRETCH):
                    async with pick(key):
                        pass
            else:
                for _ in repeat(None, _STRETCH):
                    async with pick():
                        pass
            done += _STRETCH
        return done / elapsed

    return measure


class _Nothing:
    __slots__ = ()

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass


def _empty(seconds: float) -> Callable[[], Awaitable[float]]:
    """The cost of the statement in Python itself."""

    async def measure() -> float:
        clock, done = time.perf_counter, 0
        start = clock()
        while (elapsed := clock() - start) < seconds:
            for _ in repeat(None, _STRETCH):
                async with _Nothing():
                    pass
            done += _STRETCH
        return done / elapsed

    return measure


def _lines(policy: str, rates: Rates, most: float | None) -> list[Line]:
    few, many = median(rates[FEW]), median(rates[MANY])
    if most is None:
        slower = ratio(rates[FEW], rates[MANY])
        return [
            Line(f"{policy}, {FEW}", _time_per_call(few)),
            Line(f"{policy}, {MANY}", _time_per_call(many), f"{FEW} {_time_per_call(few)}", slower),
        ]
    target = Target("≤", most, microseconds)
    return [
        Line(
            f"{policy}, {size}",
            _time_per_call(rate),
            target=target,
            value=1e6 / rate,
            remark=_REMARK,
        )
        for size, rate in ((FEW, few), (MANY, many))
    ]


_REMARK = (
    'Its parts are measured here: "Picking, with feedback" covers the choice with the start and '
    "the end of a call, and the last row is the cost of the statement in Python. The rest is the "
    "object that represents the call, two clock reads and four calls from the view to the picker. "
    "Inlining two of these calls saved 5 to 8 %, which did not justify duplicating the code."
)


def _side(call: Call, seconds: float) -> Callable[[], Awaitable[float]]:
    async def measure() -> float:
        """Calls per second, without awaiting."""
        clock, done = time.perf_counter, 0
        start = clock()
        while (elapsed := clock() - start) < seconds:
            for _ in repeat(None, _STRETCH):
                call()
            done += _STRETCH
        return done / elapsed

    return measure


def _filled(policy: str, nodes: int, weights: Sequence[float]) -> tuple[Picker, list[Node]]:
    """A picker whose nodes have each answered once."""
    chance = random.Random(1)
    picker = make(policy, rng=chance)
    made = [Node(f"10.0.{n >> 8}.{n & 255}:8080", weights[n % len(weights)]) for n in range(nodes)]
    for node in made:
        picker.add(node)
        picker.started(node)
        picker.finished(node, chance.expovariate(100), True)
    # Scattered in memory, as after an hour of changes.
    for node in chance.sample(made, len(made)):
        picker.remove(node)
        picker.add(node)
    return picker, made


def _pick(policy: str, picker: Picker, _: Sequence[Node]) -> Call:
    if policy != "consistent_hash":
        return picker.pick
    pick, numbers = picker.pick, count()
    return lambda: pick(b"user-%d" % next(numbers))


def _request(policy: str, picker: Picker, nodes: Sequence[Node]) -> Call:
    pick, started, finished = _pick(policy, picker, nodes), picker.started, picker.finished

    def request() -> None:
        node = pick()
        assert isinstance(node, Node)
        started(node)
        finished(node, 0.01, True)

    return request


def _change(_: str, picker: Picker, nodes: Sequence[Node]) -> Call:
    numbers, total = count(), len(nodes)

    def change() -> None:
        node = nodes[next(numbers) % total]
        picker.remove(node)
        picker.add(node)

    return change


def _time_per_call(per_second: float) -> str:
    return microseconds(1e6 / per_second)
