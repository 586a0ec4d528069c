"""The old indexes of a unit, kept as its old parts say.

They go with the parts, in the same commit. Where a name passes from one tenant to another, and that
one has not let go of it yet, it cannot: so whatever is missing is looked for once the parts are
level, and again until nothing is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from mooring.migrate.jxt.leading import Led, led, mislaid, places
from mooring.migrate.jxt.reading import Mark, Reading
from mooring.migrate.jxt.view import View
from mooring.model import JSON
from mooring.store.contract import Check, Delete, Entry, Put, Query, Store, Write, key, unchanged
from mooring.tenants.indexing import Claim, holder
from mooring.tenants.secrets import Keyring

_TOGETHER = 40
"""Indexes that are mended in one commit."""
ROOM = 100
"""Operations of a commit, beside those of the ledger."""


class Mended(msgspec.Struct):
    """What has to be written, with the checks for it."""

    writes: list[Write] = msgspec.field(default_factory=list)
    checks: list[Check] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)


class Signposts:
    def __init__(self, store: Store, reading: Reading, ring: Keyring) -> None:
        self._store, self._reading, self._ring = store, reading, ring

    async def moved(self, unit: int, before: Mapping[str, JSON], after: Mapping[str, JSON]) -> Led:
        """What goes with a change of the old parts."""
        if not unit:
            return Led()
        had, has = self._places(unit, before), self._places(unit, after)
        return led(unit, had, has, await self.entries({*had, *has}))

    async def left(self, here: View, paths: Collection[str]) -> Mended:
        """What leads among the old keys to what these parts have been until now, and the old ones
        are no longer: it must go before nobody knows of it any more."""
        if not here.unit:
            return Mended()
        was = {path: here.new[path] for path in paths if path in here.new}
        old = {path: part.value for path, part in here.told.parts.items()}
        has = self._places(here.unit, old)
        kept = {*has, *(name for each in self._spelled(here, has).values() for name in each)}
        there = await self.entries(self._places(here.unit, was).keys() - kept)
        gone = sorted(name for name, entry in there.items() if holder(entry.value) == here.unit)
        done = Mended()
        for name in gone[:_TOGETHER]:
            done.writes.append(Delete(key(name)))
            done.checks.append(unchanged(name, there[name].modified))
        return done

    def claimed(self, here: View) -> dict[bytes, Claim]:
        """Where something may lead to a unit, by either of its formats."""
        if not here.unit:
            return {}
        old = {path: part.value for path, part in here.told.parts.items()}
        return {**self._places(here.unit, here.new), **self._places(here.unit, old)}

    async def mended(self, here: View, mark: Mark) -> Mended:
        """What else must be written for a unit whose parts are level."""
        if not here.unit:
            return Mended()
        has = self._level(here, mark)
        spelled = self._spelled(here, has)
        there = await self.entries({*has, *(name for each in spelled.values() for name in each)})
        found = mislaid(here.unit, has, spelled, there)
        done = Mended()
        for name, (claim, other) in found.elsewhere.items():
            theirs, _ = await self._reading.unit(other)
            if name in self.claimed(theirs):
                done.problems.append(f"{claim} is tenant {other}'s among the old keys")
            else:
                found.missing[name] = claim
        for name, claim in list(found.missing.items())[:_TOGETHER]:
            part = here.told.parts[claim.path]
            done.writes.append(Put(name, claim.value))
            done.checks += [unchanged(name, _modified(there, name))]
            done.checks += [unchanged(part.key, part.modified)]
        done.checks = list(dict.fromkeys(done.checks))
        return done

    def _level(self, here: View, mark: Mark) -> dict[bytes, Claim]:
        """Where something has to lead to a unit."""
        old: dict[str, object] = {path: part.value for path, part in here.told.parts.items()}
        if mark.phase != "both" and isinstance(here.new.get("meta"), dict):
            old["meta"] = here.new["meta"]  # whatever became of it among the old keys
        return {
            name: claim
            for name, claim in self._places(here.unit, old).items()
            if here.same(claim.path, self._ring)
        }

    def _spelled(self, here: View, has: Mapping[bytes, Claim]) -> dict[bytes, list[bytes]]:
        """Wherever else these may have been written."""
        meta = here.new.get("meta")
        code = str(meta.get("code") or "") if isinstance(meta, dict) else ""
        spellings = self._reading.old.spellings
        return {name: spellings(each.kind, each.name, code) for name, each in has.items()}

    def _places(self, unit: int, parts: Mapping[str, object]) -> dict[bytes, Claim]:
        return places(self._reading.keys, self._reading.old, unit, parts)

    async def entries(self, names: Collection[bytes]) -> dict[bytes, Entry]:
        found: dict[bytes, Entry] = {}
        listed = sorted(names)
        for first in range(0, len(listed), ROOM):
            part = listed[first : first + ROOM]
            answer = await self._store.commit(read=[Query(key(name)) for name in part])
            found |= {each.first.key: each.first for each in answer.reads if each.first is not None}
        return found


def _modified(there: Mapping[bytes, Entry], name: bytes) -> int:
    entry = there.get(name)
    return 0 if entry is None else entry.modified
