"""Which waiters of a queue are admitted: the rules on random queues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from mooring.locks.admission_rules import (
    EXCLUSIVE,
    EXCLUSIVE_RULE,
    PARTY,
    SHARED,
    SHARED_RULE,
    BarrierRule,
    ContenderValue,
    QueueOrder,
    Rule,
    SemaphoreRule,
    decode_value,
    encode_value,
    rule_of,
)
from mooring.store.contract import Entry

PREFIX = b"name/"


def entry(created: int, card: ContenderValue | None = None, lease: int = 0) -> Entry:
    lease = lease or created + 100
    value = b"" if card is None else encode_value(card)
    return Entry(PREFIX + b"%x" % lease, value, created, created, 1, lease)


def queue_of(*entries: Entry) -> QueueOrder:
    return QueueOrder(PREFIX, entries)


def admitted(queue: QueueOrder, rule: Rule | None = None) -> list[int]:
    return [
        waiter.created
        for waiter in queue
        if (rule or rule_of(decode_value(waiter.value))).admits(queue, (waiter.created, waiter.key))
    ]


readers_and_writers = some.lists(some.sampled_from([SHARED, EXCLUSIVE]), max_size=12)


@given(readers_and_writers)
def test_readers_before_the_first_writer_or_one_writer(kinds: list[str]):
    line = queue_of(*(entry(n, ContenderValue(kind)) for n, kind in enumerate(kinds, 2)))
    first = kinds.index(EXCLUSIVE) if EXCLUSIVE in kinds else len(kinds)
    assert admitted(line) == list(range(2, 2 + (first or min(len(kinds), 1))))


@given(some.sets(some.integers(1, 1000), max_size=20), some.integers(1, 8))
def test_the_oldest_waiters_hold_the_permits(created: set[int], size: int):
    line = queue_of(*map(entry, created))
    assert admitted(line, SemaphoreRule(size)) == sorted(created)[:size]
    assert admitted(line, EXCLUSIVE_RULE) == sorted(created)[:1]
    assert admitted(line, SHARED_RULE) == sorted(created)[:1]


@given(some.lists(some.tuples(some.integers(1, 6), some.booleans()), max_size=40))
def test_a_queue_is_what_was_written_and_not_deleted(changes: list[tuple[int, bool]]):
    queue, model = queue_of(), dict[int, Entry]()
    for revision, (lease, present) in enumerate(changes, 2):
        if present:
            before = model.get(lease)
            model[lease] = entry(before.created if before else revision, lease=lease)
            queue.put(model[lease])
        else:
            model.pop(lease, None)
            queue.remove(PREFIX + b"%x" % lease)
    assert list(queue) == sorted(model.values(), key=lambda waiter: waiter.created)


def test_a_recreated_key_has_a_new_position():
    queue = queue_of(entry(2, lease=1), entry(3, lease=2))
    assert queue.put(entry(5, lease=1)) == (2, PREFIX + b"1")
    assert [waiter.created for waiter in queue] == [3, 5]


def test_keys_below_a_waiter_do_not_count():
    nested = Entry(PREFIX + b"below/1", b"", 1, 1, 1, 1)
    assert len(queue_of(nested, entry(2))) == 1


def test_foreign_values_are_not_waiters():
    mine = (b'{"kind":"read"}', b'{"mooring":5}', b'{"mooring":"1.4.0","size":2}')
    for value in (b"", b"{}", b"[1]", b"\xff", *mine):
        assert decode_value(value).kind == ""
    card = ContenderValue(PARTY, "host:1", 3, 17)
    assert decode_value(encode_value(card)) == card


def test_parties_are_numbered_in_their_round():
    """Parties of the round before that are still in the queue do not count."""
    rule = BarrierRule(2)
    before = [entry(2, ContenderValue(PARTY, "", 2, 3)), entry(3, ContenderValue(PARTY, "", 2))]
    now = [entry(4, ContenderValue(PARTY, "", 2, 5)), entry(5, ContenderValue(PARTY, "", 2))]
    queue = queue_of(*before, *now)
    assert [rule.number(queue, (party.created, party.key)) for party in queue] == [0, 1, 0, 1]
    assert rule.number(queue_of(*now), (5, now[1].key)) == 1


@given(some.integers(1, 5), some.integers(1, 4), some.randoms())
def test_rounds_of_a_barrier_do_not_mix(size: int, rounds: int, chance):
    """Parties arrive, pass and leave in any possible order: each passes with those of its
    own round, and none is left behind."""
    rule, queue = BarrierRule(size), queue_of()
    coming = list(range(2, 2 + size * rounds))
    bounds: dict[int, int] = {}
    left: set[int] = set()
    while len(left) < size * rounds:
        steps = []
        if coming:
            steps.append(("arrive", coming[0]))
        for party in queue:
            mark = (party.created, party.key)
            if party.created not in bounds and rule.admits(queue, mark):
                steps.append(("pass", party.created))
            elif party.created in bounds and rule.all_passed(queue, bounds[party.created]):
                steps.append(("leave", party.created))
        assert steps, "all parties wait forever"
        what, created = chance.choice(steps)
        if what == "arrive":
            queue.put(entry(coming.pop(0), ContenderValue(PARTY, size=size)))
        elif what == "pass":
            mark = (created, PREFIX + b"%x" % (created + 100))
            bounds[created] = rule.opened(queue, mark)
            queue.put(entry(created, ContenderValue(PARTY, size=size, passed=bounds[created])))
        else:
            queue.remove(PREFIX + b"%x" % (created + 100))
            left.add(created)
    for created, bound in bounds.items():
        number = (created - 2) // size
        assert bound == 2 + size * (number + 1) - 1
