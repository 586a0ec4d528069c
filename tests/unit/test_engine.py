"""The engine alone: no I/O, and no clock but the one that the test passes."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import Compacted, LeaseNotFound
from mooring.store import Batch, Delete, Put, Query, Range, key, prefix
from mooring.store.embedded.engine import FORGET, Engine
from mooring.store.embedded.keyspace import size


def forget_all(engine: Engine) -> int:
    """Drop everything that is compacted; return the most versions dropped at a time."""
    most = 0
    while engine.forgetting:
        most = max(most, len(engine.forget()))
    return most


def put(engine: Engine, name: bytes, value: bytes = b"", lease: int = 0, now: float = 0.0) -> int:
    revision = engine.commit([Put(name, value, lease)], [], [], now).revision
    engine.confirm()
    engine.forget()
    return revision


def test_the_history_is_bounded_by_count():
    engine = Engine(history=100)
    for n in range(1000):
        put(engine, b"/a", b"%d" % n)
        engine.advance(0.0)
    assert 100 <= engine.revision - engine.compacted <= 120
    with pytest.raises(Compacted):
        engine.read(Query(key(b"/a")), at=engine.compacted - 1)
    assert engine.read(Query(key(b"/a")), at=engine.compacted).first is not None


def test_the_history_is_bounded_by_age():
    engine = Engine(history_age=60.0)
    for second in range(200):
        put(engine, b"/a", now=float(second))
        engine.advance(float(second))
    assert 60 <= engine.revision - engine.compacted <= 64


def test_the_history_is_bounded_by_its_size():
    engine = Engine(history_bytes=1_000_000)
    for n in range(300):
        put(engine, b"/busy", b"x" * 100_000)
        put(engine, b"/%d" % n, b"is no history")
    assert 10 < engine.revision - engine.compacted < 30
    forget_all(engine)
    assert sum(len(e.value) for e in engine._keys._versions[b"/busy"]) < 1_200_000
    before = engine.compacted
    engine.commit([Delete(prefix(b"/"))], [], [], 0.0)
    for _ in range(30):
        put(engine, b"/small", b"")
    assert engine.compacted > before, "what is deleted is old, and small versions count as well"


def test_a_loaded_store_knows_the_size_of_its_history():
    engine = Engine()
    put(engine, b"/a", b"1" * 1000)
    put(engine, b"/b", b"1" * 1000)
    engine.compact(engine.revision)
    engine.confirm()
    put(engine, b"/a", b"2" * 1000)
    engine.commit([Delete(prefix(b"/"))], [], [], 0.0)
    put(engine, b"/a", b"3" * 1000)
    versions = [e for versions in engine._keys._versions.values() for e in versions]
    loaded = Engine()
    loaded.load(
        sorted(versions, key=lambda e: e.modified),
        revision=engine.revision,
        compacted=engine.compacted,
        now=0.0,
    )
    for revision in range(engine.compacted, engine.revision + 1):
        assert loaded._history.obsolete_since(revision) == engine._history.obsolete_since(revision)


def test_compaction_drops_a_little_at_a_time():
    engine = Engine()
    for n in range(3000):
        put(engine, b"/%d" % (n % 7), b"%d" % n)
    engine.commit([Put(b"/new/%d" % n, b"") for n in range(100)], [], [], 0.0)
    at = engine.revision
    put(engine, b"/0", b"last")
    expected = engine.read(Query(prefix(b"/")), at=at)
    engine.compact(at)
    engine.confirm()
    pieces = 0
    while engine.forgetting:
        assert len(engine.forget()) <= FORGET
        pieces += 1
        assert engine.read(Query(prefix(b"/")), at=at) == expected
        assert engine.count(prefix(b"/"), at) == len(expected.entries)
    assert pieces > 5
    assert sum(map(len, engine._keys._versions.values())) == 108


def test_many_keys_of_one_revision_are_dropped_a_little_at_a_time():
    engine = Engine()
    for start in range(0, 2000, 100):
        engine.commit([Put(b"/%d" % n, b"") for n in range(start, start + 100)], [], [], 0.0)
    engine.commit([Delete(prefix(b"/"))], [], [], 0.0)
    engine.confirm()
    engine.compact(engine.revision)
    engine.confirm()
    assert forget_all(engine) <= 2 * FORGET
    assert engine._keys._versions == {}


def test_compaction_can_be_taken_back():
    engine = Engine()
    for n in range(10):
        put(engine, b"/a", b"%d" % n)
    engine.compact(5)
    engine.undo()
    assert not engine.forgetting
    assert engine.read(Query(key(b"/a")), at=3).first is not None
    engine.compact(5)
    engine.confirm()
    engine.undo()
    with pytest.raises(Compacted):
        engine.read(Query(key(b"/a")), at=3)


def test_deleted_keys_leave_no_trace_once_compacted():
    engine = Engine()
    for n in range(100):
        put(engine, b"/%d" % n)
    engine.commit([Delete(prefix(b"/"))], [], [], 0.0)
    engine.confirm()
    engine.compact(engine.revision)
    engine.confirm()
    forget_all(engine)
    assert engine._keys._versions == {}
    assert len(engine._keys._order) == 0


def test_a_busy_key_does_not_grow_memory_without_bound():
    engine = Engine(history=1000)
    for n in range(3000):
        put(engine, b"/busy", b"%d" % n)
        engine.advance(0.0)
    gc.collect()
    tracemalloc.start()
    for n in range(20_000):
        put(engine, b"/busy", b"%d" % n)
        engine.advance(0.0)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 2_000_000


def test_a_lagging_watcher_learns_that_its_revision_was_compacted():
    engine = Engine(history=100)
    start = engine.revision
    watcher = engine.watch(prefix(b"/"), start, lambda: None)
    for _ in range(5000):
        put(engine, b"/a")
        engine.advance(0.0)
    with pytest.raises(Compacted):
        engine.take(watcher)


def test_leases_expire_in_order_in_separate_revisions():
    engine = Engine()
    long, short = engine.grant(20, 0.0), engine.grant(10, 0.0)
    put(engine, b"/long", lease=long)
    put(engine, b"/short", lease=short)
    assert engine.leases.next_deadline() == 10.0
    engine.renew(short, 5.0)
    engine.advance(14.9)
    assert engine.read(Query(key(b"/short"))).first is not None
    engine.advance(15.0)
    engine.confirm()
    assert engine.read(Query(key(b"/short"))).first is None
    assert engine.leases.next_deadline() == 20.0
    engine.advance(30.0)
    assert engine.leases.next_deadline() is None
    with pytest.raises(LeaseNotFound):
        engine.renew(long, 31.0)


def test_a_watcher_is_woken_only_by_its_range():
    engine, woken = Engine(), []
    engine.watch(prefix(b"/a/"), None, lambda: woken.append(1))
    put(engine, b"/b")
    put(engine, b"/ab")
    assert woken == []
    put(engine, b"/a/x")
    assert woken == [1]


def test_unconfirmed_writes_are_not_visible():
    engine, woken = Engine(), []
    put(engine, b"/a", b"old")
    watcher = engine.watch(prefix(b"/"), None, lambda: woken.append(1))
    engine.commit([Put(b"/a", b"new"), Put(b"/b", b"")], [], [], 0.0)
    assert [e.value for e in engine.read(Query(prefix(b"/"))).entries] == [b"old"]
    assert [e.value for e in engine.newest(prefix(b"/"))] == [b"new", b""]
    assert engine.take(watcher) == []
    assert woken == []
    engine.confirm()
    assert len(engine.read(Query(prefix(b"/"))).entries) == 2
    assert len(engine.take(watcher)) == 1


def test_unconfirmed_writes_can_be_rolled_back_completely():
    engine = Engine()
    kept, doomed = engine.grant(60, 0.0), engine.grant(50, 0.0)
    put(engine, b"/a", b"old", kept)
    put(engine, b"/b", b"old", doomed)
    before = state(engine)
    engine.commit([Put(b"/a", b"new", doomed), Delete(key(b"/b")), Put(b"/c", b"")], [], [], 0.0)
    engine.commit([Put(b"/b", b"again", kept)], [], [], 0.0)
    engine.renew(kept, 9.0)
    engine.grant(5, 0.0)
    engine.revoke(doomed, 1.0)
    engine.revoke(kept, 1.0)
    engine.undo()
    assert state(engine) == before
    assert engine.leases.next_deadline() == 50.0
    assert put(engine, b"/d") == before[0] + 1


def test_a_half_done_operation_can_be_rolled_back_alone():
    engine = Engine()
    put(engine, b"/a", b"old")
    engine.commit([Put(b"/b", b"")], [], [], 0.0)
    mark, before = engine.mark(), state(engine)
    transaction = engine.begin()
    transaction.put(b"/a", b"new")
    transaction.delete(key(b"/b"))
    engine.undo(mark)
    assert state(engine) == before
    engine.commit([Put(b"/c", b"")], [], [], 0.0)
    engine.undo(mark)
    assert state(engine) == before
    assert [batch.revision for batch in engine.unconfirmed()] == [before[0]]


def test_a_lease_is_visible_until_its_end_is_confirmed():
    engine = Engine()
    lease = engine.grant(10, 0.0)
    engine.confirm()
    engine.revoke(lease, 1.0)
    assert lease not in engine.leases
    assert engine.leases.seen(lease) is not None
    engine.confirm()
    assert engine.leases.seen(lease) is None


def state(engine: Engine) -> tuple[int, object, object]:
    leases = {
        lease: (engine.leases[lease].deadline, set(engine.leases[lease].keys))
        for lease in engine.leases
    }
    return engine.revision, list(engine.newest(prefix(b"/"))), leases


@pytest.mark.parametrize("after", [1500, 5000])
def test_a_slow_watcher_of_a_future_revision_still_waits_for_it(after: int):
    engine = Engine()
    watcher = engine.watch(prefix(b"/"), after, lambda: None)
    for _ in range(1600):
        put(engine, b"/a")
    batches: list[Batch] = []
    while taken := engine.take(watcher):
        batches += taken
    assert [batch.revision for batch in batches] == list(range(after + 1, engine.revision + 1))


@given(st.randoms(use_true_random=False))
def test_counting_agrees_with_reading(chance: random.Random):
    engine = Engine()
    names = [b"%d" % number for number in range(8)]
    for _ in range(60):
        step = chance.random()
        if step < 0.7:
            transaction = engine.begin()
            for _ in range(chance.randrange(1, 4)):
                name = chance.choice(names)
                if chance.random() < 0.6:
                    transaction.put(name, b"x")
                else:
                    transaction.delete(Range(name, chance.choice([name + b"\0", b"", b"9"])))
            engine.end(transaction, 0.0)
        elif step < 0.8:
            engine.undo()
        elif step < 0.95:
            engine.confirm()
        else:
            engine.confirm()
            if engine.confirmed > engine.compacted:
                engine.compact(chance.randrange(engine.compacted + 1, engine.confirmed + 1))
                engine.confirm()
            engine.forget()
        start = chance.choice(names)
        range_ = Range(start, chance.choice([b"", start + b"\0", b"9"]))
        at = chance.randrange(engine.compacted, engine.confirmed + 1)
        assert engine.count(range_, at) == len(list(engine.past(range_, at)))


def test_the_size_is_that_of_all_versions():
    engine, choose = Engine(), random.Random(1)
    for number in range(300):
        name = b"/%d" % choose.randrange(20)
        mark = engine.mark()
        if choose.random() < 0.3:
            engine.commit([Delete(key(name))], [], [], 0.0)
        else:
            engine.commit([Put(name, b"x" * choose.randrange(50))], [], [], 0.0)
        if choose.random() < 0.2:
            engine.undo(mark)
        elif choose.random() < 0.2:
            engine.confirm()
            if number % 50 > 40 and engine.confirmed > engine.compacted:
                engine.compact(engine.confirmed)
                engine.confirm()
                engine.forget()
    versions = [entry for kept in engine._keys._versions.values() for entry in kept]
    assert engine.size == sum(map(size, versions)) > 0
