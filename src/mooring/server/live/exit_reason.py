"""How an instance went: in order, or lost. Pure: no clock and no I/O.

A registry tells that an instance is gone, not why. What was known of it does: one that drained,
said that it is down, or was taken out through this server, went in order; and so did one that was
heard of so lately that its time cannot have run out. In doubt it was lost: a false alarm is better
than none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mooring.model import Instance

Where: TypeAlias = tuple[str, str]
"""A service and the id of an instance."""

Departure = Literal["drained", "down", "left", "taken_out", "lost"]

EXPECTED = 10.0
"""Seconds within which one goes that somebody takes out."""
_LATELY = 4.5
"""Seconds since the last sign of life with which nobody is lost whose rhythm is not known yet: the
shortest time that a layout gives is five."""
_SAID = 2.0
"""The same since it was seen to say something, which renews no lease."""
_ROUNDING = 1.2
"""Seconds by which a store may be wrong about a renewal."""
_BEATS = 1.8
"""Between two signs of life passes a third of the time that one may be silent. So many times the
longest pause is less than that time, also where it was rounded up."""
_SURELY = 0.6
"""The part of the time that one may be silent within which it cannot have run out: what it says of
itself may come when a third of it has passed already."""
_PAUSES = 12
"""So many pauses of an instance are remembered."""


@dataclass(slots=True)
class _Sign:
    said: float = float("-inf")
    """When it was last seen to say something."""
    heard: float | None = None
    """When it last gave a sign of life, as far as was asked."""
    silence: float = 0.0
    """How long it was silent when that was asked."""
    pauses: deque[float] = field(default_factory=lambda: deque(maxlen=_PAUSES))
    """How long it was silent before it was heard again."""
    time: float | None = None
    """Seconds that it may be silent, where they are known."""
    expected: tuple[float, Departure] | None = None

    @property
    def rhythm(self) -> float:
        """The longest pause but one, which may have been an accident; 0 where none is known."""
        return max(sorted(self.pauses)[-2:-1] or self.pauses, default=0.0)


class Signs:
    """Signs of life of the instances that are there. Moments are of a monotonic clock."""

    def __init__(self) -> None:
        self._signs: dict[Where, _Sign] = {}

    def _of(self, where: Where) -> _Sign:
        return self._signs.setdefault(where, _Sign())

    def said(self, where: Where, moment: float) -> None:
        """It came, or said something of itself."""
        self._of(where).said = moment

    def sampled(self, where: Where, silence: float, moment: float) -> None:
        """It has been silent for so long."""
        sign, heard = self._of(where), moment - silence
        if sign.heard is not None and heard - sign.heard > _ROUNDING:
            sign.pauses.append(sign.silence)
        sign.heard, sign.silence = heard, silence

    def lasts(self, where: Where, seconds: float) -> None:
        """It may be silent for so long."""
        self._of(where).time = seconds

    def expect(self, where: Where, how: Departure | None, moment: float) -> None:
        """Somebody is about to take it out; None: it was not to be."""
        self._of(where).expected = None if how is None else (moment, how)

    def gone(self, where: Where, before: Instance, moment: float) -> Departure:
        """How it went; nothing is known of it any more."""
        sign = self._signs.pop(where, None) or _Sign()
        if sign.expected is not None and moment - sign.expected[0] <= EXPECTED:
            return sign.expected[1]  # it is marked as draining for that
        if before.status.state == "draining":
            return "drained"
        if before.status.state == "down":
            return "down"
        return "left" if _is_near(sign, moment) else "lost"


def _is_near(sign: _Sign, moment: float) -> bool:
    """Whether its last sign of life is so near that its time cannot have run out."""
    if sign.time is not None:
        heard = sign.said if sign.heard is None else max(sign.heard, sign.said)
        return moment - heard < _SURELY * sign.time
    rhythm = sign.rhythm
    if moment - sign.said < max(_SAID, rhythm):
        return True
    if sign.heard is None:
        return False
    return moment - sign.heard < (_BEATS * rhythm if rhythm else _LATELY)
