"""A unit in both formats, as it was at one revision of the store, and what is to be done. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from mooring.migrate.jxt.format import OldKeys, digest
from mooring.migrate.jxt.state import (
    NO_BASE,
    Base,
    Decision,
    Following,
    Side,
    SyncedState,
    decide,
    known_of,
)
from mooring.migrate.jxt.state import decide_after as _decide_after
from mooring.migrate.jxt.translation import Translation, same, translated
from mooring.model import JSON
from mooring.store.contract import Entry
from mooring.tenants.keys import CommonPart, TenantKeys
from mooring.tenants.model import UnreadableValue, decode
from mooring.tenants.parts import UnreadablePart, stored_parts
from mooring.tenants.secrets import Keyring


class View(msgspec.Struct, frozen=True):
    unit: int
    told: Translation
    """The old keys."""
    new: Mapping[str, JSON | UnreadablePart]
    revisions: Mapping[str, int]
    """When each new part was written."""
    known: SyncedState
    recorded: int
    """When the ledger's entry was written; 0: there is none."""

    @property
    def bases(self) -> Mapping[str, Base]:
        return self.known.bases

    @property
    def paths(self) -> list[str]:
        """Everything that can be spoken of."""
        every = {*self.told.parts, *self.new, *self.bases}
        return sorted(path for path in every if not self.told.hides(path))

    def sides(self, path: str) -> tuple[Side, Side]:
        old, new = self.told.parts.get(path), self.new.get(path)
        return (
            Side() if old is None else Side(digest(old.value), old.modified),
            Side() if new is None else Side(_digest(new), self.revisions[path]),
        )

    def same(self, path: str, ring: Keyring) -> bool:
        old, new = self.told.parts.get(path), self.new.get(path)
        if old is None or new is None or isinstance(new, UnreadablePart):
            return False
        return same(self.unit, path, old.value, new, ring)

    def level(self, path: str, ring: Keyring) -> bool:
        """Whether both sides mean the same by a part, or have nothing of it."""
        if path in self.told.parts or path in self.new:
            return self.same(path, ring)
        return not self.told.hides(path)

    def decide(self, path: str, ring: Keyring) -> Decision:
        if isinstance(self.new.get(path), UnreadablePart):
            return Decision()
        base = self.bases.get(path, NO_BASE)
        return decide(*self.sides(path), base, same=self.same(path, ring))

    def decide_after(self, path: str, ring: Keyring) -> Following:
        if isinstance(self.new.get(path), UnreadablePart):
            return Following()
        base = self.bases.get(path, NO_BASE)
        return _decide_after(*self.sides(path), base, same=self.same(path, ring))


def _digest(value: JSON | UnreadablePart) -> str:
    return value.text if isinstance(value, UnreadablePart) else digest(value)


def view(
    keys: TenantKeys,
    old_keys: OldKeys,
    unit: int,
    old: Iterable[Entry],
    new: Iterable[Entry],
    ledger: Entry | None,
) -> View:
    """`new` may hold keys of the generation before, which lie there."""
    entries = list(new)
    former = [entry for entry in entries if unit and keys.understand(entry.key) is None]
    told = translated(old_keys, unit, [*old, *former])
    if unit:
        there = stored_parts(keys, unit, entries)
        parts, revisions = there.parts, there.revisions
    else:
        parts, revisions = _common(keys, entries)
    recorded = ledger.modified if ledger is not None else 0
    return View(unit, told, parts, revisions, known_of(ledger), recorded)


def _common(
    keys: TenantKeys, entries: Iterable[Entry]
) -> tuple[dict[str, JSON | UnreadablePart], dict[str, int]]:
    parts: dict[str, JSON | UnreadablePart] = {}
    revisions: dict[str, int] = {}
    for entry in entries:
        place = keys.understand(entry.key)
        if isinstance(place, CommonPart):
            revisions[place.path] = entry.modified
            try:
                parts[place.path] = decode(place.path, entry.value)
            except UnreadableValue:
                parts[place.path] = UnreadablePart(entry.value)
    return parts, revisions
