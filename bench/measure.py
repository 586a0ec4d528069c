"""Compares sides in interleaved rounds, by the median of the per-round ratios.

Machine noise lasts longer than a round, so sides measured back to back see the same noise. The
order changes with every round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal, TypeVar

T = TypeVar("T")

_STRETCH = 50  # calls between clock reads, which cost more than some calls


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure, and where to report progress."""

    rounds: int
    seconds: float
    say: Callable[[str], None]

    def finer(self, times: int) -> Plan:
        """The same total time in more rounds, for sides that start and stop cheaply."""
        return replace(self, rounds=self.rounds * times, seconds=self.seconds / times)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the per-round ratios and its 95 % confidence interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} × ({self.low:.2f} to {self.high:.2f})"


Verdict = Literal["yes", "no", "unclear"]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound for a ratio, or for a value: `show` writes it."""

    sign: Literal["≥", "≤"]
    bound: float
    show: Callable[[float], str] = lambda bound: f"{bound:g} ×"

    def met(self, value: float) -> bool:
        return value >= self.bound if self.sign == "≥" else value <= self.bound

    def __str__(self) -> str:
        return f"{self.sign} {self.show(self.bound)}"


@dataclass(frozen=True, slots=True)
class Line:
    """One measured row. The target bounds the ratio, or `value` if there is no ratio."""

    what: str
    measured: str
    against: str = ""
    ratio: Ratio | None = None
    target: Target | None = None
    value: float | None = None
    remark: str = ""
    """Explains a missed target or a missing measurement."""

    @property
    def met(self) -> Verdict | None:
        """Whether the target is met; unclear if the confidence interval includes it."""
        if self.target is None:
            return None
        values = (self.ratio.low, self.ratio.high) if self.ratio else (self.value or 0.0,)
        within = {self.target.met(value) for value in values}
        return "unclear" if len(within) > 1 else "yes" if True in within else "no"


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    text: str
    lines: Sequence[Line]


async def interleaved(
    plan: Plan,
    what: str,
    sides: Mapping[str, Callable[[], Awaitable[T]]],
    show: Callable[[T], str],
) -> dict[str, list[T]]:
    """Measures every side once per round, alternating the order."""
    order = list(sides)

    async def one_after_another() -> Mapping[str, T]:
        measured = {name: await sides[name]() for name in order}
        order.reverse()
        return measured

    return await in_rounds(plan, what, one_after_another, show)


async def in_rounds(
    plan: Plan,
    what: str,
    measure: Callable[[], Awaitable[Mapping[str, T]]],
    show: Callable[[T], str],
) -> dict[str, list[T]]:
    """Measures all sides with one call per round."""
    taken: dict[str, list[T]] = {}
    for number in range(plan.rounds):
        measured = await measure()
        for name, value in measured.items():
            taken.setdefault(name, []).append(value)
        shown = ", ".join(f"{name} {show(measured[name])}" for name in taken)
        plan.say(f"{what}, round {number + 1} of {plan.rounds}: {shown}")
    return taken


async def rate(call: Callable[[int], Awaitable[object]], seconds: float) -> float:
    """Calls per second of one caller that awaits each. `call` receives the number of the call."""
    clock, done = time.perf_counter, 0
    start = clock()
    while (elapsed := clock() - start) < seconds:
        for number in range(done, done + _STRETCH):
            await call(number)
        done += _STRETCH
    return done / elapsed


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The median of the rounds' ratios, not the ratio of the medians."""
    ordered = sorted(mine / other for mine, other in zip(ours, theirs, strict=True))
    rank = _rank(len(ordered))
    return Ratio(median(ordered), ordered[rank], ordered[-1 - rank])


def _rank(count: int) -> int:
    """How many of `count` sorted values to drop at each end so that the rest still spans a 95 %
    confidence interval of the median. Makes no assumption about the distribution."""
    rank, below = 0, 1 / 2**count
    while below + math.comb(count, rank + 1) / 2**count <= 0.025:
        rank += 1
        below += math.comb(count, rank) / 2**count
    return rank


def per_second(value: float, unit: str = "") -> str:
    unit = f"{unit}/s" if unit else "/s"
    if value >= 1e6:
        return f"{value / 1e6:.2f} M{unit}"
    if value >= 1e5:
        return f"{value / 1e3:.0f} k{unit}"
    return f"{value / 1e3:.1f} k{unit}" if value >= 1e3 else f"{value:.0f} {unit.lstrip()}"


def milliseconds(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms"


def microseconds(value: float) -> str:
    return f"{value:.2f} µs"


def percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def microseconds_each(per_second: float) -> str:
    return f"{1e6 / per_second:.1f} µs"
