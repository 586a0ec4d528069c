"""Plans a publish: the writes that turn the stored parts into the target, with checks of all that
they depend on, in batches that fit into one commit each. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from mooring.errors import TooLarge
from mooring.messages import message
from mooring.model import JSON
from mooring.store.contract import MAX_OPERATIONS, Check, Delete, Entry, Put, Write, key, unchanged
from mooring.tenants.keys import Owner, TenantKeys, kind_of, named
from mooring.tenants.model import encode
from mooring.tenants.parts import (
    COMMIT_BYTES,
    Claim,
    PartDiff,
    Parts,
    StoredParts,
    UnreadablePart,
    claims,
    diff_parts,
    holder,
    normalized_key,
    part_order,
    unclear_kinds,
)

COMMIT_OPERATIONS = MAX_OPERATIONS - 8
"""Operations of one commit for a tenant; the rest is for its history and the sentinel."""


class Unit(msgspec.Struct, frozen=True):
    """Writes that belong together: an object with its index entries. The parts of a domain are one
    object, since a host may move from one to another."""

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
        """An upper bound of its bytes, including its changes in the history."""
        written = sum(_size(write) for write in self.writes)
        checked = sum(len(check.key) + 32 for check in self.checks)
        return written + checked + sum(change.size for change in self.changes)


NO_UNIT = Unit((), (), ())


def _size(write: Write) -> int:
    if isinstance(write, Put):
        return len(write.key) + len(write.value) + 64
    return len(write.range.start) + len(write.range.end) + 64


def unnormalized_keys(keys: TenantKeys, *parts: Parts) -> set[bytes]:
    """The index keys under which other publishers may have written the same names: unescaped, or in
    another case."""
    return {
        keys.as_written(claim.kind, claim.name)
        for state in parts
        for claim in claims(keys, 1, state).values()
    }


def conflicting_claims(
    tenant: Owner, target: Mapping[bytes, Claim], keys: TenantKeys, index: Mapping[bytes, Entry]
) -> list[tuple[Claim, Entry, int]]:
    """The claims in `target` that the index assigns to another tenant, in whatever spelling: the
    claim, its index entry, and that tenant."""
    spellings: dict[bytes, list[Entry]] = {}
    for name, entry in index.items():
        spellings.setdefault(normalized_key(keys, name), []).append(entry)
    return [
        (claim, entry, other)
        for claim in target.values()
        for place in {
            normalized_key(keys, claim.key),
            normalized_key(keys, keys.as_written(claim.kind, claim.name)),
        }
        for entry in spellings.get(place, ())
        if (other := holder(entry.value)) not in (0, tenant)
    ]


Guards: TypeAlias = "Mapping[bytes, Sequence[Check]]"
"""Further checks that taking over a claim requires, by its key."""


def plan_units(
    keys: TenantKeys,
    tenant: Owner,
    stored: StoredParts,
    target: Parts,
    index: Mapping[bytes, Entry],
    guards: Guards = MappingProxyType({}),
    *,
    claiming: bool = True,
) -> list[Unit]:
    """All writes, object by object. `index` has the index entries of all claims, former and new.
    `claiming=False`: claims that the index does not assign to the tenant are left alone."""
    former, required = claims(keys, tenant, stored.parts), claims(keys, tenant, target)
    drafts: defaultdict[str, _UnitDraft] = defaultdict(_UnitDraft)
    changes = {change.path: change for change in diff_parts(stored.parts, target, stored.resent)}
    for change in changes.values():
        name = keys.part(tenant, change.path)
        draft = drafts[_object(change.path)]
        draft.changes.append(change)
        draft.writes.append(_write(name, change.path, change.after))
        draft.checks[unchanged(name, stored.revisions.get(change.path, 0))] = None
    for claim in required.values():
        entry = index.get(claim.key)
        if not claiming and (entry is None or holder(entry.value) != tenant):
            continue
        correct = _is_correct(entry, claim, tenant, target)
        if correct and claim.key in former:
            continue  # the tenant has it already, and no publisher takes over what a tenant claims
        place = _unit_of_claim(claim, changes) if claim.key in former else _object(claim.path)
        draft = drafts[place]
        draft.checks[unchanged(claim.key, 0 if entry is None else entry.modified)] = None
        draft.checks |= dict.fromkeys(guards.get(claim.key, ()))
        if not correct:
            draft.writes.append(Put(claim.key, claim.value))
    origins = _origins(keys, former, index)
    for name in _stale_entries(keys, tenant, former, target, index):
        draft = drafts[origins.get(normalized_key(keys, name), name.decode())]
        draft.writes.append(Delete(key(name)))
        draft.checks[unchanged(name, index[name].modified)] = None
    return [drafts[place].unit() for place in sorted(drafts, key=part_order)]


def _is_correct(entry: Entry | None, claim: Claim, tenant: Owner, target: Parts) -> bool:
    """Whether an index entry can stay. One of a tenant whose meta is unreadable says more about the
    meta than we can decode."""
    if entry is None:
        return False
    unreadable = isinstance(target.get("meta"), UnreadablePart)
    return entry.value == claim.value or (unreadable and holder(entry.value) == tenant)


def _unit_of_claim(claim: Claim, changes: Mapping[str, PartDiff]) -> str:
    """The unit of an index entry whose content alone changes, as after a rename: it need not go
    with the object."""
    with_domain = claim.kind == "by-name" and "domain/primary" in changes
    return "domain" if with_domain else claim.key.decode()


class _UnitDraft:
    def __init__(self) -> None:
        self.changes: list[PartDiff] = []
        self.writes: list[Write] = []
        self.checks: dict[Check, None] = {}

    def unit(self) -> Unit:
        return Unit(tuple(self.changes), tuple(self.writes), tuple(self.checks))


def _object(path: str) -> str:
    return "domain" if kind_of(path) == "domain" else path


def _stale_entries(
    keys: TenantKeys,
    tenant: Owner,
    former: Mapping[bytes, Claim],
    target: Parts,
    index: Mapping[bytes, Entry],
) -> list[bytes]:
    """The index entries of the tenant that must be deleted. The spellings of other publishers stay
    beside ours while they are correct, and so do entries that an unreadable part may require."""
    required = claims(keys, tenant, target)
    correct = {normalized_key(keys, name) for name in required}
    correct |= {keys.as_written(claim.kind, claim.name) for claim in required.values()}
    unclear = unclear_kinds(target)
    return [
        name
        for name, entry in index.items()
        if holder(entry.value) == tenant
        and name not in required
        and (
            name in former
            or (normalized_key(keys, name) not in correct and keys.index_kind(name) not in unclear)
        )
    ]


def _origins(
    keys: TenantKeys, former: Mapping[bytes, Claim], index: Mapping[bytes, Entry]
) -> dict[bytes, str]:
    """The object of each index entry, by its normalized key. The spelling of another publisher
    goes with the object if the index has no entry in our spelling. Entries that no part explains
    are units of their own: there may be more than one commit takes."""
    foreign = {
        normalized_key(keys, keys.as_written(claim.kind, claim.name)): _object(claim.path)
        for claim in former.values()
        if claim.key not in index
    }
    own = {normalized_key(keys, name): _object(claim.path) for name, claim in former.items()}
    return foreign | own


def _write(name: bytes, path: str, value: JSON | UnreadablePart) -> Write:
    if value is None:
        return Delete(key(name))
    return Put(name, value.raw if isinstance(value, UnreadablePart) else encode(path, value))


def batches(
    tenant: Owner, units: Sequence[Unit], *, room: int = COMMIT_OPERATIONS
) -> list[list[Unit]]:
    """The units of each commit, with at most `room` operations. Raises `TooLarge` for a unit that
    does not fit into any commit."""
    commits: list[list[Unit]] = []
    count = size = 0
    for unit in units:
        operations = unit.operations
        if unit.size > COMMIT_BYTES or operations > room:
            what = [change.path for change in unit.changes] or message("an_index")
            problem = message("unit_too_large", what=what, size=unit.size, operations=operations)
            raise TooLarge(message("of_owner", owner=named(tenant), problem=problem))
        if not commits or count + operations > room or size + unit.size > COMMIT_BYTES:
            commits.append([])
            count = size = 0
        commits[-1].append(unit)
        count, size = count + operations, size + unit.size
    return commits


MAX_STAGE_ALIASES = COMMIT_OPERATIONS - 20
"""Aliases that one stage changes; the rest is for the other domains and the parts themselves."""

_ALIASES = "domain/aliases"


def next_stage(stored: Parts, target: Parts, *, limit: int = MAX_STAGE_ALIASES) -> Parts:
    """The target, or if more than `limit` aliases differ, the next state on the way to it. A commit
    changes aliases together with their index entries, so there is a limit for each."""
    before = _aliases(stored)
    removed, added = _alias_changes(before, target)
    if len(removed) + len(added) <= limit:
        return target
    first = set(removed[:limit])
    aliases: list[JSON] = [host for host in before if host not in first]
    if not removed:
        aliases += added[:limit]
    others = {path: value for path, value in target.items() if path != _ALIASES}
    return {**others, _ALIASES: aliases} if aliases else others


def _alias_changes(before: list[str], target: Parts) -> tuple[list[str], list[str]]:
    """The aliases that the tenant loses, as an alias and as another domain, and those that it
    gains."""
    after = _aliases(target)
    kept = {host.lower() for host in after}
    kept |= {str(target.get(f"domain/{name}", "")).lower() for name in ("primary", "internal")}
    known = {host.lower() for host in before}
    removed = [host for host in before if host.lower() not in kept]
    return removed, [host for host in after if host.lower() not in known]


def alias_limits(room: int) -> tuple[int, int]:
    """How many aliases one stage may change if a commit has this room: usually, and if some are
    taken over from deleted tenants, which requires more checks for each."""
    usual = max(room - (COMMIT_OPERATIONS - MAX_STAGE_ALIASES), 1)
    return usual, max(usual // 3, 1)


def check_stages(
    keys: TenantKeys, tenant: Owner, stored: Parts, target: Parts, *, limit: int, room: int
) -> None:
    """Raises `TooLarge` before the first stage is written if one of them does not fit."""
    stage: Parts = {}
    while stage is not target:
        stage = next_stage(stored, target, limit=limit)
        index = {
            name: Entry(name, claim.value, 1, 1, 1)
            for name, claim in claims(keys, tenant, stored).items()
        }
        state = StoredParts(dict(stored), {})
        batches(tenant, plan_units(keys, tenant, state, stage, index), room=room)
        stored = stage


def _aliases(parts: Parts) -> list[str]:
    aliases = parts.get(_ALIASES)
    hosts = aliases if isinstance(aliases, list) else []
    return [host for host in hosts if isinstance(host, str)]
