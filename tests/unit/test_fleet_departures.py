"""How an instance left: it deregistered or was lost; in doubt it was lost."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring import Instance
from mooring.model import Status
from mooring.server.live.departures import LivenessSignals
from mooring.server.live.polling import EVERY

ONE = Instance("a", "h", 1, incarnation="x")
AT = ("a", "h:1")


def being(**status: object) -> Instance:
    return msgspec.structs.replace(ONE, status=msgspec.convert(status, Status))


def lived(
    ttl: float,
    until: float,
    *,
    chance: Random,
    died: float = float("inf"),
    rounding: float = 0.0,
    reported: float | None = None,
) -> LivenessSignals:
    """What was observed, up to a moment, of an instance whose lease is renewed at a third of its
    TTL until it dies."""
    signs, renewal, at = LivenessSignals(), ttl / 3, 0.3
    if reported is not None:
        signs.reported(AT, reported)
    while at < until:
        lives = min(at, died)
        signs.sampled(AT, at - (lives - lives % renewal) + rounding, at)
        at += EVERY * chance.uniform(0.8, 1.2)
    return signs


@pytest.mark.parametrize(("state", "how"), [("draining", "drained"), ("down", "down")])
def test_an_instance_that_reported_its_departure_deregistered(state: str, how: str):
    assert LivenessSignals().classify_departure(AT, being(state=state), 1000.0) == how


def test_an_instance_removed_through_this_server_deregistered_for_a_moment():
    signs = LivenessSignals()
    signs.expect_departure(AT, "removed", 100.0)
    assert signs.classify_departure(AT, ONE, 101.0) == "removed"
    signs.expect_departure(AT, "left", 100.0)
    assert signs.classify_departure(AT, ONE, 200.0) == "lost"


def test_an_instance_without_observations_counts_as_lost():
    assert LivenessSignals().classify_departure(AT, ONE, 5.0) == "lost"


def test_an_instance_that_was_active_just_now_deregistered():
    signs = LivenessSignals()
    signs.reported(AT, 10.0)
    assert signs.classify_departure(AT, ONE, 11.0) == "left"
    signs.reported(AT, 10.0)
    assert signs.classify_departure(AT, ONE, 14.0) == "lost"


def test_observations_of_a_departed_instance_do_not_count_for_its_successor():
    signs = lived(15.0, 100.0, chance=Random(1), reported=99.0)
    assert signs.classify_departure(AT, ONE, 99.5) == "left"
    assert signs.classify_departure(AT, ONE, 99.6) == "lost"


@pytest.mark.parametrize("ttl", [15.0, 30.0, 60.0])
def test_few_instances_that_deregister_while_renewing_count_as_lost(ttl: float):
    moments = [150.0 + number / 3 for number in range(200)]
    ways = [lived(ttl, at, chance=Random(at)).classify_departure(AT, ONE, at) for at in moments]
    assert ways.count("left") > 190


@given(
    ttl=st.sampled_from([5.0, 10.0, 15.0, 30.0, 60.0]),
    died=st.floats(0.5, 300.0),
    rounding=st.sampled_from([0.0, 0.5, 0.99]),
    spoke=st.floats(0.0, 60.0),
    seed=st.integers(0, 1000),
)
def test_an_instance_whose_lease_expired_is_lost_despite_earlier_reports(
    ttl: float, died: float, rounding: float, spoke: float, seed: int
):
    ends = died - died % (ttl / 3) + ttl
    reported = max(died - spoke, 0.0)
    signs = lived(ttl, ends, chance=Random(seed), died=died, rounding=rounding, reported=reported)
    assert signs.classify_departure(AT, ONE, ends) == "lost"


def test_the_known_lease_time_of_an_instance_counts():
    for ttl, how in ((2.0, "lost"), (60.0, "left")):
        signs = LivenessSignals()
        signs.set_ttl(AT, ttl)
        signs.reported(AT, 100.0)
        signs.sampled(AT, 1.0, 101.0)
        assert signs.classify_departure(AT, ONE, 102.0) == how
