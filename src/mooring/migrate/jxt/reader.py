"""Both formats, read at one revision of the store: all of it, or one unit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from mooring.errors import Compacted
from mooring.migrate.jxt.format import OldIndex, OldKeys, OldPart
from mooring.migrate.jxt.index_diff import Index
from mooring.migrate.jxt.plan import PartPlan
from mooring.migrate.jxt.state import LedgerKeys, Marker, Phase, marker_of, phase_of
from mooring.migrate.jxt.unit import View, view
from mooring.store.contract import Entry, Query, Range, Snapshot, Store, key
from mooring.tenants.keys import CommonPart, TenantKeys
from mooring.tenants.parts import holder

_TRIES = 3
_AT_ONCE = 100  # units understood before others get their turn


class Mark(msgspec.Struct, frozen=True):
    """How far the migration is, and when that was written."""

    marker: Marker | None
    revision: int

    @property
    def phase(self) -> Phase:
        return phase_of(self.marker)

    @property
    def cut(self) -> int:
        """The revision at which both were last compared; 0: there was no cut-over."""
        return 0 if self.marker is None else self.marker.revision


class Whole(msgspec.Struct, frozen=True):
    revision: int
    mark: Mark
    views: dict[int, View]
    """By unit; 0 for what concerns all."""
    index: dict[int, list[Index]]
    """The old indexes, by the tenant to whom they lead."""
    foreign: list[PartPlan]
    leading: dict[bytes, Entry]
    """The new indexes, by key."""


class Reading:
    def __init__(self, store: Store, keys: TenantKeys) -> None:
        self._store = store
        self.keys, self.old, self.ledger = keys, OldKeys(keys), LedgerKeys(keys)
        self._common = (keys.common, keys.platform, keys.health)

    def unit_of(self, name: bytes) -> int | None:
        """To which unit a key belongs, old or new; None: to none."""
        place = self.old.understand(name)
        if isinstance(place, OldPart):
            return place.unit
        known = self.keys.understand(name)
        return 0 if isinstance(known, CommonPart) else self.keys.tenant(name) or None

    async def unit(self, unit: int) -> tuple[View, Mark]:
        new = (self.keys.parts(unit),) if unit else self._common
        old = self.old.of(unit)
        ranges = [key(self.ledger.of(unit)), key(self.ledger.marker), *old, *new]
        done = await self._store.commit(read=[Query(range) for range in ranges])
        ledger, marker, *rest = done.reads
        here = view(
            self.keys,
            self.old,
            unit,
            _entries(rest[: len(old)]),
            _entries(rest[len(old) :]),
            ledger.first,
        )
        return here, _mark(marker.first)

    async def whole(self) -> Whole:
        """Everything, at one revision."""
        for _ in range(_TRIES):
            first = await self._store.read(self.old.all)
            try:
                rest = await asyncio.gather(
                    *(
                        self._read_at(range, first.revision)
                        for range in (
                            *(self.ledger.all, self.keys.indexes, self.keys.all),
                            *self._common,
                        )
                    )
                )
            except Compacted:
                continue
            ledger, leading, *new = rest
            return await self._sorted_out(first, ledger, leading, _entries(new))
        raise Compacted(first.revision)

    async def _read_at(self, range: Range, revision: int) -> Snapshot:
        return await self._store.read(range, at=revision)

    async def _sorted_out(
        self, old: Snapshot, ledger: Snapshot, leading: Snapshot, new: Iterable[Entry]
    ) -> Whole:
        olds: dict[int, list[Entry]] = {}
        news: dict[int, list[Entry]] = {}
        index: dict[int, list[Index]] = {}
        foreign: list[PartPlan] = []
        for entry in old.entries:
            place = self.old.understand(entry.key)
            if isinstance(place, OldPart):
                olds.setdefault(place.unit, []).append(entry)
            elif isinstance(place, OldIndex):
                tenant = holder(entry.value)
                found = Index(place, entry.key, entry.modified, tenant)
                index.setdefault(tenant, []).append(found)
            else:
                foreign.append(PartPlan(0, entry.key, "foreign", modified=entry.modified))
        for entry in new:
            if (unit := self.unit_of(entry.key)) is not None:
                news.setdefault(unit, []).append(entry)
        entries = {self.ledger.unit(entry.key): entry for entry in ledger.entries}
        marker = next((each for each in ledger.entries if each.key == self.ledger.marker), None)
        units = sorted({*olds, *news, *(unit for unit in entries if unit is not None)})
        views: dict[int, View] = {}
        for done, unit in enumerate(units, 1):
            there = olds.get(unit, ()), news.get(unit, ()), entries.get(unit)
            views[unit] = view(self.keys, self.old, unit, *there)
            if done % _AT_ONCE == 0:
                await asyncio.sleep(0)
        led = {entry.key: entry for entry in leading.entries}
        return Whole(old.revision, _mark(marker), views, index, foreign, led)


def _mark(entry: Entry | None) -> Mark:
    return Mark(marker_of(entry), 0 if entry is None else entry.modified)


def _entries(found: Iterable[Snapshot]) -> list[Entry]:
    return [entry for each in found for entry in each.entries]
