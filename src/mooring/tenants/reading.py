"""What the keys and values of a store say of the tenants: changes of entries turned into a
snapshot. In whatever order they come, what is there at the end makes the same snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec
from immutables import MapMutation

from mooring.model import JSON, Time
from mooring.store.contract import Entry
from mooring.tenants.claims import Contest
from mooring.tenants.keys import PLATFORM, CommonPart, Keys, PartOf
from mooring.tenants.secrets import Keyring
from mooring.tenants.snapshot import Snapshot
from mooring.tenants.tenant import KINDS, Kind, Tenant
from mooring.tenants.values import (
    Part,
    Resolver,
    StorageDirectory,
    Unreadable,
    decode,
    record,
    understand,
)

_AT_ONCE = 500  # values understood before others get their turn: a few milliseconds

KeyChange = tuple[bytes, Entry | None]


class Changed(msgspec.Struct, frozen=True):
    """A tenant changed. `before` is None for a new one, `after` for one that is gone."""

    tenant: int
    kinds: frozenset[Kind]
    """What of it."""
    before: Tenant | None
    after: Tenant | None


class Outcome(msgspec.Struct, frozen=True):
    """What changes of entries lead to."""

    snapshot: Snapshot
    changes: tuple[Changed, ...] = ()
    contests: tuple[Contest, ...] = ()
    problems: Mapping[str, str] = {}
    """Those that are new."""


class Understood(msgspec.Struct, frozen=True, gc=False):
    """A value that was understood beforehand."""

    entry: Entry
    where: PartOf
    part: Part | Unreadable


Prepared = Mapping[bytes, Understood]
NOTHING: Prepared = MappingProxyType({})


class Reading:
    """Reads the entries below one namespace."""

    def __init__(self, keys: Keys, ring: Keyring) -> None:
        self._keys, self._ring = keys, ring

    async def prepare(self, items: Mapping[bytes, Entry], held: Mapping[bytes, Entry]) -> Prepared:
        """Understand beforehand what is not as it is `held`, piece by piece, so that others have
        their turn between: of many tenants it takes long."""
        prepared: dict[bytes, Understood] = {}
        for key, entry in items.items():
            if held.get(key) == entry:
                continue
            where = self._keys.understand(key)
            if isinstance(where, PartOf):
                prepared[key] = Understood(entry, where, self._part(where, entry))
                if len(prepared) % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        return prepared

    def apply(
        self, snapshot: Snapshot, changes: Iterable[KeyChange], prepared: Prepared = NOTHING
    ) -> Outcome:
        """Entries that changed together, each as it is now; None: it is gone."""
        parts: dict[int, dict[str, Part | None]] = {}
        fields: dict[str, object] = {}
        problems = _Problems(snapshot)
        platform = snapshot.platform.mutate()
        for key, entry in changes:
            known = prepared.get(key)
            if known is not None and known.entry == entry:
                where: object = known.where
                part: object = known.part
            else:
                where = self._keys.understand(key)
                part = None if entry is None else self._understood(where, entry)
            problems.note(key, part)
            part = None if isinstance(part, Unreadable) else part
            if isinstance(where, PartOf):
                parts.setdefault(where.tenant, {})[where.path] = part  # type: ignore[assignment]
            elif isinstance(where, CommonPart):
                _put_common(where.path, part, fields, platform)
        tenants, told = _tenants(snapshot, parts)
        changed, contests = snapshot.changed(tenants)
        changed = msgspec.structs.replace(
            changed, platform=platform.finish(), problems=problems.all.finish(), **fields
        )
        return Outcome(changed, told, contests, problems.new)

    def _understood(self, where: object, entry: Entry) -> object:
        if isinstance(where, PartOf):
            return self._part(where, entry)
        return _common(where.path, entry) if isinstance(where, CommonPart) else None

    def _part(self, where: PartOf, entry: Entry) -> Part | Unreadable:
        try:
            return understand(where.tenant, where.path, decode(where.path, entry.value), self._ring)
        except Unreadable as error:
            return error
        except Exception as error:  # noqa: BLE001 - one bad value must not hide the good ones
            return Unreadable(f"it cannot be understood ({type(error).__name__})")


class _Problems:
    def __init__(self, snapshot: Snapshot) -> None:
        self.all: MapMutation[str, str] = snapshot.problems.mutate()
        self.new: dict[str, str] = {}

    def note(self, key: bytes, part: object) -> None:
        if isinstance(part, Unreadable):
            name = key.decode()
            if self.all.get(name) != str(part):
                self.all[name] = self.new[name] = str(part)
        elif self.all:
            self.all.pop(key.decode(errors="replace"), None)


def _tenants(
    snapshot: Snapshot, parts: Mapping[int, Mapping[str, Part | None]]
) -> tuple[dict[int, Tenant | None], tuple[Changed, ...]]:
    """The tenants that are not as they were, by their ids."""
    tenants: dict[int, Tenant | None] = {}
    told: list[Changed] = []
    for id in sorted(parts):
        before = snapshot.tenants.get(id)
        made = (before or Tenant(id)).changed(parts[id].items())
        after = None if made.empty else made
        if kinds := _kinds(before, after):
            tenants[id] = after
            told.append(Changed(id, kinds, before, after))
    return tenants, tuple(told)


def _kinds(before: Tenant | None, after: Tenant | None) -> frozenset[Kind]:
    """What two states of a tenant differ in."""
    if before is None and after is None:
        return frozenset()
    one, other = before or _NOBODY, after or _NOBODY
    return frozenset(
        kind for kind in KINDS if getattr(one, _FIELDS[kind]) != getattr(other, _FIELDS[kind])
    )


_NOBODY = Tenant(0)
_FIELDS: Mapping[Kind, str] = {kind: "databases" if kind == "database" else kind for kind in KINDS}


def _common(path: str, entry: Entry) -> object:
    try:
        value = decode(path, entry.value)
        if path.startswith(PLATFORM):
            return _Held(value)
        assert isinstance(value, dict)
        if path == "common/resolver":
            return record(Resolver, value)
        if path == "common/storage-directory":
            return record(StorageDirectory, value)
        return msgspec.convert(value.get("updatedAt"), Time, strict=False)
    except Unreadable as error:
        return error
    except msgspec.ValidationError as error:
        return Unreadable(f"{error} - at `$.updatedAt`")


class _Held(msgspec.Struct, frozen=True):
    """Any JSON, null too."""

    value: JSON


def _put_common(
    path: str, part: object, fields: dict[str, object], platform: MapMutation[str, JSON]
) -> None:
    if path == "common/resolver":
        fields["resolver"] = part or Resolver()
    elif path == "common/storage-directory":
        fields["storage_directory"] = part or StorageDirectory()
    elif path == "_health/sentinel":
        fields["health"] = part
    elif isinstance(part, _Held):
        platform[path.removeprefix(PLATFORM)] = part.value
    else:
        platform.pop(path.removeprefix(PLATFORM), None)
