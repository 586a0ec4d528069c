"""Telling people: what lasts is told, what is over is told, and a webhook that is away hears of it
when it is back."""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from mooring.model import now
from mooring.server.alerts.conditions import SEVERITIES, Problem
from mooring.server.alerts.ledger import Ledger, Notice
from mooring.server.alerts.outlook import Outlook
from mooring.server.alerts.settings import AlertSettings
from mooring.server.alerts.webhook import NotTold, Webhook
from mooring.server.metrics import NOTICES
from mooring.tasks import Backoff, Tasks

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two looks."""
_FIRST, _MOST = 2.0, 300.0
"""Seconds between two tries, at first and at the most."""


class Alerts:
    """Tells the webhook of what is wrong while it is entered. Leaving waits for no webhook."""

    def __init__(self, outlook: Outlook, settings: AlertSettings, *, look: float = LOOK) -> None:
        self._outlook, self._settings, self._look = outlook, settings, look
        self._ledger = Ledger(settings.after)
        self._webhook = Webhook(settings)
        self._failing = ""
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), name="alerts")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()

    def _grave(self) -> list[Problem]:
        grave = SEVERITIES[: SEVERITIES.index(self._settings.severity) + 1]
        return [each for each in self._outlook.problems() if each.severity in grave]

    async def _run(self) -> None:
        loop, backoff, again = asyncio.get_running_loop(), Backoff(_FIRST, _MOST), 0.0
        while True:
            notice = self._ledger.look(self._grave(), loop.time())
            if notice and loop.time() >= again:
                if await self._tell(notice):
                    backoff.reset()
                else:
                    again = loop.time() + backoff.next()
            await asyncio.sleep(self._look)

    async def _tell(self, notice: Notice) -> bool:
        try:
            await self._webhook.tell(notice, now())
        except NotTold as error:
            NOTICES.labels("failed").inc()
            if str(error) != self._failing:
                self._failing = str(error)
                log.warning("the webhook %s: %s", self._settings.where, error)
            return False
        NOTICES.labels("sent").inc()
        self._ledger.told(notice)
        if self._failing:
            self._failing = ""
            log.info("the webhook %s takes alerts again", self._settings.where)
        return True
