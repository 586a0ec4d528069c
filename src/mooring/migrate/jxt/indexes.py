"""Compares the indexes of both formats with the parts, and keeps the old indexes up to date.

Indexes are never copied: the new ones follow from the parts. Old indexes are written in the same
commit as the parts, if possible. But a name that moves between tenants must wait until its holder
gives it up, and if both sides of a part change, neither shows its former indexes. So the ledger
records all indexes that may refer to a unit, and no index is written without such a record. Once
the parts are in sync, missing indexes are written, and indexes of names that the unit no longer has
are deleted, until no difference remains. Indexes that are not in the ledger stay: other programs
write indexes too, possibly before the parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from mooring.migrate.jxt.format import OldIndex, OldIndexEntry, OldKeys, is_spelling_of
from mooring.migrate.jxt.merge_rule import Base
from mooring.migrate.jxt.plan import DELETABLE, DIFFERENT, KeyVerdict, PartPlan
from mooring.migrate.jxt.reader import UnitReader
from mooring.migrate.jxt.state import CutoverState, SyncedState, UnitState
from mooring.model import JSON
from mooring.store.contract import Check, Delete, Entry, Put, Query, Store, Write, key, unchanged
from mooring.tasks import slices
from mooring.tenants.keys import DOMAIN, IndexEntry, IndexKind, TenantKeys
from mooring.tenants.parts import Claim, UnreadablePart, claims, holder
from mooring.tenants.secrets import Keyring

_BATCH = 40
"""Indexes that are repaired in one commit."""
MAX_OPERATIONS = 100
"""Operations in one commit, besides the ledger's."""

_FOLLOWS = "it follows from the parts"


def compare_old_indexes(
    keys: TenantKeys,
    indexes: Iterable[OldIndexEntry],
    state: UnitState | None,
    steps: Sequence[PartPlan],
) -> Iterator[PartPlan]:
    """`steps` are the plan of the parts. An index may be deleted with the part it refers to."""
    if state is None:
        for index in indexes:
            why = _no_tenant(index.holder)
            yield PartPlan(index.holder, index.key, "orphan", why, index.modified)
        return
    unit, old = state.unit, state.old
    verdicts = {step.key: step.verdict for step in steps}
    before, after = (list(claims(keys, unit, parts).values()) for parts in (old.values, state.new))
    for index in indexes:
        owner = next((c.path for c in before if _belongs_to(index.index, c, old.values)), "")
        if owner:
            verdict, why = _compare_owned_index(verdicts.get(old.parts[owner].key))
        elif any(_belongs_to(index.index, claim, state.new) for claim in after):
            verdict, why = "equal", _FOLLOWS
        else:
            verdict = "orphan" if _may_be_hidden(index.index, state) else "abandoned"
            why = f"tenant {unit} has nothing with this name"
        yield PartPlan(unit, index.key, verdict, why, index.modified)


def _compare_owned_index(part: KeyVerdict | None) -> tuple[KeyVerdict, str]:
    """The verdict on an old index that refers to an old part with this verdict."""
    if part in DELETABLE:
        return "equal", _FOLLOWS
    return "index", "" if part in DIFFERENT else "it refers to a part that is not copied"


def _may_be_hidden(index: OldIndex, state: UnitState) -> bool:
    """Whether an unreadable part may have the name of an index."""
    paths = {"host": DOMAIN, "ftp-user": (f"ftp/{index.name}",)}.get(index.kind, ("meta",))
    return any(
        state.old.hides(path) or isinstance(state.new.get(path), UnreadablePart) for path in paths
    )


def _no_tenant(tenant: int) -> str:
    return f"tenant {tenant} not found" if tenant else "it does not name a tenant"


def _belongs_to(index: OldIndex, claim: Claim, parts: Mapping[str, JSON | UnreadablePart]) -> bool:
    if index.kind != claim.kind:
        return False
    if index.kind == "by-name" and index.name == _code(parts):
        return True  # some publishers used the code
    return is_spelling_of(claim.name, index.name, index.kind)


def _code(parts: Mapping[str, object]) -> object:
    meta = parts.get("meta")
    return meta.get("code") if isinstance(meta, dict) else None


def missing_old_indexes(
    keys: TenantKeys,
    old_keys: OldKeys,
    state: UnitState,
    indexes: Sequence[OldIndexEntry],
    kinds: Collection[IndexKind],
) -> Iterator[PartPlan]:
    """The missing old indexes of parts that both formats have, of the kinds that exist at all."""
    synced = {path: value for path, value in state.old.values.items() if path in state.synced.bases}
    for claim in claims(keys, state.unit, synced).values():
        exists = any(_belongs_to(entry.index, claim, synced) for entry in indexes)
        if claim.kind in kinds and not exists:
            yield PartPlan(state.unit, old_keys.index(claim.kind, claim.name), "index-missing")


def compare_new_indexes(
    keys: TenantKeys, units: Mapping[int, UnitState], indexes: Mapping[bytes, Entry]
) -> Iterator[PartPlan]:
    """The new indexes that do not match the new parts."""
    owners: dict[bytes, dict[int, Claim]] = {}
    for unit in sorted(unit for unit in units if unit):
        for name, claim in claims(keys, unit, units[unit].new).items():
            owners.setdefault(name, {})[unit] = claim
    for name, claims_by_unit in owners.items():
        yield from _compare_new_index(name, claims_by_unit, indexes.get(name))
    for name, entry in indexes.items():
        tenant, index = holder(entry.value), keys.understand(name)
        if name in owners or not isinstance(index, IndexEntry):
            continue
        if not tenant:
            yield PartPlan(0, name, "orphan", _no_tenant(0), entry.modified)
        elif not _is_unescaped(keys, index, tenant, owners) and not _is_unclear(units.get(tenant)):
            why = f"tenant {tenant} has nothing with this name"
            yield PartPlan(tenant, name, "dangling", why, entry.modified)


def _compare_new_index(
    name: bytes, owners: Mapping[int, Claim], entry: Entry | None
) -> Iterator[PartPlan]:
    tenant = 0 if entry is None else holder(entry.value)
    modified = 0 if entry is None else entry.modified
    if tenant not in owners:
        first, claim = next(iter(owners.items()))
        actual = f"it refers to tenant {tenant}" if tenant else "it refers to no tenant"
        why = f"{claim.shown} is tenant {first}'s: {actual}"
        yield PartPlan(first, name, "unindexed", why, modified)
        tenant = first
    for unit, claim in owners.items():
        if unit != tenant:
            why = f"tenant {unit} has {claim.shown} too, and it refers to tenant {tenant}"
            yield PartPlan(unit, name, "contested", why, modified)


def _is_unescaped(
    keys: TenantKeys, index: IndexEntry, tenant: int, owners: Mapping[bytes, Mapping[int, Claim]]
) -> bool:
    """Whether an older publisher wrote a correct index without escaping the name."""
    return index.kind == "by-name" and tenant in owners.get(keys.index("by-name", index.name), {})


def _is_unclear(state: UnitState | None) -> bool:
    """Whether unreadable parts hide which indexes a tenant has."""
    return state is not None and any(
        isinstance(state.new.get(path), UnreadablePart) for path in ("meta", *DOMAIN)
    )


def old_index_claims(
    keys: TenantKeys, old_keys: OldKeys, unit: int, parts: Mapping[str, object]
) -> dict[bytes, Claim]:
    """The old indexes of a tenant with these parts."""
    wanted = claims(keys, unit, parts).values()
    return {old_keys.index(claim.kind, claim.name): claim for claim in wanted}


def index_variants(
    old_keys: OldKeys, wanted: Mapping[bytes, Claim], parts: Mapping[str, object]
) -> dict[bytes, list[bytes]]:
    """The other keys to which publishers may have written these indexes."""
    code = str(_code(parts) or "")
    return {
        name: old_keys.index_variants(claim.kind, claim.name, code)
        for name, claim in wanted.items()
    }


class IndexWrites(msgspec.Struct):
    writes: list[Write] = msgspec.field(default_factory=list)
    checks: list[Check] = msgspec.field(default_factory=list)
    gone: set[bytes] = msgspec.field(default_factory=set)
    """The indexes that no longer refer to the tenant after the writes."""
    problems: list[str] = msgspec.field(default_factory=list)

    def delete(self, entry: Entry) -> None:
        self.writes.append(Delete(key(entry.key)))
        self.checks.append(unchanged(entry.key, entry.modified))

    def put(self, claim: Claim, name: bytes, entries: Mapping[bytes, Entry]) -> None:
        self.writes.append(Put(name, claim.value))
        self.checks.append(unchanged(name, entries[name].modified if name in entries else 0))


def write_index_changes(
    unit: int,
    before: Mapping[bytes, Claim],
    after: Mapping[bytes, Claim],
    entries: Mapping[bytes, Entry],
) -> IndexWrites:
    """The writes, with one check each. Unchanged indexes and those of other tenants stay."""
    result = IndexWrites(gone=before.keys() - after.keys())
    holders = {name: holder(entry.value) for name, entry in entries.items()}
    for name in sorted(result.gone):
        if holders.get(name) == unit:
            result.delete(entries[name])
    for name, claim in sorted(after.items()):
        present = {it.value for it in (before.get(name), entries.get(name)) if it is not None}
        # Another tenant may be about to give up the name: see `find_gaps`.
        if claim.value not in present and holders.get(name, 0) in (0, unit):
            result.put(claim, name, entries)
    return result


def find_gaps(
    unit: int,
    wanted: Mapping[bytes, Claim],
    variants: Mapping[bytes, Collection[bytes]],
    entries: Mapping[bytes, Entry],
) -> dict[bytes, int | None]:
    """The wanted indexes that do not exist, and those of another tenant, with its id. Spelling and
    other fields do not matter, and unreadable indexes are left alone."""
    tenants = {name: holder(entry.value) for name, entry in entries.items()}
    return {
        name: tenants.get(name)
        for name in wanted
        if tenants.get(name) != 0
        and all(tenants.get(variant) != unit for variant in (name, *variants[name]))
    }


def with_current_meta(
    parts: Mapping[str, JSON], state: UnitState, cutover: CutoverState
) -> Mapping[str, JSON]:
    """The old parts. After the cut-over, only the new meta counts."""
    meta = state.new.get("meta")
    return {**parts, "meta": meta} if cutover.phase != "both" and isinstance(meta, dict) else parts


class OldIndexes:
    def __init__(self, store: Store, reader: UnitReader, ring: Keyring) -> None:
        self._store, self._reader, self._ring = store, reader, ring

    async def changes(
        self, unit: int, before: Mapping[str, JSON], after: Mapping[str, JSON]
    ) -> IndexWrites:
        """The writes that belong to a change of the old parts."""
        if not unit:
            return IndexWrites()
        old, new = self._claims(unit, before), self._claims(unit, after)
        return write_index_changes(unit, old, new, await self.entries({*old, *new}))

    def synced_state(
        self, state: UnitState, bases: Mapping[str, Base], gone: Collection[bytes] = ()
    ) -> SyncedState:
        """The ledger's entry without the indexes that are gone. A unit without bases needs none."""
        current = self._possible(state) if bases or state.synced.bases else {}
        indexes = {**state.synced.indexes, **current}
        return SyncedState(
            bases, {name: path for name, path in indexes.items() if name not in gone}
        )

    def _possible(self, state: UnitState) -> dict[bytes, str]:
        """The indexes that may refer to a unit in either format and any spelling, and the part of
        each."""
        possible: dict[bytes, str] = {}
        for parts in (state.new, state.old.values) if state.unit else ():
            wanted = self._claims(state.unit, parts)
            for name, variants in index_variants(self._reader.old_keys, wanted, parts).items():
                possible |= dict.fromkeys((name, *variants), wanted[name].path)
        return possible

    async def repairs(self, state: UnitState, cutover: CutoverState) -> IndexWrites:
        """The writes that are left for a unit whose parts are in sync."""
        if not state.unit:
            return IndexWrites()
        wanted = self._wanted(state, cutover)
        variants = index_variants(self._reader.old_keys, wanted, state.new)
        surplus = self._surplus(state)
        names = {*wanted, *(name for others in variants.values() for name in others), *surplus}
        entries = await self.entries(names)
        gaps = find_gaps(state.unit, wanted, variants, entries)
        result = IndexWrites(gone=set(surplus))
        for name in surplus:
            if name in entries and holder(entries[name].value) == state.unit:
                result.delete(entries[name])
        missing: list[bytes] = []
        for name, tenant in gaps.items():
            if tenant is not None and await self._is_claimed(name, tenant):
                result.problems.append(
                    f"{wanted[name].shown} is tenant {tenant}'s among the old keys"
                )
            else:
                missing.append(name)
        for name in missing[:_BATCH]:
            part = state.old.parts[wanted[name].path]
            result.put(wanted[name], name, entries)
            result.checks.append(unchanged(part.key, part.modified))
        result.checks = list(dict.fromkeys(result.checks))
        return result

    async def _is_claimed(self, name: bytes, tenant: int) -> bool:
        """Whether a tenant has the name of an old index, in either format."""
        state, _ = await self._reader.unit(tenant)
        return any(name in self._claims(tenant, parts) for parts in (state.new, state.old.values))

    def _surplus(self, state: UnitState) -> list[bytes]:
        """Recorded indexes of names that a unit no longer has."""
        possible = self._possible(state)
        surplus = [
            name
            for name, path in state.synced.indexes.items()
            if name not in possible and state.is_in_sync(path, self._ring)
        ]
        return sorted(surplus)[:_BATCH]

    def _wanted(self, state: UnitState, cutover: CutoverState) -> dict[bytes, Claim]:
        old = with_current_meta(state.old.values, state, cutover)
        return {
            name: claim
            for name, claim in self._claims(state.unit, old).items()
            if state.is_same(claim.path, self._ring)
        }

    def _claims(self, unit: int, parts: Mapping[str, object]) -> dict[bytes, Claim]:
        return old_index_claims(self._reader.keys, self._reader.old_keys, unit, parts)

    async def entries(self, names: Collection[bytes]) -> dict[bytes, Entry]:
        entries: dict[bytes, Entry] = {}
        for batch in slices(sorted(names), MAX_OPERATIONS):
            commit = await self._store.commit(read=[Query(key(name)) for name in batch])
            entries |= {read.first.key: read.first for read in commit.reads if read.first}
        return entries
