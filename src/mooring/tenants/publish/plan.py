"""What must be written to make a tenant what it is to be: decided here, from what was read, as
writes with the checks under which they are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from mooring.errors import TooLarge
from mooring.model import JSON
from mooring.store.contract import (
    MAX_OPERATIONS,
    Check,
    Delete,
    Entry,
    Put,
    Write,
    key,
    unchanged,
)
from mooring.tenants.keys import (
    IndexEntry,
    IndexKind,
    Owner,
    TenantKeys,
    kind_of,
    named,
)
from mooring.tenants.model import encode
from mooring.tenants.parts import (
    BYTES,
    Claim,
    PartDiff,
    Parts,
    StoredParts,
    UnreadablePart,
    _place,
    claims,
    diff_parts,
    holder,
    normalized_key,
    unclear_kinds,
)

ROOM = MAX_OPERATIONS - 8
"""Operations of one commit that are left beside the history, the sentinel and the caller's own."""


class Unit(msgspec.Struct, frozen=True):
    """What must be written together: an object with what leads to it. The parts of a domain are
    one object, since a host may move from one to another."""

    changes: tuple[PartDiff, ...]
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


def unnormalized_keys(keys: TenantKeys, *parts: Parts) -> set[bytes]:
    """Where other publishers may have written the names of these: unescaped, or in their case."""
    return {
        keys.as_written(claim.kind, claim.name)
        for each in parts
        for claim in claims(keys, 1, each).values()
    }


def conflicting_claims(
    tenant: Owner, wanted: Mapping[bytes, Claim], keys: TenantKeys, index: Mapping[bytes, Entry]
) -> list[tuple[Claim, Entry, int]]:
    """What is wanted and leads to another tenant at present, however it is written there."""
    alike: dict[bytes, list[Entry]] = {}
    for name, entry in index.items():
        alike.setdefault(normalized_key(keys, name), []).append(entry)
    return [
        (claim, entry, other)
        for claim in wanted.values()
        for place in {
            normalized_key(keys, claim.key),
            normalized_key(keys, keys.as_written(claim.kind, claim.name)),
        }
        for entry in alike.get(place, ())
        if (other := holder(entry.value)) not in (0, tenant)
    ]


Guards: TypeAlias = "Mapping[bytes, Sequence[Check]]"
"""Under what else a claim may be laid, by its key."""


def plan_units(
    keys: TenantKeys,
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
    blind = isinstance(
        wanted.get("meta"), UnreadablePart
    )  # what an index tells of it is more than we know
    drafts: dict[str, _Draft] = {}
    changed = {each.path: each for each in diff_parts(had.parts, wanted, had.resent)}
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
        draft = drafts.setdefault(origins.get(normalized_key(keys, name), name.decode()), _Draft())
        draft.writes.append(Delete(key(name)))
        draft.checks[unchanged(name, index[name].modified)] = None
    return [drafts[place].unit() for place in sorted(drafts, key=_place)]


class _Draft:
    """A unit in the making."""

    def __init__(self) -> None:
        self.changes: list[PartDiff] = []
        self.writes: list[Write] = []
        self.checks: dict[Check, None] = {}

    def unit(self) -> Unit:
        return Unit(tuple(self.changes), tuple(self.writes), tuple(self.checks))


def _object(path: str) -> str:
    return "domain" if kind_of(path) == "domain" else path


def _left(
    keys: TenantKeys,
    tenant: Owner,
    former: Mapping[bytes, Claim],
    wanted: Parts,
    index: Mapping[bytes, Entry],
) -> list[bytes]:
    """What leads to the tenant and should no longer. What another publisher wrote in its own way
    stays beside ours for as long as it is right; and so does what may come from a part that cannot
    be understood, for as long as that part is there."""
    now = claims(keys, tenant, wanted)
    right = {normalized_key(keys, name) for name in now}
    right |= {keys.as_written(each.kind, each.name) for each in now.values()}
    beyond_us = unclear_kinds(wanted)
    return [
        name
        for name, entry in index.items()
        if holder(entry.value) == tenant
        and name not in now
        and (
            name in former
            or (normalized_key(keys, name) not in right and _kind(keys, name) not in beyond_us)
        )
    ]


def _kind(keys: TenantKeys, name: bytes) -> IndexKind | None:
    place = keys.understand(name)
    return place.kind if isinstance(place, IndexEntry) else None


def _origins(
    keys: TenantKeys, former: Mapping[bytes, Claim], index: Mapping[bytes, Entry]
) -> dict[bytes, str]:
    """The object that a key of an index goes with, by its folded key. A spelling of another
    publisher goes with the object if no key of ours leads to it. What none of the parts explains
    goes by itself: there may be more of it than one commit takes."""
    found = {
        normalized_key(keys, keys.as_written(claim.kind, claim.name)): _object(claim.path)
        for claim in former.values()
        if claim.key not in index
    }
    return found | {
        normalized_key(keys, name): _object(claim.path) for name, claim in former.items()
    }


def _written(name: bytes, path: str, value: JSON | UnreadablePart) -> Write:
    if value is None:
        return Delete(key(name))
    return Put(name, value.raw if isinstance(value, UnreadablePart) else encode(path, value))


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


MAX_STAGE_ALIASES = ROOM - 20
"""Aliases that one stage changes; the rest is for the other domains and the parts themselves."""

_ALIASES = "domain/aliases"


def next_stage(there: Parts, wanted: Parts, *, most: int = MAX_STAGE_ALIASES) -> Parts:
    """What is wanted, or where that is too much, what comes before it."""
    had, will = _listed(there), _listed(wanted)
    kept = {host.lower() for host in will}
    kept |= {str(wanted.get(f"domain/{each}", "")).lower() for each in ("primary", "internal")}
    gone = [host for host in had if host.lower() not in kept]
    before = {host.lower() for host in had}
    come = [host for host in will if host.lower() not in before]
    if len(gone) + len(come) <= most:
        return wanted
    if gone:
        first = set(gone[:most])
        aliases: list[JSON] = [host for host in had if host not in first]
    else:
        aliases = [*had, *come[:most]]
    rest = {path: value for path, value in wanted.items() if path != _ALIASES}
    return {**rest, _ALIASES: aliases} if aliases else rest


def alias_limits(room: int) -> list[int]:
    """How many aliases one stage may change where a commit has this room: the most; and fewer, for
    where some are taken over from tenants that are gone, each under a condition more."""
    most = max(room - (ROOM - MAX_STAGE_ALIASES), 1)
    return [most, max(most // 3, 1)]


def check_stages(
    keys: TenantKeys, tenant: Owner, there: Parts, wanted: Parts, *, most: int, room: int
) -> None:
    """Go the whole way in thought. Raises `TooLarge` where a stage of it is more than one commit
    takes: better before the first of them than in the middle."""
    while True:
        towards = next_stage(there, wanted, most=most)
        leading = {
            name: Entry(name, claim.value, 1, 1, 1)
            for name, claim in claims(keys, tenant, there).items()
        }
        batches(
            tenant,
            plan_units(keys, tenant, StoredParts(dict(there), {}), towards, leading),
            room=room,
        )
        if towards is wanted:
            return
        there = towards


def _listed(parts: Parts) -> list[str]:
    found = parts.get(_ALIASES)
    if isinstance(found, UnreadablePart) or not isinstance(found, list):
        return []
    return [host for host in found if isinstance(host, str)]
