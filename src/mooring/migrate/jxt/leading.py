"""The old indexes: what must be written there when parts change on that side, and what is missing
there. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from mooring.migrate.jxt.format import OldKeys
from mooring.store.contract import Check, Delete, Entry, Put, Write, key, unchanged
from mooring.tenants.indexing import Claim, claims, holder
from mooring.tenants.keys import Keys


class Led(msgspec.Struct):
    writes: list[Write] = msgspec.field(default_factory=list)
    checks: list[Check] = msgspec.field(default_factory=list)
    """One for each write."""
    gone: set[bytes] = msgspec.field(default_factory=set)
    """What leads to the tenant no longer once they are done."""


def places(
    keys: Keys, old_keys: OldKeys, unit: int, parts: Mapping[str, object]
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
