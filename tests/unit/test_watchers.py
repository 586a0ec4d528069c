"""The index from keys to watchers agrees with a scan of all watchers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mooring.store import Batch, Entry, Event, Range
from mooring.store.embedded.watchers import PENDING, Watcher, Watchers

keys = st.text(alphabet="abc\xff", min_size=1, max_size=4).map(lambda text: text.encode("latin-1"))
ranges = st.one_of(
    keys.map(lambda k: Range(k, k + b"\0")),
    keys.map(lambda k: Range(k, b"")),
    st.tuples(keys, keys).filter(lambda p: p[0] < p[1]).map(lambda p: Range(*p)),
)


def live(range: Range) -> Watcher:
    return Watcher(range, 1, lambda: None, lagging=False)


@given(
    st.lists(st.tuples(ranges, st.booleans()), max_size=20),
    st.lists(st.lists(keys, min_size=1, max_size=3, unique=True), max_size=10),
)
def test_the_index_agrees_with_a_scan(watched, batches):
    index, present = Watchers(), []
    for range, leave in watched:
        watcher = live(range)
        index.add(watcher)
        if leave:
            index.remove(watcher)
        else:
            present.append(watcher)
    assert sum(map(len, index._groups.values())) == len(present)
    for revision, names in enumerate(batches, 2):
        index.deliver(Batch(revision, tuple(Event(name, None) for name in names)))
    for watcher in present:
        delivered = [(b.revision, [e.key for e in b.events]) for b in watcher.pending]
        expected = [
            (revision, inside)
            for revision, names in enumerate(batches, 2)
            if (inside := [name for name in names if name in watcher.range])
        ]
        assert delivered == expected


@given(st.lists(ranges, max_size=20))
def test_removing_all_watchers_leaves_an_empty_index(watched):
    index = Watchers()
    watchers = [live(range) for range in watched]
    for watcher in watchers:
        index.add(watcher)
    for watcher in watchers:
        index.remove(watcher)
        index.remove(watcher)
    assert index._groups == {}
    assert list(index._cuts) == [b""]


def test_a_slow_watcher_falls_back_to_the_history():
    watcher = live(Range(b"a", b""))
    for revision in range(2, PENDING + 3):
        watcher.deliver(Batch(revision, ()), 0)
    assert watcher.lagging
    assert len(watcher.pending) == 0
    assert watcher.position == 1


def test_the_buffer_of_a_slow_watcher_is_bounded_in_bytes():
    watcher = live(Range(b"a", b""))
    index = Watchers()
    index.add(watcher)
    value = b"x" * 1_000_000
    for revision in range(2, 300):
        entry = Entry(b"a", value, 2, revision, revision - 1)
        index.deliver(Batch(revision, (Event(b"a", entry),)))
    assert watcher.lagging
    assert watcher.position == 1
    assert len(watcher.pending) == 0
    watcher.lagging = False
    for _ in range(3):
        for revision in range(300, 350):
            watcher.deliver(Batch(revision, ()), 1_000_000)
        assert len(watcher.take()) == 50, "what was taken counts no more"
