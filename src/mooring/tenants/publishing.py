"""What must be written to make a tenant what it is to be: decided here, from what was read, as
writes with the checks under which they are right."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from mooring.errors import TooLarge
from mooring.model import JSON
from mooring.store.contract import (
    MAX_OPERATIONS,
    MAX_REQUEST_BYTES,
    Check,
    Delete,
    Entry,
    Put,
    Write,
    key,
    unchanged,
)
from mooring.tenants.indexing import Claim, claims, holder
from mooring.tenants.keys import Keys, PartOf
from mooring.tenants.secrets import masked
from mooring.tenants.values import Unreadable, decode, encode


class Unread(msgspec.Struct, frozen=True):
    """A part that cannot be understood, as it stands in the store."""

    raw: bytes

    def __repr__(self) -> str:
        return f"<unreadable, {len(self.raw)} bytes>"

    @property
    def text(self) -> str:
        return base64.b64encode(self.raw).decode()


Parts: TypeAlias = "Mapping[str, JSON | Unread]"
"""What a tenant has, by path."""


class Held(msgspec.Struct, frozen=True):
    """What the store has of a tenant."""

    parts: dict[str, JSON | Unread]
    revisions: dict[str, int]
    strange: tuple[bytes, ...] = ()
    """Keys below the tenant's that are none of its parts."""


def held(keys: Keys, tenant: int, entries: Iterable[Entry]) -> Held:
    parts: dict[str, JSON | Unread] = {}
    revisions: dict[str, int] = {}
    strange = []
    for entry in entries:
        place = keys.understand(entry.key)
        if not isinstance(place, PartOf) or place.tenant != tenant:
            strange.append(entry.key)
            continue
        revisions[place.path] = entry.modified
        try:
            parts[place.path] = decode(place.path, entry.value)
        except Unreadable:
            parts[place.path] = Unread(entry.value)
    return Held(parts, revisions, tuple(strange))


def shown(value: JSON | Unread) -> JSON | Unread:
    """A value for people: its secrets are masked."""
    return value if isinstance(value, Unread) else masked(value)


class Difference(msgspec.Struct, frozen=True):
    """One part that is to change. None: it is not there."""

    path: str
    before: JSON | Unread
    after: JSON | Unread

    def __repr__(self) -> str:
        return f"<{self.path}: {shown(self.before)!r} → {shown(self.after)!r}>"

    @property
    def size(self) -> int:
        """About how many bytes a history needs for it: a secret that is sealed takes more."""
        return 2 * sum(
            len(value.raw) if isinstance(value, Unread) else len(msgspec.json.encode(value))
            for value in (self.before, self.after)
        )


def differences(before: Parts, after: Parts) -> list[Difference]:
    paths = sorted(before.keys() | after.keys(), key=lambda path: (path != "meta", path))
    return [
        Difference(path, before.get(path), after.get(path))
        for path in paths
        if before.get(path) != after.get(path)
    ]


class Unit(msgspec.Struct, frozen=True):
    """What must be written together: a part with what leads to it."""

    difference: Difference | None
    writes: tuple[Write, ...]
    checks: tuple[Check, ...]

    @property
    def size(self) -> int:
        """About how many bytes it takes, with its place in the history."""
        told = self.difference
        return sum(_size(write) for write in self.writes) + (0 if told is None else told.size)


def _size(write: Write) -> int:
    if isinstance(write, Put):
        return len(write.key) + len(write.value) + 64
    return len(write.range.start) + len(write.range.end) + 64


def raw_names(keys: Keys, *parts: Parts) -> set[bytes]:
    """Where older publishers may have written the names of these, unescaped."""
    names = {
        claim.name
        for each in parts
        for claim in claims(keys, 1, each).values()
        if claim.kind == "by-name"
    }
    return {keys.raw_name(name) for name in names}


def contested(
    tenant: int, wanted: Mapping[bytes, Claim], keys: Keys, index: Mapping[bytes, Entry]
) -> list[tuple[Claim, Entry, int]]:
    """What is wanted and leads to another tenant at present."""
    found = []
    for claim in wanted.values():
        places = [claim.key]
        if claim.kind == "by-name":
            places.append(keys.raw_name(claim.name))
        for place in dict.fromkeys(places):
            entry = index.get(place)
            if entry is not None and (other := holder(entry.value)) not in (0, tenant):
                found.append((claim, entry, other))
    return found


def units(
    keys: Keys, tenant: int, had: Held, wanted: Parts, index: Mapping[bytes, Entry]
) -> list[Unit]:
    """Everything that is to be written, object by object. `index` is what the store has of all
    claims, former and wanted."""
    former, now = claims(keys, tenant, had.parts), claims(keys, tenant, wanted)
    changed = {each.path: each for each in differences(had.parts, wanted)}
    writes: dict[str, list[Write]] = {}
    checks: dict[str, list[Check]] = {}
    for path, difference in changed.items():
        name = keys.part(tenant, path)
        writes[path] = [_written(name, path, difference.after)]
        checks[path] = [unchanged(name, had.revisions.get(path, 0))]
    for claim in now.values():
        entry = index.get(claim.key)
        moved = entry is None or entry.value != claim.value
        if moved:
            writes.setdefault(claim.path, []).append(Put(claim.key, claim.value))
        if moved or claim.path in changed:
            revision = 0 if entry is None else entry.modified
            checks.setdefault(claim.path, []).append(unchanged(claim.key, revision))
    for name, path in _former_places(keys, former, now):
        entry = index.get(name)
        if entry is not None and holder(entry.value) == tenant:
            writes.setdefault(path, []).append(Delete(key(name)))
            checks.setdefault(path, []).append(unchanged(name, entry.modified))
    order = sorted(writes, key=lambda path: (path != "meta", path))
    return [Unit(changed.get(path), tuple(writes[path]), tuple(checks[path])) for path in order]


def _former_places(
    keys: Keys, former: Mapping[bytes, Claim], now: Mapping[bytes, Claim]
) -> list[tuple[bytes, str]]:
    """Where nothing leads to the tenant any more, with the part it came from."""
    places = [(claim.key, claim.path) for claim in former.values() if claim.key not in now]
    kept = {claim.name for claim in now.values() if claim.kind == "by-name"}
    for claim in former.values():
        raw = keys.raw_name(claim.name)
        if claim.kind == "by-name" and raw != claim.key and claim.name not in kept:
            places.append((raw, claim.path))
    return places


def _written(name: bytes, path: str, value: JSON | Unread) -> Write:
    if value is None:
        return Delete(key(name))
    return Put(name, value.raw if isinstance(value, Unread) else encode(path, value))


ROOM = MAX_OPERATIONS - 8
"""Operations of one commit that are left beside the history, the sentinel and the caller's own."""
BYTES = MAX_REQUEST_BYTES - 64 * 1024


def batches(tenant: int, all_units: Sequence[Unit], *, room: int = ROOM) -> list[list[Unit]]:
    """Commits that a store takes, each with whole objects, of at most `room` operations. Raises
    `TooLarge` for an object that none takes."""
    found: list[list[Unit]] = []
    count = size = 0
    for unit in all_units:
        operations = max(len(unit.writes), len(unit.checks))
        if unit.size > BYTES or operations > room:
            about = unit.difference.path if unit.difference else "an index"
            raise TooLarge(
                f"tenant {tenant}: {about} is larger than a store takes in one commit "
                f"({unit.size} bytes, {operations} operations): nothing was written"
            )
        if not found or count + operations > room or size + unit.size > BYTES:
            found.append([])
            count = size = 0
        found[-1].append(unit)
        count, size = count + operations, size + unit.size
    return found
