"""New indexes that do not lead where the data says: written as they should be, or taken away."""

from __future__ import annotations

from collections.abc import Sequence

from mooring.errors import Conflict, OutcomeUnknown, TenantError, TooLarge
from mooring.migrate.jxt.plan import PartPlan
from mooring.migrate.jxt.sync_unit import SyncResult
from mooring.store.contract import Delete, Query, Store, key, unchanged
from mooring.tenants.keys import Keys
from mooring.tenants.publish.claims import claims
from mooring.tenants.publish.plan import held
from mooring.tenants.publish.publisher import Publisher

_TOGETHER = 50
"""Keys that are deleted in one commit."""


class NewIndexes:
    def __init__(self, store: Store, keys: Keys, publisher: Publisher) -> None:
        self._store, self._keys, self._publisher = store, keys, publisher

    async def mend(self, those: tuple[int, Sequence[PartPlan]]) -> SyncResult:
        """What leads to a tenant, as its parts say it. What others do meanwhile is not undone."""
        unit, steps = those
        done = SyncResult(unit)
        wrong = [step for step in steps if step.verdict == "unindexed"]
        astray = [step for step in steps if step.verdict == "astray"]
        try:
            if wrong:
                await self._publisher.change(
                    unit, lambda there: there, action="migrate", note="mends what leads to it"
                )
                done.mended += [step.name for step in wrong]
            for first in range(0, len(astray), _TOGETHER):
                part = astray[first : first + _TOGETHER]
                done.mended += await self._take_away(unit, part)
        except (TenantError, TooLarge, Conflict, OutcomeUnknown) as error:
            done.problems.append(str(error))
        return done

    async def _take_away(self, unit: int, steps: Sequence[PartPlan]) -> list[str]:
        """Unless the tenant lays claim to it by now, or is published meanwhile."""
        head = self._keys.history_head(unit)
        found = await self._store.commit(read=[Query(self._keys.parts(unit)), Query(key(head))])
        parts, last = found.reads
        there = claims(self._keys, unit, held(self._keys, unit, parts.entries).parts)
        due = [step for step in steps if step.key not in there]
        if not due:
            return []
        await self._store.commit(
            *(Delete(key(step.key)) for step in due),
            require=[
                unchanged(head, last.first.modified if last.first else 0),
                *(unchanged(step.key, step.modified) for step in due),
            ],
        )
        return [step.name for step in due]
