"""The migration: what is to be done, the copy, the check of it, the cut-over, and the end of the
old keys. Everything may be stopped at any point and run again."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from collections.abc import AsyncIterator, Iterable, Sequence

import msgspec

from mooring.errors import Conflict, MigrationError, OutcomeUnknown
from mooring.migrate.jxt.deletion import Deletion, Header, Verified, VerifiedKey
from mooring.migrate.jxt.index_diff import amiss, compared_index, unled
from mooring.migrate.jxt.parallel import Progress, each, silent
from mooring.migrate.jxt.plan import DELETABLE, DIFFERENT, Lots, PartPlan, compared, lots, vanished
from mooring.migrate.jxt.reader import Mark, Reading, Whole
from mooring.migrate.jxt.state import Marker
from mooring.migrate.jxt.sync_unit import NewIndexes, SyncResult, UnitSync
from mooring.store.contract import Delete, Put, Store, absent, key, unchanged
from mooring.tenants.keys import TenantKeys
from mooring.tenants.publish.committer import now
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.secrets import Keyring

_YIELD = 200  # units compared before others get their turn


class Different(MigrationError):
    """The new keys do not say yet what the old ones do."""

    def __init__(self, steps: Sequence[PartPlan]) -> None:
        self.steps = steps
        shown = ", ".join(f"{step.name} ({step.verdict})" for step in steps[:5])
        more = f" and {len(steps) - 5} more" if len(steps) > 5 else ""
        super().__init__(
            f"the old keys cannot be given up yet: {shown}{more}; run `copy`, or a `bridge`, and "
            "see what `verify` says"
        )


class Migration:
    """From the old keys below a namespace to the new ones, in one store.

    `by` is who is named in the histories of tenants and with the cut-over.
    """

    def __init__(
        self,
        store: Store,
        *,
        namespace: str | None = None,
        ring: Keyring | None = None,
        by: str = "",
    ) -> None:
        self.keys = TenantKeys(namespace)
        self.store = store
        self.ring = Keyring.from_environment() if ring is None else ring
        self.reading = Reading(store, self.keys)
        self.by = by or f"{_user()}@{socket.gethostname()}"
        self._publisher = Publisher(store, self.keys, ring=self.ring, by=self.by)
        self._mender = NewIndexes(store, self.keys, self._publisher)
        self.settler = UnitSync(store, self.reading, self._publisher, self.ring)

    @property
    def header(self) -> Header:
        return Header(self.store.url, self.keys.namespace)

    async def plan(self, progress: Progress = silent) -> list[PartPlan]:
        """What a copy would do, for each old key. Nothing is written."""
        return await self._compared(await self.reading.whole(), progress)

    def lots(self, whole: Whole) -> Lots:
        """Who gets what several tenants lay claim to."""
        return lots(self.keys, whole.views.values(), self.ring)

    async def _compared(self, whole: Whole, progress: Progress) -> list[PartPlan]:
        lost, removed = self.lots(whole), await self._removed(whole)
        steps: list[PartPlan] = []
        index = dict(whole.index)
        kinds = {each.place.kind for those in index.values() for each in those}
        for done, (unit, here) in enumerate(whole.views.items()):
            found = compared(
                self.keys,
                here,
                self.ring,
                phase=whole.mark.phase,
                lost=lost,
                cut=whole.mark.cut,
                removed=removed.get(unit, ()),
            )
            empty = not here.told.findings and not here.new
            leading = index.pop(unit, []) if unit else []
            steps += found
            steps += compared_index(self.keys, leading, None if empty else here, found)
            if unit and whole.mark.phase != "over":
                steps += unled(self.keys, self.reading.old, here, leading, kinds)
            progress(done, len(whole.views))
            if done % _YIELD == 0:
                await asyncio.sleep(0)
        for leading in index.values():
            steps += compared_index(self.keys, leading, None, ())
        progress(len(whole.views), len(whole.views))
        return [*steps, *amiss(self.keys, whole.views, whole.leading), *whole.foreign]

    async def _removed(self, whole: Whole) -> dict[int, set[str]]:
        """Parts that are gone from the new keys, and whose removal is in a tenant's history."""
        found: dict[int, set[str]] = {}
        for unit, here in whole.views.items():
            if unit and whole.mark.phase == "both" and (gone := vanished(here, self.ring)):
                last = {
                    step.path: step.after
                    for entry in await self._publisher.history(unit)
                    for step in entry.changes
                }
                found[unit] = {path for path in gone if path in last and last[path] is None}
        return found

    async def copy(self, progress: Progress = silent) -> AsyncIterator[SyncResult]:
        """Mend what leads to tenants among the new keys, and bring what the old keys say into
        those, unit by unit: what was done for each that was not level. Raises `MigrationError`
        after the cut-over, when nothing is brought any more."""
        whole = await self.reading.whole()
        async for settled in self._mended(whole):
            yield settled
        _before_the_cut(whole.mark)
        lost = self.lots(whole)
        due = [unit for unit, here in whole.views.items() if self.settler.due(here)]
        while due:
            again: list[int] = []
            moved = False

            async def settle(unit: int) -> SyncResult:
                return await self.settler.settle(unit, back=False, lost=lost)

            async for settled in each(due, settle, progress):
                if settled.phase != "both":
                    _before_the_cut((await self.reading.unit(settled.unit))[1])
                moved = moved or bool(settled.changes)
                if settled.problems:
                    again.append(settled.unit)
                if settled.changes or settled.problems:
                    yield settled
            # What one tenant gave up in this round, another may have in the next.
            due = again if moved and len(again) < len(due) else []

    async def _mended(self, whole: Whole) -> AsyncIterator[SyncResult]:
        found: dict[int, list[PartPlan]] = {}
        for step in amiss(self.keys, whole.views, whole.leading):
            if step.verdict in ("unindexed", "astray"):
                found.setdefault(step.unit, []).append(step)
        async for settled in each(list(found.items()), self._mender.mend, silent):
            yield settled

    async def verify(self, progress: Progress = silent) -> tuple[list[PartPlan], Verified]:
        """The plan as it is now, with what may be deleted once nothing differs."""
        steps = await self._compared(await self.reading.whole(), progress)
        return steps, self._listed(steps)

    def _listed(self, steps: Iterable[PartPlan]) -> Verified:
        listed = [
            VerifiedKey(step.unit, step.key.decode(), step.modified)
            for step in steps
            if step.verdict in DELETABLE
        ]
        return Verified(self.header, listed)

    async def cutover(self, progress: Progress = silent) -> tuple[Marker, list[PartPlan], Verified]:
        """From now on the new keys count alone: compared once more, and then said in the store.
        Done again, it changes nothing. Raises `Different`."""
        while True:
            whole = await self.reading.whole()
            steps = await self._compared(whole, progress)
            if whole.mark.marker is not None:
                return whole.mark.marker, steps, self._listed(steps)
            if different := [step for step in steps if step.verdict in DIFFERENT]:
                raise Different(different)
            marker = Marker(now(), self.by, whole.revision)
            name = self.reading.ledger.marker
            try:
                await self.store.commit(Put(name, _encoded(marker)), require=[absent(name)])
            except (Conflict, OutcomeUnknown):
                continue
            return marker, steps, self._listed(steps)

    async def undo(self, *, restart: bool = False) -> None:
        """Take the cut-over back: both formats count again. Raises `MigrationError` where there was
        none, and where the deletion of the old keys has begun, unless this is to `restart` the
        migration: what was deleted is gone from the old keys then, and costs no new one."""
        mark = await self._mark()
        if mark.marker is None:
            raise MigrationError("there was no cut-over")
        if mark.phase == "over" and not restart:
            raise MigrationError(
                f"the old keys are being deleted since {mark.marker.deleting}, and do not come "
                "back; `cutover --restart` begins the migration again, with those that are there"
            )
        name = self.reading.ledger.marker
        await self.store.commit(Delete(key(name)), require=[unchanged(name, mark.revision)])

    async def _mark(self) -> Mark:
        return (await self.reading.unit(0))[1]

    async def delete(
        self, verified: Verified, progress: Progress = silent
    ) -> tuple[int, list[str]]:
        """Delete the old keys that were verified, if they are as they were then, and with them what
        the ledger says of them: how many went, and which stay because they were written since.

        Raises `MigrationError`, and deletes nothing, before the cut-over, and where what was
        verified is another migration.
        """
        if verified.header != self.header:
            raise MigrationError(
                f"what was verified is another migration, {verified.header}; this is {self.header}"
            )
        return await Deletion(self.store, self.reading).run(verified, progress)


def _before_the_cut(mark: Mark) -> None:
    if mark.marker is not None:
        back = "--restart` begins again" if mark.phase == "over" else "--undo` takes that back"
        raise MigrationError(
            f"the new keys count alone since {mark.marker.at} (by {mark.marker.by}): nothing is "
            f"copied any more; `cutover {back}"
        )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def _encoded(marker: Marker) -> bytes:
    return msgspec.json.encode(marker)
