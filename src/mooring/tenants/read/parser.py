"""What the keys and values of a store say of the tenants: changes of entries turned into a
snapshot. In whatever order they come, what is there at the end makes the same snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain

import msgspec
from immutables import MapMutation

from mooring.formatting import in_words
from mooring.model import JSON, Time
from mooring.store.contract import Entry
from mooring.tenants.cooperative import SlicedWork, run_now, slices
from mooring.tenants.keys import PLATFORM, CommonPart, PartOf, TenantKeys
from mooring.tenants.model import (
    KINDS,
    Extra,
    Kind,
    Part,
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


class Changed(msgspec.Struct, frozen=True, gc=False):
    """A tenant changed. `before` is None for a new one, `after` for one that is gone."""

    tenant: int
    kinds: frozenset[Kind]
    """What of it."""
    before: Tenant | None
    after: Tenant | None


class SnapshotUpdate(msgspec.Struct, frozen=True):
    """What changes of entries lead to."""

    snapshot: TenantSnapshot
    changes: tuple[Changed, ...] = ()
    contests: tuple[ClaimConflict, ...] = ()
    problems: Mapping[str, str] = {}
    """Those that are new."""
    mended: Collection[str] = ()
    """Keys that were a problem."""

    def onto(self, snapshot: TenantSnapshot) -> SnapshotUpdate:
        """The same where all but the tenants is as in another snapshot: it changed meanwhile."""
        problems = snapshot.problems.mutate()
        for key in self.mended:
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
        """Entries that changed together, each as it is now; None: it is gone."""
        return run_now(self.applying(snapshot, [changes]))

    def applying(
        self, snapshot: TenantSnapshot, changes: Iterable[Iterable[KeyChange]]
    ) -> SlicedWork[SnapshotUpdate]:
        """The same in slices, of changes that come in such."""
        parts: dict[int, dict[str, Part | None]] = {}
        settings = _Settings(snapshot)
        problems = _Problems(snapshot)
        for some in changes:
            for key, entry in some:
                where = self._keys.understand(key)
                part = None if entry is None else self._understood(where, entry)
                problems.note(key, part)
                if isinstance(where, PartOf):
                    readable = None if isinstance(part, UnreadableValue) else part
                    parts.setdefault(where.tenant, {})[where.path] = readable  # type: ignore[assignment]
                elif isinstance(where, CommonPart):
                    settings.put(where.path, key, entry, part)
            yield
        tenants, told = yield from _tenants(snapshot, parts)
        changed, contests = yield from snapshot.changing(tenants)
        changed = msgspec.structs.replace(
            changed, problems=problems.all.finish(), **settings.finish()
        )
        return SnapshotUpdate(changed, told, contests, problems.new, problems.mended)

    def anew(
        self, shown: TenantSnapshot, entries: Mapping[bytes, Entry]
    ) -> SlicedWork[SnapshotUpdate]:
        """All that there is, whatever was made of it before. Of what is shown only the last good
        values stay; what is told is what differs from it."""
        kept: list[KeyChange] = [*shown.good.items()]
        kept += [(key, None) for key in shown.good if key not in entries]
        pieces: Iterable[Iterable[KeyChange]] = chain([kept], slices(entries.items()))
        outcome = yield from self.applying(TenantSnapshot(), pieces)
        changes = yield from _differences(shown, outcome.snapshot)
        return msgspec.structs.replace(
            outcome,
            changes=changes,
            contests=tuple(each for each in outcome.contests if not shown.knows(each)),
            problems={
                key: why for key, why in outcome.problems.items() if shown.problems.get(key) != why
            },
            mended=[key for key in shown.problems if key not in outcome.problems],
        )

    def _understood(self, where: object, entry: Entry) -> object:
        try:
            if isinstance(where, PartOf):
                value = decode(where.path, entry.value)
                if entry.value.count(b"{") + entry.value.count(b"[") > 1:
                    value = _guarded(value)
                return parse_part(where.tenant, where.path, value, self._ring)
            return _common(where.path, entry) if isinstance(where, CommonPart) else None
        except UnreadableValue as error:
            return error
        except Exception:  # noqa: BLE001 - one bad value must not hide the good ones
            return UnreadableValue("it cannot be understood")


class _Problems:
    def __init__(self, snapshot: TenantSnapshot) -> None:
        self.all: MapMutation[str, str] = snapshot.problems.mutate()
        self.new: dict[str, str] = {}
        self.mended: list[str] = []

    def note(self, key: bytes, part: object) -> None:
        if isinstance(part, UnreadableValue):
            name = key.decode()
            if self.all.get(name) != str(part):
                self.all[name] = self.new[name] = str(part)
        elif self.all and self.all.pop(name := key.decode(errors="replace"), None) is not None:
            self.mended.append(name)


def _tenants(
    snapshot: TenantSnapshot, parts: Mapping[int, Mapping[str, Part | None]]
) -> SlicedWork[tuple[dict[int, Tenant | None], tuple[Changed, ...]]]:
    """The tenants that are not as they were, by their ids."""
    tenants: dict[int, Tenant | None] = {}
    told: list[Changed] = []
    for some in slices(sorted(parts)):
        for id in some:
            before = snapshot.tenants.get(id)
            made = (before or Tenant(id)).changed(parts[id].items())
            after = None if made.empty else made
            if kinds := _kinds(before, after):
                tenants[id] = after
                told.append(Changed(id, kinds, before, after))
        yield
    return tenants, tuple(told)


def _differences(shown: TenantSnapshot, after: TenantSnapshot) -> SlicedWork[tuple[Changed, ...]]:
    told: list[Changed] = []
    for some in slices(sorted({*shown.tenants, *after.tenants})):
        for id in some:
            pair = shown.tenants.get(id), after.tenants.get(id)
            if kinds := _kinds(*pair):
                told.append(Changed(id, kinds, *pair))
        yield
    return tuple(told)


def _kinds(before: Tenant | None, after: Tenant | None) -> frozenset[Kind]:
    """What two states of a tenant differ in."""
    if before is None and after is None:
        return frozenset()
    one, other = before or _NOBODY, after or _NOBODY
    return frozenset(
        kind
        for kind in KINDS
        if not _alike(getattr(one, _FIELDS[kind]), getattr(other, _FIELDS[kind]))
    )


def _alike(one: object, other: object) -> bool:
    """Whether a reader could not tell them apart: in Python `1`, `1.0` and `true` are equal. What
    is nested too deep to compare counts as changed."""
    try:
        return one is other or (one == other and _same(one, other))
    except RecursionError:
        return False


def _same(one: object, other: object) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        assert isinstance(other, dict)
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        assert isinstance(other, list | tuple)
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, msgspec.Struct):
        return all(
            _same(getattr(one, field), getattr(other, field)) for field in one.__struct_fields__
        )
    return one == other


_NOBODY = Tenant(0)
_FIELDS: Mapping[Kind, str] = {kind: "databases" if kind == "database" else kind for kind in KINDS}


def _guarded(value: JSON) -> JSON:
    """The same with maps that nobody changes in place, and that hide secrets when they are shown:
    fields that are not known here are kept as they came, and every reader sees the same ones."""
    if isinstance(value, dict):
        return Extra({name: _guarded(inner) for name, inner in value.items()})
    return [_guarded(inner) for inner in value] if isinstance(value, list) else value


def _common(path: str, entry: Entry) -> object:
    value = decode(path, entry.value)
    if path.startswith(PLATFORM):
        return _Held(_guarded(value))
    assert isinstance(value, dict)
    if path == RESOLVER:
        return to_record(Resolver, value)
    if path == STORAGE_DIRECTORY:
        return to_record(StorageDirectory, value)
    try:
        return msgspec.convert(value.get("updatedAt"), Time, strict=False)
    except msgspec.ValidationError as error:
        raise UnreadableValue(in_words(error, "updatedAt")) from None


class _Held(msgspec.Struct, frozen=True):
    """Any JSON, null too."""

    value: JSON


class _Settings:
    """What is not of a tenant."""

    def __init__(self, snapshot: TenantSnapshot) -> None:
        self._platform, self._good = snapshot.platform.mutate(), snapshot.good.mutate()
        self._fields: dict[str, object] = {}

    def put(self, path: str, key: bytes, entry: Entry | None, part: object) -> None:
        if path in _DEFAULTS:
            self._configure(path, key, entry, part)
        elif path == "_health/sentinel":
            self._fields["health"] = None if isinstance(part, UnreadableValue) else part
        elif isinstance(part, _Held):
            self._platform[path.removeprefix(PLATFORM)] = part.value
        else:
            self._platform.pop(path.removeprefix(PLATFORM), None)

    def _configure(self, path: str, key: bytes, entry: Entry | None, part: object) -> None:
        """What cannot be understood is not taken for what is not there: a default may let in who
        was kept out."""
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


RESOLVER, STORAGE_DIRECTORY = "common/resolver", "common/storage-directory"
_DEFAULTS: Mapping[str, tuple[str, Resolver | StorageDirectory]] = {
    RESOLVER: ("resolver", Resolver()),
    STORAGE_DIRECTORY: ("storage_directory", StorageDirectory()),
}
"""The field of a snapshot, and what it is where nobody configured it."""
