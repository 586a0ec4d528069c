"""The old indexes of a unit, kept as its old parts say.

They go with the parts, in the same commit, as far as they can. A name that passes from one tenant
to another must wait until that one has let go of it; and where both sides change a part, neither
says any longer what it was. So the ledger remembers what may lead to a unit, and no index is
written without that. Once the parts are level, what is missing is written, and what leads to names
that the unit no longer has is taken away, again until nothing is. What the ledger does not know
stays: others write indexes, too, and may do so before the parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from mooring.migrate.jxt.format import OldKeys
from mooring.migrate.jxt.reader import Mark, Reading
from mooring.migrate.jxt.state import Base, SyncedState
from mooring.migrate.jxt.unit import View
from mooring.model import JSON
from mooring.store.contract import Check, Delete, Entry, Put, Query, Store, Write, key, unchanged
from mooring.tenants.keys import TenantKeys
from mooring.tenants.parts import Claim, claims, holder
from mooring.tenants.secrets import Keyring


class Led(msgspec.Struct):
    writes: list[Write] = msgspec.field(default_factory=list)
    checks: list[Check] = msgspec.field(default_factory=list)
    """One for each write."""
    gone: set[bytes] = msgspec.field(default_factory=set)
    """What leads to the tenant no longer once they are done."""


def places(
    keys: TenantKeys, old_keys: OldKeys, unit: int, parts: Mapping[str, object]
) -> dict[bytes, Claim]:
    """The old indexes that lead to a tenant with these parts."""
    found = claims(keys, unit, parts).values()
    return {old_keys.index(claim.kind, claim.name): claim for claim in found}


def spelled(
    old_keys: OldKeys, has: Mapping[bytes, Claim], parts: Mapping[str, object]
) -> dict[bytes, list[bytes]]:
    """Wherever else the indexes of a tenant with these parts may have been written."""
    meta = parts.get("meta")
    code = str(meta.get("code") or "") if isinstance(meta, dict) else ""
    return {name: old_keys.spellings(each.kind, each.name, code) for name, each in has.items()}


def led(
    unit: int,
    had: Mapping[bytes, Claim],
    has: Mapping[bytes, Claim],
    there: Mapping[bytes, Entry],
) -> Led:
    """What makes the indexes that lead to what a tenant `had` lead to what it `has`. What is as it
    was is left alone, and so is whatever leads to another tenant."""
    found = Led(gone=had.keys() - has.keys())
    for name in sorted({*had, *has}):
        entry, claim = there.get(name), has.get(name)
        other = holder(entry.value) if entry is not None else 0
        if claim is None:
            if entry is None or other != unit:
                continue
            found.writes.append(Delete(key(name)))
        else:
            former = had.get(name)
            if former is not None and former.value == claim.value:
                continue
            if entry is not None and entry.value == claim.value:
                continue
            if other not in (0, unit):
                continue  # it may be on its way to another name: see `mislaid`
            found.writes.append(Put(name, claim.value))
        found.checks.append(unchanged(name, entry.modified if entry is not None else 0))
    return found


class Mislaid(msgspec.Struct):
    """How old indexes stand to what a tenant has."""

    missing: dict[bytes, Claim] = msgspec.field(default_factory=dict)
    """Nothing leads there."""
    elsewhere: dict[bytes, tuple[Claim, int]] = msgspec.field(default_factory=dict)
    """Something does, but to another tenant."""


def mislaid(
    unit: int,
    has: Mapping[bytes, Claim],
    spellings: Mapping[bytes, Collection[bytes]],
    there: Mapping[bytes, Entry],
) -> Mislaid:
    """What of the indexes of a tenant is not as it should be. What leads to it is right, however it
    is spelled and whatever else it says; what cannot be understood is left alone."""
    found = Mislaid()
    leads = {name: holder(entry.value) for name, entry in there.items()}
    for name, claim in has.items():
        other = leads.get(name)
        if any(leads.get(each) == unit for each in (name, *spellings[name])):
            continue
        if other is None:
            found.missing[name] = claim
        elif other:
            found.elsewhere[name] = claim, other
    return found


_TOGETHER = 40
"""Indexes that are mended in one commit."""
ROOM = 100
"""Operations of a commit, beside those of the ledger."""


class Mended(msgspec.Struct):
    """What has to be written, with the checks for it."""

    writes: list[Write] = msgspec.field(default_factory=list)
    checks: list[Check] = msgspec.field(default_factory=list)
    gone: set[bytes] = msgspec.field(default_factory=set)
    """What leads to the unit no longer then."""
    problems: list[str] = msgspec.field(default_factory=list)


class OldIndexes:
    def __init__(self, store: Store, reading: Reading, ring: Keyring) -> None:
        self._store, self._reading, self._ring = store, reading, ring

    async def moved(self, unit: int, before: Mapping[str, JSON], after: Mapping[str, JSON]) -> Led:
        """What goes with a change of the old parts."""
        if not unit:
            return Led()
        had, has = self._places(unit, before), self._places(unit, after)
        return led(unit, had, has, await self.entries({*had, *has}))

    def known(
        self, here: View, bases: Mapping[str, Base], gone: Collection[bytes] = ()
    ) -> SyncedState:
        """What the ledger is to say of a unit with these bases, of which some indexes are gone. Of
        one of which nothing ever was level, nothing is remembered."""
        led = {**here.known.led, **(self._may_lead(here) if bases or here.bases else {})}
        return SyncedState(bases, {name: path for name, path in led.items() if name not in gone})

    def _may_lead(self, here: View) -> dict[bytes, str]:
        """Where something may lead to a unit by either of its formats, however it is spelled, and
        by which part."""
        found: dict[bytes, str] = {}
        for parts in (here.new, _told(here)) if here.unit else ():
            has = self._places(here.unit, parts)
            for name, others in spelled(self._reading.old, has, parts).items():
                found |= dict.fromkeys((name, *others), has[name].path)
        return found

    def claimed(self, here: View) -> dict[bytes, Claim]:
        """Where something may lead to a unit, by either of its formats."""
        if not here.unit:
            return {}
        return {**self._places(here.unit, here.new), **self._places(here.unit, _told(here))}

    async def mended(self, here: View, mark: Mark) -> Mended:
        """What else must be written for a unit whose parts are level."""
        if not here.unit:
            return Mended()
        has = self._level(here, mark)
        spellings = spelled(self._reading.old, has, here.new)
        surplus = self._surplus(here)
        names = {*has, *(name for each in spellings.values() for name in each), *surplus}
        there = await self.entries(names)
        found = mislaid(here.unit, has, spellings, there)
        done = Mended(gone=set(surplus))
        for name in surplus:
            if name in there and holder(there[name].value) == here.unit:
                done.writes.append(Delete(key(name)))
                done.checks.append(unchanged(name, there[name].modified))
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

    def _surplus(self, here: View) -> list[bytes]:
        """Where nothing has to lead to a unit any more: it no longer has what is called so."""
        kept = self._may_lead(here)
        found = [
            name
            for name, path in here.known.led.items()
            if name not in kept and here.level(path, self._ring)
        ]
        return sorted(found)[:_TOGETHER]

    def _level(self, here: View, mark: Mark) -> dict[bytes, Claim]:
        """Where something has to lead to a unit."""
        old = _told(here)
        if mark.phase != "both" and isinstance(here.new.get("meta"), dict):
            old["meta"] = here.new["meta"]  # whatever became of it among the old keys
        return {
            name: claim
            for name, claim in self._places(here.unit, old).items()
            if here.same(claim.path, self._ring)
        }

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


def _told(here: View) -> dict[str, object]:
    """The parts as the old keys have them."""
    return {path: part.value for path, part in here.told.parts.items()}


def _modified(there: Mapping[bytes, Entry], name: bytes) -> int:
    entry = there.get(name)
    return 0 if entry is None else entry.modified
