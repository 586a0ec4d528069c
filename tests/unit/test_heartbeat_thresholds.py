"""Which changes of metrics are significant, rule by rule. [R8]"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest
from mooring.heartbeat.policy import changes, flatten, significant
from mooring.settings.registry import THRESHOLDS, Threshold

absolute = Threshold(10.0, "absolute")
percentage = Threshold(10.0, "percentage")
anything = Threshold(0.0, "any")

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
names = st.sampled_from(["memory", "cpu", "health", "healthy", "usagePercent", "x"])
trees = st.recursive(
    st.dictionaries(names, leaves, max_size=4),
    lambda inner: st.dictionaries(names, inner | leaves, max_size=4),
    max_leaves=12,
)
thresholds = st.builds(
    Threshold, st.floats(0, 1e6), st.sampled_from(["absolute", "percentage", "any"])
)


@pytest.mark.parametrize(
    ("old", "new", "threshold", "expected"),
    [
        (50.0, 60.0, absolute, False),  # strictly more
        (50.0, 60.5, absolute, True),
        (60.5, 50.0, absolute, True),
        (100, 110, percentage, False),
        (100, 111, percentage, True),
        (-100, -111, percentage, True),
        (0, 0.001, percentage, True),
        (0, 0.0, percentage, False),
        (1, 1.0001, anything, True),
        ("up", "up", anything, False),
        (True, False, anything, True),
        ("3.11", "3.12", absolute, True),
        ("3.11", "3.11", percentage, False),
        (True, False, absolute, True),
        (5, "5", absolute, True),
        ([1], [1], absolute, False),
    ],
)
def test_a_change_is_measured(old: object, new: object, threshold: Threshold, expected: bool):
    assert significant(old, new, threshold) is expected


@pytest.mark.parametrize("threshold", [absolute, percentage, anything])
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 10**400])
def test_values_that_are_not_numbers_are_compared_for_equality(odd: float, threshold: Threshold):
    assert not significant(odd, odd, threshold)
    assert significant(odd, 1.0, threshold)
    assert significant(1.0, odd, threshold)


def test_nested_metrics_become_dotted_paths():
    tree = {"memory": {"usagePercent": 1, "heap": {"used": 2}}, "empty": {}, "healthy": True}
    assert flatten(tree) == {"memory.usagePercent": 1, "memory.heap.used": 2, "healthy": True}


def test_the_changed_paths_are_sorted():
    old = {"memory": {"usagePercent": 40.0}, "cpu": {"processCpuLoad": 10.0}, "healthy": True}
    new = {"memory": {"usagePercent": 55.0}, "cpu": {"processCpuLoad": 15.0}, "healthy": False}
    assert changes(old, new, THRESHOLDS) == ("healthy", "memory.usagePercent")


@pytest.mark.parametrize("threshold", [absolute, percentage, anything])
def test_a_watched_value_that_appears_or_disappears_is_significant(threshold: Threshold):
    watched, value = {"disk.free": threshold}, {"disk": {"free": 0}}
    assert changes({}, value, watched) == ("disk.free",)
    assert changes(value, {}, watched) == ("disk.free",)
    assert changes({"disk": {"free": None}}, {}, watched) == ()


def test_paths_without_a_threshold_are_not_watched():
    assert changes({"disk": {"free": 1}}, {"disk": {"free": 10**9}, "more": 1}, THRESHOLDS) == ()


def test_a_threshold_of_a_branch_applies_below_it_unless_overridden():
    watched = {"memory": anything, "memory.used": absolute}
    old = {"memory": {"used": 1, "free": 1}, "memoryless": 1}
    new = {"memory": {"used": 2, "free": 2}, "memoryless": 2}
    assert changes(old, new, watched) == ("memory.free",)


@pytest.mark.parametrize("watched", ["health", "healthy"])
@pytest.mark.parametrize("reported", ["health", "healthy"])
def test_health_and_healthy_are_one_path(watched: str, reported: str):
    assert changes({"healthy": True}, {reported: False}, {watched: anything}) == ("healthy",)
    assert changes({"health": True}, {reported: True}, {watched: anything}) == ()


@pytest.mark.parametrize("threshold", [-1.0, math.nan])
def test_an_invalid_threshold_is_refused(threshold: float):
    with pytest.raises(InvalidRequest, match="0 or more"):
        Threshold(threshold, "absolute")


@given(trees, st.dictionaries(st.text(max_size=3) | names, thresholds))
def test_nothing_differs_from_itself(tree: dict[str, object], watched: dict[str, Threshold]):
    assert changes(tree, tree, watched) == ()


@given(trees, trees, st.dictionaries(names, thresholds))
def test_any_pair_of_trees_can_be_compared(
    old: dict[str, object], new: dict[str, object], watched: dict[str, Threshold]
):
    """Order matters only for percentages: otherwise both directions are the same."""
    forward, backward = changes(old, new, watched), changes(new, old, watched)
    if all(threshold.type != "percentage" for threshold in watched.values()):
        assert forward == backward


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_absolute_is_the_distance(old: float, new: float, threshold: float):
    assert significant(old, new, Threshold(threshold, "absolute")) is (abs(new - old) > threshold)


def test_a_name_that_is_not_text_is_compared_as_written():
    assert flatten({"queue": {1: 2.0}, 3: 4}) == {"queue.1": 2.0, "3": 4}  # type: ignore[dict-item]
    assert changes({1: 2.0}, {1: 3.0}, {"1": anything}) == ("1",)  # type: ignore[dict-item]
