"""How things are compared: in interleaved rounds, by the median of each round's own ratio.

The machine is noisy, and its noise lasts longer than a round: what is measured one right after the
other suffers the same, and the order changes with every round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal, TypeVar

T = TypeVar("T")

_STRETCH = 50  # calls between two looks at the clock, which would cost more than some calls


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured, and who is told about it."""

    rounds: int
    seconds: float
    say: Callable[[str], None]

    def finer(self, times: int) -> Plan:
        """The same time in more rounds, for what starts and stops at little cost."""
        return replace(self, rounds=self.rounds * times, seconds=self.seconds / times)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the rounds' ratios, and between what it lies with 95 % confidence."""

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
    """One thing that was measured. The target bounds the ratio, or where there is none `value`."""

    what: str
    measured: str
    against: str = ""
    ratio: Ratio | None = None
    target: Target | None = None
    value: float | None = None
    remark: str = ""
    """What to know where the target is not met; or why there is nothing to see."""

    @property
    def met(self) -> Verdict | None:
        """Whether the target is met; unclear where the noise is wider than the distance to it."""
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
    """Measure every side once a round, by turns from the first and from the last."""
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
    """Measure all sides in one go, round by round."""
    taken: dict[str, list[T]] = {}
    for number in range(plan.rounds):
        measured = await measure()
        for name, value in measured.items():
            taken.setdefault(name, []).append(value)
        shown = ", ".join(f"{name} {show(measured[name])}" for name in taken)
        plan.say(f"{what}, round {number + 1} of {plan.rounds}: {shown}")
    return taken


async def rate(call: Callable[[int], Awaitable[object]], seconds: float) -> float:
    """Calls a second of one caller who awaits each. `call` is told the call's number."""
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
    """How many values may be left out at each end of `count`, so that the median still lies
    between the others with 95 % confidence. It assumes nothing of how they are distributed."""
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
