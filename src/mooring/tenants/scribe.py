"""The scribe: looks at a tenant, and writes what was decided about it, together with its history.

Every write that it makes carries the next entry of the tenant's history, under the condition that
nobody wrote that entry before: so two publishers of one tenant never overlap.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from mooring.errors import Taken
from mooring.store.contract import (
    Check,
    Delete,
    Entry,
    Put,
    Query,
    Store,
    Write,
    absent,
    between,
    key,
    unchanged,
)
from mooring.tenants.history import HistoryEntry, steps
from mooring.tenants.indexing import claims, holder
from mooring.tenants.keys import INDEXES, IndexEntry, Keys
from mooring.tenants.publishing import (
    BYTES,
    ROOM,
    Difference,
    Held,
    Parts,
    Unit,
    batches,
    contested,
    differences,
    held,
    raw_names,
    units,
)
from mooring.tenants.secrets import Keyring

log = logging.getLogger(__name__)

_AGED = 8  # entries looked at for their age at each publish

Also = Callable[[Parts], tuple[Sequence[Write], Sequence[Check]]]
T = TypeVar("T")


class Published(msgspec.Struct, frozen=True):
    """What a publish did."""

    tenant: int
    changes: tuple[Difference, ...]
    """Empty where everything was so already."""
    number: int = 0
    """Of the newest entry in the history that it made."""
    transactions: int = 0
    """More than one where it was too large for one."""


class Seen(msgspec.Struct, frozen=True):
    """What was read of a tenant, at one revision."""

    held: Held
    last: int
    first: int
    aged: int
    """Up to this number, entries are too old."""


class Plan(msgspec.Struct, frozen=True):
    units: list[Unit]
    guards: list[Check]


class Work:
    """A publish under way."""

    def __init__(self, tenant: int, action: str, note: str, also: Also | None = None) -> None:
        self.tenant, self.action, self.note, self.also = tenant, action, note, also
        self.token = secrets.token_hex(8)
        self.changes: list[Difference] = []
        self.number = self.transactions = 0
        self.unsure: tuple[int, Sequence[Difference]] | None = None
        """The entry of the history that may have been written, with what changes then."""

    def happened(self) -> None:
        assert self.unsure is not None
        self.number, told = self.unsure
        self.changes += told
        self.transactions += 1
        self.unsure = None

    def published(self) -> Published:
        if self.transactions > 1:
            log.warning(
                "tenant %d: too large for one transaction, written in %d; readers may have seen "
                "it in between",
                self.tenant,
                self.transactions,
            )
        return Published(self.tenant, tuple(self.changes), self.number, self.transactions)


class Scribe:
    """Reads and writes the tenants below one namespace, on behalf of `by`."""

    def __init__(
        self, store: Store, keys: Keys, ring: Keyring, *, by: str, keep: int, keep_for: float
    ) -> None:
        self._store, self._keys, self._ring = store, keys, ring
        self._by, self._keep, self._keep_for = by, keep, keep_for

    async def look(self, tenant: int) -> Seen:
        chronicled = self._keys.history_of(tenant)
        found = await self._store.commit(
            read=[
                Query(self._keys.parts(tenant)),
                Query(chronicled, keys_only=True),
                Query(chronicled, limit=_AGED),
            ]
        )
        parts, all_entries, oldest = (each.entries for each in found.reads)
        numbers = [n for entry in all_entries if (n := self._keys.history_number(entry.key))]
        aged = [
            number
            for entry in oldest
            if (number := self._keys.history_number(entry.key))
            and time.time() - _moment(understood(entry).at) > self._keep_for
        ]
        return Seen(
            held(self._keys, tenant, parts),
            max(numbers, default=0),
            min(numbers, default=0),
            max(aged, default=0),
        )

    async def plan(self, tenant: int, there: Held, wanted: Parts) -> Plan:
        """Raises `Taken` where something belongs to another tenant. What leads to a tenant that
        does not lay claim to it leads nowhere, and is taken over unless that tenant is published
        meanwhile."""
        now = claims(self._keys, tenant, wanted)
        former = claims(self._keys, tenant, there.parts)
        index = await self._entries({*now, *former}, there.parts, wanted)
        guards: dict[Check, None] = {}
        for claim, _, other in contested(tenant, now, self._keys, index):
            theirs = await self.look(other)
            if claim.key in claims(self._keys, other, theirs.held.parts):
                raise Taken(
                    f"tenant {tenant}: {claim} belongs to tenant {other} already", holder=other
                )
            guards[absent(self._keys.history(other, theirs.last + 1))] = None
        return Plan(units(self._keys, tenant, there, wanted, index), list(guards))

    async def write(self, work: Work, seen: Seen, plan: Plan, wanted: Parts) -> None:
        """One commit, or several where it is too large for one."""
        tenant, number = work.tenant, seen.last
        writes, checks = work.also(wanted) if work.also is not None else ((), ())
        parts = batches(tenant, plan.units, room=ROOM - len(plan.guards)) or (
            [[]] if writes else []
        )
        for place, part in enumerate(parts):
            told = tuple(unit.difference for unit in part if unit.difference is not None)
            last = place + 1 == len(parts)
            made: list[Write] = [write for unit in part for write in unit.writes]
            if part:
                work.unsure = (number + 1, told)
                made += self._recorded(work, number + 1, told)
                made += self._trimmed(tenant, number + 1, seen) if place == 0 else []
            await self._store.commit(
                *made,
                *(writes if last else ()),
                require=[
                    absent(self._keys.history(tenant, number + 1)),
                    *(check for unit in part for check in unit.checks),
                    *plan.guards,
                    *(checks if last else ()),
                ],
            )
            if part:
                work.happened()
                number += 1

    async def erase(self, work: Work, seen: Seen) -> None:
        tenant, there, number = work.tenant, seen.held, seen.last
        index = await self._entries({*claims(self._keys, tenant, there.parts)}, there.parts)
        leading = sorted(
            (entry for entry in index.values() if holder(entry.value) == tenant), key=self._order
        )
        *before, last = list(_chunks(leading, ROOM)) or [[]]
        for part in before:
            guard = absent(self._keys.history(tenant, number + 1))
            await self._commit_deletions(part, [guard])
        *chapters, final = list(_chapters(differences(there.parts, {}))) or [()]
        for chapter in (*chapters, final):
            work.unsure = (number + 1, chapter)
            closing = chapter is final
            revisions = list(there.revisions.items())[: ROOM - len(last)] if closing else []
            await self._commit_deletions(
                last if closing else [],
                [
                    absent(self._keys.history(tenant, number + 1)),
                    *(unchanged(self._keys.part(tenant, path), at) for path, at in revisions),
                ],
                *([Delete(self._keys.parts(tenant))] if closing else []),
                *self._recorded(work, number + 1, chapter),
                *(self._trimmed(tenant, number + 1, seen) if closing else []),
            )
            work.happened()
            number += 1

    async def _commit_deletions(
        self, entries: Sequence[Entry], require: Sequence[Check], *writes: Write
    ) -> None:
        await self._store.commit(
            *(Delete(key(entry.key)) for entry in entries),
            *writes,
            require=[*require, *(unchanged(entry.key, entry.modified) for entry in entries)],
        )

    def _order(self, entry: Entry) -> tuple[int, bytes]:
        place = self._keys.understand(entry.key)
        assert isinstance(place, IndexEntry)
        return INDEXES.index(place.kind), entry.key

    async def make_sure(self, work: Work) -> None:
        """After a lost answer: was it written?"""
        if work.unsure is None:
            return
        entry = (await self._store.read(key(self._keys.history(work.tenant, work.unsure[0])))).first
        if entry is not None and understood(entry).token == work.token:
            work.happened()
        work.unsure = None

    async def _entries(self, names: set[bytes], *parts: Parts) -> dict[bytes, Entry]:
        """What the indexes hold at these keys, and at the raw names of these parts."""
        found: dict[bytes, Entry] = {}
        for chunk in _chunks(sorted(names | raw_names(self._keys, *parts)), ROOM):
            answer = await self._store.commit(read=[Query(key(name)) for name in chunk])
            found |= {each.first.key: each.first for each in answer.reads if each.first is not None}
        return found

    def _recorded(self, work: Work, number: int, changes: Sequence[Difference]) -> list[Write]:
        entry = HistoryEntry(
            number,
            now(),
            self._by,
            work.action,
            steps(changes, self._ring),
            work.note,
            work.token,
        )
        name = self._keys.history(work.tenant, number)
        return [Put(name, msgspec.json.encode(entry)), self.sign_of_life()]

    def _trimmed(self, tenant: int, number: int, seen: Seen) -> list[Write]:
        """What of the history goes when an entry comes."""
        first = min(max(number + 1 - self._keep, seen.aged + 1), number)
        if not seen.first or seen.first >= first:
            return []
        keys = self._keys
        return [Delete(between(keys.history(tenant, seen.first), keys.history(tenant, first)))]

    def sign_of_life(self) -> Put:
        return Put(self._keys.sentinel, msgspec.json.encode({"updatedAt": now()}))


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _chapters(changes: Sequence[Difference]) -> Iterator[Sequence[Difference]]:
    """What fits into one entry of a history."""
    chapter: list[Difference] = []
    size = 0
    for change in changes:
        if chapter and size + change.size > BYTES:
            yield tuple(chapter)
            chapter, size = [], 0
        chapter.append(change)
        size += change.size
    if chapter:
        yield tuple(chapter)


def understood(entry: Entry) -> HistoryEntry:
    try:
        return msgspec.json.decode(entry.value, type=HistoryEntry)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("%s cannot be understood: %s", entry.key.decode(errors="replace"), error)
        return HistoryEntry(int(entry.key.rpartition(b"/")[2]), "", "", "(unreadable)", ())


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(at: str) -> float:
    """Seconds since the epoch; the future where it does not say."""
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return float("inf")
