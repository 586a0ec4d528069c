"""Reads a tenant, and writes what was decided about it together with its history.

Every write that it makes carries the next entry of the tenant's history and moves its head, under
the condition that nobody moved it before: so two publishers of one tenant never overlap.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from mooring.errors import OutcomeUnknown, StoreError, Taken
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
from mooring.tenants.cooperative import read_in_slices
from mooring.tenants.history import HistoryEntry, decode_entry, history_changes
from mooring.tenants.keys import IndexEntry, Owner, TenantKeys, named
from mooring.tenants.parts import ANY_CASE, Parts, Resent, StoredParts, claims, holder, stored_parts
from mooring.tenants.publish.plan import (
    ROOM,
    Unit,
    batches,
    conflicting_claims,
    plan_units,
    unnormalized_keys,
)
from mooring.tenants.publish.publish_state import Attempt, PublishState
from mooring.tenants.publish.publish_state import PublishResult as PublishResult
from mooring.tenants.secrets import Keyring

log = logging.getLogger(__name__)

_AGED = 8  # entries looked at for their age at each publish

_OPEN = b" open"  # after the number in the head of a history

_TOLD = ("meta", "domain/primary")
"""Parts that what leads to a tenant tells of: every commit holds only where they are as read."""

T = TypeVar("T")


class StoredTenant(msgspec.Struct, frozen=True):
    """What was read of a tenant, at one revision."""

    stored: StoredParts
    head: int
    """The revision at which its history last went on; 0: it has none."""
    last: int
    """The newest number of its history."""
    incomplete: bool
    """Whether that entry has more pages to come, or was interrupted."""
    first: int
    aged: int
    """Up to this number, entries are too old."""


def with_resent(seen: StoredTenant, resent: Resent) -> StoredTenant:
    """The same, with secrets that count as changed."""
    if not resent:
        return seen
    return msgspec.structs.replace(seen, stored=msgspec.structs.replace(seen.stored, resent=resent))


class Plan(msgspec.Struct, frozen=True):
    units: list[Unit]
    guarded: bool
    """Whether something is taken over that led to another tenant."""


class Committer:
    """Reads and writes the tenants below one namespace, on behalf of `by`."""

    def __init__(
        self, store: Store, keys: TenantKeys, ring: Keyring, *, by: str, keep: int, keep_for: float
    ) -> None:
        self.store, self.keys, self._ring = store, keys, ring
        self._by, self._keep, self._keep_for = by, keep, keep_for

    async def look(self, tenant: Owner) -> StoredTenant:
        chronicled = self.keys.history_of(tenant)
        found = await self.store.commit(
            read=[
                Query(self.keys.parts(tenant)),
                Query(chronicled, keys_only=True),
                Query(chronicled, limit=_AGED),
                Query(key(self.keys.history_head(tenant))),
            ]
        )
        parts, all_entries, oldest, heads = (each.entries for each in found.reads)
        numbers = [n for entry in all_entries if (n := self.keys.history_number(entry.key))]
        aged = [
            number
            for entry in oldest
            if (number := self.keys.history_number(entry.key))
            and time.time() - _moment(decode_entry(entry).at) > self._keep_for
        ]
        return StoredTenant(
            stored_parts(self.keys, tenant, parts),
            heads[0].modified if heads else 0,
            max([*numbers, *(_number(head.value) for head in heads)], default=0),
            any(head.value.endswith(_OPEN) for head in heads),
            min(numbers, default=0),
            max(aged, default=0),
        )

    async def plan(
        self, tenant: Owner, there: StoredParts, wanted: Parts, *, claiming: bool = True
    ) -> Plan:
        """Raises `Taken` where something belongs to another tenant. What leads to a tenant that
        does not lay claim to it leads nowhere, and is taken over unless that tenant is published
        meanwhile. `claiming=False`: for a deletion, which lays no claims."""
        now = claims(self.keys, tenant, wanted)
        former = claims(self.keys, tenant, there.parts)
        index = await self._entries({*now, *former}, there.parts, wanted)
        if there.obscure:
            index |= await self.leading(tenant)
        guards: dict[bytes, list[Check]] = {}
        looked: dict[int, StoredTenant] = {}
        for claim, entry, other in conflicting_claims(
            tenant, now if claiming else {}, self.keys, index
        ):
            theirs = looked[other] = looked.get(other) or await self.look(other)
            if theirs.stored.may_claim(self.keys, other, claim):
                raise Taken(
                    f"{named(tenant)}: {claim} belongs to tenant {other} already",
                    holder=other,
                    claim=str(claim),
                )
            guards.setdefault(claim.key, []).extend(
                [
                    unchanged(self.keys.history_head(other), theirs.head),
                    unchanged(entry.key, entry.modified),
                ]
            )
        found = plan_units(self.keys, tenant, there, wanted, index, guards, claiming=claiming)
        return Plan(found, bool(guards))

    async def write(
        self,
        work: PublishState,
        seen: StoredTenant,
        plan: Plan,
        wanted: Parts,
        *,
        closing: bool = True,
    ) -> int:
        """One commit, or several where it is too large for one; where the history's head is then.
        `closing`: nothing comes after it."""
        tenant, number, head = work.tenant, seen.last, seen.head
        incomplete = seen.incomplete
        indexed = _TOLD if isinstance(tenant, int) else ()
        told_of = {path: seen.stored.revisions.get(path, 0) for path in indexed}
        writes, checks = work.beside(wanted) if closing else ((), ())
        room = ROOM - max(len(writes), len(checks))
        parts = batches(tenant, plan.units, room=room) or ([[]] if writes else [])
        for place, part in enumerate(parts):
            changes = tuple(change for unit in part for change in unit.changes)
            last = place + 1 == len(parts)
            made: list[Write] = [write for unit in part for write in unit.writes]
            attempt = None
            if part:
                attempt = work.attempt(
                    number, changes, closing=last and closing, incomplete=incomplete
                )
                made += self.recorded(work, attempt)
                made += self.trimmed(tenant, attempt.number, seen) if place == 0 else []
            done = await self.commit(
                work,
                attempt,
                [*made, *(writes if last else ())],
                [
                    unchanged(self.keys.history_head(tenant), head),
                    *(unchanged(self.keys.part(tenant, path), at) for path, at in told_of.items()),
                    *(check for unit in part for check in unit.checks),
                    *(checks if last else ()),
                ],
            )
            if attempt is not None:
                number, head = attempt.number, done.revision
            for change in changes:
                if change.path in told_of:
                    told_of[change.path] = 0 if change.after is None else done.revision
        return head

    async def commit(
        self,
        work: PublishState,
        attempt: Attempt | None,
        writes: Sequence[Write],
        require: Sequence[Check],
        read: Sequence[Query] = (),
    ) -> Committed:
        """A commit of which is known whether it happened, or that it may have."""
        if attempt is not None:
            work.unsure.append(attempt)
        try:
            done = await self.store.commit(*writes, require=list(dict.fromkeys(require)), read=read)
        except OutcomeUnknown:
            raise
        except StoreError:
            if attempt is not None:
                work.unsure.remove(attempt)
            raise
        if attempt is not None:
            work.happened(attempt)
        return done

    async def leading(self, tenant: Owner) -> dict[bytes, Entry]:
        """All that leads to a tenant: every index has to be looked at."""
        found: dict[bytes, Entry] = {}
        async for some in read_in_slices(self.store, self.keys.indexes):
            found |= {
                entry.key: entry
                for entry in some
                if holder(entry.value) == tenant
                and isinstance(self.keys.understand(entry.key), IndexEntry)
            }
        return found

    async def make_sure(self, work: PublishState, seen: StoredTenant) -> bool:
        """After lost answers: whether all was written. Raises `OutcomeUnknown` where that cannot be
        told any more."""
        for attempt in tuple(work.unsure):
            number, page = attempt.place
            there = [
                self.keys.history(work.tenant, number, each) for each in dict.fromkeys((page, 1))
            ]
            answer = await self.store.commit(read=[Query(key(name)) for name in there])
            entry, first = answer.reads[0].first, answer.reads[-1].first
            if entry is None and page > 1 and first is not None and seen.last > number:
                # Another publisher came after the page before it: it was not written.
                work.unsure = [each for each in work.unsure if each is not attempt]
                continue
            if entry is None and seen.last >= number + (page > 1):
                raise OutcomeUnknown(
                    f"{named(work.tenant)}: the answer was lost, and its place in the history "
                    f"({attempt.number}) is trimmed already: it may have been written or not"
                )
            if entry is None:
                continue  # it may come yet
            if decode_entry(entry).token == attempt.token:
                work.happened(attempt)
                if attempt.closing:
                    return True
            elif attempt in work.unsure:
                work.unsure.remove(attempt)  # another has its place
        return False

    async def _entries(self, names: set[bytes], *parts: Parts) -> dict[bytes, Entry]:
        """What the indexes hold at these keys, and wherever else another publisher may have written
        what these parts lay claim to."""
        queries = [
            Query(key(name)) for name in sorted(names | unnormalized_keys(self.keys, *parts))
        ]
        queries += [Query(self.keys.capitals(kind)) for kind in ANY_CASE if queries]
        found: dict[bytes, Entry] = {}
        for chunk in chunks(queries, ROOM):
            answer = await self.store.commit(read=chunk)
            found |= {entry.key: entry for each in answer.reads for entry in each.entries}
        return found

    def recorded(self, work: PublishState, attempt: Attempt) -> list[Write]:
        entry = HistoryEntry(
            attempt.number,
            now(),
            self._by,
            work.action,
            history_changes(attempt.told, self._ring),
            work.note,
            attempt.token,
            attempt.page,
            not attempt.closing,
            attempt.since,
        )
        name = self.keys.history(work.tenant, *attempt.place)
        head = b"%d" % attempt.number + (b"" if attempt.closing else _OPEN)
        return [
            Put(name, msgspec.json.encode(entry)),
            Put(self.keys.history_head(work.tenant), head),
            sentinel_write(self.keys),
        ]

    def first_kept(self, number: int, seen: StoredTenant) -> int:
        """The first entry that is neither too old nor one too many, if this is the newest."""
        return max(number + 1 - self._keep, seen.aged + 1)

    def trimmed(self, tenant: Owner, number: int, seen: StoredTenant) -> list[Write]:
        """What of the history goes when an entry comes."""
        first = min(self.first_kept(number, seen), number)
        if not seen.first or seen.first >= first:
            return []
        keys = self.keys
        return [Delete(between(keys.history(tenant, seen.first), keys.history(tenant, first)))]


def sentinel_write(keys: TenantKeys) -> Put:
    return Put(keys.sentinel, msgspec.json.encode({"updatedAt": now()}))


def room_beside(work: PublishState, wanted: Parts) -> int:
    """Operations of the last commit that are left beside what the caller has to write in it."""
    writes, checks = work.beside(wanted)
    return ROOM - max(len(writes), len(checks))


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _number(raw: bytes) -> int:
    raw = raw.removesuffix(_OPEN)
    return int(raw) if raw.isdigit() and len(raw) <= 12 else 0


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(at: str) -> float:
    """Seconds since the epoch; the future where it does not say."""
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return float("inf")
