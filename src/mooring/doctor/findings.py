"""A finding, and what is found out in the same way everywhere."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from mooring.durations import show
from mooring.errors import StoreError
from mooring.store import Member

Level = Literal["ok", "warning", "error"]

SLOW = 0.1
"""Seconds of a round trip above which a store is called slow."""

CLOCK_OFF = 1.0
"""Seconds by which a clock may be off before it is worth a word."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    about: str
    text: str


def judge_clock(member: Member) -> Finding | None:
    if member.latency is None:
        return None
    if member.clock_ahead is None:
        return Finding("ok", member.address, "does not tell its clock: difference not measured")
    least, most = member.clock_ahead
    if least <= CLOCK_OFF and most >= -CLOCK_OFF:
        return Finding("ok", member.address, "its clock agrees with ours to about a second")
    way, off = ("ahead of", least) if least > 0 else ("behind", -most)
    return Finding(
        "warning",
        member.address,
        f"clock is at least {show(off)} {way} ours: times that people read will not "
        "match (leases, locks and heartbeats do not depend on it); check NTP",
    )


async def attempt(about: str, work: Awaitable[str]) -> Finding:
    try:
        return Finding("ok", about, await work)
    except StoreError as error:
        return Finding("error", about, str(error))


async def timed(call: Callable[[], Awaitable[object]], count: int = 5) -> str:
    times = []
    for _ in range(count):
        started = time.monotonic()
        await call()
        times.append(time.monotonic() - started)
    return f"allowed, {show(statistics.median(times))}"


def numbers(version: str) -> tuple[int, ...]:
    parts = version.split("-")[0].split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()
