"""What is wrong now: looked at by many, found out no more than once a second."""

from __future__ import annotations

import time
from collections.abc import Callable

from mooring.model import Time, now
from mooring.server.alerts.alarms import StoreAlarms
from mooring.server.alerts.conditions import Patience, Picture, Problem, problems

AT_MOST_EVERY = 1.0
"""Seconds: it goes over every instance."""


class Outlook:
    """The problems of a fleet. One for the API, the stream, metrics and the webhook."""

    def __init__(
        self,
        picture: Picture,
        patience: Patience | None = None,
        *,
        alarms: StoreAlarms | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._picture, self._patience, self._clock = picture, patience or Patience(), clock
        self._alarms = alarms
        self.looked_at = float("-inf")
        """When the problems were last found out, by the clock."""
        self._stale_since: Time | None = None
        self._found: list[Problem] = []

    def problems(self) -> list[Problem]:
        """The worst first, at most a second old."""
        moment = self._clock()
        if moment - self.looked_at >= AT_MOST_EVERY:
            self.looked_at = moment
            self._found = self._look()
        return self._found

    def _look(self) -> list[Problem]:
        here = now()
        if not self._picture.stale:
            self._stale_since = None
        elif self._stale_since is None:
            self._stale_since = here
        return problems(
            self._picture,
            here,
            patience=self._patience,
            stale_since=self._stale_since,
            alarms=() if self._alarms is None else self._alarms.raised,
            alarms_since=None if self._alarms is None else self._alarms.since,
        )
