"""The migration: plan, copy, verify, cut over and delete. Every step can be interrupted and
repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from mooring.errors import Conflict, MigrationError, OutcomeUnknown
from mooring.formatting import quoted
from mooring.migrate.jxt.format import OldIndex, OldKeys
from mooring.migrate.jxt.indexes import (
    compare_new_indexes,
    compare_old_indexes,
    missing_old_indexes,
)
from mooring.migrate.jxt.name_conflicts import NameConflicts, name_conflicts
from mooring.migrate.jxt.plan import (
    DELETABLE,
    DIFFERENT,
    Criteria,
    PartPlan,
    compare,
    deleted_in_new,
)
from mooring.migrate.jxt.reader import MigrationSnapshot, UnitReader
from mooring.migrate.jxt.state import CutoverMarker, CutoverState, SyncedState, UnitState
from mooring.migrate.jxt.sync_unit import SyncResult, UnitSync
from mooring.migrate.verified_file import Verified
from mooring.store.contract import Delete, Put, Query, Store, absent, key, unchanged
from mooring.tasks import Backoff, Progress, in_parallel, no_progress, slices
from mooring.tenants.keys import TenantKeys
from mooring.tenants.publish.committer import now
from mooring.tenants.publish.publisher import Publisher, default_author
from mooring.tenants.secrets import Keyring

T = TypeVar("T")

_YIELD = 200  # units that are compared before other tasks run
_BATCH = 100
"""Keys that are deleted in one commit."""

FORMAT = "mooring jxt verified 1"


class JxtHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: str
    """Its URL, without a password."""
    namespace: str
    format: str = FORMAT

    def __str__(self) -> str:
        return f"the namespace {quoted(self.namespace)} in {self.store}"


class VerifiedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    unit: int
    key: str
    modified: int


VerifiedKeys: TypeAlias = Verified[JxtHeader, VerifiedKey]


class Migration:
    """Migrates the old keys of a namespace to the new ones, in one store. `by` is the author in the
    histories of tenants and in the cut-over marker."""

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
        self.reader = UnitReader(store, self.keys)
        self.by = by or default_author()
        self._publisher = Publisher(store, self.keys, ring=self.ring, by=self.by)
        self.unit_sync = UnitSync(store, self.reader, self._publisher, self.ring)

    @property
    def header(self) -> JxtHeader:
        return JxtHeader(self.store.url, self.keys.namespace)

    async def plan(self, progress: Progress = no_progress) -> list[PartPlan]:
        """What a copy would do, for each old key. Writes nothing."""
        return await self._compare(await self.reader.snapshot(), progress)

    def name_conflicts(self, snapshot: MigrationSnapshot) -> NameConflicts:
        return name_conflicts(self.keys, snapshot.units.values(), self.ring)

    async def _compare(self, snapshot: MigrationSnapshot, progress: Progress) -> list[PartPlan]:
        conflicts, removed = self.name_conflicts(snapshot), await self._removed(snapshot)
        steps: list[PartPlan] = []
        cutover, old_indexes = snapshot.cutover, dict(snapshot.old_indexes)
        kinds = {one.index.kind for entries in old_indexes.values() for one in entries}
        for done, (unit, state) in enumerate(snapshot.units.items()):
            of_unit = conflicts.get(unit, {}), removed.get(unit, set())
            parts = compare(
                self.keys, state, Criteria(self.ring, cutover.phase, cutover.compared_at, *of_unit)
            )
            exists = state.old.keys or state.new
            indexes = old_indexes.pop(unit, []) if unit else []
            steps += parts
            steps += compare_old_indexes(self.keys, indexes, state if exists else None, parts)
            if unit and cutover.phase != "over":
                old_keys = self.reader.old_keys
                steps += missing_old_indexes(self.keys, old_keys, state, indexes, kinds)
            progress(done, len(snapshot.units))
            if done % _YIELD == 0:
                await asyncio.sleep(0)
        for indexes in old_indexes.values():
            steps += compare_old_indexes(self.keys, indexes, None, ())
        progress(len(snapshot.units), len(snapshot.units))
        steps += compare_new_indexes(self.keys, snapshot.units, snapshot.new_indexes)
        return steps + [
            PartPlan(0, entry.key, "foreign", modified=entry.modified) for entry in snapshot.foreign
        ]

    async def _removed(self, snapshot: MigrationSnapshot) -> dict[int, set[str]]:
        """The parts whose removal from the new keys is in the history of the tenant."""
        removed: dict[int, set[str]] = {}
        if snapshot.cutover.phase != "both":
            return removed
        for unit, state in snapshot.units.items():
            if unit and (deleted := deleted_in_new(state, self.ring)):
                last = {
                    change.path: change.after
                    for entry in await self._publisher.history(unit)
                    for change in entry.changes
                }
                removed[unit] = {path for path in deleted if path in last and last[path] is None}
        return removed

    async def copy(self, progress: Progress = no_progress) -> AsyncIterator[SyncResult]:
        """Repair new indexes, and copy the old keys to the new ones, unit by unit. Yields the
        result for each unit that was not in sync. Raises `MigrationError` after the cut-over."""
        snapshot = await self.reader.snapshot()
        async for result in self._repair_indexes(snapshot):
            yield result
        _check_before_cutover(snapshot.cutover)
        conflicts = self.name_conflicts(snapshot)
        due = [unit for unit, state in snapshot.units.items() if self.unit_sync.needs_copy(state)]

        async def sync(unit: int) -> SyncResult:
            return await self.unit_sync.sync(unit, back=False, conflicts=conflicts.get(unit))

        while due:
            again: list[int] = []
            changed = False
            async for result in in_parallel(due, sync, progress):
                if result.phase != "both":
                    _check_before_cutover((await self.reader.unit(result.unit))[1])
                changed = changed or bool(result.changes)
                if result.problems:
                    again.append(result.unit)
                if result.changes or result.problems:
                    yield result
            # A name that one tenant gave up in this round may go to another in the next.
            due = again if changed and len(again) < len(due) else []

    async def _repair_indexes(self, snapshot: MigrationSnapshot) -> AsyncIterator[SyncResult]:
        steps: dict[int, list[PartPlan]] = {}
        for step in compare_new_indexes(self.keys, snapshot.units, snapshot.new_indexes):
            if step.verdict in ("unindexed", "dangling"):
                steps.setdefault(step.unit, []).append(step)
        async for result in in_parallel(list(steps.items()), self.unit_sync.repair_new_indexes):
            yield result

    async def verify(self, progress: Progress = no_progress) -> tuple[list[PartPlan], VerifiedKeys]:
        """The current plan, and the keys that may be deleted if nothing differs."""
        steps = await self._compare(await self.reader.snapshot(), progress)
        return steps, self._verified(steps)

    def _verified(self, steps: Iterable[PartPlan]) -> VerifiedKeys:
        keys = [
            VerifiedKey(step.unit, step.key.decode(), step.modified)
            for step in steps
            if step.verdict in DELETABLE
        ]
        return Verified(self.header, keys)

    async def cutover(
        self, progress: Progress = no_progress
    ) -> tuple[CutoverMarker, list[PartPlan], VerifiedKeys]:
        """Record that only the new keys count. Idempotent. Raises `MigrationError` while the new
        keys do not match the old ones."""
        return await _retried(lambda: self._try_cutover(progress))

    async def _try_cutover(
        self, progress: Progress
    ) -> tuple[CutoverMarker, list[PartPlan], VerifiedKeys]:
        snapshot = await self.reader.snapshot()
        steps = await self._compare(snapshot, progress)
        marker = snapshot.cutover.marker
        if marker is None:
            if different := [step for step in steps if step.verdict in DIFFERENT]:
                raise _still_needed(different)
            marker = CutoverMarker(now(), self.by, snapshot.revision)
            name = self.reader.ledger.marker
            await self.store.commit(Put(name, msgspec.json.encode(marker)), require=[absent(name)])
        return marker, steps, self._verified(steps)

    async def undo(self, *, restart: bool = False) -> None:
        """Undo the cut-over: both formats are authoritative again. Raises `MigrationError` if there
        was none, or if the deletion of the old keys has begun. The latter requires `restart`, which
        starts the migration again: keys that were deleted do not delete any new ones."""
        cutover = await self._read_cutover()
        if cutover.marker is None:
            raise MigrationError("there was no cut-over")
        if cutover.phase == "over" and not restart:
            raise MigrationError(
                f"the deletion of the old keys began at {cutover.marker.deleting} and cannot be "
                "undone; `cutover --restart` starts the migration again, with the keys that exist"
            )
        name = self.reader.ledger.marker
        await self.store.commit(Delete(key(name)), require=[unchanged(name, cutover.revision)])

    async def _read_cutover(self) -> CutoverState:
        return (await self.reader.unit(0))[1]

    async def delete(
        self, verified: VerifiedKeys, progress: Progress = no_progress
    ) -> tuple[int, list[str]]:
        """Delete the verified old keys that have not changed since, and their ledger entries.
        Returns the number of deleted keys, and the keys that stay because they have changed.

        Raises `MigrationError`, and deletes nothing, before the cut-over, or if the keys belong to
        another migration or are not old keys.
        """
        verified.check_header(self.header)
        by_unit: dict[int, list[VerifiedKey]] = {}
        for listed in verified.items:
            if self.reader.old_keys.parse(listed.key.encode()) is None:
                raise MigrationError(f"{listed.key} is not an old key: run `verify` again")
            by_unit.setdefault(listed.unit, []).append(listed)
        await _retried(self._begin_deletion)
        deleted, stays = 0, []
        units = list(by_unit.items())
        async for count, changed in in_parallel(units, self._delete_unit, progress):
            deleted += count
            stays += changed
        ledger = self.reader.ledger
        entries = (await self.store.read(ledger.all, keys_only=True)).entries
        recorded = [unit for entry in entries if (unit := ledger.unit(entry.key)) is not None]
        async for _ in in_parallel(recorded, self._forget_deleted):
            pass
        return deleted, sorted(stays)

    async def _begin_deletion(self) -> None:
        """After this, bridges do not write any more."""
        cutover = await self._read_cutover()
        if cutover.marker is None:
            raise MigrationError(
                "there was no cut-over: the old keys are still authoritative, and none is deleted"
            )
        if cutover.phase != "over":
            name = self.reader.ledger.marker
            marker = msgspec.structs.replace(cutover.marker, deleting=now())
            await self.store.commit(
                Put(name, msgspec.json.encode(marker)), require=[unchanged(name, cutover.revision)]
            )

    async def _delete_unit(
        self, of_unit: tuple[int, Sequence[VerifiedKey]]
    ) -> tuple[int, list[str]]:
        """With their state in the ledger, so that no bridge follows. Returns as `delete`."""
        unit, listed = of_unit
        parse = self.reader.old_keys.parse
        indexes_first = sorted(
            listed, key=lambda one: (not isinstance(parse(one.key.encode()), OldIndex), one.key)
        )
        deleted, stays = 0, []
        for batch in slices(indexes_first, _BATCH):
            count, changed = await self._delete_batch(unit, batch)
            deleted += count
            stays += changed
        return deleted, stays

    async def _delete_batch(
        self, unit: int, listed: Sequence[VerifiedKey]
    ) -> tuple[int, list[str]]:
        tried: set[str] = set()

        async def delete() -> set[str]:
            """Returns the keys that stay."""
            commit = await self.store.commit(
                read=[Query(key(one.key.encode()), keys_only=True) for one in listed]
            )
            current = [read.first.modified if read.first else 0 for read in commit.reads]
            pairs = list(zip(listed, current, strict=True))
            due = [one for one, modified in pairs if modified == one.modified]
            tried.update(one.key for one in due)
            await self._commit_deletion(unit, due)
            return {one.key for one, modified in pairs if modified not in (0, one.modified)}

        stays = await _retried(delete)
        return len(tried - stays), sorted(stays)

    async def _commit_deletion(self, unit: int, due: Sequence[VerifiedKey]) -> None:
        state, cutover = await self.reader.unit(unit)
        if cutover.phase != "over":
            raise MigrationError("the migration was started again: nothing more is deleted")
        names = [one.key.encode() for one in due]
        synced = without_deleted(self.reader.old_keys, state, names)
        if not names and synced == state.synced:
            return
        ledger = self.reader.ledger
        await self.store.commit(
            *([] if synced == state.synced else [ledger.write(unit, synced)]),
            *(Delete(key(name)) for name in names),
            require=[
                unchanged(ledger.marker, cutover.revision),
                unchanged(ledger.entry(unit), state.ledger_revision),
                *(unchanged(one.key.encode(), one.modified) for one in due),
            ],
        )

    async def _forget_deleted(self, unit: int) -> None:
        """Remove the state of old keys that no longer exist from the ledger."""
        await _retried(lambda: self._commit_deletion(unit, ()))


async def _retried(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat an attempt until no other writer interferes and its outcome is known."""
    backoff = Backoff()
    while True:
        try:
            return await attempt()
        except (Conflict, OutcomeUnknown):
            await asyncio.sleep(backoff.next())


def without_deleted(old_keys: OldKeys, state: UnitState, deleted: Collection[bytes]) -> SyncedState:
    """The ledger's entry after these old keys are deleted. It keeps parts whose key was written
    since, but none without a key, which would count as deleted."""
    left = state.old.changed(old_keys, dict.fromkeys(deleted))
    bases = {
        path: base
        for path, base in state.synced.bases.items()
        if path in left.parts or (path not in state.old.parts and left.hides(path))
    }
    indexes = {name: path for name, path in state.synced.indexes.items() if path in bases}
    return SyncedState(bases, indexes)


def _still_needed(steps: Sequence[PartPlan]) -> MigrationError:
    shown = ", ".join(f"{step.name} ({step.verdict})" for step in steps[:5])
    more = f" and {len(steps) - 5} more" if len(steps) > 5 else ""
    return MigrationError(
        f"the old keys are still needed: {shown}{more}; run `copy` or `bridge`, and see `verify`"
    )


def _check_before_cutover(cutover: CutoverState) -> None:
    if cutover.marker is not None:
        hint = "--restart` starts again" if cutover.phase == "over" else "--undo` undoes that"
        raise MigrationError(
            f"only the new keys have been authoritative since {cutover.marker.at} (by "
            f"{cutover.marker.by}), and nothing is copied any more; `cutover {hint}"
        )
