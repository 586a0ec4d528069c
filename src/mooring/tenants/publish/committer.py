"""Reads tenants, and commits planned writes together with the history.

Every commit adds the next page of the tenant's history and moves the history's head, provided that
the head did not move. So two publishers of one tenant never overlap.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from mooring.errors import OutcomeUnknown, StoreError, Taken
from mooring.messages import message
from mooring.store.contract import (
    Check,
    Committed,
    Delete,
    Entry,
    Put,
    Query,
    Store,
    Write,
    between,
    key,
    unchanged,
)
from mooring.tasks import slices
from mooring.tenants.history import HistoryEntry, decode_entry, history_changes
from mooring.tenants.keys import Owner, TenantKeys, named
from mooring.tenants.parts import (
    CASE_INSENSITIVE,
    NOTHING_RESENT,
    Parts,
    Resent,
    StoredParts,
    claims,
    holder,
    read_in_slices,
    stored_parts,
    unclear_kinds,
)
from mooring.tenants.publish.plan import (
    COMMIT_OPERATIONS,
    NO_UNIT,
    Unit,
    batches,
    conflicting_claims,
    plan_units,
    unnormalized_keys,
)
from mooring.tenants.publish.publish_state import Attempt, PublishState
from mooring.tenants.secrets import Keyring

_OLDEST = 8  # entries whose age each publish checks

_OPEN = b" open"  # follows the number in the head of a history

_INDEXED = ("meta", "domain/primary")
"""Parts whose content is copied into index entries: every commit requires them unchanged."""


class StoredTenant(msgspec.Struct, frozen=True):
    """A tenant and its history, as read at one revision."""

    stored: StoredParts
    head: int
    """The revision at which its history last changed; 0: it has none."""
    last: int
    """The newest number of its history."""
    incomplete: bool
    """Whether that entry expects more pages, or was interrupted."""
    first: int
    expired: int
    """Entries up to this number are too old."""

    def after(self, attempt: Attempt, revision: int) -> StoredTenant:
        """The tenant after one of the commits of a publish."""
        changed = {
            change.path: 0 if change.after is None else revision for change in attempt.changes
        }
        stored = msgspec.structs.replace(self.stored, revisions=self.stored.revisions | changed)
        return msgspec.structs.replace(self, stored=stored, head=revision, last=attempt.number)


class Plan(msgspec.Struct, frozen=True):
    units: list[Unit]
    guarded: bool
    """Whether it takes over names that led to another tenant."""


class Committer:
    """Reads and writes the tenants below one namespace, on behalf of `by`."""

    def __init__(
        self, store: Store, keys: TenantKeys, ring: Keyring, *, by: str, keep: int, keep_for: float
    ) -> None:
        self.store, self.keys, self._ring = store, keys, ring
        self._by, self._keep, self._keep_for = by, keep, keep_for

    async def read(self, tenant: Owner, resent: Resent = NOTHING_RESENT) -> StoredTenant:
        history = self.keys.history_of(tenant)
        snapshot = await self.store.commit(
            read=[
                Query(self.keys.parts(tenant)),
                Query(history, keys_only=True),
                Query(history, limit=_OLDEST),
                Query(key(self.keys.history_head(tenant))),
            ]
        )
        parts, all_entries, oldest, heads = (read.entries for read in snapshot.reads)
        numbers = [n for entry in all_entries if (n := self.keys.history_number(entry.key))]
        expired = [
            number
            for entry in oldest
            if (number := self.keys.history_number(entry.key))
            and time.time() - _timestamp(decode_entry(entry).at) > self._keep_for
        ]
        return StoredTenant(
            stored_parts(self.keys, tenant, parts, resent),
            heads[0].modified if heads else 0,
            max([*numbers, *(_number(head.value) for head in heads)], default=0),
            any(head.value.endswith(_OPEN) for head in heads),
            min(numbers, default=0),
            max(expired, default=0),
        )

    async def plan(
        self, tenant: Owner, stored: StoredParts, target: Parts, *, claiming: bool = True
    ) -> Plan:
        """Raises `Taken` if a name belongs to another tenant. An index entry of a tenant that does
        not claim it is stale: it is taken over, unless that tenant is published meanwhile.
        `claiming=False`: for a deletion, which claims nothing."""
        required = claims(self.keys, tenant, target)
        former = claims(self.keys, tenant, stored.parts)
        index = await self._index_entries({*required, *former}, stored.parts, target)
        if unclear_kinds(stored.parts):
            index |= await self.index_entries_of(tenant)
        if not claiming:
            required = {}
        guards: dict[bytes, list[Check]] = {}
        others: dict[int, StoredTenant] = {}
        for claim, entry, other in conflicting_claims(tenant, required, self.keys, index):
            rival = others[other] = others.get(other) or await self.read(other)
            if rival.stored.may_claim(self.keys, other, claim):
                problem = message("claim_taken", claim=claim.shown, holder=named(other))
                text = message("of_owner", owner=named(tenant), problem=problem)
                raise Taken(text, holder=other, claim=claim.shown)
            guards.setdefault(claim.key, []).extend(
                [
                    unchanged(self.keys.history_head(other), rival.head),
                    unchanged(entry.key, entry.modified),
                ]
            )
        units = plan_units(self.keys, tenant, stored, target, index, guards, claiming=claiming)
        return Plan(units, bool(guards))

    async def write(
        self,
        state: PublishState,
        seen: StoredTenant,
        plan: Plan,
        target: Parts,
        *,
        closing: bool = True,
    ) -> int:
        """Write the plan in as few commits as possible; the revision of the history's head
        afterwards. `closing`: these are the last commits of the publish."""
        extra = state.extra(target) if closing else NO_UNIT
        commits = batches(state.tenant, plan.units, room=COMMIT_OPERATIONS - extra.operations)
        if commits:
            commits[-1].append(extra)
        elif extra.writes:
            commits = [[extra]]
        for place, units in enumerate(commits, 1):
            writes = [write for unit in units for write in unit.writes]
            checks = [check for unit in units for check in unit.checks]
            attempt, history = None, list[Write]()
            if units != [extra]:
                attempt = state.attempt(
                    seen.last,
                    [change for unit in units for change in unit.changes],
                    closing=closing and place == len(commits),
                    incomplete=seen.incomplete,
                )
                history = self.history_writes(state, attempt, seen)
            require = [*self._unchanged(state.tenant, seen), *checks]
            done = await self.commit(state, attempt, [*writes, *history], require)
            if attempt is not None:
                seen = seen.after(attempt, done.revision)
        return seen.head

    def _unchanged(self, tenant: Owner, seen: StoredTenant) -> Iterator[Check]:
        """Checks that there was no other publish, and no other change of the indexed parts."""
        yield unchanged(self.keys.history_head(tenant), seen.head)
        for path in _INDEXED if isinstance(tenant, int) else ():
            yield unchanged(self.keys.part(tenant, path), seen.stored.revisions.get(path, 0))

    async def commit(
        self,
        state: PublishState,
        attempt: Attempt | None,
        writes: Sequence[Write],
        require: Sequence[Check],
        read: Sequence[Query] = (),
    ) -> Committed:
        """Commit, and record in the state whether it succeeded, or that it may have."""
        if attempt is not None:
            state.unconfirmed.append(attempt)
        try:
            done = await self.store.commit(*writes, require=list(dict.fromkeys(require)), read=read)
        except OutcomeUnknown:
            raise
        except StoreError:
            if attempt is not None:
                state.discard(attempt)
            raise
        if attempt is not None:
            state.confirm(attempt)
        return done

    async def index_entries_of(self, tenant: Owner) -> dict[bytes, Entry]:
        """All index entries of a tenant. It reads the whole index."""
        entries: dict[bytes, Entry] = {}
        async for piece in read_in_slices(self.store, self.keys.indexes):
            entries |= {
                entry.key: entry
                for entry in piece
                if holder(entry.value) == tenant and self.keys.index_kind(entry.key)
            }
        return entries

    async def resolve_unconfirmed(self, state: PublishState, seen: StoredTenant) -> bool:
        """After lost replies: whether the whole publish was written. Raises `OutcomeUnknown` if
        that cannot be determined."""
        for attempt in tuple(state.unconfirmed):
            written = await self._was_written(state.tenant, attempt, seen)
            if written is False:
                state.discard(attempt)
            elif written:
                state.confirm(attempt)
                if attempt.closing:
                    return True
        return False

    async def _was_written(
        self, tenant: Owner, attempt: Attempt, seen: StoredTenant
    ) -> bool | None:
        """Whether a commit was written; None: it may still be."""
        number, page = attempt.place
        pages = [self.keys.history(tenant, number, n) for n in dict.fromkeys((page, 1))]
        answer = await self.store.commit(read=[Query(key(name)) for name in pages])
        entry, first = answer.reads[0].first, answer.reads[-1].first
        if entry is not None:
            return decode_entry(entry).token == attempt.token
        if page > 1 and first is not None and seen.last > number:
            return False  # another publisher followed the page before it
        if seen.last >= number + (page > 1):
            raise OutcomeUnknown(message("publish_trimmed", owner=named(tenant), version=number))
        return None

    async def _index_entries(self, names: set[bytes], *parts: Parts) -> dict[bytes, Entry]:
        """The index entries with these keys, and those that another publisher may have written for
        these parts."""
        queries = [
            Query(key(name)) for name in sorted(names | unnormalized_keys(self.keys, *parts))
        ]
        queries += [Query(self.keys.capitals(kind)) for kind in CASE_INSENSITIVE if queries]
        entries: dict[bytes, Entry] = {}
        for chunk in slices(queries, COMMIT_OPERATIONS):
            answer = await self.store.commit(read=chunk)
            entries |= {entry.key: entry for read in answer.reads for entry in read.entries}
        return entries

    def history_writes(
        self, state: PublishState, attempt: Attempt, seen: StoredTenant
    ) -> list[Write]:
        """Writes the page of a commit, and deletes entries that are too old or too many then."""
        entry = HistoryEntry(
            attempt.number,
            now(),
            self._by,
            state.action,
            history_changes(attempt.changes, self._ring),
            state.note,
            attempt.token,
            attempt.page,
            not attempt.closing,
            attempt.since,
        )
        name = self.keys.history(state.tenant, *attempt.place)
        head = b"%d" % attempt.number + (b"" if attempt.closing else _OPEN)
        return [
            Put(name, msgspec.json.encode(entry)),
            Put(self.keys.history_head(state.tenant), head),
            sentinel_write(self.keys),
            *self._trim_writes(state.tenant, attempt.number, seen),
        ]

    def _trim_writes(self, tenant: Owner, number: int, seen: StoredTenant) -> list[Write]:
        first = min(max(number + 1 - self._keep, seen.expired + 1), number)
        if not seen.first or seen.first >= first:
            return []
        keys = self.keys
        return [Delete(between(keys.history(tenant, seen.first), keys.history(tenant, first)))]


def sentinel_write(keys: TenantKeys) -> Put:
    return Put(keys.sentinel, msgspec.json.encode({"updatedAt": now()}))


def _number(raw: bytes) -> int:
    raw = raw.removesuffix(_OPEN)
    return int(raw) if raw.isdigit() and len(raw) <= 12 else 0


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _timestamp(at: str) -> float:
    """Seconds since the epoch; infinite for an invalid time, so that its entry is kept."""
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return float("inf")
