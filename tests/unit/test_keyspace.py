"""The history, against a plain list of all events."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mooring.store import Batch, Event
from mooring.store.embedded.keyspace import RevisionHistory


def batch(revision: int, events: int) -> Batch:
    return Batch(revision, tuple(Event(b"%d/%d" % (revision, n), None) for n in range(events)))


@given(st.randoms(use_true_random=False))
def test_the_history_is_everything_after_its_floor(chance: random.Random):
    start = chance.randrange(1, 5)
    history, all_of_it, taken = RevisionHistory(start), [(batch(start, 0), 0)], []
    for _ in range(50):
        newest = all_of_it[-1][0].revision
        step = chance.random()
        if step < 0.6:
            more = batch(newest + 1, chance.randrange(1, 8)), chance.randrange(100)
            all_of_it.append(more)
            history.append(*more)
        elif step < 0.7 and newest > history.floor + 1:
            all_of_it.pop()
            history.pop()
        else:
            upto = chance.randrange(history.floor, newest + 1)
            revision, events = history.take_oldest(upto, 5, 120)
            assert len(events) <= 5 or len(events) == len(all_of_it[revision - start][0].events)
            assert all(int(event.key.split(b"/")[0]) <= revision for event in events)
            assert history.floor <= max(upto, start)
            taken += [event.key for event in events]
        newest = all_of_it[-1][0].revision
        at = chance.randrange(history.floor, newest + 1)
        after = [(one, left) for one, left in all_of_it if one.revision > at]
        assert history.since(at) == [one for one, _ in after]
        assert history.obsolete_since(at) == sum(left for _, left in after)
        most = chance.randrange(300)
        lightened = history.compaction_for(most)
        assert history.obsolete_since(lightened) <= most
        assert lightened == history.floor or history.obsolete_since(lightened - 1) > most
    given_out = [e.key for one, _ in all_of_it for e in one.events if one.revision <= history.floor]
    assert taken[: len(given_out)] == given_out, "in order, each once"
    assert len(taken) < len(given_out) + 8
