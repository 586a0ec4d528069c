"""Which instances a consumer counts as alive. Pure: the scripts decide about eviction.

A consumer leaves out instances without a heartbeat within its own timeout, unless the brake is
engaged.
Time in which Redis was stopped does not count. A consumer that has just begun to read Redis' clock
does not leave out all instances of a service either: the clock may have stepped before. Every
eviction and deregistration is announced at the same moment. An instance that is missing without an
announcement is therefore kept: a failover may have lost its record, and its next heartbeat brings
it back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Set

from mooring.model import Instance
from mooring.registry.evictions import Brake

_STEPS = 16
"""Clock steps that are remembered."""
_TOLERANCE = 500.0
"""Milliseconds. Smaller steps of the clock are ignored."""


def brake_of(fields: Mapping[str, str]) -> Brake | None:
    """The brake that a hash describes; None if it is not engaged."""
    if fields.get("state") != "holding":
        return None

    def number(name: str) -> int:
        try:
            return max(int(float(fields.get(name, "0"))), 0)
        except (ValueError, OverflowError):
            return 0

    return Brake(number("silent"), number("total"), number("since"), number("until"))


class ServerClock:
    """The wall clock of a Redis, compared with the monotonic clock of this process.

    Heartbeats carry the time of that clock. If it steps forward, every heartbeat looks older than
    it is until the next one: `silence` leaves the step out.
    """

    def __init__(self) -> None:
        self.since = 0.0
        """When it was first read, on the monotonic clock. Earlier steps are unknown."""
        self._last: tuple[int, float, float] | None = None
        """The last reading, and when it was requested and received."""
        self._steps: deque[tuple[float, float, float]] = deque(maxlen=_STEPS)
        """Steps forward: the latest time before the step and its size, in ms, and when it was
        noticed."""

    def read(self, now: int, *, asked: float, answered: float) -> float:
        """Add a reading, in ms. Returns the seconds that the clock stepped since the last one,
        negative for a step back. A difference that a slow answer explains is not a step."""
        last, self._last = self._last, (now, asked, answered)
        if last is None:
            self.since = answered
            return 0.0
        before, asked_before, answered_before = last
        passed = now - before
        least, most = (asked - answered_before) * 1000, (answered - asked_before) * 1000
        if passed > most + _TOLERANCE:
            self._steps.append((before + most, passed - least, answered))
            return (passed - least) / 1000
        if passed < least - _TOLERANCE:
            self._steps.clear()  # they were reverted, or heartbeats carry a later time
            return (passed - least) / 1000
        return 0.0

    def stepped(self, since: float) -> float:
        """Seconds of all steps forward noticed since a time of the monotonic clock."""
        return sum(step for _, step, noticed in self._steps if noticed > since) / 1000

    def silence(self, score: float, now: int) -> float:
        """Seconds from a heartbeat to `now`, both in ms of this clock, without its steps."""
        steps = sum(step for before, step, _ in self._steps if score <= before)
        return max(now - score - steps, 0.0) / 1000


def overdue(scores: Mapping[str, float], now: int, timeout: float, clock: ServerClock) -> set[str]:
    """The instances with a last heartbeat older than `timeout` seconds."""
    oldest = now - timeout * 1000
    return {
        id for id, score in scores.items() if score < oldest and clock.silence(score, now) > timeout
    }


def visible(
    listed: Mapping[str, Instance],
    late: Set[str],
    *,
    before: Mapping[str, Instance],
    braked: bool,
    grace: bool = False,
    kept: Iterable[str] = (),
) -> dict[str, Instance]:
    """The instances to show. `listed` are in Redis, `late` of them are overdue, `before` were shown
    before, and `kept` of those are shown although they are not listed."""
    shown = {
        id: instance
        for id, instance in listed.items()
        if braked or id not in late or not instance.ephemeral or (grace and id in before)
    }
    shown.update((id, before[id]) for id in kept)
    return shown
