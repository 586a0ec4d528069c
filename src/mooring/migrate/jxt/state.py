"""The state of a migration in the store, and the rule which of two formats wins for one part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from mooring.errors import StoreError
from mooring.store.contract import Delete, Entry, Put, Write, key, prefix
from mooring.tenants.keys import TenantKeys, is_id

Move: TypeAlias = Literal["", "to new", "to old", "out of new", "out of old"]
"""What is to be done with a part; empty: nothing."""


class Base(NamedTuple):
    """What both sides held when they were level: digests, empty for nothing."""

    old: str
    new: str


NO_BASE = Base("", "")
"""They never were."""


class Side(NamedTuple):
    digest: str = ""
    """Empty: it is not there."""
    revision: int = 0
    """When it was written."""


class Decision(NamedTuple):
    move: Move = ""
    conflict: bool = False
    """Both sides changed, and one of them gives way."""


def decide(old: Side, new: Side, base: Base, *, same: bool) -> Decision:
    """What makes both sides level. `same`: they mean the same."""
    if same or old.digest == new.digest == "":
        return Decision()
    old_changed, new_changed = old.digest != base.old, new.digest != base.new
    if not old_changed and not new_changed:
        return Decision()
    if not new_changed:
        return Decision("to new" if old.digest else "out of new")
    if not old_changed:
        return Decision("to old" if new.digest else "out of old")
    if not new.digest:
        return Decision("to new", conflict=True)
    if not old.digest:
        return Decision("to old", conflict=True)
    return Decision("to new" if old.revision > new.revision else "to old", conflict=True)


class Following(NamedTuple):
    """What is to be done once the new side counts alone."""

    move: Move = ""
    stray: bool = False
    """Somebody still writes the old side."""


def decide_after(old: Side, new: Side, base: Base, *, same: bool) -> Following:
    """The same after the cut-over: the old side follows, and is never followed. What somebody
    writes there all the same stays until the new side changes."""
    if same or old.digest == new.digest == "":
        return Following()
    stray = old.digest != base.old
    if new.digest == base.new:
        return Following("", stray)
    return Following("to old" if new.digest else "out of old", stray)


Phase: TypeAlias = Literal["both", "cut over", "over"]
"""Both formats count; the new alone; and the old one is being deleted."""


class Marker(msgspec.Struct, frozen=True):
    """That the new keys count alone."""

    at: str
    """When, in UTC."""
    by: str
    revision: int
    """Of the store, when both were last compared."""
    deleting: str = ""
    """When the deletion of the old keys began."""


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    parts: Mapping[str, Base]
    led: Mapping[str, str] = {}


class SyncedState(NamedTuple):
    """What the ledger says of a unit."""

    bases: Mapping[str, Base] = {}
    """What each part held when both sides were level."""
    led: Mapping[bytes, str] = {}
    """Old indexes that may lead to it, and from which part each of them comes. Where both sides
    change, nothing else says what they were."""


class LedgerKeys:
    def __init__(self, keys: TenantKeys) -> None:
        self._root = f"{keys.namespace}/_migration/jxt/"
        self.all = prefix(self._root.encode())
        self.marker = f"{self._root}cutover".encode()

    def of(self, unit: int) -> bytes:
        return f"{self._root}{unit or 'common'}".encode()

    def unit(self, name: bytes) -> int | None:
        """Whose entry a key is; None: it is none."""
        last = name.removeprefix(self._root.encode()).decode(errors="replace")
        if last == "common":
            return 0
        return int(last) if is_id(last) else None

    def written(self, unit: int, known: SyncedState) -> Write:
        """What puts an entry into the ledger, or takes it out."""
        if not known.bases and not known.led:
            return Delete(key(self.of(unit)))
        led = {name.decode(): path for name, path in sorted(known.led.items())}
        record = _Record(dict(sorted(known.bases.items())), led)
        return Put(self.of(unit), msgspec.json.encode(record))


def known_of(entry: Entry | None) -> SyncedState:
    """What an entry of the ledger says. Without it nothing is ever deleted, so that one that
    cannot be read is as none."""
    if entry is None:
        return SyncedState()
    try:
        record = msgspec.json.decode(entry.value, type=_Record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return SyncedState()
    return SyncedState(record.parts, {name.encode(): path for name, path in record.led.items()})


def marker_of(entry: Entry | None) -> Marker | None:
    """Raises `StoreError` where it is there and cannot be read: then nobody must go on."""
    if entry is None:
        return None
    try:
        return msgspec.json.decode(entry.value, type=Marker)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{entry.key.decode()} says that the cut-over was made, but not when: {error}; mend or "
            "delete it"
        ) from error


def phase_of(marker: Marker | None) -> Phase:
    if marker is None:
        return "both"
    return "over" if marker.deleting else "cut over"
