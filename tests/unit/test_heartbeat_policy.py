"""When an instance sends heartbeats, on a clock that the test sets. [R8]"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest
from mooring.heartbeat.policy import Beats, Decision, changes
from mooring.settings import Policy

NOTHING, BEAT, METADATA = Decision.NO_UPDATE, Decision.HEARTBEAT_ONLY, Decision.METADATA_UPDATE


def memory(percent: float) -> dict[str, object]:
    return {"memory": {"usagePercent": percent}}


EXACT = Policy(jitter=0.0)


def started(policy: Policy = EXACT, at: float = 0.0) -> Beats:
    """Beats that have published 40 % of memory."""
    beats = Beats(policy)
    beats.sent(at, METADATA, memory(40))
    return beats


def step(beats: Beats, now: float, metrics: dict[str, object]) -> Decision:
    """Decide, and send what was decided without an error."""
    decision = beats.decide(now, metrics)
    if decision is not NOTHING:
        beats.began()
        beats.sent(now, decision, metrics)
    return decision


def test_the_first_decision_is_to_publish_everything():
    beats = Beats(Policy())
    assert beats.next_due(0) == 0
    assert beats.decide(0, {}) is METADATA


def test_a_beat_is_due_after_its_interval():
    beats = started()
    assert beats.decide(9.9, memory(40)) is NOTHING
    assert beats.decide(10, memory(40)) is BEAT


def test_metrics_are_due_after_their_interval_even_if_unchanged():
    beats = started()
    assert [step(beats, now, memory(40)) for now in (10, 20, 30, 40, 50, 60)] == [BEAT] * 5 + [
        METADATA
    ]


def test_a_metadata_update_is_a_beat_too():
    beats = started()
    assert step(beats, 5, memory(90)) is METADATA
    assert beats.decide(10, memory(90)) is NOTHING
    assert beats.decide(15, memory(90)) is BEAT


def test_without_metrics_only_beats_are_sent():
    beats = Beats(EXACT)
    assert step(beats, 0, {}) is METADATA
    assert [step(beats, now, {}) for now in range(10, 101, 10)] == [BEAT] * 10
    assert beats.next_due(100) == 10


def test_the_removal_of_all_metrics_is_published():
    beats = started(Policy(thresholds={}, jitter=0.0))
    step(beats, 50, memory(40))
    assert beats.decide(60, {}) is METADATA


def test_a_significant_change_is_published_at_once():
    beats = started()
    assert beats.decide(1, memory(50)) is NOTHING
    assert beats.decide(1, memory(51)) is METADATA
    assert beats.changed(memory(51)) == ("memory.usagePercent",)


def test_a_significant_change_can_wait_for_the_next_beat():
    beats = started(Policy(immediate=False, jitter=0.0))
    assert beats.decide(1, memory(51)) is NOTHING
    assert beats.decide(10, memory(51)) is METADATA


def test_a_slow_drift_is_measured_from_what_was_published():
    beats = started()
    decisions = [step(beats, now, memory(40 + 4 * now)) for now in (1, 2, 3, 4)]
    assert decisions == [NOTHING, NOTHING, METADATA, NOTHING]


def test_a_beat_alone_publishes_no_metrics():
    beats = started()
    assert step(beats, 10, memory(50)) is BEAT
    assert beats.decide(11, memory(51)) is METADATA


def test_changes_are_measured_from_what_was_sent_not_collected():
    beats = started()
    beats.began()
    beats.sent(5, METADATA, memory(60))
    assert beats.decide(6, memory(80)) is METADATA


def test_no_beat_begins_while_another_is_in_flight():
    beats = started()
    beats.began()
    assert beats.decide(100, memory(99)) is NOTHING
    assert beats.next_due(100) == math.inf
    with pytest.raises(InvalidRequest, match="in flight"):
        beats.began()


def test_a_failed_beat_is_decided_again():
    beats = started()
    beats.began()
    beats.failed()
    assert not beats.pending
    assert beats.decide(1, memory(51)) is METADATA


@pytest.mark.parametrize("interval", [0.0, -1.0, math.nan])
def test_invalid_intervals_are_refused(interval: float):
    with pytest.raises(InvalidRequest, match="above 0"):
        Policy(heartbeat_interval=interval)
    with pytest.raises(InvalidRequest, match="above 0"):
        Policy(metadata_interval=interval)


@pytest.mark.parametrize("jitter", [-0.1, 1.0, math.nan])
def test_invalid_jitter_is_refused(jitter: float):
    with pytest.raises(InvalidRequest, match="at least 0 and below 1"):
        Policy(jitter=jitter)


def test_a_beat_comes_early_by_up_to_the_jitter_and_never_late():
    beats, now = Beats(Policy(), seed=7), 0.0
    gaps: list[float] = []
    while len(gaps) < 1000:
        assert step(beats, now, {}) is not NOTHING
        gaps.append(beats.next_due(now))
        now += gaps[-1]
    assert all(8 <= gap <= 10 for gap in gaps[1:])
    assert min(gaps[1:]) < 8.1
    assert max(gaps[1:]) > 9.9
    assert sum(gaps) / len(gaps) == pytest.approx(9, abs=0.1)


def test_metrics_are_jittered_too():
    beats = Beats(Policy(heartbeat_interval=1000.0), seed=7)
    beats.sent(0, METADATA, memory(40))
    gaps = []
    for _ in range(100):
        gaps.append(beats.next_due(0))
        beats.sent(0, METADATA, memory(40))
    assert all(48 <= gap <= 60 for gap in gaps[1:])
    assert max(gaps[1:]) - min(gaps[1:]) > 10


def test_instances_of_one_process_beat_together():
    """So that their beats go to Redis in one call."""
    one, other = Beats(Policy(), seed=7), Beats(Policy(), seed=7)
    now = 0.0
    for _ in range(100):
        assert step(one, now, {}) is step(other, now, {}) is not NOTHING
        assert one.next_due(now) == other.next_due(now)
        now += one.next_due(now)


@pytest.mark.parametrize("how", ["failed", "registered"])
def test_processes_aligned_by_a_restart_spread_out(how: str):
    """40 processes beat, or register again, within one second after Redis is back: from the next
    interval on they are spread over the interval."""
    processes = [Beats(Policy(), seed=seed) for seed in range(40)]
    sent: list[float] = []
    for number, beats in enumerate(processes):
        now = number / 40
        beats.sent(now - 60, METADATA, {})
        if how == "failed":
            beats.began()
            beats.failed()
        beats.sent(now, BEAT if how == "failed" else METADATA, {}, crowded=how == "registered")
        while now < 300:
            now += beats.next_due(now)
            assert step(beats, now, {}) is BEAT
            sent.append(now)
    for second in range(1, 290):
        within = sum(second <= moment < second + 2 for moment in sent)
        assert within <= 20, f"{within} of 40 beat between {second} s and {second + 2} s"


intervals = st.integers(1, 40).map(lambda quarters: quarters / 4)
"""Seconds that floats add up without a rest."""
percents = st.integers(0, 100)


@given(
    st.builds(Policy, intervals, intervals, immediate=st.booleans(), jitter=st.just(0.0)),
    st.integers(1, 200),
)
def test_with_constant_metrics_there_is_one_beat_per_interval(policy: Policy, seconds: int):
    """Each sleep of `next_due` ends with something to send, and there are no more than needed."""
    beats, now, sends = Beats(policy), 0.0, 0
    while now < seconds:
        assert step(beats, now, memory(40)) is not NOTHING
        sends += 1
        assert beats.next_due(now) > 0
        now += beats.next_due(now)
    pace = min(policy.heartbeat_interval, policy.metadata_interval)
    # Each metadata update may come between two beats and starts their interval anew.
    assert seconds / pace - seconds / policy.metadata_interval <= sends
    assert sends <= seconds / pace + seconds / policy.metadata_interval + 1


@given(st.lists(st.tuples(st.integers(0, 80), percents, st.booleans()), max_size=60))
def test_published_metrics_stay_within_the_thresholds(steps: list[tuple[int, int, bool]]):
    beats, now = Beats(Policy()), 0.0
    published: dict[str, object] = {}
    for quarters, percent, known in steps:
        now += quarters / 4
        metrics = memory(percent) if known else {}
        if step(beats, now, metrics) is METADATA:
            published = metrics
        assert changes(published, metrics, beats.policy.thresholds) == ()
        assert beats.next_due(now) <= beats.policy.heartbeat_interval


@given(
    st.booleans(),
    st.lists(
        st.tuples(st.sampled_from(["decide", "sent", "failed"]), st.integers(0, 80), percents)
    ),
)
def test_beats_never_overlap_and_silence_never_exceeds_the_interval(
    immediate: bool, steps: list[tuple[str, int, int]]
):
    beats, now, last = Beats(Policy(immediate=immediate)), 0.0, -math.inf
    under_way: list[tuple[float, Decision, dict[str, object]]] = []
    for action, quarters, percent in steps:
        now += quarters / 4
        if action == "decide":
            decision = beats.decide(now, memory(percent))
            if decision is not NOTHING:
                beats.began()
                under_way.append((now, decision, memory(percent)))
            elif not under_way:
                assert now < last + beats.policy.heartbeat_interval
                assert beats.next_due(now) > 0
        elif under_way:
            send = under_way.pop()
            if action == "sent":
                beats.sent(*send)
                last = send[0]
            else:
                beats.failed()
        assert len(under_way) <= 1
        assert beats.pending is bool(under_way)
