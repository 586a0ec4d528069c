"""What is wrong now: looked at by many, found out no more than once a second."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Self

from mooring.errors import StoreError
from mooring.model import Time, now
from mooring.server.alerts.problems import Patience, Picture, Problem, problems
from mooring.store import Status, Store
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two looks."""


class StoreAlarms:
    """Asks the store for its alarms while it is entered. If the store is away, the last ones
    stay."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.raised: Sequence[str] = ()
        """What is wrong, in words."""
        self.since: Time | None = None
        """When the first of them was seen."""
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), name="alarms of the store")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()

    async def _run(self) -> None:
        while True:
            try:
                self._tell(await self._store.status())
            except StoreError as error:
                log.debug("the alarms of the store cannot be read: %s", error)
            await asyncio.sleep(EVERY)

    def _tell(self, status: Status) -> None:
        if not any(member.latency is not None for member in status.members):
            return  # no member answered
        if status.alarms and not self.raised:
            self.since = now()
            log.error("the store %s raised an alarm: %s", self._store.url, "; ".join(status.alarms))
        elif self.raised and not status.alarms:
            self.since = None
            log.info("the store %s has no alarm any more", self._store.url)
        self.raised = status.alarms


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
