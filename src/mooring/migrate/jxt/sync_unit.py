"""Syncs both formats of one unit, commit by commit, and repairs new indexes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

import msgspec

from mooring.errors import (
    Conflict,
    InvalidRequest,
    OutcomeUnknown,
    Taken,
    TenantError,
    TooLarge,
    Undecipherable,
)
from mooring.formatting import describe
from mooring.migrate.jxt.format import digest
from mooring.migrate.jxt.indexes import (
    MAX_OPERATIONS,
    IndexWrites,
    OldIndexes,
    with_current_meta,
)
from mooring.migrate.jxt.merge_rule import Base, Move
from mooring.migrate.jxt.plan import PartPlan, new_key
from mooring.migrate.jxt.reader import UnitReader
from mooring.migrate.jxt.state import CutoverState, Phase, SyncedState, UnitState
from mooring.migrate.jxt.translation import translate_back, why_locked
from mooring.model import JSON
from mooring.store.contract import Check, Delete, Put, Query, Store, Write, key, unchanged
from mooring.tasks import Backoff, slices
from mooring.tenants.keys import SENTINEL
from mooring.tenants.model import encode
from mooring.tenants.parts import Parts, claims, stored_parts
from mooring.tenants.publish.merge import resealed
from mooring.tenants.publish.plan import conflicting_claims, unnormalized_keys
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.secrets import Keyring

log = logging.getLogger(__name__)

_MAX_TRIES = 100  # consecutive conflicts with other writers
_MAX_UNEXPLAINED = 5  # times that a name is taken, but its holder cannot be found
_BATCH = 40
"""Parts that are moved in one commit if nothing else determines the number."""
_DELETIONS = 50
"""New indexes that are deleted in one commit."""


class PartMove(NamedTuple):
    path: str
    move: Move
    conflict: bool = False
    """A change on the other side was lost."""


class SyncResult(msgspec.Struct):
    unit: int
    changes: list[PartMove] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)
    late_writes: list[str] = msgspec.field(default_factory=list)
    """Parts that a program wrote to the old keys after the cut-over."""
    repaired: list[str] = msgspec.field(default_factory=list)
    """New indexes that did not match the new parts."""
    phase: Phase = "both"


class _ConcurrentWrite(Exception):
    """Another writer has changed the unit since it was read."""


def _partition(
    changes: Iterable[PartMove], moves: Collection[Move], blocked: Mapping[str, str]
) -> tuple[list[PartMove], list[str]]:
    """The changes with one of these moves, and the problems of those that are blocked instead."""
    changes = [change for change in changes if change.move in moves]
    problems = [
        f"{change.path}: {blocked[change.path]}" for change in changes if change.path in blocked
    ]
    return [change for change in changes if change.path not in blocked], problems


class UnitSync:
    def __init__(
        self, store: Store, reader: UnitReader, publisher: Publisher, ring: Keyring
    ) -> None:
        self._store, self._reader, self._publisher = store, reader, publisher
        self._ring, self._indexes = ring, OldIndexes(store, reader, ring)
        self._keys, self._old_keys, self._ledger = reader.keys, reader.old_keys, reader.ledger

    def needs_copy(self, state: UnitState) -> bool:
        moves = (state.decide(path, self._ring).move for path in state.paths)
        return any("new" in move for move in moves) or bool(
            self._ledger_writes(state, self._bases(state))
        )

    async def sync(
        self, unit: int, *, back: bool, conflicts: Mapping[str, str] | None = None
    ) -> SyncResult:
        """With `back`, the old keys also follow the new ones; after the cut-over, that is the only
        direction, and without it nothing is written. Parts with `conflicts` are never written."""
        result, backoff = SyncResult(unit), Backoff()
        taken = dict(conflicts or {})
        unexplained = 0
        for _ in range(_MAX_TRIES):
            state, cutover = await self._reader.unit(unit)
            result.phase = cutover.phase
            if cutover.phase == "over" or (cutover.phase == "cut over" and not back):
                return result
            try:
                more = await self._step(state, cutover, result, back, taken)
                if not more and not (back and await self._repair_index(state, cutover, result)):
                    return result
                backoff.reset()
                continue
            except Taken as error:
                newly_taken = await self._find_taken(state, taken.keys())
                taken |= newly_taken
                unexplained += not newly_taken
                if unexplained > _MAX_UNEXPLAINED:
                    result.problems.append(str(error))
                    return result
            except (TooLarge, InvalidRequest) as error:
                result.problems.append(str(error))
                return result
            except (_ConcurrentWrite, Conflict, OutcomeUnknown) as error:
                log.debug("unit %d: reading it again: %s", unit, describe(error))
            await asyncio.sleep(backoff.next())
        result.problems.append(f"other writers changed it {_MAX_TRIES} times: retry")
        return result

    async def _step(
        self,
        state: UnitState,
        cutover: CutoverState,
        result: SyncResult,
        back: bool,
        taken: Mapping[str, str],
    ) -> bool:
        """Make one commit. Returns whether there was anything to do."""
        moves, result.late_writes = self._moves(state, cutover.phase)
        to_new, rejected = _partition(moves, ("to new", "out of new"), taken)
        if to_new:
            result.changes += await self._to_new(state, cutover, to_new)
            return True
        if back:
            to_old, locked = _partition(moves, ("to old", "out of old"), self._locked(state, moves))
            if to_old:
                result.changes += await self._to_old(state, cutover, to_old[:_BATCH])
                return True
            rejected += locked
        if writes := self._ledger_writes(state, self._bases(state)):
            await self._store.commit(*writes, require=self._checks(state, cutover))
            return True
        result.problems = rejected
        return False

    def _locked(self, state: UnitState, changes: Collection[PartMove]) -> dict[str, str]:
        """The parts that cannot be written to the old keys, and why."""
        locked: dict[str, str] = {}
        for change in changes:
            if change.move == "to old":
                value = cast("JSON", state.new[change.path])
                why = why_locked(self._old_keys, state.old, change.path, value, self._ring)
                locked |= {change.path: why} if why else {}
        return locked

    async def _repair_index(
        self, state: UnitState, cutover: CutoverState, result: SyncResult
    ) -> bool:
        """Repair old indexes of the unit. Returns whether there was anything to do."""
        repairs = await self._indexes.repairs(state, cutover)
        if repairs.writes or repairs.gone:
            synced = self._indexes.synced_state(state, state.synced.bases, repairs.gone)
            await self._write_indexes(state, cutover, repairs, synced)
            return True
        result.problems += repairs.problems
        return False

    async def _write_indexes(
        self, state: UnitState, cutover: CutoverState, indexes: IndexWrites, synced: SyncedState
    ) -> None:
        """Write indexes, and the ledger's entry, so that concurrent writers decide again."""
        await self._store.commit(
            *indexes.writes,
            self._ledger.write(state.unit, synced),
            require=[*indexes.checks, *self._checks(state, cutover)],
        )

    def _moves(self, state: UnitState, phase: Phase) -> tuple[list[PartMove], list[str]]:
        """The moves that are due, and the paths of late writes."""
        moves: list[PartMove] = []
        late_writes: list[str] = []
        for path in state.paths:
            decision = state.decide(path, self._ring, phase)
            if decision.move:
                conflict = decision.conflict and path != SENTINEL
                moves.append(PartMove(path, decision.move, conflict))
            elif decision.late:
                late_writes.append(path)
        return moves, late_writes

    def _bases(self, state: UnitState) -> dict[str, Base]:
        """The bases, updated for parts that are in sync."""
        bases = dict(state.synced.bases)
        for path in state.paths:
            old, new = state.sides(path)
            if not old.digest and not new.digest:
                bases.pop(path, None)
            elif state.is_same(path, self._ring):
                bases[path] = Base(old.digest, new.digest)
        return bases

    def _ledger_writes(
        self, state: UnitState, bases: Mapping[str, Base], gone: Collection[bytes] = ()
    ) -> list[Write]:
        synced = self._indexes.synced_state(state, bases, gone)
        return [] if synced == state.synced else [self._ledger.write(state.unit, synced)]

    def _checks(self, state: UnitState, cutover: CutoverState) -> list[Check]:
        return [
            unchanged(self._ledger.entry(state.unit), state.ledger_revision),
            unchanged(self._ledger.marker, cutover.revision),
        ]

    async def _to_new(
        self, state: UnitState, cutover: CutoverState, changes: list[PartMove]
    ) -> list[PartMove]:
        if not state.unit:
            changes = changes[:_BATCH]
        values = {change.path: self._new_value(state, change) for change in changes}
        bases = self._bases(state)
        for path, value in values.items():
            bases.pop(path, None)
            if value is not None:
                bases[path] = Base(state.sides(path)[0].digest, digest(value))
        writes, checks = self._ledger_writes(state, bases), self._checks(state, cutover)
        if not state.unit:
            for path, value in values.items():
                name = new_key(self._keys, 0, path)
                writes.append(_write(name, None if value is None else encode(path, value)))
                checks.append(unchanged(name, state.revisions.get(path, 0)))
            await self._store.commit(*writes, require=checks)
            return changes
        calls = 0

        def change(current: Parts) -> Parts:
            nonlocal calls
            calls += 1
            if calls > 1 or current != state.new:
                raise _ConcurrentWrite
            parts = {**current, **values}
            return {path: value for path, value in parts.items() if value is not None}

        await self._publisher.change(
            state.unit,
            change,
            action="migrate",
            note="from the old keys",
            also=lambda _: (writes, checks),
        )
        return changes

    def _new_value(self, state: UnitState, change: PartMove) -> JSON:
        if change.move == "out of new":
            return None
        value = state.old.parts[change.path].value
        if state.unit:
            with suppress(Undecipherable):
                return resealed(change.path, value, self._ring)
        return value

    async def _find_taken(self, state: UnitState, known: Collection[str]) -> dict[str, str]:
        """The parts that claim names of other tenants."""
        parts = dict(state.new)
        for path in state.paths:
            if path not in known and state.decide(path, self._ring).move == "to new":
                parts[path] = state.old.parts[path].value
        wanted = claims(self._keys, state.unit, parts)
        index = await self._indexes.entries({*wanted, *unnormalized_keys(self._keys, parts)})
        return {
            claim.path: f"{claim.shown} is tenant {other}'s"
            for claim, _, other in conflicting_claims(state.unit, wanted, self._keys, index)
            if state.new.get(claim.path) != parts[claim.path]
        }

    async def _to_old(
        self, state: UnitState, cutover: CutoverState, changes: list[PartMove]
    ) -> list[PartMove]:
        old = state.old
        values = {
            one.path: cast("JSON", state.new[one.path]) if one.move == "to old" else None
            for one in changes
        }
        changed = translate_back(self._old_keys, old, values, self._ring)
        after = old.changed(self._old_keys, changed)
        bases = self._bases(state)
        for path in values:
            bases.pop(path, None)
            if path in after.parts and path in state.new:
                bases[path] = Base(digest(after.parts[path].value), state.sides(path)[1].digest)
        writes = [_write(name, value) for name, value in changed.items()]
        checks = [
            unchanged(name, old.keys[name].modified if name in old.keys else 0) for name in changed
        ]
        parts = with_current_meta(after.values, state, cutover)
        indexes = await self._indexes.changes(state.unit, old.values, parts)
        if len(writes) + len(indexes.writes) > MAX_OPERATIONS:
            # Indexes are written before the parts. If the bridge stops in between, it finds the
            # parts unwritten and continues, or the ledger lists the indexes to delete.
            recorded = self._indexes.synced_state(state, bases).indexes
            synced = SyncedState(state.synced.bases, recorded)
            indexes.writes = indexes.writes[:MAX_OPERATIONS]
            indexes.checks = indexes.checks[:MAX_OPERATIONS]
            await self._write_indexes(state, cutover, indexes, synced)
            return []
        await self._store.commit(
            *writes,
            *indexes.writes,
            *self._ledger_writes(state, bases, indexes.gone),
            require=[*checks, *indexes.checks, *self._checks(state, cutover)],
        )
        return changes

    async def repair_new_indexes(self, plan: tuple[int, Sequence[PartPlan]]) -> SyncResult:
        """Make the indexes of a tenant match its parts. Does not undo concurrent writes."""
        unit, steps = plan
        result = SyncResult(unit)
        unindexed = [step for step in steps if step.verdict == "unindexed"]
        dangling = [step for step in steps if step.verdict == "dangling"]
        try:
            if unindexed:
                await self._publisher.change(
                    unit, lambda parts: parts, action="migrate", note="repairs indexes"
                )
                result.repaired += [step.name for step in unindexed]
            for batch in slices(dangling, _DELETIONS):
                result.repaired += await self._delete_new_indexes(unit, batch)
        except (TenantError, TooLarge, Conflict, OutcomeUnknown) as error:
            result.problems.append(str(error))
        return result

    async def _delete_new_indexes(self, unit: int, steps: Sequence[PartPlan]) -> list[str]:
        """Delete indexes that the tenant does not claim. Fails if it is published concurrently."""
        head = self._keys.history_head(unit)
        commit = await self._store.commit(read=[Query(self._keys.parts(unit)), Query(key(head))])
        parts, last = commit.reads
        current = claims(self._keys, unit, stored_parts(self._keys, unit, parts.entries).parts)
        due = [step for step in steps if step.key not in current]
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


def _write(name: bytes, value: bytes | None) -> Write:
    return Delete(key(name)) if value is None else Put(name, value)
