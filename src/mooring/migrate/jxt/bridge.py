"""The bridge: both formats kept level for as long as there are programs of both.

It follows the old keys and the new ones. A unit of which anything was written is looked at, and
made level (`settling.py`); what the bridge itself writes is known to the ledger, and goes no
further. Any number of bridges may run, beside copies; one that stops and starts again finds from
the ledger what happened meanwhile, deletions too.

After the cut-over the old keys follow the new ones, and are followed no longer. Once their deletion
begins, the bridge ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from mooring.errors import Closed, StoreError
from mooring.migrate.jxt.format import SENTINEL
from mooring.migrate.jxt.migration import Migration
from mooring.migrate.jxt.plan import Lost
from mooring.migrate.jxt.sync_unit import SyncResult
from mooring.mirror import Mirror, RangeFeed, Update
from mooring.store.contract import Entry
from mooring.tasks import Backoff, Tasks

log = logging.getLogger(__name__)

_AT_ONCE = 8
"""Units that are worked on at once."""
_AGAIN = 5.0
"""Seconds after which a unit is tried again of which something could not be written."""


class Bridge:
    def __init__(self, migration: Migration, *, again: float = _AGAIN) -> None:
        self._migration, self._again = migration, again
        self._reading = migration.reading
        self._due: dict[int, None] = {}
        """Units to look at, in the order in which they came."""
        self._later: dict[int, float] = {}
        """Units to look at again, and when."""
        self._units: set[int] = set()
        """All that were heard of."""
        self._lost: dict[int, Mapping[str, Lost]] = {}
        """What must not be written when a unit is first looked at: it is for another tenant."""
        self._working: set[int] = set()
        self._wake = asyncio.Event()
        self._told: dict[int, tuple[str, ...]] = {}
        self._cut = self._over = False

    async def run(self, told: Callable[[SyncResult], None] = lambda _: None) -> None:
        """Until it is cancelled, or the old keys are being deleted. `told` hears of each unit of
        which something was done, or could not be."""
        keys, old, ledger = self._reading.keys, self._reading.old, self._reading.ledger
        tasks = Tasks()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(tasks.aclose)
            store = self._migration.store
            for part in (old.all, keys.all, keys.common, keys.platform, keys.health, ledger.all):
                mirror = Mirror(RangeFeed(store, part))
                hear = self._hear_ledger if part == ledger.all else self._hear
                stack.callback(mirror.subscribe(hear))
                await stack.enter_async_context(mirror)
            await self._share_out()
            workers = [
                tasks.start(self._work(told), name=f"bridge {number}") for number in range(_AT_ONCE)
            ]
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            for worker in done:
                worker.result()

    async def _share_out(self) -> None:
        """Who gets what several tenants lay claim to, before any of them takes it."""
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                self._lost = dict(self._migration.lots(await self._reading.whole()))
                return
            except Closed:
                raise
            except StoreError as error:
                log.warning("bridge: %s", error)
                await asyncio.sleep(backoff.next())

    def _hear(self, update: Update[bytes, Entry]) -> None:
        for change in update.changes:
            if (unit := self._reading.unit_of(change.key)) is not None:
                self._look_at(unit)
        self._wake.set()

    def _look_at(self, unit: int) -> None:
        self._units.add(unit)
        self._due[unit] = None

    def _hear_ledger(self, update: Update[bytes, Entry]) -> None:
        """Units that are nowhere but there were deleted; and where another bridge wrote, it may
        have been stopped before all was done. The marker concerns all: what was written while the
        other format counted has to be looked at again."""
        for change in update.changes:
            unit = self._reading.ledger.unit(change.key)
            if unit is not None:
                self._look_at(unit)
            if change.key == self._reading.ledger.marker:
                self._due |= dict.fromkeys(sorted({0, *self._units}))
        self._wake.set()

    async def _work(self, told: Callable[[SyncResult], None]) -> None:
        """Until the deletion of the old keys begins."""
        backoff, away = Backoff(0.1, 5.0), False
        while not self._over:
            unit = self._next()
            if unit is None:
                await self._wait()
                continue
            self._working.add(unit)
            try:
                settled = await self._migration.settler.settle(
                    unit, back=True, lost={unit: self._lost.get(unit, {})}
                )
            except Closed:
                raise
            except StoreError as error:
                if not away:
                    log.warning("bridge: %s", error)
                away = True
                self._due[unit] = None
                await asyncio.sleep(backoff.next())
                continue
            finally:
                self._working.discard(unit)
            self._lost.pop(unit, None)
            away = False
            backoff.reset()
            self._tell(settled, told)
        self._wake.set()

    def _next(self) -> int | None:
        """A unit on which nobody works."""
        now = time.monotonic()
        for unit in [unit for unit, at in self._later.items() if at <= now]:
            del self._later[unit]
            self._due[unit] = None
        for unit in self._due:
            if unit not in self._working:
                del self._due[unit]
                return unit
        return None

    async def _wait(self) -> None:
        self._wake.clear()
        if self._due and not self._working:
            return
        try:
            async with asyncio.timeout(1.0):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _tell(self, settled: SyncResult, told: Callable[[SyncResult], None]) -> None:
        self._wake.set()
        unit = settled.unit
        who = f"tenant {unit}" if unit else "common"
        if settled.phase == "over":
            if not self._over:
                log.warning("bridge: the old keys are being deleted: there is nothing to do")
            self._over = True
            return
        if not unit and (settled.phase != "both") != self._cut:
            self._cut = not self._cut
            now = "the new keys count alone now; the old ones follow them"
            log.warning("bridge: %s", now if self._cut else "both formats count again")
        for change in settled.changes:
            level = logging.DEBUG if change.path == SENTINEL else logging.INFO
            log.log(level, "%s: %s %s", who, change.path, change.move)
            if change.conflict:
                log.warning("%s: %s was changed on both sides; the later counts", who, change.path)
        complaints = (
            *settled.problems,
            *(f"{path} was written after the cut-over, and is ignored" for path in settled.strays),
        )
        if complaints != self._told.get(unit, ()):
            for complaint in complaints:
                log.warning("%s: %s", who, complaint)
        new = complaints != self._told.pop(unit, ())
        if complaints:
            self._told[unit] = complaints
        if settled.problems:
            self._later[unit] = time.monotonic() + self._again
        if settled.changes or new:
            told(settled)
