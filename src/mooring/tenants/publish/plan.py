"""What must be written to make a tenant what it is to be: decided here, from what was read, as
writes with the checks under which they are right."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from mooring.errors import TooLarge
from mooring.masking import is_secret, masked_field
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
from mooring.tenants.keys import (
    DOMAIN,
    IndexEntry,
    IndexKind,
    Keys,
    Owner,
    field_of,
    kind_of,
    named,
)
from mooring.tenants.publish.claims import Claim, claims, folded, holder
from mooring.tenants.values import Unreadable, decode, encode

ROOM = MAX_OPERATIONS - 8
"""Operations of one commit that are left beside the history, the sentinel and the caller's own."""
BYTES = MAX_REQUEST_BYTES - 64 * 1024
_SEAL = 160  # bytes that a sealed value takes beside itself


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

Resent: TypeAlias = "Mapping[str, Sequence[str]]"
"""Secrets that count as changed whatever they are, by path and field: an answer that says whether
they changed would tell the caller whether a guess is right."""
NOTHING_RESENT: Resent = MappingProxyType({})


class StoredParts(msgspec.Struct, frozen=True):
    """What the store has of a tenant."""

    parts: dict[str, JSON | Unread]
    revisions: dict[str, int]
    strange: tuple[bytes, ...] = ()
    """Keys below the tenant's that are none of its parts."""
    resent: Resent = NOTHING_RESENT

    def __repr__(self) -> str:
        return f"<{', '.join(self.parts) or 'nothing'}>"

    @property
    def revision(self) -> str:
        """Identifies this state. It depends on when each part was written and not on its value, so
        that it does not help to guess a secret."""
        told = "\n".join(f"{path} {number}" for path, number in sorted(self.revisions.items()))
        return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()

    @property
    def obscure(self) -> bool:
        """Whether what leads to the tenant cannot be told from its parts."""
        return bool(unclear(self.parts))

    def may_claim(self, keys: Keys, tenant: int, claim: Claim) -> bool:
        """Whether a tenant that holds this has what another wants; of what cannot be understood,
        what leads to it says so."""
        theirs = {folded(keys, name) for name in claims(keys, tenant, self.parts)}
        return claim.kind in unclear(self.parts) or folded(keys, claim.key) in theirs


def unclear(parts: Parts) -> frozenset[IndexKind]:
    """The kinds of claims that parts may lay without saying so: they cannot be understood."""
    found: set[IndexKind] = set()
    if isinstance(parts.get("meta"), Unread):
        found |= {"by-code", "by-name"}
    if any(isinstance(parts.get(path), Unread) for path in DOMAIN):
        found.add("host")
    return frozenset(found)


def held(keys: Keys, owner: Owner, entries: Iterable[Entry]) -> StoredParts:
    parts: dict[str, JSON | Unread] = {}
    revisions: dict[str, int] = {}
    strange = []
    for entry in entries:
        path = keys.path_of(owner, entry.key)
        if path is None:
            strange.append(entry.key)
            continue
        revisions[path] = entry.modified
        try:
            value = decode(path, entry.value)
        except Unreadable:
            value = None
        parts[path] = Unread(entry.value) if value is None else value
    return StoredParts(parts, revisions, tuple(strange))


def shown(path: str, value: JSON | Unread) -> JSON | Unread:
    """A part for people: its secrets are masked."""
    return value if isinstance(value, Unread) else masked_field(field_of(path), value)


class Difference(msgspec.Struct, frozen=True):
    """One part that is to change. None: it is not there."""

    path: str
    before: JSON | Unread
    after: JSON | Unread
    resent: tuple[str, ...] = ()
    """Secret fields that count as changed: see `Resent`."""

    def __repr__(self) -> str:
        return f"<{self.path}: {self._shown(self.before)!r} → {self._shown(self.after)!r}>"

    def _shown(self, value: JSON | Unread) -> JSON | Unread:
        return shown(self.path, value)

    @property
    def size(self) -> int:
        """About how many bytes a history needs for it, and no fewer."""
        before = 0 if self.unwieldy else _weight(self.path, self.before)
        return before + _weight(self.path, self.after) + len(self.path) + _SEAL

    @property
    def unwieldy(self) -> bool:
        """Whether what was there is so large that no history takes it: it could not be removed."""
        return _weight(self.path, self.before) > BYTES // 2


def _weight(path: str, value: JSON | Unread) -> int:
    if isinstance(value, Unread):
        return 2 * len(value.raw) + _SEAL
    return len(msgspec.json.encode(value)) + _sealing({field_of(path): value})


def _sealing(value: JSON) -> int:
    """What sealing adds."""
    if isinstance(value, list):
        return sum(map(_sealing, value))
    if not isinstance(value, dict):
        return 0
    return sum(
        _SEAL + len(msgspec.json.encode(inner)) if is_secret(name) else _sealing(inner)
        for name, inner in value.items()
    )


def differences(before: Parts, after: Parts, resent: Resent = NOTHING_RESENT) -> list[Difference]:
    paths = sorted(before.keys() | after.keys(), key=_place)
    again = {path: tuple(fields) for path, fields in resent.items() if path in before}
    return [
        Difference(path, before.get(path), after.get(path), again.get(path, ()))
        for path in paths
        if not _same(before.get(path), after.get(path)) or (path in again and path in after)
    ]


def _same(one: JSON | Unread, other: JSON | Unread) -> bool:
    """As they are written: true is not 1."""
    if isinstance(one, Unread) or isinstance(other, Unread):
        return one == other
    return one == other and _exactly(one) == _exactly(other)


def _exactly(value: JSON) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _place(path: str) -> tuple[bool, bool, str]:
    return path != "meta", kind_of(path) != "domain", path


class Unit(msgspec.Struct, frozen=True):
    """What must be written together: an object with what leads to it. The parts of a domain are
    one object, since a host may move from one to another."""

    changes: tuple[Difference, ...]
    writes: tuple[Write, ...]
    checks: tuple[Check, ...]

    def __repr__(self) -> str:
        return f"<{self.changes!r} in {len(self.writes)} writes>"

    @property
    def operations(self) -> int:
        return max(len(self.writes), len(self.checks))

    @property
    def size(self) -> int:
        """About how many bytes it takes, with its place in the history, and no fewer."""
        written = sum(_size(write) for write in self.writes)
        checked = sum(len(check.key) + 32 for check in self.checks)
        return written + checked + sum(each.size for each in self.changes)


def _size(write: Write) -> int:
    if isinstance(write, Put):
        return len(write.key) + len(write.value) + 64
    return len(write.range.start) + len(write.range.end) + 64


def raw_names(keys: Keys, *parts: Parts) -> set[bytes]:
    """Where other publishers may have written the names of these: unescaped, or in their case."""
    return {
        keys.as_written(claim.kind, claim.name)
        for each in parts
        for claim in claims(keys, 1, each).values()
    }


def contested(
    tenant: Owner, wanted: Mapping[bytes, Claim], keys: Keys, index: Mapping[bytes, Entry]
) -> list[tuple[Claim, Entry, int]]:
    """What is wanted and leads to another tenant at present, however it is written there."""
    alike: dict[bytes, list[Entry]] = {}
    for name, entry in index.items():
        alike.setdefault(folded(keys, name), []).append(entry)
    return [
        (claim, entry, other)
        for claim in wanted.values()
        for place in {
            folded(keys, claim.key),
            folded(keys, keys.as_written(claim.kind, claim.name)),
        }
        for entry in alike.get(place, ())
        if (other := holder(entry.value)) not in (0, tenant)
    ]


Guards: TypeAlias = "Mapping[bytes, Sequence[Check]]"
"""Under what else a claim may be laid, by its key."""


def units(
    keys: Keys,
    tenant: Owner,
    had: StoredParts,
    wanted: Parts,
    index: Mapping[bytes, Entry],
    guards: Guards = MappingProxyType({}),
    *,
    claiming: bool = True,
) -> list[Unit]:
    """Everything that is to be written, object by object. `index` is what the store has of all
    claims, former and wanted. `claiming=False`: a claim that does not lead to the tenant yet is
    left alone."""
    former, now = claims(keys, tenant, had.parts), claims(keys, tenant, wanted)
    blind = isinstance(wanted.get("meta"), Unread)  # what an index tells of it is more than we know
    drafts: dict[str, _Draft] = {}
    changed = {each.path: each for each in differences(had.parts, wanted, had.resent)}
    for each in changed.values():
        name = keys.part(tenant, each.path)
        draft = drafts.setdefault(_object(each.path), _Draft())
        draft.changes.append(each)
        draft.writes.append(_written(name, each.path, each.after))
        draft.checks[unchanged(name, had.revisions.get(each.path, 0))] = None
    for claim in now.values():
        entry = index.get(claim.key)
        if not claiming and (entry is None or holder(entry.value) != tenant):
            continue
        moved = entry is None or (
            entry.value != claim.value and not (blind and holder(entry.value) == tenant)
        )
        if not moved and claim.key in former:
            continue  # it is this tenant's, and nobody takes what a tenant lays claim to
        place = _object(claim.path)
        if claim.key in former:
            # What is only told anew, as after a rename, need not go with the object.
            told = claim.kind == "by-name" and "domain/primary" in changed
            place = "domain" if told else claim.key.decode()
        draft = drafts.setdefault(place, _Draft())
        draft.checks[unchanged(claim.key, 0 if entry is None else entry.modified)] = None
        draft.checks |= dict.fromkeys(guards.get(claim.key, ()))
        if moved:
            draft.writes.append(Put(claim.key, claim.value))
    origins = _origins(keys, former, index)
    for name in _left(keys, tenant, former, wanted, index):
        draft = drafts.setdefault(origins.get(folded(keys, name), name.decode()), _Draft())
        draft.writes.append(Delete(key(name)))
        draft.checks[unchanged(name, index[name].modified)] = None
    return [drafts[place].unit() for place in sorted(drafts, key=_place)]


class _Draft:
    """A unit in the making."""

    def __init__(self) -> None:
        self.changes: list[Difference] = []
        self.writes: list[Write] = []
        self.checks: dict[Check, None] = {}

    def unit(self) -> Unit:
        return Unit(tuple(self.changes), tuple(self.writes), tuple(self.checks))


def _object(path: str) -> str:
    return "domain" if kind_of(path) == "domain" else path


def _left(
    keys: Keys,
    tenant: Owner,
    former: Mapping[bytes, Claim],
    wanted: Parts,
    index: Mapping[bytes, Entry],
) -> list[bytes]:
    """What leads to the tenant and should no longer. What another publisher wrote in its own way
    stays beside ours for as long as it is right; and so does what may come from a part that cannot
    be understood, for as long as that part is there."""
    now = claims(keys, tenant, wanted)
    right = {folded(keys, name) for name in now}
    right |= {keys.as_written(each.kind, each.name) for each in now.values()}
    beyond_us = unclear(wanted)
    return [
        name
        for name, entry in index.items()
        if holder(entry.value) == tenant
        and name not in now
        and (
            name in former
            or (folded(keys, name) not in right and _kind(keys, name) not in beyond_us)
        )
    ]


def _kind(keys: Keys, name: bytes) -> IndexKind | None:
    place = keys.understand(name)
    return place.kind if isinstance(place, IndexEntry) else None


def _origins(
    keys: Keys, former: Mapping[bytes, Claim], index: Mapping[bytes, Entry]
) -> dict[bytes, str]:
    """The object that a key of an index goes with, by its folded key. A spelling of another
    publisher goes with the object if no key of ours leads to it. What none of the parts explains
    goes by itself: there may be more of it than one commit takes."""
    found = {
        folded(keys, keys.as_written(claim.kind, claim.name)): _object(claim.path)
        for claim in former.values()
        if claim.key not in index
    }
    return found | {folded(keys, name): _object(claim.path) for name, claim in former.items()}


def _written(name: bytes, path: str, value: JSON | Unread) -> Write:
    if value is None:
        return Delete(key(name))
    return Put(name, value.raw if isinstance(value, Unread) else encode(path, value))


def batches(tenant: Owner, all_units: Sequence[Unit], *, room: int = ROOM) -> list[list[Unit]]:
    """Commits that a store takes, each with whole objects, of at most `room` operations. Raises
    `TooLarge` for an object that none takes."""
    found: list[list[Unit]] = []
    count = size = 0
    for unit in all_units:
        operations = unit.operations
        if unit.size > BYTES or operations > room:
            about = ", ".join(each.path for each in unit.changes) or "an index"
            raise TooLarge(
                f"{named(tenant)}: {about} is larger than a store takes in one commit "
                f"({unit.size} bytes, {operations} operations)"
            )
        if not found or count + operations > room or size + unit.size > BYTES:
            found.append([])
            count = size = 0
        found[-1].append(unit)
        count, size = count + operations, size + unit.size
    return found
