"""A line of contenders in the order in which they came, and the rules who of them may go ahead.

Pure: what stands in the store goes in, decisions come out. In every rule those who may go ahead
are the first of the line, and who may once, may for as long as they stand there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec
from sortedcontainers import SortedDict, SortedList

from mooring.formatting import quoted
from mooring.store.contract import Entry

Mark = tuple[int, bytes]
"""A place in a line: when its key was created, and the key."""

EXCLUSIVE, SHARED, PLACE, PARTY = "lock", "read", "place", "party"
_KINDS = frozenset({EXCLUSIVE, SHARED, PLACE, PARTY})


class ContenderValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a contender's key says of it: the value of the key, as JSON."""

    kind: str = msgspec.field(name="mooring")
    """How it stands there: `lock`, `read`, `place` of a semaphore, `party` to a barrier. Empty for
    anybody else's value; such a contender wants the line for itself."""
    by: str = ""
    """For people: who it is, `host:pid`."""
    size: int = 0
    """Of a semaphore or a barrier."""
    passed: int = 0
    """A party to a barrier that has seen it open: up to which creation it opened."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ContenderValue)


def encode_value(card: ContenderValue) -> bytes:
    return _encoder.encode(card)


def decode_value(value: bytes) -> ContenderValue:
    """The card in a value; an empty one where it is none of ours."""
    try:
        card = _decoder.decode(value)
    except (ValueError, RecursionError):
        return FOREIGN
    return card if card.kind in _KINDS else FOREIGN


FOREIGN = ContenderValue("")
"""Anybody else's, who wants the line for itself."""


class QueueOrder:
    """The contenders for one name. `prefix` is the name and a slash; keys of names below it (which
    have a slash more) are none of its."""

    def __init__(self, prefix: bytes, entries: Iterable[Entry] = ()) -> None:
        self._prefix = prefix
        self._places: SortedDict[Mark, Entry] = SortedDict()
        self._alone: SortedList[Mark] = SortedList()
        self._parties: dict[Mark, int] = {}
        self._created: dict[bytes, int] = {}
        for entry in entries:
            self.put(entry)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._places.values())

    def __contains__(self, mark: Mark) -> bool:
        return mark in self._places

    @property
    def first(self) -> Entry | None:
        return self._places.peekitem(0)[1] if self._places else None

    def put(self, entry: Entry) -> Mark | None:
        """A key was written; the place that is gone, where it was created anew meanwhile."""
        if b"/" in entry.key[len(self._prefix) :]:
            return None
        gone = None
        if self._created.get(entry.key, entry.created) != entry.created:
            gone = self.remove(entry.key)
        mark = (entry.created, entry.key)
        card = decode_value(entry.value)
        if mark not in self._places and card.kind != SHARED:
            self._alone.add(mark)
        if card.kind == PARTY:
            self._parties[mark] = card.passed
        self._places[mark] = entry
        self._created[entry.key] = entry.created
        return gone

    def remove(self, key: bytes) -> Mark | None:
        """A key was deleted; the place that is gone."""
        created = self._created.pop(key, None)
        if created is None:
            return None
        mark = (created, key)
        del self._places[mark]
        self._alone.discard(mark)
        self._parties.pop(mark, None)
        return mark

    def ahead(self, mark: Mark) -> int:
        """How many stand before a place."""
        return int(self._places.bisect_left(mark))

    def alone_ahead(self, mark: Mark) -> bool:
        """Whether somebody who wants the line for itself stands before a place."""
        return bool(self._alone) and self._alone[0] < mark

    def parties(self) -> list[tuple[Mark, int]]:
        """Those who wait at a barrier, and up to where it was open for those who passed it."""
        return [(mark, self._parties.get(mark, 0)) for mark in self._places]


class Rule(Protocol):
    """Who may go ahead."""

    head: int
    """How many of the first in line must be known to judge a newcomer at once."""
    kinds: frozenset[str]
    """Who may stand in one line with those of this rule."""

    def admits(self, order: QueueOrder, mark: Mark) -> bool:
        """Whether who stands there may go ahead."""


class ExclusiveRule:
    """The first in line: a lock, a writer."""

    head = 1
    kinds = frozenset({"", EXCLUSIVE, SHARED})

    def admits(self, order: QueueOrder, mark: Mark) -> bool:
        return order.ahead(mark) == 0


class ElectionRule(ExclusiveRule):
    """The first in line, whatever the values say: those of candidates are their own. So it is for
    an election, and for who locks from elsewhere and knows no kinds."""

    kinds = ExclusiveRule.kinds | _KINDS


class SharedRule:
    """Everybody before the first who wants the line for itself: readers."""

    head = 64
    kinds = ExclusiveRule.kinds

    def admits(self, order: QueueOrder, mark: Mark) -> bool:
        return not order.alone_ahead(mark)


class SemaphoreRule:
    """The first `size` in line: a semaphore."""

    kinds = frozenset({PLACE})

    def __init__(self, size: int) -> None:
        self.size = self.head = size

    def admits(self, order: QueueOrder, mark: Mark) -> bool:
        return order.ahead(mark) < self.size


class BarrierRule:
    """Everybody, once `size` are there: a barrier.

    Who has seen it open says so on their card, with up to where in the line it opened (`passed`),
    and stays until everybody up to there has seen it. So nobody misses it, and who comes for the
    next round is not taken for one of this.
    """

    kinds = frozenset({PARTY})

    def __init__(self, size: int) -> None:
        self.size = size
        self.head = 0

    def admits(self, order: QueueOrder, mark: Mark) -> bool:
        return self.opened(order, mark) > 0

    def opened(self, order: QueueOrder, mark: Mark) -> int:
        """Up to which creation it is open for who stands there; 0 where it is not."""
        parties = order.parties()
        bounds = {bound for _, bound in parties if bound}
        if rounds := [bound for bound in bounds if mark[0] <= bound]:
            return min(rounds)
        passed = max(bounds, default=0)
        waiting = [each for each, _ in parties if each[0] > passed]
        if len(waiting) < self.size:
            return 0
        bound = waiting[self.size - 1][0]
        return bound if mark[0] <= bound else 0

    def number(self, order: QueueOrder, mark: Mark) -> int:
        """The number in its round of who stands there, for whom it is open; from 0."""
        parties = order.parties()
        before = max((bound for _, bound in parties if bound < mark[0]), default=0)
        return sum(before < each[0] < mark[0] for each, _ in parties)

    def all_passed(self, order: QueueOrder, bound: int) -> bool:
        """Whether everybody for whom it opened has seen it."""
        return all(passed for mark, passed in order.parties() if mark[0] <= bound)


def misfit(start: bytes, first: Entry, key: bytes, rule: Rule) -> str:
    """Why who has this key and rule cannot stand behind the first in line; empty where it can."""
    if first.key == key:
        return ""
    name, card = start[:-1].decode(errors="replace"), decode_value(first.value)
    if card.kind not in rule.kinds:
        by = quoted(card.by or first.key)
        return f"{quoted(name)} is in use as another kind of lock, by {by}: choose another name"
    size = getattr(rule, "size", card.size)
    if card.size != size:
        return f"{quoted(name)} has size {card.size} for {card.by}, not {size}: all must agree"
    return ""


EXCLUSIVE_RULE = ExclusiveRule()
ELECTION_RULE = ElectionRule()
SHARED_RULE = SharedRule()


def rule_of(card: ContenderValue) -> Rule:
    """The rule that somebody with this card stands under."""
    if card.kind == PLACE:
        return SemaphoreRule(card.size)
    if card.kind == PARTY:
        return BarrierRule(card.size)
    return SHARED_RULE if card.kind == SHARED else EXCLUSIVE_RULE
