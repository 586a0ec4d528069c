"""The old indexes: what must be written there when parts change on that side. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mooring.migrate.jxt.format import OldKeys
from mooring.model import JSON
from mooring.store.contract import Check, Delete, Entry, Put, Write, key, unchanged
from mooring.tenants.indexing import Claim, claims, holder
from mooring.tenants.keys import Keys


class Led(msgspec.Struct):
    writes: list[Write] = msgspec.field(default_factory=list)
    checks: list[Check] = msgspec.field(default_factory=list)
    """One for each write."""
    problems: list[str] = msgspec.field(default_factory=list)


def places(
    keys: Keys, old_keys: OldKeys, unit: int, parts: Mapping[str, JSON]
) -> dict[bytes, Claim]:
    """The old indexes that lead to a tenant with these parts."""
    found = claims(keys, unit, parts).values()
    return {old_keys.index(claim.kind, claim.name): claim for claim in found}


def led(
    unit: int,
    had: Mapping[bytes, Claim],
    has: Mapping[bytes, Claim],
    there: Mapping[bytes, Entry],
) -> Led:
    """What makes the indexes that lead to what a tenant `had` lead to what it `has`. What is as it
    was is left alone, and so is whatever leads to another tenant."""
    found = Led()
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
            if other not in (0, unit):
                found.problems.append(f"{claim} is tenant {other}'s among the old keys")
                continue
            found.writes.append(Put(name, claim.value))
        found.checks.append(unchanged(name, entry.modified if entry is not None else 0))
    return found
