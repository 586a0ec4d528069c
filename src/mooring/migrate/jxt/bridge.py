"""The bridge: keeps both formats in sync while there are programs of both.

It watches the old and the new keys, and syncs each unit that changes. Its own writes are in the
ledger, so they cause no further changes. Any number of bridges may run, alongside copies. A bridge
that restarts learns from the ledger what has happened meanwhile, including deletions.

After the cut-over, the old keys only follow the new ones. When their deletion begins, the bridge
ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from mooring.errors import Closed, StoreError
from mooring.migrate.jxt.migration import Migration
from mooring.migrate.jxt.sync_unit import SyncResult
from mooring.mirror import Mirror, RangeFeed, Update
from mooring.store.contract import Entry
from mooring.tasks import Backoff, Tasks, wait_for
from mooring.tenants.keys import SENTINEL

log = logging.getLogger(__name__)

_PARALLEL = 8
"""Units that are synced concurrently."""
_RETRY_AFTER = 5.0
"""Seconds after which a unit with problems is synced again."""

Notify = Callable[[SyncResult], None]


class Bridge:
    def __init__(self, migration: Migration, *, retry_after: float = _RETRY_AFTER) -> None:
        self._migration, self._retry_after = migration, retry_after
        self._reader = migration.reader
        self._due: dict[int, None] = {}
        """Units to sync, in the order in which they changed."""
        self._retries: dict[int, float] = {}
        """Units to sync again, and when."""
        self._units: set[int] = set()
        self._conflicts: dict[int, Mapping[str, str]] = {}
        """Parts that must not be written when their unit is synced for the first time."""
        self._in_progress: set[int] = set()
        self._wake = asyncio.Event()
        self._reported: dict[int, tuple[str, ...]] = {}
        self._cut = self._over = False

    async def run(self, notify: Notify = lambda _: None) -> None:
        """Run until the deletion of the old keys. `notify` gets changes and new problems."""
        keys, old_keys, ledger = self._reader.keys, self._reader.old_keys, self._reader.ledger
        async with Tasks() as tasks, AsyncExitStack() as stack:
            ranges = (keys.all, keys.common, keys.platform, keys.health, ledger.all)
            for range_ in (old_keys.all, *ranges):
                mirror = Mirror(RangeFeed(self._migration.store, range_))
                on_update = self._on_ledger if range_ == ledger.all else self._on_keys
                stack.callback(mirror.subscribe(on_update))
                await stack.enter_async_context(mirror)
            await self._read_conflicts()
            workers = [
                tasks.start(self._work(notify), name=f"bridge {number}")
                for number in range(_PARALLEL)
            ]
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            for worker in done:
                worker.result()

    async def _read_conflicts(self) -> None:
        """Assign names that several tenants claim, before any of them is synced."""
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                snapshot = await self._reader.snapshot()
                self._conflicts = dict(self._migration.name_conflicts(snapshot))
                return
            except Closed:
                raise
            except StoreError as error:
                log.warning("bridge: %s", error)
                await asyncio.sleep(backoff.next())

    def _on_keys(self, update: Update[bytes, Entry]) -> None:
        for change in update.changes:
            if (unit := self._reader.unit_of(change.key)) is not None:
                self._schedule(unit)
        self._wake.set()

    def _schedule(self, unit: int) -> None:
        self._units.add(unit)
        self._due[unit] = None

    def _on_ledger(self, update: Update[bytes, Entry]) -> None:
        """A unit that exists only in the ledger was deleted, and the bridge that wrote an entry may
        have stopped. A new phase concerns all units, because of writes during the former one."""
        for change in update.changes:
            unit = self._reader.ledger.unit(change.key)
            if unit is not None:
                self._schedule(unit)
            if change.key == self._reader.ledger.marker:
                self._due |= dict.fromkeys(sorted({0, *self._units}))
        self._wake.set()

    async def _work(self, notify: Notify) -> None:
        backoff, unavailable = Backoff(0.1, 5.0), False
        while not self._over:
            unit = self._next()
            if unit is None:
                await self._wait()
                continue
            self._in_progress.add(unit)
            try:
                result = await self._migration.unit_sync.sync(
                    unit, back=True, conflicts=self._conflicts.get(unit)
                )
            except Closed:
                raise
            except StoreError as error:
                if not unavailable:
                    log.warning("bridge: %s", error)
                unavailable = True
                self._due[unit] = None
                await asyncio.sleep(backoff.next())
                continue
            finally:
                self._in_progress.discard(unit)
            self._conflicts.pop(unit, None)
            unavailable = False
            backoff.reset()
            self._report(result, notify)
        self._wake.set()

    def _next(self) -> int | None:
        """A unit that is due and not in progress."""
        now = time.monotonic()
        for unit in [unit for unit, at in self._retries.items() if at <= now]:
            del self._retries[unit]
            self._due[unit] = None
        for unit in self._due:
            if unit not in self._in_progress:
                del self._due[unit]
                return unit
        return None

    async def _wait(self) -> None:
        self._wake.clear()
        if not self._due or self._in_progress:
            await wait_for(self._wake, within=1.0)

    def _report(self, result: SyncResult, notify: Notify) -> None:
        self._wake.set()
        unit = result.unit
        name = f"tenant {unit}" if unit else "common"
        self._log_phase(result)
        if self._over:
            return
        for change in result.changes:
            level = logging.DEBUG if change.path == SENTINEL else logging.INFO
            log.log(level, "%s: %s %s", name, change.path, change.move)
            if change.conflict:
                log.warning("%s: both sides changed %s; the later counts", name, change.path)
        has_news = self._log_problems(name, result)
        if result.problems:
            self._retries[unit] = time.monotonic() + self._retry_after
        if result.changes or has_news:
            notify(result)

    def _log_problems(self, name: str, result: SyncResult) -> bool:
        """Log the problems of a unit if they have changed. Returns whether they have."""
        late_writes = [
            f"{path} was written after the cut-over, and is ignored" for path in result.late_writes
        ]
        problems = (*result.problems, *late_writes)
        if problems == self._reported.get(result.unit, ()):
            return False
        self._reported[result.unit] = problems
        for problem in problems:
            log.warning("%s: %s", name, problem)
        return True

    def _log_phase(self, result: SyncResult) -> None:
        if result.phase == "over":
            if not self._over:
                log.warning("bridge: ends, because the old keys are being deleted")
            self._over = True
        elif not result.unit and (result.phase != "both") != self._cut:
            self._cut = not self._cut
            phase = "only the new keys are authoritative; the old ones follow them"
            log.warning(
                "bridge: %s", phase if self._cut else "both formats are authoritative again"
            )
