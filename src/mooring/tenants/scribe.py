"""The scribe: looks at a tenant, and writes what was decided about it, together with its history.

Every write that it makes carries the next entry of the tenant's history and moves its head, under
the condition that nobody moved it before: so two publishers of one tenant never overlap.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from mooring.errors import OutcomeUnknown, Taken
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

UNREADABLE = "(unreadable)"
"""The action of an entry that cannot be understood."""

_CHAPTER = BYTES // 2  # bytes of what is deleted at once: each is in the history then
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
    head: int
    """The revision at which its history last went on; 0: it has none."""
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
        self.closing = False
        """Whether that one is the last."""

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
                Query(key(self._keys.history_head(tenant))),
            ]
        )
        parts, all_entries, oldest, heads = (each.entries for each in found.reads)
        numbers = [n for entry in all_entries if (n := self._keys.history_number(entry.key))]
        aged = [
            number
            for entry in oldest
            if (number := self._keys.history_number(entry.key))
            and time.time() - _moment(understood(entry).at) > self._keep_for
        ]
        return Seen(
            held(self._keys, tenant, parts),
            heads[0].modified if heads else 0,
            max([*numbers, *(_number(head.value) for head in heads)], default=0),
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
        if there.obscure:
            index |= await self._leading(tenant)
        guards: dict[Check, None] = {}
        for claim, _, other in contested(tenant, now, self._keys, index):
            theirs = await self.look(other)
            if claim.key in claims(self._keys, other, theirs.held.parts):
                raise Taken(
                    f"tenant {tenant}: {claim} belongs to tenant {other} already", holder=other
                )
            guards[unchanged(self._keys.history_head(other), theirs.head)] = None
        return Plan(units(self._keys, tenant, there, wanted, index), list(guards))

    async def write(
        self, work: Work, seen: Seen, plan: Plan, wanted: Parts, *, closing: bool = True
    ) -> int:
        """One commit, or several where it is too large for one; where the history's head is then.
        `closing`: nothing comes after it."""
        tenant, number, head = work.tenant, seen.last, seen.head
        ours = work.also if closing else None
        writes, checks = ours(wanted) if ours is not None else ((), ())
        room = ROOM - max(len(writes), len(checks) + len(plan.guards))
        parts = batches(tenant, plan.units, room=room) or ([[]] if writes else [])
        for place, part in enumerate(parts):
            told = tuple(change for unit in part for change in unit.changes)
            last = place + 1 == len(parts)
            made: list[Write] = [write for unit in part for write in unit.writes]
            if part:
                work.unsure, work.closing = (number + 1, told), last and closing
                made += self._recorded(work, number + 1, told)
                made += self._trimmed(tenant, number + 1, seen) if place == 0 else []
            done = await self._store.commit(
                *made,
                *(writes if last else ()),
                require=[
                    unchanged(self._keys.history_head(tenant), head),
                    *(check for unit in part for check in unit.checks),
                    *plan.guards,
                    *(checks if last else ()),
                ],
            )
            if part:
                work.happened()
                number, head = number + 1, done.revision
        return head

    async def erase(self, work: Work, seen: Seen) -> None:
        """What leads to the tenant, then the tenant: in one commit, or in several in that order."""
        tenant, there, number, head = work.tenant, seen.held, seen.last, seen.head
        index = await self._entries({*claims(self._keys, tenant, there.parts)}, there.parts)
        if there.obscure:
            index |= await self._leading(tenant)
        leading = [entry for entry in index.values() if holder(entry.value) == tenant]
        pages = list(_chunks(sorted(leading, key=self._order), ROOM)) or [[]]
        chapters = list(_chapters(differences(there.parts, {}))) or [()]
        alongside = pages.pop() if len(chapters) == 1 else []
        for page in pages:
            await self._commit_deletions(page, [unchanged(self._keys.history_head(tenant), head)])
        for place, chapter in enumerate(chapters):
            closing = place + 1 == len(chapters)
            work.unsure, work.closing = (number + 1, chapter), closing
            names = {each.path: self._keys.part(tenant, each.path) for each in chapter}
            seen_so = [unchanged(name, there.revisions[path]) for path, name in names.items()]
            done = await self._commit_deletions(
                alongside,
                [
                    unchanged(self._keys.history_head(tenant), head),
                    *seen_so[: ROOM - len(alongside)],
                ],
                *(
                    [Delete(self._keys.parts(tenant))]
                    if closing
                    else [Delete(key(name)) for name in names.values()]
                ),
                *self._recorded(work, number + 1, chapter),
                *(self._trimmed(tenant, number + 1, seen) if closing else []),
            )
            work.happened()
            number, head = number + 1, done.revision

    async def _leading(self, tenant: int) -> dict[bytes, Entry]:
        """All that leads to a tenant: every index has to be looked at."""
        found = (await self._store.read(self._keys.indexes)).entries
        return {
            entry.key: entry
            for entry in found
            if holder(entry.value) == tenant
            and isinstance(self._keys.understand(entry.key), IndexEntry)
        }

    async def _commit_deletions(
        self, entries: Sequence[Entry], require: Sequence[Check], *writes: Write
    ) -> Committed:
        return await self._store.commit(
            *(Delete(key(entry.key)) for entry in entries),
            *writes,
            require=[*require, *(unchanged(entry.key, entry.modified) for entry in entries)],
        )

    def _order(self, entry: Entry) -> tuple[int, bytes]:
        place = self._keys.understand(entry.key)
        assert isinstance(place, IndexEntry)
        return INDEXES.index(place.kind), entry.key

    async def make_sure(self, work: Work, seen: Seen) -> bool:
        """After a lost answer: whether all was written. Raises `OutcomeUnknown` where that cannot
        be told any more."""
        if work.unsure is None:
            return False
        number = work.unsure[0]
        entry = (await self._store.read(key(self._keys.history(work.tenant, number)))).first
        if entry is None and seen.last >= number:
            raise OutcomeUnknown(
                f"tenant {work.tenant}: the answer was lost, and its place in the history "
                f"({number}) is trimmed already: it may have been written or not"
            )
        if entry is not None and understood(entry).token == work.token:
            work.happened()
            return work.closing
        work.unsure = None
        return False

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
        return [
            Put(name, msgspec.json.encode(entry)),
            Put(self._keys.history_head(work.tenant), b"%d" % number),
            self.sign_of_life(),
        ]

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
    """What fits into one entry of a history, and unless all fits, into one commit."""
    most = ROOM if sum(change.size for change in changes) > _CHAPTER else len(changes)
    chapter: list[Difference] = []
    size = 0
    for change in changes:
        if chapter and (size + change.size > _CHAPTER or len(chapter) == most):
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
        return HistoryEntry(int(entry.key.rpartition(b"/")[2]), "", "", UNREADABLE, ())


def _number(raw: bytes) -> int:
    return int(raw) if raw.isdigit() and len(raw) <= 12 else 0


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(at: str) -> float:
    """Seconds since the epoch; the future where it does not say."""
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return float("inf")
