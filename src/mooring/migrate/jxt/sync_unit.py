"""Brings both formats of one tenant in step, commit by commit, and repairs new indexes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

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
from mooring.migrate.jxt.format import SENTINEL, digest
from mooring.migrate.jxt.old_indexes import ROOM, OldIndexes
from mooring.migrate.jxt.plan import Lots, PartPlan, place_of
from mooring.migrate.jxt.reader import Mark, Reading
from mooring.migrate.jxt.state import Base, Move, Phase, SyncedState
from mooring.migrate.jxt.translation import locked, rewritten, translated
from mooring.migrate.jxt.unit import View
from mooring.model import JSON
from mooring.store.contract import Check, Delete, Entry, Put, Query, Store, Write, key, unchanged
from mooring.tasks import Backoff
from mooring.tenants.keys import TenantKeys
from mooring.tenants.model import encode
from mooring.tenants.parts import Parts, claims, stored_parts
from mooring.tenants.publish.merge import resealed
from mooring.tenants.publish.plan import conflicting_claims, unnormalized_keys
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.secrets import Keyring

log = logging.getLogger(__name__)

_TRIES = 100  # lost races in a row
_PUZZLED = 5  # times that something is taken, and it cannot be found by whom
_TOGETHER = 40
"""Parts that are moved in one commit where nobody else decides that."""


class Change(NamedTuple):
    path: str
    move: Move
    conflict: bool = False
    """The other side was changed, too, and gave way."""


class SyncResult(msgspec.Struct):
    """What was done for a unit."""

    unit: int
    changes: list[Change] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)
    """Why something was not."""
    strays: list[str] = msgspec.field(default_factory=list)
    """Parts that somebody still writes into the old keys, after the cut-over."""
    mended: list[str] = msgspec.field(default_factory=list)
    """New indexes that did not lead where they should."""
    phase: Phase = "both"


class _Moved(Exception):
    """Something was written meanwhile: what was decided no longer holds."""


class UnitSync:
    def __init__(self, store: Store, reading: Reading, publisher: Publisher, ring: Keyring) -> None:
        self._store, self._reading, self._publisher = store, reading, publisher
        self._ring, self._signposts = ring, OldIndexes(store, reading, ring)
        self._keys, self._old, self._ledger = reading.keys, reading.old, reading.ledger

    def due(self, here: View) -> bool:
        """Whether a copy has anything to do for a unit that was seen so."""
        moves = (here.decide(path, self._ring).move for path in here.paths)
        return any("new" in move for move in moves) or bool(self._recorded(here, self._bases(here)))

    async def settle(self, unit: int, *, back: bool, lost: Lots | None = None) -> SyncResult:
        """Make a unit level. `back`: also the old keys follow the new ones, and they alone after
        the cut-over; otherwise that ends it. `lost`: what must not be written."""
        done, backoff = SyncResult(unit), Backoff()
        mine = (lost or {}).get(unit, {})
        taken = {path: str(rival) for path, rival in mine.items()}
        puzzled = 0
        for _ in range(_TRIES):
            here, mark = await self._reading.unit(unit)
            done.phase = mark.phase
            if mark.phase == "over" or (mark.phase == "cut over" and not back):
                return done
            try:
                more = await self._step(here, mark, done, back, taken)
                if not more and not (back and await self._mend_index(here, mark, done)):
                    return done
                backoff.reset()
                continue
            except Taken as error:
                found = await self._taken(here, taken.keys())
                taken |= found
                puzzled += not found
                if puzzled > _PUZZLED:
                    done.problems.append(str(error))
                    return done
            except (TooLarge, InvalidRequest) as error:
                done.problems.append(str(error))
                return done
            except (_Moved, Conflict, OutcomeUnknown) as error:
                log.debug("unit %d: looks again: %s", unit, describe(error))
            await asyncio.sleep(backoff.next())
        done.problems.append(f"others changed it {_TRIES} times meanwhile: try again")
        return done

    async def _step(
        self, here: View, mark: Mark, done: SyncResult, back: bool, taken: Mapping[str, str]
    ) -> bool:
        """One commit towards it; whether there was anything to do."""
        if mark.phase == "both":
            moves = self._moves(here)
        else:
            after = {path: here.decide_after(path, self._ring) for path in here.paths}
            moves = {path: Change(path, each.move) for path, each in after.items() if each.move}
            done.strays = [path for path, each in after.items() if each.stray and not each.move]
        to_new = [each for each in moves.values() if each.move in ("to new", "out of new")]
        unwritten = [f"{each.path}: {taken[each.path]}" for each in to_new if each.path in taken]
        to_new = [each for each in to_new if each.path not in taken]
        if to_new:
            done.changes += await self._to_new(here, mark, to_new)
            return True
        to_old = [each for each in moves.values() if back and each.move in ("to old", "out of old")]
        kept = self._locked(here, to_old)
        unwritten += [f"{path}: {why}" for path, why in kept.items()]
        if to_old := [each for each in to_old if each.path not in kept]:
            done.changes += await self._to_old(here, mark, to_old[:_TOGETHER])
            return True
        if writes := self._recorded(here, self._bases(here)):
            await self._store.commit(*writes, require=self._checks(here, mark))
            return True
        done.problems = unwritten
        return False

    def _locked(self, here: View, moves: Collection[Change]) -> dict[str, str]:
        """Which parts cannot go into the old keys, and why."""
        found = {
            each.path: locked(self._old, here.told, each.path, here.new[each.path], self._ring)  # type: ignore[arg-type]
            for each in moves
            if each.move == "to old"
        }
        return {path: why for path, why in found.items() if why}

    async def _mend_index(self, here: View, mark: Mark, done: SyncResult) -> bool:
        """What leads to the unit among the old keys, where it does not yet, or should no longer;
        whether there was anything to do."""
        found = await self._signposts.mended(here, mark)
        if found.writes or found.gone:
            known = self._signposts.known(here, here.bases, found.gone)
            await self._lead(here, mark, found.writes, found.checks, known)
            return True
        done.problems += found.problems
        return False

    async def _lead(
        self,
        here: View,
        mark: Mark,
        writes: Sequence[Write],
        checks: Sequence[Check],
        known: SyncedState,
    ) -> None:
        """Write indexes alone. The ledger's entry is written in any case: who decided before that
        must look again, and every bridge does."""
        await self._store.commit(
            *writes,
            self._ledger.written(here.unit, known),
            require=[*checks, *self._checks(here, mark)],
        )

    def _moves(self, here: View) -> dict[str, Change]:
        decided = {path: here.decide(path, self._ring) for path in here.paths}
        return {
            path: Change(path, each.move, each.conflict and path != SENTINEL)
            for path, each in decided.items()
            if each.move
        }

    def _bases(self, here: View) -> dict[str, Base]:
        """The ledger, with what turned out to be level."""
        bases = dict(here.bases)
        for path in here.paths:
            old, new = here.sides(path)
            if not old.digest and not new.digest:
                bases.pop(path, None)
            elif here.same(path, self._ring):
                bases[path] = Base(old.digest, new.digest)
        return bases

    def _recorded(
        self, here: View, bases: Mapping[str, Base], gone: Collection[bytes] = ()
    ) -> list[Write]:
        known = self._signposts.known(here, bases, gone)
        return [] if known == here.known else [self._ledger.written(here.unit, known)]

    def _checks(self, here: View, mark: Mark) -> list[Check]:
        return [
            unchanged(self._ledger.of(here.unit), here.recorded),
            unchanged(self._ledger.marker, mark.revision),
        ]

    async def _to_new(self, here: View, mark: Mark, moves: list[Change]) -> list[Change]:
        if not here.unit:
            moves = moves[:_TOGETHER]
        wanted = {each.path: self._wanted(here, each) for each in moves}
        bases = self._bases(here)
        for path, value in wanted.items():
            bases.pop(path, None)
            if value is not None:
                bases[path] = Base(here.sides(path)[0].digest, digest(value))
        writes, checks = self._recorded(here, bases), self._checks(here, mark)
        if not here.unit:
            await self._store.commit(
                *(self._common(path, value) for path, value in wanted.items()),
                *writes,
                require=[
                    *(
                        unchanged(place_of(self._keys, 0, path), here.revisions.get(path, 0))
                        for path in wanted
                    ),
                    *checks,
                ],
            )
            return moves
        asked = 0

        def change(there: Parts) -> Parts:
            nonlocal asked
            asked += 1
            if asked > 1 or there != here.new:
                raise _Moved
            parts = {**there, **wanted}
            return {path: value for path, value in parts.items() if value is not None}

        await self._publisher.change(
            here.unit,
            change,
            action="migrate",
            note="from the old keys",
            also=lambda _: (writes, checks),
        )
        return moves

    def _wanted(self, here: View, change: Change) -> JSON:
        if change.move == "out of new":
            return None
        value = here.told.parts[change.path].value
        if here.unit:
            with suppress(Undecipherable):
                return resealed(change.path, value, self._ring) or value
        return value

    def _common(self, path: str, value: JSON) -> Write:
        name = place_of(self._keys, 0, path)
        return Delete(key(name)) if value is None else Put(name, encode(path, value))

    async def _taken(self, here: View, known: Collection[str]) -> dict[str, str]:
        """Which parts lay claim to what is another tenant's at present."""
        parts = dict(here.new)
        for each in self._moves(here).values():
            if each.move == "to new" and each.path not in known:
                parts[each.path] = here.told.parts[each.path].value
        wanted = claims(self._keys, here.unit, parts)
        index = await self._signposts.entries({*wanted, *unnormalized_keys(self._keys, parts)})
        return {
            claim.path: f"{claim} is tenant {other}'s"
            for claim, _, other in conflicting_claims(here.unit, wanted, self._keys, index)
            if here.new.get(claim.path) != parts[claim.path]
        }

    async def _to_old(self, here: View, mark: Mark, moves: list[Change]) -> list[Change]:
        told = here.told
        wanted: dict[str, JSON] = {}
        for each in moves:
            value = here.new.get(each.path)
            wanted[each.path] = value if each.move == "to old" else None  # type: ignore[assignment]
        changed = rewritten(self._old, told, wanted, self._ring)
        raw = {**told.raw, **changed}
        after = translated(
            self._old,
            here.unit,
            [Entry(name, value, 0, 0, 0) for name, value in raw.items() if value is not None],
        )
        bases = self._bases(here)
        for path in wanted:
            bases.pop(path, None)
            if path in after.parts and path in here.new:
                bases[path] = Base(digest(after.parts[path].value), here.sides(path)[1].digest)
        writes = [_write(name, value) for name, value in changed.items()]
        checks = [unchanged(name, _written(here, name)) for name in changed]
        before = {path: part.value for path, part in told.parts.items()}
        parts = {path: part.value for path, part in after.parts.items()}
        meta = here.new.get("meta")
        if mark.phase != "both" and isinstance(meta, dict):
            parts["meta"] = meta  # whatever became of it among the old keys
        leading = await self._signposts.moved(here.unit, before, parts)
        index, guards = leading.writes, leading.checks
        if len(writes) + len(index) > ROOM:
            # What leads to the parts comes before them: who is stopped in between finds the parts
            # not yet written, and goes on; or the ledger knows what to take away again.
            known = SyncedState(here.bases, self._signposts.known(here, bases).led)
            await self._lead(here, mark, index[:ROOM], guards[:ROOM], known)
            return []
        await self._store.commit(
            *writes,
            *index,
            *self._recorded(here, bases, leading.gone),
            require=[*checks, *guards, *self._checks(here, mark)],
        )
        return moves


def _write(name: bytes, value: bytes | None) -> Write:
    return Delete(key(name)) if value is None else Put(name, value)


def _written(here: View, name: bytes) -> int:
    finding = here.told.findings.get(name)
    return finding.modified if finding is not None else 0


_INDEXES_PER_COMMIT = 50
"""Keys that are deleted in one commit."""


class NewIndexes:
    def __init__(self, store: Store, keys: TenantKeys, publisher: Publisher) -> None:
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
            for first in range(0, len(astray), _INDEXES_PER_COMMIT):
                part = astray[first : first + _INDEXES_PER_COMMIT]
                done.mended += await self._take_away(unit, part)
        except (TenantError, TooLarge, Conflict, OutcomeUnknown) as error:
            done.problems.append(str(error))
        return done

    async def _take_away(self, unit: int, steps: Sequence[PartPlan]) -> list[str]:
        """Unless the tenant lays claim to it by now, or is published meanwhile."""
        head = self._keys.history_head(unit)
        found = await self._store.commit(read=[Query(self._keys.parts(unit)), Query(key(head))])
        parts, last = found.reads
        there = claims(self._keys, unit, stored_parts(self._keys, unit, parts.entries).parts)
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
