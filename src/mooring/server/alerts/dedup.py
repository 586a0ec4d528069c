"""What has been told and what is news. Pure: no clock and no I/O.

There is no queue: what is due is the difference between what holds and what was told. A webhook
that is away for a while hears of what is wrong when it is back, and not of what came and went.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mooring.server.alerts.problems import Problem


@dataclass(frozen=True, slots=True)
class Notice:
    """What is to be told."""

    firing: tuple[Problem, ...] = ()
    resolved: tuple[Problem, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.firing or self.resolved)


@dataclass(slots=True)
class Ledger:
    after: float
    """Seconds that a problem must last to be told, and be gone to be over."""
    _since: dict[str, float] = field(default_factory=dict)
    """When each that holds began to hold."""
    _gone: dict[str, float] = field(default_factory=dict)
    """When each that was told was first missing."""
    _now: dict[str, Problem] = field(default_factory=dict)
    _told: dict[str, Problem] = field(default_factory=dict)
    _left: frozenset[str] = frozenset()
    """The keys that a successor would know."""

    def look(self, problems: Iterable[Problem], now: float) -> Notice:
        """What is due, given what is wrong now. The same again until it is `told`."""
        self._now = {each.key: each for each in problems}
        self._since = {key: self._since.get(key, now) for key in self._now}
        missing = [key for key in self._told if key not in self._now]
        self._gone = {key: self._gone.get(key, now) for key in missing}
        return Notice(
            firing=tuple(
                problem
                for key, problem in self._now.items()
                if key not in self._told and now - self._since[key] >= self.after
            ),
            resolved=tuple(
                self._told[key] for key in missing if now - self._gone[key] >= self.after
            ),
        )

    def known(self) -> tuple[Problem, ...]:
        """What was told and is not over, as far as was told."""
        return tuple(self._told.values())

    def left(self, known: Iterable[Problem]) -> None:
        """A successor would know these."""
        self._left = frozenset(each.key for each in known)

    def hand_over(self) -> None:
        """Another server goes on from what was left. The end of anything else stays due here."""
        self._told = {key: each for key, each in self._told.items() if key not in self._left}
        self._left = frozenset()

    def take_over(self, known: Iterable[Problem]) -> None:
        """Go on from what another server told."""
        known = tuple(known)
        self.left(known)
        self._told = {each.key: each for each in known} | self._told

    def told(self, notice: Notice) -> None:
        """That notice arrived."""
        self._told.update({each.key: each for each in notice.firing})
        for each in notice.resolved:
            self._told.pop(each.key, None)
