"""Reads both formats at one revision of the store: all units, or one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from mooring.errors import Compacted
from mooring.migrate.jxt.format import OldIndex, OldIndexEntry, OldKeys, OldPart
from mooring.migrate.jxt.state import (
    CutoverState,
    LedgerKeys,
    UnitState,
    parse_cutover,
    unit_state,
)
from mooring.store.contract import Entry, Query, Snapshot, Store, key
from mooring.tenants.keys import CommonPart, TenantKeys
from mooring.tenants.parts import holder

_TRIES = 3
_BATCH = 100  # units that are parsed before other tasks run


class MigrationSnapshot(msgspec.Struct, frozen=True):
    revision: int
    cutover: CutoverState
    units: dict[int, UnitState]
    old_indexes: dict[int, list[OldIndexEntry]]
    """By the tenant that they refer to."""
    foreign: list[Entry]
    """Keys among the old ones that are not in the old format."""
    new_indexes: dict[bytes, Entry]
    """By key."""


class UnitReader:
    def __init__(self, store: Store, keys: TenantKeys) -> None:
        self._store = store
        self.keys, self.old_keys, self.ledger = keys, OldKeys(keys), LedgerKeys(keys)
        self._common = (keys.common, keys.platform, keys.health)

    def unit_of(self, name: bytes) -> int | None:
        """The unit of a key, old or new."""
        place = self.old_keys.parse(name)
        if isinstance(place, OldPart):
            return place.unit
        new_place = self.keys.understand(name)
        return 0 if isinstance(new_place, CommonPart) else self.keys.tenant(name) or None

    async def unit(self, unit: int) -> tuple[UnitState, CutoverState]:
        new = (self.keys.parts(unit),) if unit else self._common
        old = self.old_keys.ranges(unit)
        ranges = [key(self.ledger.entry(unit)), key(self.ledger.marker), *old, *new]
        commit = await self._store.commit(read=[Query(range) for range in ranges])
        ledger, marker, *rest = commit.reads
        old_entries, new_entries = _entries(rest[: len(old)]), _entries(rest[len(old) :])
        state = unit_state(self.keys, self.old_keys, unit, old_entries, new_entries, ledger.first)
        return state, parse_cutover(marker.first)

    async def snapshot(self) -> MigrationSnapshot:
        """All units, at one revision."""
        ranges = (self.ledger.all, self.keys.indexes, self.keys.all, *self._common)
        for _ in range(_TRIES):
            old = await self._store.read(self.old_keys.all)
            try:
                rest = await asyncio.gather(
                    *(self._store.read(range, at=old.revision) for range in ranges)
                )
            except Compacted:
                continue
            ledger, indexes, *new = rest
            return await self._parse(old, ledger, indexes, _entries(new))
        raise Compacted(old.revision)

    async def _parse(
        self, old: Snapshot, ledger: Snapshot, indexes: Snapshot, new: Iterable[Entry]
    ) -> MigrationSnapshot:
        old_parts: dict[int, list[Entry]] = {}
        new_parts: dict[int, list[Entry]] = {}
        old_indexes: dict[int, list[OldIndexEntry]] = {}
        foreign: list[Entry] = []
        for entry in old.entries:
            place = self.old_keys.parse(entry.key)
            if isinstance(place, OldPart):
                old_parts.setdefault(place.unit, []).append(entry)
            elif isinstance(place, OldIndex):
                tenant = holder(entry.value)
                index = OldIndexEntry(place, entry.key, entry.modified, tenant)
                old_indexes.setdefault(tenant, []).append(index)
            else:
                foreign.append(entry)
        for entry in new:
            if (unit := self.unit_of(entry.key)) is not None:
                new_parts.setdefault(unit, []).append(entry)
        marker = next((one for one in ledger.entries if one.key == self.ledger.marker), None)
        units = await self._units(old_parts, new_parts, ledger.entries)
        new_indexes = {entry.key: entry for entry in indexes.entries}
        cutover = parse_cutover(marker)
        return MigrationSnapshot(old.revision, cutover, units, old_indexes, foreign, new_indexes)

    async def _units(
        self,
        old: Mapping[int, Iterable[Entry]],
        new: Mapping[int, Iterable[Entry]],
        ledger: Iterable[Entry],
    ) -> dict[int, UnitState]:
        recorded = {self.ledger.unit(entry.key): entry for entry in ledger}
        units: dict[int, UnitState] = {}
        for unit in sorted({*old, *new, *(unit for unit in recorded if unit is not None)}):
            parts = old.get(unit, ()), new.get(unit, ())
            units[unit] = unit_state(self.keys, self.old_keys, unit, *parts, recorded.get(unit))
            if len(units) % _BATCH == 0:
                await asyncio.sleep(0)
        return units


def _entries(snapshots: Iterable[Snapshot]) -> list[Entry]:
    return [entry for snapshot in snapshots for entry in snapshot.entries]
