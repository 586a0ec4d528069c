"""Rotation: exclusion, panic, zones, ejection and slow start, against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mooring.discovery.exclusion import Selector, callable_now, exclusion
from mooring.discovery.resilience import Resilience
from mooring.discovery.rotation import Rotation
from mooring.errors import NoInstance
from mooring.model import Instance, Status

CALM = Resilience(slow_start=0)


def one(port: int, **fields: object) -> Instance:
    healthy = fields.pop("healthy", True)
    state = fields.pop("state", "up")
    status = Status(state=state, healthy=healthy)  # type: ignore[arg-type]
    return Instance("echo", "10.0.0.1", port, status=status, **fields)  # type: ignore[arg-type]


def rotation_of(*instances: Instance, selector: Selector | None = None) -> Rotation:
    rotation = Rotation("echo", policy="round_robin", selector=selector, resilience=CALM)
    for instance in instances:
        rotation.put(instance, 0.0, first=True)
    return rotation


def called(rotation: Rotation) -> list[int]:
    return sorted(member.instance.port for member in rotation if member.in_rotation)


def test_a_successor_is_not_blamed_for_calls_to_its_predecessor():
    for leaves in (True, False):
        rotation = rotation_of(one(1, incarnation="a"), one(2), one(3))
        before = next(member.node for member in rotation if member.instance.port == 1)
        if leaves:
            rotation.remove(before.id, 1.0)
        rotation.put(one(1, incarnation="b"), 1.0)
        assert not any(rotation.finished(before, 0.1, False, 2.0) for _ in range(10))
        assert called(rotation) == [1, 2, 3]
        after = next(member.node for member in rotation if member.instance.port == 1)
        assert any(rotation.finished(after, 0.1, False, 3.0) for _ in range(10))
        assert called(rotation) == [2, 3]


def test_excluded_instances_do_not_raise_the_limit_of_ejections():
    rotation = Rotation("echo", selector=Selector("2"), resilience=Resilience(panic_threshold=0))
    for port in range(1, 11):
        rotation.put(one(port, version="1" if port < 9 else "2"), 0.0, first=True)
    for member in rotation:
        for _ in range(10 if member.in_rotation else 0):
            rotation.finished(member.node, 0.1, False, 1.0)
    assert len(called(rotation)) == 1


def test_an_instance_that_is_enabled_again_has_no_failures():
    rotation = rotation_of(one(1), one(2), one(3))
    node = next(member.node for member in rotation if member.instance.port == 1)
    for _ in range(5):
        rotation.finished(node, 0.1, False, 1.0)
    assert called(rotation) == [2, 3]
    rotation.put(one(1, enabled=False), 2.0)
    assert called(rotation) == [2, 3]
    rotation.put(one(1), 3.0)
    assert called(rotation) == [1, 2, 3]


@pytest.mark.parametrize("weight", [5e-324, 1e-300, 1e308])
def test_slow_start_works_with_any_weight(weight: float):
    rotation = Rotation("echo")
    rotation.put(one(1, weight=weight), 0.0)
    rotation.put(one(2, weight=weight), 0.0)
    for now in (0.0, 1.0, 15.0, 40.0):
        rotation.tick(now)
        assert rotation.pick().weight > 0


@pytest.mark.parametrize(
    ("instance", "wanted", "reason"),
    [
        (one(1), Selector(), ""),
        (one(1, enabled=False), Selector(), "disabled"),
        (one(1, state="draining"), Selector(), "draining"),
        (one(1, weight=0), Selector(), "weight is 0"),
        (one(1, version="1"), Selector(version="2"), "version is 1, not 2"),
        (one(1, metadata={"a": "x"}), Selector(tags={"a": "y"}), "its a is x, not y"),
        (one(1, zone="q"), Selector(zone="z", zone_only=True), "zone is q, not z"),
        (one(1), Selector(where=lambda i: i.port > 1), "condition"),
        (one(1, healthy=False), Selector(), ""),
    ],
)
def test_why_an_instance_is_excluded(instance: Instance, wanted: Selector, reason: str):
    explanation = exclusion(instance, wanted)
    assert reason in str(explanation or "")
    assert bool(explanation) == bool(reason)


def test_unhealthy_instances_are_excluded_while_enough_are_healthy():
    assert called(rotation_of(one(1), one(2), one(3, healthy=False))) == [1, 2]


def test_below_the_panic_threshold_unhealthy_instances_are_called():
    rotation = rotation_of(one(1), one(2, healthy=False), one(3, healthy=False))
    assert rotation.mode == "panic"
    assert called(rotation) == [1, 2, 3]
    rotation.put(one(2), 1.0)
    assert called(rotation) == [1, 2]


def test_a_zone_is_preferred_until_it_is_empty():
    rotation = rotation_of(
        one(1, zone="a"), one(2, zone="b"), one(3, zone="b"), selector=Selector(zone="a")
    )
    assert called(rotation) == [1]
    rotation.remove("10.0.0.1:1", 1.0)
    assert called(rotation) == [2, 3]


def test_a_failing_instance_is_ejected_and_returns():
    rotation = rotation_of(one(1), one(2), one(3))
    for _ in range(5):
        node = next(member.node for member in rotation if member.instance.port == 1)
        rotation.picker.started(node)
        ejected = rotation.finished(node, 0.1, False, 1.0)
    assert ejected
    assert called(rotation) == [2, 3]
    pause = rotation.tick(1.0)
    assert pause is not None
    assert pause > 5
    rotation.tick(60.0)
    assert called(rotation) == [1, 2, 3]


@pytest.mark.parametrize("how", ["it leaves", "it is disabled"])
def test_the_last_ejected_instance_returns_when_the_other_leaves(how: str):
    rotation = Rotation("echo", resilience=Resilience(consecutive_failures=1, panic_threshold=0))
    rotation.put(one(1), 0.0, first=True)
    rotation.put(one(2), 0.0, first=True)
    assert rotation.finished(next(iter(rotation)).node, 0.1, False, 1.0)
    assert called(rotation) == [2]
    if how == "it leaves":
        rotation.remove("10.0.0.1:2", 2.0)
    else:
        rotation.put(one(2, enabled=False), 2.0)
    assert called(rotation) == [1]


def test_calls_spill_over_if_few_instances_of_a_zone_are_healthy():
    rotation = rotation_of(
        *(one(port, zone="a", healthy=port == 1) for port in range(1, 11)),
        *(one(port, zone="b") for port in range(11, 31)),
        selector=Selector(zone="a"),
    )
    assert rotation.mode == "spill-over"
    assert called(rotation) == [1, *range(11, 31)]
    assert rotation.local_share == pytest.approx(1 / 7)
    explanation = next(
        str(candidate) for candidate in rotation.explain() if candidate.instance.port == 11
    )
    assert explanation.endswith(
        "called: only 10% of the capacity of a is usable, so 86% of the calls spill over to other "
        "zones"
    )
    for port in range(2, 8):
        rotation.put(one(port, zone="a"), 1.0)
    assert called(rotation) == [1, *range(2, 8)]
    assert rotation.local_share == 1


def test_a_zone_threshold_of_0_keeps_all_calls_in_the_zone():
    rotation = Rotation(
        "echo", selector=Selector(zone="a"), resilience=Resilience(zone_threshold=0)
    )
    for port in range(1, 21):
        zone = "a" if port <= 10 else "b"
        rotation.put(one(port, zone=zone, healthy=port == 1 or port > 10), 0.0, first=True)
    assert called(rotation) == [1]


def test_a_key_keeps_its_zone_while_calls_spill_over():
    rotation = Rotation(
        "echo", policy="consistent_hash", selector=Selector(zone="a"), resilience=CALM
    )
    for port in range(1, 21):
        zone = "a" if port <= 10 else "b"
        rotation.put(one(port, zone=zone, healthy=port <= 4 or port > 10), 0.0, first=True)
    keys = [f"key{n}" for n in range(300)]
    before = {key: rotation.pick(key).id for key in keys}
    assert before == {key: rotation.pick(key).id for key in keys}
    rotation.put(one(4, zone="a", healthy=False), 1.0)
    after = {key: rotation.pick(key).id for key in keys}
    local = {f"10.0.0.1:{port}" for port in range(1, 11)}
    assert not any(before[key] not in local and after[key] in local for key in keys)


def test_draining_instances_are_called_if_no_other_is_usable():
    rotation = rotation_of(one(1, state="draining"))
    assert called(rotation) == [1]
    assert rotation.available == 1
    assert "called: it is draining, but no other instance is usable" in str(rotation.explain()[0])
    rotation.put(one(2, enabled=False), 1.0)
    assert called(rotation) == [1]
    rotation.put(one(3, healthy=False), 2.0)  # a successor that is not ready yet
    assert called(rotation) == [1]
    rotation.put(one(3), 3.0)
    assert called(rotation) == [3]
    rotation.set_reachable("10.0.0.1:3", False)
    assert called(rotation) == [1]
    rotation.set_reachable("10.0.0.1:3", True)
    assert called(rotation) == [3]
    rotation.remove("10.0.0.1:3", 4.0)
    assert called(rotation) == [1]


def test_a_draining_instance_does_not_carry_the_load_of_many_unhealthy_ones():
    rotation = rotation_of(
        one(1, state="draining"), *(one(port, healthy=False) for port in range(2, 6))
    )
    assert rotation.mode == "panic"
    assert called(rotation) == [1, 2, 3, 4, 5]


def test_draining_instances_are_tried_last():
    rotation = rotation_of(one(1), one(2, state="draining"), one(3, healthy=False), one(4))
    ids = [f"10.0.0.1:{port}" for port in (1, 4, 3, 2)]
    for number in range(2, 4):
        assert rotation.pick(exclude=ids[:number]).id == ids[number]


def test_which_instances_are_callable_without_a_rotation():
    up, leaving, off = one(1), one(2, state="draining"), one(3, enabled=False)
    assert callable_now([up, leaving, off]) == [up]
    assert callable_now([leaving, off]) == [leaving]
    assert callable_now([off, one(4, state="down")]) == []


def test_instances_of_other_zones_are_available():
    rotation = rotation_of(
        one(1, zone="a"), one(2, zone="b"), one(3, healthy=False), selector=Selector(zone="a")
    )
    assert called(rotation) == [1]
    assert rotation.available == 2
    rotation.put(one(2, zone="b", healthy=False), 1.0)
    assert called(rotation) == [1]
    assert rotation.available == 1
    rotation.put(one(1, zone="a", healthy=False), 1.0)
    assert rotation.mode == "panic"
    assert rotation.available == 3


def test_a_new_instance_starts_slowly_but_not_the_first_ones():
    rotation = Rotation("echo", policy="weighted", resilience=Resilience(slow_start=10))
    rotation.put(one(1), 0.0, first=True)
    rotation.put(one(2), 0.0)
    weights = {member.instance.port: member.node.weight for member in rotation}
    assert weights[1] == 1.0
    assert weights[2] == pytest.approx(0.1)
    assert rotation.tick(5.0) is not None
    assert next(s.node.weight for s in rotation if s.instance.port == 2) == pytest.approx(0.55)
    assert rotation.tick(10.0) is None
    assert next(s.node.weight for s in rotation if s.instance.port == 2) == 1.0


def test_another_process_at_the_same_address_starts_slowly():
    rotation = Rotation("echo", policy="weighted", resilience=Resilience(slow_start=10))
    rotation.put(one(1, incarnation="a"), 0.0, first=True)
    rotation.put(one(1, incarnation="b"), 100.0)
    (member,) = rotation
    assert member.node.weight == pytest.approx(0.1)


def test_no_instance_is_an_error_with_the_reasons():
    with pytest.raises(NoInstance, match=r"^echo: no instance is registered"):
        rotation_of().pick()
    with pytest.raises(NoInstance, match="2 × disabled by an operator"):
        rotation_of(one(1, enabled=False), one(2, enabled=False)).pick()
    never_panics = Rotation("echo", resilience=Resilience(panic_threshold=0))
    for port in (1, 2):
        never_panics.put(one(port, healthy=False), 0.0)
    with pytest.raises(NoInstance, match="2 × unhealthy"):
        never_panics.pick()


@pytest.mark.parametrize("policy", ["round_robin", "consistent_hash", "p2c"])
def test_instances_that_were_tried_are_not_tried_again_while_there_is_another(policy: str):
    rotation = Rotation("echo", policy=policy, resilience=CALM)
    for port in range(1, 5):
        rotation.put(one(port), 0.0, first=True)
    tried: list[str] = []
    for _ in range(4):
        tried.append(rotation.pick("key", tried).id)
    assert len(set(tried)) == 4
    assert rotation.pick("key", tried).id in tried


def test_a_caller_leaves_its_zone_if_all_instances_in_it_were_tried():
    rotation = rotation_of(
        one(1, zone="a"), one(2, zone="b"), one(3, zone="b"), selector=Selector(zone="a")
    )
    assert rotation.pick(exclude=["10.0.0.1:1"]).id in ("10.0.0.1:2", "10.0.0.1:3")


def test_keys_of_an_excluded_instance_are_spread_over_many():
    rotation = Rotation("echo", policy="consistent_hash", resilience=CALM)
    for port in range(1, 11):
        rotation.put(one(port), 0.0, first=True)
    keys = [f"key{n}" for n in range(1000)]
    dead = rotation.pick(keys[0]).id
    taken = {rotation.pick(k, [dead]).id for k in keys if rotation.pick(k).id == dead}
    assert len(taken) > 4
    assert dead not in taken


def test_a_new_process_does_not_pay_for_its_predecessor():
    rotation = rotation_of(one(1, incarnation="a"), one(2), one(3))
    node = next(member.node for member in rotation if member.instance.port == 1)
    for _ in range(5):
        rotation.picker.started(node)
        rotation.finished(node, 0.1, False, 1.0)
    assert called(rotation) == [2, 3]
    rotation.put(one(1, incarnation="b"), 2.0)
    assert called(rotation) == [1, 2, 3]


def test_an_unreachable_instance_is_never_called():
    rotation = rotation_of(one(1), one(2), one(3, healthy=False))
    rotation.set_reachable("10.0.0.1:1", False)
    assert called(rotation) == [2, 3]  # in panic, without the unreachable instance
    assert rotation.available == 2
    assert {rotation.pick(exclude=["10.0.0.1:2", "10.0.0.1:3"]).id} <= {"10.0.0.1:2", "10.0.0.1:3"}
    assert str(rotation.explain()[0]) == "10.0.0.1:1: not called: no connection"
    rotation.set_reachable("10.0.0.1:2", False)
    rotation.set_reachable("10.0.0.1:3", False)
    why = r"none of its instances \(3\) can be called: 3 × no connection"
    with pytest.raises(NoInstance, match=why):
        rotation.pick()
    rotation.set_reachable("10.0.0.1:1", True)
    assert called(rotation) == [1]
    rotation.set_reachable("10.0.0.1:9", False)  # not registered
    assert rotation.member("10.0.0.1:9") is None


def test_a_condition_that_raises_excludes_only_that_instance():
    selector = Selector(where=lambda i: 1 // (i.port - 1) >= 0)
    rotation = rotation_of(one(1), one(2), selector=selector)
    assert called(rotation) == [2]
    assert 'condition raised an error: "integer division or modulo by zero"' in str(
        rotation.explain()[0]
    )


def test_explanations():
    rotation = rotation_of(
        one(1, zone="a", weight=9),
        one(2, zone="a", healthy=False),
        one(3, zone="b"),
        one(4, enabled=False),
        one(5, state="draining"),
        selector=Selector(zone="a"),
    )
    explanations = [str(explanation) for explanation in rotation.explain()]
    assert explanations[0] == "10.0.0.1:1: called: in rotation"
    assert "not called: it reports itself unhealthy" in explanations[1]
    assert "it is in b, and there are instances in a" in explanations[2]
    assert "disabled by an operator" in explanations[3]
    assert (
        explanations[4]
        == "10.0.0.1:5: not called: it is draining; it is in no zone, and there are instances in a"
    )


fields = st.fixed_dictionaries(
    {},
    optional={
        "healthy": st.booleans(),
        "state": st.sampled_from(["up", "draining", "down"]),
        "weight": st.sampled_from([0.0, 1.0, 3.0]),
        "zone": st.sampled_from(["a", "b", ""]),
        "enabled": st.booleans(),
    },
)


class AgainstTheModel(RuleBasedStateMachine):
    """After any sequence of changes the picker contains exactly the instances in rotation."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = Selector(zone="a")
        self.rotation = Rotation("echo", policy="p2c", selector=self.wanted, resilience=CALM)
        self.instances: dict[int, Instance] = {}
        self.now = 0.0

    @rule(port=st.integers(1, 6), fields=fields)
    def put(self, port: int, fields: dict[str, object]) -> None:
        self.instances[port] = one(port, **fields)
        self.rotation.put(self.instances[port], self.now)

    @rule(port=st.integers(1, 6))
    def remove(self, port: int) -> None:
        self.instances.pop(port, None)
        self.rotation.remove(f"10.0.0.1:{port}", self.now)

    @rule(port=st.integers(1, 6), reachable=st.booleans())
    def reach(self, port: int, reachable: bool) -> None:
        self.rotation.set_reachable(f"10.0.0.1:{port}", reachable)

    @rule(ok=st.booleans())
    def call(self, ok: bool) -> None:
        if len(self.rotation.picker):
            node = self.rotation.pick()
            self.rotation.picker.started(node)
            self.rotation.finished(node, 0.01, ok, self.now)

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.rotation.tick(self.now)

    def spills(self, well: dict[int, Instance], all: dict[int, Instance]) -> bool:
        """Whether calls leave the zone: its usable share is below the threshold and below that of
        the others. Draining instances count for their zone."""
        shares = []
        for local in (True, False):
            side = [(p, i.weight) for p, i in all.items() if (i.zone == "a") is local]
            usable = sum(weight for p, weight in side if p in well)
            shares.append(usable / sum(weight for _, weight in side) if side else 0.0)
        return shares[0] < min(shares[1], self.rotation.resilience.zone_threshold)

    def panics(self, well: dict[int, Instance], may: dict[int, Instance]) -> bool:
        """Whether neither the zone nor the others have enough usable instances."""
        sides = [{p for p, i in may.items() if (i.zone == "a") is local} for local in (True, False)]
        healthy = [side & set(well) for side in sides]
        return bool(may) and not any(
            here and len(here) >= len(side) * 0.5 for here, side in zip(healthy, sides, strict=True)
        )

    @invariant()
    def the_right_ones_are_called(self) -> None:
        ejected = {member.instance.port for member in self.rotation if member.ejected}
        reached = {member.instance.port for member in self.rotation if member.reachable}

        def usable(some: dict[int, Instance]) -> dict[int, Instance]:
            near = {p: i for p, i in some.items() if p in reached}
            return {p: i for p, i in near.items() if i.status.healthy and p not in ejected}

        may = {p: i for p, i in self.instances.items() if not exclusion(i, self.wanted)}
        with_draining = {
            p: i
            for p, i in self.instances.items()
            if not exclusion(i, self.wanted, last_resort=True)
        }
        if not usable(may):
            may = with_draining
        near, well = {p: i for p, i in may.items() if p in reached}, usable(may)
        here = {p for p, i in well.items() if i.zone == "a"}
        panics = self.panics(well, may)
        expected = set(near) if panics else (here or set(well))
        if not panics and here and self.spills(well, with_draining):
            expected = set(well)
        assert self.rotation.available == len(near if panics else well)
        assert set(called(self.rotation)) == expected
        assert len(self.rotation.picker) == len(expected)


TestAgainstTheModel = AgainstTheModel.TestCase


@given(st.lists(fields, min_size=1, max_size=8))
def test_the_effective_weight_of_an_instance_counts(many: list[dict[str, object]]):
    instances = [one(n + 1, **fields) for n, fields in enumerate(many)]
    rotation = rotation_of(*instances)
    for member in rotation:
        if member.in_rotation:
            assert member.node.weight == member.instance.weight
