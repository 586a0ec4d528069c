"""Telling people: what lasts is told, what is over is told, and a webhook that is away hears of it
when it is back."""

from __future__ import annotations

import asyncio
import logging
from typing import Self

import msgspec

from mooring.errors import StoreError
from mooring.model import now
from mooring.server.alerts.current_problems import Outlook
from mooring.server.alerts.dedup import Ledger, Notice
from mooring.server.alerts.notifier_election import Duty
from mooring.server.alerts.problems import SEVERITIES, Problem
from mooring.server.alerts.settings import AlertSettings
from mooring.server.alerts.webhook import NotTold, Webhook
from mooring.server.metrics import NOTICES
from mooring.tasks import Backoff, Tasks, cleanup

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two looks."""
_FIRST, _MOST = 2.0, 300.0
"""Seconds between two tries, at first and at the most."""


_LEAVE_WITHIN = 2.0
_LEFT = 2_000
"""Problems that a successor is told of; it tells the others again."""


class Alerts:
    """Tells the webhook of what is wrong while it is entered, if that is for this server to do.
    Leaving waits for no webhook."""

    def __init__(
        self, outlook: Outlook, settings: AlertSettings, duty: Duty, *, look: float = LOOK
    ) -> None:
        self._outlook, self._settings, self._look = outlook, settings, look
        self._duty = duty
        self._on_duty = self._left = False
        self._term = 0
        self._ledger = Ledger(settings.after)
        self._webhook = Webhook(settings)
        self._failing = ""
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), name="alerts")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()
        if self._duty.mine and not self._left:
            await cleanup(self._leave(), within=_LEAVE_WITHIN)

    def _grave(self) -> list[Problem]:
        grave = SEVERITIES[: SEVERITIES.index(self._settings.severity) + 1]
        return [each for each in self._outlook.problems() if each.severity in grave]

    async def _run(self) -> None:
        loop, backoff, again = asyncio.get_running_loop(), Backoff(_FIRST, _MOST), 0.0
        while True:
            await self._change_duty()
            grave = self._grave()
            # They may be a second old. A problem has lasted until then, not until now.
            notice = self._ledger.look(grave, self._outlook.looked_at)
            if self._duty.mine and not self._left:
                await self._leave()
            mine = self._duty.mine
            if not mine:  # what was reported while the store was away, only this server knows
                notice = Notice(resolved=notice.resolved)
            if notice and mine is self._on_duty and loop.time() >= again:
                if mine and not await self._confirm():
                    pass  # at the next look it is known who reports this
                elif await self._tell(notice):
                    backoff.reset()
                else:
                    again = loop.time() + backoff.next()
            await asyncio.sleep(self._look)

    async def _confirm(self) -> bool:
        return await self._duty.confirm() and self._duty.term == self._term

    async def _change_duty(self) -> None:
        """Go on where the server stopped that had the duty before, or let another one go on."""
        before, self._on_duty = self._on_duty, self._duty.mine
        term, self._term = self._term, self._duty.term
        if before and not self._on_duty:
            self._ledger.hand_over()
        if not self._on_duty or (before and term == self._term):
            return
        self._left = not self._ledger.known()
        try:
            reported = await self._duty.reported()
            known = msgspec.json.decode(reported, type=list[Problem]) if reported else []
        except (StoreError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.debug("earlier reports cannot be read, so problems are reported again: %s", error)
            return
        if before:  # another server may have had the duty since
            self._ledger.hand_over()
        self._ledger.take_over(known)

    async def _leave(self) -> None:
        """Leave to a successor what was reported; at the next look, if the store is away."""
        self._left = False
        try:
            known = self._ledger.known()[:_LEFT]
            await self._duty.leave(msgspec.json.encode(known))
            self._ledger.left(known)
            self._left = True
        except StoreError as error:
            log.debug("what was told is known here alone: %s", error)

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
        if self._duty.mine:
            await self._leave()
        if self._failing:
            self._failing = ""
            log.info("the webhook %s takes alerts again", self._settings.where)
        return True
