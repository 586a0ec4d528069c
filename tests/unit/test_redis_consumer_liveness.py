"""Redis' clock, compared with the monotonic clock of a process that reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.registry.redis.consumer_liveness import ServerClock, overdue

NOON = 1_700_000_000_000


def readings(*stepped: float, every: float = 4.0, latency: float = 0.0) -> tuple[ServerClock, int]:
    """A clock that was read at an interval and stepped by these seconds before each reading, and
    the time of the last reading."""
    clock, now = ServerClock(), NOON
    for number, step in enumerate(stepped):
        now = round(now + (every + step) * 1000)
        asked = number * every
        clock.read(now, asked=asked, answered=asked + latency)
    return clock, now


def test_a_step_forward_ages_no_heartbeat():
    clock, now = readings(0, 0, 3600)
    before, after = now - 3_600_000 - 2_000, now - 1_000
    assert clock.silence(before, now) == pytest.approx(2, abs=0.1)
    assert clock.silence(after, now) == 1
    assert overdue({"before": before, "after": after}, now, 10, clock) == set()
    assert overdue({"dead": before - 9_000}, now, 10, clock) == {"dead"}


def test_two_steps_forward_add_up():
    clock, now = readings(0, 100, 0, 100)
    assert clock.silence(NOON + 3_000, now) == pytest.approx(13, abs=0.1)
    assert clock.stepped(since=-1.0) == pytest.approx(200, abs=0.1)
    assert clock.stepped(since=4.0) == pytest.approx(100, abs=0.1)


def test_a_step_back_rejuvenates_no_heartbeat_and_undoes_a_step_forward():
    clock, now = readings(0, 3600, 0, -3600)
    assert clock.silence(now + 3_600_000, now) == 0
    assert clock.silence(now - 5_000, now) == 5
    assert clock.stepped(since=-1.0) == 0


@given(
    st.lists(
        st.tuples(
            *(st.floats(0, 10) for _ in range(2)),
            st.floats(0, 1),
        ),
        min_size=2,
    )
)
def test_slow_replies_are_not_taken_for_steps(calls: list[tuple[float, float, float]]):
    """Each call begins after a pause, takes a while, and the server reads its clock meanwhile."""
    clock, moment = ServerClock(), 0.0
    for pause, takes, share in calls:
        asked, answered = moment + pause, moment + pause + takes
        now = NOON + round((asked + takes * share) * 1000)
        assert clock.read(now, asked=asked, answered=answered) == 0
        moment = answered


@given(st.floats(1, 1e6), st.floats(0, 3))
def test_every_step_is_detected_even_with_slow_replies(step: float, latency: float):
    for sign in (1, -1):
        clock = ServerClock()
        clock.read(NOON, asked=0, answered=0)
        now = NOON + round((4 + sign * (step + latency)) * 1000)
        step_seen = clock.read(now, asked=4, answered=4 + latency)
        assert step_seen * sign >= step - 0.1
