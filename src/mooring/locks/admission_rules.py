"""The order of the contenders in a queue, and the rules that decide which of them are admitted.

Pure functions of what the store contains. Every rule admits the contenders at the head of the
queue, and a contender that is admitted stays admitted as long as its key exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec
from sortedcontainers import SortedDict, SortedList

from mooring.messages import Message, message
from mooring.store.contract import Entry

Position = tuple[int, bytes]
"""A position in a queue: the creation revision of the key, and the key."""

EXCLUSIVE, SHARED, PLACE, PARTY = "lock", "read", "place", "party"
_KINDS = frozenset({EXCLUSIVE, SHARED, PLACE, PARTY})


class ContenderValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a contender's key, as JSON."""

    kind: str = msgspec.field(name="mooring")
    """Its kind: `lock`, `read`, `place` of a semaphore, `party` to a barrier. Empty for foreign
    values, whose contenders are exclusive."""
    by: str = ""
    """The contender, for people: `host:pid`."""
    size: int = 0
    passed: int = 0
    """For a party that passed a barrier: the creation revision up to which it opened."""


encode_value = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(ContenderValue)


def decode_value(data: bytes) -> ContenderValue:
    """Decode a value; `FOREIGN` if Mooring did not write it."""
    try:
        value = _decoder.decode(data)
    except (ValueError, RecursionError):
        return FOREIGN
    return value if value.kind in _KINDS else FOREIGN


FOREIGN = ContenderValue("")
"""The value of a foreign contender, for example `etcdctl lock`: it is exclusive."""


class QueueOrder:
    """The contenders for one name: the keys after `prefix` without a further slash."""

    def __init__(self, prefix: bytes, entries: Iterable[Entry] = ()) -> None:
        self._prefix = prefix
        self._places: SortedDict[Position, Entry] = SortedDict()
        self._exclusive: SortedList[Position] = SortedList()
        self._parties: dict[Position, int] = {}
        self._created: dict[bytes, int] = {}
        for entry in entries:
            self.put(entry)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._places.values())

    def __contains__(self, position: Position) -> bool:
        return position in self._places

    @property
    def first(self) -> Entry | None:
        return self._places.peekitem(0)[1] if self._places else None

    def put(self, entry: Entry) -> Position | None:
        """Add a key that was written. Returns the position that is gone if it was recreated."""
        if b"/" in entry.key[len(self._prefix) :]:
            return None
        gone = None
        if self._created.get(entry.key, entry.created) != entry.created:
            gone = self.remove(entry.key)
        position = (entry.created, entry.key)
        value = decode_value(entry.value)
        if position not in self._places and value.kind != SHARED:
            self._exclusive.add(position)
        if value.kind == PARTY:
            self._parties[position] = value.passed
        self._places[position] = entry
        self._created[entry.key] = entry.created
        return gone

    def remove(self, key: bytes) -> Position | None:
        """Remove a key that was deleted. Returns its position."""
        created = self._created.pop(key, None)
        if created is None:
            return None
        position = (created, key)
        del self._places[position]
        self._exclusive.discard(position)
        self._parties.pop(position, None)
        return position

    def ahead(self, position: Position) -> int:
        return int(self._places.bisect_left(position))

    def exclusive_ahead(self, position: Position) -> bool:
        return bool(self._exclusive) and self._exclusive[0] < position

    def parties(self) -> list[tuple[Position, int]]:
        """The positions at a barrier, with the revision up to which it opened (0: not passed)."""
        return [(position, self._parties.get(position, 0)) for position in self._places]


class Rule(Protocol):
    """Decides which contenders are admitted."""

    head: int
    """How many contenders at the head must be read to decide about a newcomer."""
    kinds: frozenset[str]
    """The kinds that may share a queue with this rule."""

    def admits(self, order: QueueOrder, position: Position) -> bool:
        """Whether the contender at this position is admitted."""


class ExclusiveRule:
    """Admits the first contender: a lock, a writer."""

    head = 1
    kinds = frozenset({"", EXCLUSIVE, SHARED})

    def admits(self, order: QueueOrder, position: Position) -> bool:
        return order.ahead(position) == 0


class ElectionRule(ExclusiveRule):
    """Admits the first contender whatever its value is: the values of candidates are free. For
    elections, and for the locks of etcd clients, which have no kinds."""

    kinds = ExclusiveRule.kinds | _KINDS


class SharedRule:
    """Admits all contenders ahead of the first exclusive one: readers."""

    head = 64
    kinds = ExclusiveRule.kinds

    def admits(self, order: QueueOrder, position: Position) -> bool:
        return not order.exclusive_ahead(position)


class SemaphoreRule:
    """Admits the first `size` contenders: a semaphore."""

    kinds = frozenset({PLACE})

    def __init__(self, size: int) -> None:
        self.size = self.head = size

    def admits(self, order: QueueOrder, position: Position) -> bool:
        return order.ahead(position) < self.size


class BarrierRule:
    """Admits all contenders once `size` of them are waiting: a barrier.

    A party that passes the open barrier writes into its value the creation revision up to which it
    opened (`passed`), and stays until all parties up to there have passed. So no party misses the
    opening, and a party of the next round is not counted in this one.
    """

    kinds = frozenset({PARTY})

    def __init__(self, size: int) -> None:
        self.size = size
        self.head = 0

    def admits(self, order: QueueOrder, position: Position) -> bool:
        return self.opened(order, position) > 0

    def opened(self, order: QueueOrder, position: Position) -> int:
        """The creation revision up to which it opened for a position; 0 if it is closed for it."""
        parties = order.parties()
        bounds = {bound for _, bound in parties if bound}
        if rounds := [bound for bound in bounds if position[0] <= bound]:
            return min(rounds)
        passed = max(bounds, default=0)
        waiting = [party for party, _ in parties if party[0] > passed]
        if len(waiting) < self.size:
            return 0
        bound = waiting[self.size - 1][0]
        return bound if position[0] <= bound else 0

    def number(self, order: QueueOrder, position: Position) -> int:
        """The number of a party in its open round, from 0."""
        parties = order.parties()
        before = max((bound for _, bound in parties if bound < position[0]), default=0)
        return sum(before < party[0] < position[0] for party, _ in parties)

    def all_passed(self, order: QueueOrder, bound: int) -> bool:
        """Whether all parties for which it opened have passed."""
        return all(passed for position, passed in order.parties() if position[0] <= bound)


def misfit(start: bytes, first: Entry, key: bytes, rule: Rule) -> Message | None:
    """Why a key with this rule does not fit behind the first contender; None if it does."""
    if first.key == key:
        return None
    name, value = start[:-1].decode(errors="replace"), decode_value(first.value)
    if value.kind not in rule.kinds:
        return message("lock_of_another_kind", name=name, by=value.by or first.key)
    size = getattr(rule, "size", value.size)
    if value.size != size:
        return message("lock_of_another_size", name=name, size=value.size, by=value.by, wanted=size)
    return None


EXCLUSIVE_RULE = ExclusiveRule()
ELECTION_RULE = ElectionRule()
SHARED_RULE = SharedRule()


def rule_of(value: ContenderValue) -> Rule:
    if value.kind == PLACE:
        return SemaphoreRule(value.size)
    if value.kind == PARTY:
        return BarrierRule(value.size)
    return SHARED_RULE if value.kind == SHARED else EXCLUSIVE_RULE
