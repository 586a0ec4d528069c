"""Turns changes of store entries into tenant snapshots. The result depends only on the final
entries, not on the order of their changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Any

import msgspec
from immutables import MapMutation

from mooring.messages.validation import rejection
from mooring.model import JSON, Time, rewrite_maps
from mooring.store.contract import Entry
from mooring.tasks import SlicedWork, run_now, slices
from mooring.tenants.keys import PLATFORM, SENTINEL, CommonPart, PartOf, TenantKeys
from mooring.tenants.model import (
    KINDS,
    SETTINGS,
    Extra,
    Part,
    PartKind,
    Resolver,
    StorageDirectory,
    Tenant,
    UnreadableValue,
    decode,
    parse_part,
    to_record,
)
from mooring.tenants.read.snapshot import ClaimConflict, TenantSnapshot
from mooring.tenants.secrets import Keyring

KeyChange = tuple[bytes, Entry | None]
TenantLookup = Callable[[int], Tenant | None]


class Changed(msgspec.Struct, frozen=True, gc=False):
    """A tenant changed. `before` is None for a new one, `after` for a removed one."""

    tenant: int
    kinds: frozenset[PartKind]
    """Which of its parts differ."""
    before: Tenant | None
    after: Tenant | None


class SnapshotUpdate(msgspec.Struct, frozen=True):
    """The effect of entry changes."""

    snapshot: TenantSnapshot
    changes: tuple[Changed, ...] = ()
    conflicts: tuple[ClaimConflict, ...] = ()
    problems: Mapping[str, str] = {}
    """New problems."""
    resolved: Collection[str] = ()
    """Keys that no longer have a problem."""

    def onto(self, snapshot: TenantSnapshot) -> SnapshotUpdate:
        """The update applied to a snapshot in which everything but the tenants may have changed."""
        problems = snapshot.problems.mutate()
        for key in self.resolved:
            problems.pop(key, None)
        problems.update(self.problems)
        changed = snapshot.with_tenants(self.snapshot)
        changed = msgspec.structs.replace(changed, problems=problems.finish())
        return msgspec.structs.replace(self, snapshot=changed)


class SnapshotParser:
    """Reads the entries below one namespace."""

    def __init__(self, keys: TenantKeys, ring: Keyring) -> None:
        self._keys, self._ring = keys, ring

    def apply(self, snapshot: TenantSnapshot, changes: Iterable[KeyChange]) -> SnapshotUpdate:
        """Apply changed entries; None: the entry was deleted."""
        return run_now(self.apply_in_slices(snapshot, [changes]))

    def apply_in_slices(
        self, snapshot: TenantSnapshot, changes: Iterable[Iterable[KeyChange]]
    ) -> SlicedWork[SnapshotUpdate]:
        """Like `apply`, for changes that are sliced already."""
        parts: dict[int, dict[str, Part | None]] = {}
        settings = _Settings(snapshot)
        problems = _Problems(snapshot)
        for piece in changes:
            for key, entry in piece:
                place = self._keys.understand(key)
                part = None if entry is None else self._parse(place, entry)
                problems.update(key, part)
                if isinstance(place, PartOf):
                    readable = None if isinstance(part, UnreadableValue) else part
                    parts.setdefault(place.tenant, {})[place.path] = readable  # type: ignore[assignment]
                elif isinstance(place, CommonPart):
                    settings.put(place.path, key, entry, part)
            yield

        def after(id: int) -> Tenant | None:
            tenant = snapshot.tenants.get(id, Tenant(id)).changed(parts[id].items())
            return None if tenant.empty else tenant

        events = yield from _changes(parts, snapshot.tenants.get, after)
        tenants = {event.tenant: event.after for event in events}
        changed, conflicts = yield from snapshot.changing(tenants)
        changed = msgspec.structs.replace(
            changed, problems=problems.all.finish(), **settings.finish()
        )
        return SnapshotUpdate(changed, events, conflicts, problems.new, problems.resolved)

    def rebuild(
        self, current: TenantSnapshot, entries: Mapping[bytes, Entry]
    ) -> SlicedWork[SnapshotUpdate]:
        """A new snapshot from all entries. Only the last valid settings are taken over from the
        current one; the changes are the differences from it."""
        kept: list[KeyChange] = [*current.good.items()]
        kept += [(key, None) for key in current.good if key not in entries]
        pieces: Iterable[Iterable[KeyChange]] = chain([kept], slices(entries.items()))
        update = yield from self.apply_in_slices(TenantSnapshot(), pieces)
        before, after = current.tenants, update.snapshot.tenants
        changes = yield from _changes({*before, *after}, before.get, after.get)
        return msgspec.structs.replace(
            update,
            changes=changes,
            conflicts=tuple(
                conflict for conflict in update.conflicts if not current.knows(conflict)
            ),
            problems={
                key: reason
                for key, reason in update.problems.items()
                if current.problems.get(key) != reason
            },
            resolved=[key for key in current.problems if key not in update.problems],
        )

    def _parse(self, place: object, entry: Entry) -> object:
        try:
            if isinstance(place, PartOf):
                value = decode(place.path, entry.value)
                if entry.value.count(b"{") + entry.value.count(b"[") > 1:
                    value = _read_only(value)
                return parse_part(place.tenant, place.path, value, self._ring)
            return _parse_common(place.path, entry) if isinstance(place, CommonPart) else None
        except UnreadableValue as error:
            return error
        except Exception:  # noqa: BLE001 - one bad value must not hide the good ones
            return UnreadableValue("it cannot be parsed")


class _Problems:
    def __init__(self, snapshot: TenantSnapshot) -> None:
        self.all: MapMutation[str, str] = snapshot.problems.mutate()
        self.new: dict[str, str] = {}
        self.resolved: list[str] = []

    def update(self, key: bytes, part: object) -> None:
        if isinstance(part, UnreadableValue):
            name = key.decode()
            if self.all.get(name) != str(part):
                self.all[name] = self.new[name] = str(part)
        elif self.all and self.all.pop(name := key.decode(errors="replace"), None) is not None:
            self.resolved.append(name)


def _changes(
    ids: Collection[int], before: TenantLookup, after: TenantLookup
) -> SlicedWork[tuple[Changed, ...]]:
    """The tenants among these that differ, ordered by id."""
    changes: list[Changed] = []
    for piece in slices(sorted(ids)):
        for id in piece:
            old, new = before(id), after(id)
            one, other = old or _EMPTY, new or _EMPTY
            kinds = frozenset(
                kind
                for kind in KINDS
                if not _alike(getattr(one, _FIELDS[kind]), getattr(other, _FIELDS[kind]))
            )
            if kinds:
                changes.append(Changed(id, kinds, old, new))
        yield
    return tuple(changes)


def _alike(one: object, other: object) -> bool:
    """Whether a reader could not tell them apart: in Python `1`, `1.0` and `true` are equal. What
    is nested too deeply to compare counts as changed."""
    try:
        return one is other or (one == other and _same_types(one, other))
    except RecursionError:
        return False


def _same_types(one: Any, other: Any) -> bool:
    """Whether equal values also have the same types, at every depth."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return all(_same_types(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return all(map(_same_types, one, other))
    names = one.__struct_fields__ if isinstance(one, msgspec.Struct) else ()
    return all(_same_types(getattr(one, name), getattr(other, name)) for name in names)


_EMPTY = Tenant(0)
_FIELDS: Mapping[PartKind, str] = {
    kind: "databases" if kind == "database" else kind for kind in KINDS
}


def _read_only(value: JSON) -> JSON:
    """The value with read-only maps, because readers share them. Their representation masks
    secrets, which unknown fields may hold."""
    return rewrite_maps(value, Extra)


def _parse_common(path: str, entry: Entry) -> object:
    value = decode(path, entry.value)
    if path.startswith(PLATFORM):
        return _PlatformValue(_read_only(value))
    assert isinstance(value, dict)
    if path in SETTINGS:
        return to_record(SETTINGS[path], value)
    try:
        return msgspec.convert(value.get("updatedAt"), Time, strict=False)
    except msgspec.ValidationError as error:
        raise UnreadableValue(str(rejection(error, "updatedAt"))) from None


class _PlatformValue(msgspec.Struct, frozen=True):
    """Any JSON, including null."""

    value: JSON


class _Settings:
    """Everything that does not belong to a tenant."""

    def __init__(self, snapshot: TenantSnapshot) -> None:
        self._platform, self._good = snapshot.platform.mutate(), snapshot.good.mutate()
        self._fields: dict[str, object] = {}

    def put(self, path: str, key: bytes, entry: Entry | None, part: object) -> None:
        if path in _DEFAULTS:
            self._configure(path, key, entry, part)
        elif path == SENTINEL:
            self._fields["health"] = None if isinstance(part, UnreadableValue) else part
        elif isinstance(part, _PlatformValue):
            self._platform[path.removeprefix(PLATFORM)] = part.value
        else:
            self._platform.pop(path.removeprefix(PLATFORM), None)

    def _configure(self, path: str, key: bytes, entry: Entry | None, part: object) -> None:
        """An unreadable value does not count as missing: a default may admit requests that the
        configured value rejects."""
        field, default = _DEFAULTS[path]
        if entry is None:
            self._fields[field] = default
            self._good.pop(key, None)
        elif not isinstance(part, UnreadableValue):
            self._fields[field] = part
            self._good[key] = entry
        elif key not in self._good:
            self._fields[field] = None

    def finish(self) -> dict[str, object]:
        return self._fields | {"platform": self._platform.finish(), "good": self._good.finish()}


_DEFAULTS: Mapping[str, tuple[str, Resolver | StorageDirectory]] = {
    "common/resolver": ("resolver", Resolver()),
    "common/storage-directory": ("storage_directory", StorageDirectory()),
}
"""The field of a snapshot, and its value if it is not configured."""
