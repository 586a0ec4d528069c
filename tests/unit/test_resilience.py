"""Ejection, recovery, slow start, panic and the budget for retries, against plain models."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.discovery.resilience import Outliers, Resilience, RetryBudget, slow_start
from mooring.discovery.zones_and_panic import Contribution, ZoneTallies
from mooring.errors import InvalidRequest


def outliers(count: int, **settings: float) -> Outliers:
    made = Outliers(Resilience(**settings))  # type: ignore[arg-type]
    for number in range(count):
        made.add(f"n{number}")
    return made


def fail(these: Outliers, id: str, now: float, times: int = 5) -> bool:
    return [these.record(id, False, now) for _ in range(times)][-1]


class TestSettings:
    def test_the_defaults_are_valid(self):
        assert Resilience().ejection == 10

    @pytest.mark.parametrize("name", [field.name for field in fields(Resilience)])
    @pytest.mark.parametrize("value", [-1, math.nan, math.inf, "5", None, True])
    def test_a_wrong_value_is_named(self, name, value):
        with pytest.raises(InvalidRequest, match=name):
            Resilience(**{name: value})

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("failure_rate", 1.1),
            ("ejected_share", 2),
            ("panic_threshold", 1.5),
            ("slow_start_least", 0),
            ("failure_rate_requests", 0),
            ("failure_rate_window", 0),
            ("retry_window", 0),
            ("consecutive_failures", 2.5),
        ],
    )
    def test_the_error_for_a_value_out_of_range_states_the_range(self, name, value):
        with pytest.raises(InvalidRequest, match=f"{name} must be .*, not {value}"):
            Resilience(**{name: value})

    def test_the_longest_ejection_is_no_shorter_than_the_first(self):
        with pytest.raises(InvalidRequest, match="ejection_most"):
            Resilience(ejection=60, ejection_most=30)


class TestEjection:
    def test_failures_in_a_row_eject(self):
        these = outliers(4)
        assert [these.record("n1", False, 0.0) for _ in range(5)] == [False] * 4 + [True]
        assert set(these.ejected) == {"n1"}

    def test_a_success_resets_the_count(self):
        these = outliers(4)
        fail(these, "n1", 0.0, 4)
        these.record("n1", True, 0.0)
        assert not fail(these, "n1", 0.0, 4)

    def test_a_high_rate_of_failures_ejects(self):
        these = outliers(4)
        ejections = [these.record("n1", number % 2 == 0, number * 0.1) for number in range(20)]
        assert ejections == [False] * 19 + [True]

    def test_a_high_rate_of_too_few_requests_does_not_eject(self):
        these = outliers(4)
        for number in range(200):
            assert not these.record("n1", number % 2 == 0, number * 0.6)

    def test_either_rule_can_be_switched_off(self):
        these = outliers(4, consecutive_failures=0, failure_rate=0)
        assert not fail(these, "n1", 0.0, 1000)

    def test_late_answers_are_ignored(self):
        these = outliers(4)
        fail(these, "n1", 0.0)
        assert not fail(these, "n1", 1.0)
        assert not fail(these, "stranger", 1.0)
        assert len(these) == 4
        assert these.due(10.0) == ["n1"]
        assert not fail(these, "n1", 10.0, 4)

    @pytest.mark.parametrize(
        ("count", "share", "allowed"),
        [(1, 0.5, 0), (2, 0.5, 1), (3, 0.1, 1), (3, 0.5, 1), (10, 0.5, 5), (4, 1, 3), (9, 0, 0)],
    )
    def test_the_number_of_ejected_nodes_is_limited(self, count, share, allowed):
        these = outliers(count, ejected_share=share)
        for number in range(count):
            fail(these, f"n{number}", 0.0)
        assert len(these.ejected) == allowed

    def test_a_node_over_the_limit_is_ejected_at_its_next_failure(self):
        these = outliers(2)
        fail(these, "n0", 0.0)
        assert not fail(these, "n1", 5.0)
        assert these.due(10.0) == ["n0"]
        assert these.record("n1", False, 11.0)


class TestReturn:
    def test_ejections_grow_longer_up_to_the_maximum(self):
        these, now, lasted = outliers(2, ejection_most=35), 0.0, []
        for _ in range(5):
            fail(these, "n0", now)
            due = these.next_due()
            assert due is not None
            assert these.due(due - 0.001) == []
            assert these.due(due) == ["n0"]
            lasted.append(due - now)
            now = due
        assert lasted == [10, 20, 30, 35, 35]

    def test_time_without_failures_shortens_the_next_ejection(self):
        these = outliers(2)
        for now in (0.0, 50.0, 100.0):
            fail(these, "n0", now)
            assert these.due(now + 40) == ["n0"]
        fail(these, "n0", 140.0 + 60)
        assert these.next_due() == 200 + 30
        assert these.due(400.0) == ["n0"]
        fail(these, "n0", 400.0 + 60 * 10)
        assert these.next_due() == 1000 + 10

    def test_nodes_return_one_at_a_time(self):
        these = outliers(10)
        for number in range(5):
            fail(these, f"n{number}", number * 0.01)
        back = [(now, id) for now in range(9, 20) for id in these.due(float(now))]
        assert [id for _, id in back] == ["n0", "n1", "n2", "n3", "n4"]
        assert [now for now, _ in back] == [10, 11, 12, 13, 14]
        assert these.next_due() is None

    def test_a_late_call_returns_a_single_node(self):
        these = outliers(10)
        for number in range(5):
            fail(these, f"n{number}", 0.0)
        assert len(these.due(1000.0)) == 1
        assert these.due(1000.5) == []
        assert these.next_due() == 1001

    def test_nodes_over_the_limit_of_a_smaller_fleet_return_at_once(self):
        these = outliers(6)
        for number in range(3):
            fail(these, f"n{number}", float(number))
        for id in ("n3", "n4", "n5"):
            these.forget(id)
        assert these.next_due() == -math.inf
        assert these.due(3.0) == ["n0", "n1"]
        these.forget("n0")
        these.forget("n1")
        assert these.due(3.0) == ["n2"]

    def test_a_forgotten_node_does_not_come_back(self):
        these = outliers(4)
        fail(these, "n1", 0.0)
        these.forget("n1")
        assert these.due(100.0) == []
        these.add("n1")
        fail(these, "n1", 100.0)
        assert these.next_due() == 110

    def test_the_garbage_of_the_schedule_is_bounded(self):
        these = outliers(4)
        for now in range(1000):
            fail(these, "n1", float(now))
            these.forget("n1")
            these.add("n1")
        assert len(these._readmissions) < 50


class Model:
    """The rules again, implemented by scanning everything."""

    def __init__(self, settings: Resilience) -> None:
        self.settings = settings
        self.ends: dict[str, list[tuple[float, bool]]] = {}
        self.until: dict[str, float] = {}
        self.count: dict[str, float] = {}
        self.returned: dict[str, float] = {}
        self.last = -math.inf

    @property
    def allowed(self) -> int:
        count = len(self.ends)
        if count < 2:
            return 0
        return min(max(1, math.floor(count * self.settings.ejected_share)), count - 1)

    def add(self, id: str) -> None:
        self.ends.setdefault(id, [])

    def forget(self, id: str) -> None:
        for known in (self.ends, self.until, self.count, self.returned):
            known.pop(id, None)

    def record(self, id: str, ok: bool, now: float) -> bool:
        if id not in self.ends or id in self.until:
            return False
        ends, settings = self.ends[id], self.settings
        ends.append((now, ok))
        width = settings.failure_rate_window / 10
        lately = [good for when, good in ends if now // width - when // width < 10]
        row = [good for _, good in ends[-settings.consecutive_failures :]]
        often = len(lately) >= settings.failure_rate_requests and (
            lately.count(False) >= settings.failure_rate * len(lately)
        )
        in_a_row = len(row) == settings.consecutive_failures and not any(row)
        if ok or not (often or in_a_row) or len(self.until) >= self.allowed:
            return False
        good_time = now - self.returned.get(id, 0.0)
        count = max(0, self.count.get(id, 0) - good_time // settings.ejection_forgiven) + 1
        self.until[id] = now + min(count * settings.ejection, settings.ejection_most)
        self.count[id] = min(count, math.ceil(settings.ejection_most / settings.ejection))
        ends.clear()
        return True

    def due(self, now: float) -> list[str]:
        back: list[str] = []
        while len(self.until) > self.allowed:
            back.append(self._back(now))
        if self.until and not back:
            spaced = now >= self.last + self.settings.recovery_spacing
            if spaced and min(self.until.values()) <= now:
                back.append(self._back(now))
        return back

    def _back(self, now: float) -> str:
        id = min(self.until, key=lambda id: (self.until[id], id))
        del self.until[id]
        self.returned[id] = self.last = now
        return id


steps = st.lists(
    st.tuples(
        st.sampled_from(["good", "bad", "bad", "bad", "due", "due", "add", "forget"]),
        st.integers(0, 5),
        st.sampled_from([0.0, 0.0, 0.0, 0.25, 1.0, 3.0, 20.0]),
        st.integers(1, 6),
    ),
    max_size=120,
)


@given(steps, st.sampled_from([0.2, 0.5, 1.0]))
def test_ejection_and_return_follow_the_rules(steps, share):
    settings = Resilience(
        consecutive_failures=4,
        failure_rate_requests=6,
        failure_rate_window=5.0,
        ejection=2.0,
        ejection_most=7.0,
        ejection_forgiven=10.0,
        ejected_share=share,
    )
    these, model, now = Outliers(settings), Model(settings), 0.0
    for number in range(4):
        these.add(f"n{number}")
        model.add(f"n{number}")
    for what, number, later, times in steps:
        now, id = now + later, f"n{number}"
        if what == "due":
            due = these.next_due()
            assert (due is not None and due <= now) == bool(back := model.due(now))
            assert these.due(now) == back
        elif what == "add":
            these.add(id)
            model.add(id)
        elif what == "forget":
            these.forget(id)
            model.forget(id)
        else:
            for _ in range(times):
                ejected = these.record(id, what == "good", now)
                assert ejected == model.record(id, what == "good", now)
        assert these.ejected.keys() == model.until.keys()
        assert len(these) == len(model.ends)


class TestSlowStart:
    @given(st.lists(st.floats(-1, 100), min_size=2), st.floats(0.01, 60), st.floats(0.01, 1))
    def test_the_factor_only_rises_from_the_minimum_to_one(self, ages, window, least):
        factors = [slow_start(age, window, least) for age in sorted(ages)]
        assert factors == sorted(factors)
        assert all(least <= factor <= 1 for factor in factors)

    def test_slow_start_begins_with_the_minimum_and_ends_with_the_full_share(self):
        assert slow_start(0, 30, 0.1) == 0.1
        assert slow_start(15, 30, 0.1) == pytest.approx(0.55)
        assert slow_start(30, 30, 0.1) == 1

    def test_without_a_window_there_is_no_slow_start(self):
        assert slow_start(0, 0) == 1


@pytest.mark.parametrize(
    ("healthy", "total", "threshold", "panics"),
    [
        (5, 10, 0.5, False),
        (4, 10, 0.5, True),
        (0, 1, 0.5, True),
        (1, 1, 0.5, False),
        (0, 0, 0.5, False),
        (0, 10, 0.0, False),
        (9, 10, 1.0, True),
    ],
)
def test_too_few_healthy_instances_cause_panic(healthy, total, threshold, panics):
    sides = ZoneTallies.empty()
    for number in range(total):
        sides.remote.count(Contribution(1.0, True, True, number < healthy), +1)
    mode, _ = sides.choose(Resilience(panic_threshold=threshold))
    assert (mode == "panic") is panics


class TestRetryBudget:
    def test_every_request_pays_for_a_part_of_a_retry(self):
        budget = RetryBudget(Resilience(retry_least=0))
        for _ in range(14):
            budget.request(0.0)
        assert [budget.try_retry(0.0) for _ in range(4)] == [True, True, False, False]
        budget.request(0.0)
        assert [budget.try_retry(0.0) for _ in range(2)] == [True, False]

    def test_a_few_retries_are_always_allowed(self):
        budget = RetryBudget(Resilience(retry_least=0.5))
        assert [budget.try_retry(0.0) for _ in range(6)] == [True] * 5 + [False]
        assert budget.try_retry(10.0)

    def test_unused_retries_expire(self):
        budget = RetryBudget(Resilience(retry_least=0))
        for _ in range(100):
            budget.request(0.0)
        assert budget.try_retry(9.9)
        assert not budget.try_retry(10.0)

    def test_a_budget_can_forbid_all_retries(self):
        budget = RetryBudget(Resilience(retry_least=0, retry_ratio=0))
        budget.request(0.0)
        assert not budget.try_retry(0.0)

    @given(
        st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.0, 0.1, 1.0, 7.0]))),
        st.sampled_from([0.0, 0.3, 1.0]),
    )
    def test_within_a_window_retries_stay_below_the_bound(self, calls, least):
        settings = Resilience(retry_least=least)
        budget, now = RetryBudget(settings), 0.0
        requests: list[int] = []
        retries: list[int] = []
        for retry, later in calls:
            now += later
            since = int(now // 1.0) - 9
            if not retry:
                budget.request(now)
                requests.append(int(now // 1.0))
                continue
            bound = 0.2 * sum(when >= since for when in requests) + least * 10
            allowed = sum(when >= since for when in retries) + 1 <= bound + 1e-9
            assert budget.try_retry(now) == allowed
            if allowed:
                retries.append(int(now // 1.0))
