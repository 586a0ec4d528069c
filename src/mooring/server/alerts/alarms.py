"""The alarms that a store raises about itself: out of space, a member with corrupt data."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Self

from mooring.errors import StoreError
from mooring.model import Time, now
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
