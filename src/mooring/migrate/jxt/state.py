"""The state of a unit in both formats, and the ledger: the state of the migration in the store.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from mooring.errors import StoreError
from mooring.migrate.jxt.format import OldKeys, digest
from mooring.migrate.jxt.merge_rule import (
    NO_BASE,
    Base,
    MergeDecision,
    Side,
    decide,
    decide_after_cutover,
)
from mooring.migrate.jxt.translation import Translation, is_same, translate
from mooring.model import JSON
from mooring.store.contract import Delete, Entry, Put, Write, key, prefix
from mooring.tenants.keys import CommonPart, TenantKeys, is_id
from mooring.tenants.model import UnreadableValue, decode
from mooring.tenants.parts import UnreadablePart, stored_parts
from mooring.tenants.secrets import Keyring

Phase: TypeAlias = Literal["both", "cut over", "over"]
"""Both formats are authoritative; only the new one is; the old keys are being deleted."""


class CutoverMarker(msgspec.Struct, frozen=True):
    """Records that only the new keys are authoritative."""

    at: str
    """In UTC."""
    by: str
    revision: int
    """The revision of the store at which both formats were last compared."""
    deleting: str = ""
    """When the deletion of the old keys began."""


class CutoverState(msgspec.Struct, frozen=True):
    marker: CutoverMarker | None
    revision: int
    """When the marker was written; 0 if it does not exist."""

    @property
    def phase(self) -> Phase:
        if self.marker is None:
            return "both"
        return "over" if self.marker.deleting else "cut over"

    @property
    def compared_at(self) -> int:
        return 0 if self.marker is None else self.marker.revision


def parse_cutover(entry: Entry | None) -> CutoverState:
    """Raises `StoreError` for an unreadable marker, which stops the migration."""
    if entry is None:
        return CutoverState(None, 0)
    try:
        marker = msgspec.json.decode(entry.value, type=CutoverMarker)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{entry.key.decode()} says that the cut-over was made, but is unreadable: {error}; "
            "correct or delete it"
        ) from error
    return CutoverState(marker, entry.modified)


class _LedgerEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    parts: Mapping[str, Base]
    led: Mapping[str, str] = {}


class SyncedState(NamedTuple):
    """The ledger's entry for a unit."""

    bases: Mapping[str, Base] = {}
    indexes: Mapping[bytes, str] = {}
    """Old indexes that may refer to the unit, and the part of each. If both sides of a part change,
    the ledger alone knows its former indexes."""


class LedgerKeys:
    def __init__(self, keys: TenantKeys) -> None:
        self._root = f"{keys.namespace}/_migration/jxt/"
        self.all = prefix(self._root.encode())
        self.marker = f"{self._root}cutover".encode()

    def entry(self, unit: int) -> bytes:
        return f"{self._root}{unit or 'common'}".encode()

    def unit(self, name: bytes) -> int | None:
        """The unit of an entry's key; None for other keys."""
        last = name.removeprefix(self._root.encode()).decode(errors="replace")
        if last == "common":
            return 0
        return int(last) if is_id(last) else None

    def write(self, unit: int, state: SyncedState) -> Write:
        """The operation that sets a unit's entry, or deletes an empty one."""
        if not state.bases and not state.indexes:
            return Delete(key(self.entry(unit)))
        led = {name.decode(): path for name, path in sorted(state.indexes.items())}
        entry = _LedgerEntry(dict(sorted(state.bases.items())), led)
        return Put(self.entry(unit), msgspec.json.encode(entry))


def parse_ledger(entry: Entry | None) -> SyncedState:
    """An unreadable entry counts as missing: without bases, nothing is ever deleted."""
    if entry is None:
        return SyncedState()
    try:
        ledger = msgspec.json.decode(entry.value, type=_LedgerEntry)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return SyncedState()
    return SyncedState(ledger.parts, {name.encode(): path for name, path in ledger.led.items()})


class UnitState(msgspec.Struct, frozen=True):
    """A unit in both formats at one revision of the store."""

    unit: int
    old: Translation
    new: Mapping[str, JSON | UnreadablePart]
    revisions: Mapping[str, int]
    """When each new part was written."""
    synced: SyncedState
    ledger_revision: int
    """When the ledger's entry was written; 0 if it does not exist."""

    @property
    def paths(self) -> list[str]:
        """All parts with known old values."""
        every = {*self.old.parts, *self.new, *self.synced.bases}
        return sorted(path for path in every if not self.old.hides(path))

    def sides(self, path: str) -> tuple[Side, Side]:
        old, new = self.old.parts.get(path), self.new.get(path)
        return (
            Side() if old is None else Side(digest(old.value), old.modified),
            Side() if new is None else Side(_digest(new), self.revisions[path]),
        )

    def is_same(self, path: str, ring: Keyring) -> bool:
        old, new = self.old.parts.get(path), self.new.get(path)
        if old is None or new is None or isinstance(new, UnreadablePart):
            return False
        return is_same(self.unit, path, old.value, new, ring)

    def is_in_sync(self, path: str, ring: Keyring) -> bool:
        """Whether both sides have the same meaning, or neither has the part."""
        if path in self.old.parts or path in self.new:
            return self.is_same(path, ring)
        return not self.old.hides(path)

    def decide(self, path: str, ring: Keyring, phase: Phase = "both") -> MergeDecision:
        if isinstance(self.new.get(path), UnreadablePart):
            return MergeDecision()
        rule = decide if phase == "both" else decide_after_cutover
        base = self.synced.bases.get(path, NO_BASE)
        return rule(*self.sides(path), base, same=self.is_same(path, ring))


def _digest(value: JSON | UnreadablePart) -> str:
    return value.text if isinstance(value, UnreadablePart) else digest(value)


def unit_state(
    keys: TenantKeys,
    old_keys: OldKeys,
    unit: int,
    old: Iterable[Entry],
    new: Iterable[Entry],
    ledger: Entry | None,
) -> UnitState:
    """`new` may include keys of the previous format, which are among the new keys."""
    entries = list(new)
    previous = [entry for entry in entries if unit and keys.understand(entry.key) is None]
    translation = translate(old_keys, unit, [*old, *previous])
    if unit:
        stored = stored_parts(keys, unit, entries)
        parts, revisions = stored.parts, stored.revisions
    else:
        parts, revisions = _common_parts(keys, entries)
    ledger_revision = ledger.modified if ledger is not None else 0
    return UnitState(unit, translation, parts, revisions, parse_ledger(ledger), ledger_revision)


def _common_parts(
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
