"""Pickers against naive models, and how they distribute requests."""

from __future__ import annotations

import hashlib
import math
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.discovery.balance import (
    NAMES,
    P2C,
    ConsistentHash,
    LeastRequests,
    Node,
    Picker,
    Random,
    RoundRobin,
    WeightedRoundRobin,
    make,
)
from mooring.errors import InvalidRequest

weights = st.one_of(
    st.integers(1, 8).map(float),
    st.sampled_from([0.1, 0.25, 1.0, 1.0, 3.3, 100.0]),
    st.floats(1e-9, 1e9),
)
whole_weights = st.lists(st.integers(1, 9), min_size=1, max_size=8)
operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "reweight", "pick", "pick", "finish", "back"]),
        st.integers(0, 10**6),
        weights,
    ),
    max_size=80,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def rng() -> random.Random:
    return random.Random(7)


def filled(picker: Picker, *of_weights: float) -> list[Node]:
    nodes = [Node(f"n{number}", weight) for number, weight in enumerate(of_weights)]
    for node in nodes:
        picker.add(node)
    return nodes


def picks(picker: Picker, count: int) -> Counter[Node]:
    return Counter(picker.pick() for _ in range(count))


class World:
    """Random operations on a picker, with a plain set beside it."""

    def __init__(self, picker: Picker) -> None:
        self.picker = picker
        self.members: list[Node] = []
        self.gone: list[Node] = []
        self.under_way: list[Node] = []
        self.made = 0

    def do(self, operation: str, number: int, weight: float) -> None:
        if operation == "add":
            node = Node(f"n{self.made}", weight)
            self.made += 1
            self.members.append(node)
            self.picker.add(node)
        elif operation == "back" and self.gone:
            node = self.gone.pop(number % len(self.gone))
            self.members.append(node)
            self.picker.add(node)
        elif operation == "finish" and self.under_way:
            node = self.under_way.pop(number % len(self.under_way))
            self.picker.finished(node, number / 1e6, number % 3 > 0)
        elif self.members and operation in ("remove", "reweight"):
            node = self.members[number % len(self.members)]
            if operation == "remove":
                self.members.remove(node)
                self.gone.append(node)
                self.picker.remove(node)
            else:
                self.picker.reweight(node, weight)
        elif self.members and operation == "pick":
            node = self.picker.pick(str(number))
            assert node in self.members
            self.picker.started(node)
            self.under_way.append(node)
        assert len(self.picker) == len(self.members)


@pytest.mark.parametrize("policy", NAMES)
class TestEveryPicker:
    @given(operations=operations)
    def test_only_present_nodes_are_picked(self, policy, operations):
        world = World(make(policy, rng=rng(), clock=Clock()))
        for operation in operations:
            world.do(*operation)
        for node in (*world.members, *world.gone):
            assert node.active == world.under_way.count(node)
        for node in world.members:
            world.picker.remove(node)
        assert len(world.picker) == 0
        with pytest.raises(LookupError):
            world.picker.pick()

    @given(operations=operations)
    def test_every_node_has_a_chance(self, policy, operations):
        """No sequence of operations loses a node in the structure."""
        world = World(make(policy, rng=rng(), clock=Clock()))
        for operation in operations:
            world.do(*operation)
        for node in world.members[1:]:
            world.picker.remove(node)
        for node in world.members[:1]:
            assert {world.picker.pick("key"), world.picker.pick()} == {node}

    def test_an_empty_picker_picks_nothing(self, policy):
        with pytest.raises(LookupError, match="no node to pick"):
            make(policy).pick("key")

    def test_a_node_is_added_once_and_removed_once(self, policy):
        picker = make(policy)
        (node,) = filled(picker, 1)
        with pytest.raises(ValueError, match="in this picker already"):
            picker.add(node)
        picker.remove(node)
        with pytest.raises(LookupError):
            picker.remove(node)
        with pytest.raises(LookupError):
            picker.reweight(node, 2)
        picker.add(node)
        assert picker.pick() is node

    @pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf])
    def test_a_weight_must_be_above_zero(self, policy, weight):
        picker = make(policy)
        (node,) = filled(picker, 2)
        with pytest.raises(InvalidRequest, match="weight of 'n0'"):
            picker.reweight(node, weight)
        assert node.weight == 2
        assert picker.pick() is node

    def test_a_weight_can_be_set_while_the_node_is_removed(self, policy):
        picker = make(policy)
        node, other = filled(picker, 1, 1)
        picker.remove(node)
        node.weight = 1e300
        picker.add(node)
        assert node.weight == 1e6
        picker.remove(other)
        assert picker.pick() is node

    def test_a_request_can_end_after_its_node_was_removed(self, policy):
        picker = make(policy)
        (node,) = filled(picker, 1)
        picker.started(node)
        picker.remove(node)
        picker.finished(node, 0.1, True)
        assert node.active == 0


def test_the_error_for_an_unknown_policy_names_the_nearest():
    with pytest.raises(InvalidRequest, match="did you mean 'round_robin'"):
        make("round-robin")


def test_nodes_are_compared_by_identity_not_by_id():
    assert Node("a") != Node("a")


@given(operations, st.booleans())
def test_a_weighted_set_contains_every_node_once_with_its_own_numbers(operations, alike):
    picker = P2C(rng(), Clock())
    world = World(picker)
    for operation, number, weight in operations:
        world.do(operation, number, 3.0 if alike else weight)
    lying = [node for group in picker._classes for node in group.nodes]
    assert Counter(lying) == Counter(world.members)
    for group in picker._classes:
        assert group.nodes
        assert group.width == group.top * len(group.nodes)
        for place, node in enumerate(group.nodes):
            assert (node.weight_class, node.place) == (group, place)
            assert group.top / 2 < group.weights[place] == node.weight <= group.top
            assert group.load[place] == node.active / node.weight
            assert bool(group.slowness[place]) <= bool(node.latency)
    shares = {node.weight for node in world.members}
    assert (picker._equal is not None) == (len(shares) == 1)
    if picker._equal is not None:
        assert shares == {picker._mean_weight}


class TestRandom:
    def test_chances_are_the_weights(self):
        picker = Random(rng())
        nodes = filled(picker, 1, 2, 5, 0.5, 11.5, 2)
        taken = picks(picker, 110_000)
        for node in nodes:
            assert taken[node] == pytest.approx(110_000 * node.weight / 22, rel=0.05)

    def test_chances_are_the_weights_after_changes(self):
        picker, chance = Random(rng()), rng()
        nodes = filled(picker, *(chance.uniform(0.1, 9) for _ in range(40)))
        for node in nodes:
            picker.reweight(node, chance.uniform(0.1, 9))
        for node in nodes[:30]:
            picker.remove(node)
        total = sum(node.weight for node in nodes[30:])
        taken = picks(picker, 100_000)
        for node in nodes[30:]:
            assert taken[node] == pytest.approx(1e5 * node.weight / total, rel=0.1, abs=30)

    def test_the_same_seed_picks_the_same(self):
        def run() -> list[str]:
            picker = Random(random.Random(1))
            filled(picker, 1, 2, 3)
            return [picker.pick().id for _ in range(50)]

        assert run() == run()


class TestRoundRobin:
    def test_nodes_are_picked_in_turn(self):
        picker = RoundRobin()
        nodes = filled(picker, 1, 1, 5)
        assert [picker.pick() for _ in range(7)] == [*nodes, *nodes, nodes[0]]

    @given(
        st.integers(1, 6),
        st.lists(st.sampled_from(["pick", "pick", "add", "remove"]), max_size=80),
        st.randoms(use_true_random=False),
    )
    def test_permanent_nodes_are_picked_equally_over_any_interval(self, stay, operations, chance):
        picker = RoundRobin()
        staying = filled(picker, *[1] * stay)
        passing: list[Node] = []
        taken: list[Node] = []
        for operation in operations:
            if operation == "add":
                passing.append(Node("passing"))
                picker.add(passing[-1])
            elif operation == "remove" and passing:
                picker.remove(passing.pop(chance.randrange(len(passing))))
            elif operation == "pick":
                taken.append(picker.pick())
        for start in range(len(taken)):
            for end in range(start, len(taken)):
                counts = Counter(taken[start:end])
                shares = [counts[node] for node in staying]
                assert max(shares) - min(shares) <= 1

    def test_a_new_node_waits_for_the_end_of_the_round(self):
        picker = RoundRobin()
        one, two, three = filled(picker, 1, 1, 1)
        assert picker.pick() is one
        picker.remove(one)
        picker.add(one)
        assert [picker.pick() for _ in range(4)] == [two, three, one, two]


class TestWeightedRoundRobin:
    @pytest.mark.parametrize("seed", range(20))
    def test_five_three_two_is_exact_over_each_ten(self, seed):
        picker = WeightedRoundRobin(random.Random(seed))
        nodes = filled(picker, 5, 3, 2)
        taken = [picker.pick() for _ in range(1000)]
        for start in range(990):
            window = Counter(taken[start : start + 10])
            assert [window[node] for node in nodes] == [5, 3, 2]

    @given(whole_weights, operations, st.randoms(use_true_random=False))
    def test_every_full_round_is_exact_after_any_history(self, shares, operations, chance):
        world = World(WeightedRoundRobin(chance))
        for operation in operations:
            world.do(*operation)
        picker, nodes = world.picker, world.members
        for node, weight in zip(nodes, shares, strict=False):
            picker.reweight(node, weight)
        for node in nodes[len(shares) :]:
            picker.remove(node)
        nodes = nodes[: len(shares)]
        for weight in shares[len(nodes) :]:
            nodes.append(Node("new", weight))
            picker.add(nodes[-1])
        turn = sum(shares)
        taken = [picker.pick() for _ in range(3 * turn)]
        for start in range(2 * turn + 1):
            window = Counter(taken[start : start + turn])
            assert [window[node] for node in nodes] == shares

    @pytest.mark.parametrize("shares", [[10] + [1] * 10, [50, 1, 1, 1], [1] * 30 + [2] * 30, [7]])
    def test_no_node_is_ever_far_from_its_share(self, shares):
        for seed in range(10):
            picker = WeightedRoundRobin(random.Random(seed))
            nodes = filled(picker, *shares)
            counts, turn = Counter[Node](), sum(shares)
            for number in range(1, 2 * turn + 1):
                counts[picker.pick()] += 1
                for node in nodes:
                    assert abs(counts[node] - number * node.weight / turn) < 3

    def test_one_heavy_node_does_not_come_in_bursts(self):
        picker = WeightedRoundRobin(rng())
        heavy, *_ = filled(picker, *[10] + [1] * 10)
        taken = "".join("H" if picker.pick() is heavy else "." for _ in range(400))
        assert "HHH" not in taken
        assert "..." not in taken

    def test_fractions_are_kept_in_the_long_run(self):
        picker = WeightedRoundRobin(rng())
        nodes = filled(picker, 0.3, 1.7, 2.25, 0.05)
        taken = picks(picker, 43_000)
        for node in nodes:
            assert taken[node] == pytest.approx(43_000 * node.weight / 4.3, abs=2)

    def test_a_late_node_neither_floods_nor_starves(self):
        picker = WeightedRoundRobin(rng())
        filled(picker, 1, 2, 3)
        picks(picker, 10_000)
        late = Node("late", 4)
        picker.add(late)
        assert picks(picker, 10)[late] == 4

    def test_a_weight_that_keeps_changing_starves_no_node(self):
        picker = WeightedRoundRobin(rng())
        slow, *_ = filled(picker, 0.1, 1, 1, 1)
        count = 0
        for number in range(3000):
            picker.reweight(slow, 0.1 + 0.9 * number / 3000)
            count += picker.pick() is slow
        # The mean weight is 0.55 of 3.55; summed over the ramp it comes to about 15 %.
        assert count == pytest.approx(3000 * 0.15, rel=0.1)

    def test_its_garbage_is_bounded(self):
        picker = WeightedRoundRobin(rng())
        nodes = filled(picker, *[1] * 100)
        for number in range(10_000):
            node = nodes[number % 100]
            if number % 3:
                picker.reweight(node, 1 + number % 7)
            else:
                picker.remove(node)
                picker.add(node)
            assert len(picker._heap) <= 300


class TestP2C:
    def test_the_less_busy_one_of_two_wins(self):
        picker = P2C(rng(), Clock())
        busy, idle = filled(picker, 3, 3)
        picker.started(busy)
        assert picks(picker, 100) == {idle: 100}

    def test_with_two_nodes_requests_alternate(self):
        """Two candidates are distinct: one alone could not be worse than itself."""
        picker = P2C(rng(), Clock())
        one, two = filled(picker, 1, 1)
        for _ in range(100):
            picker.started(picker.pick())
        assert one.active == two.active == 50

    def test_a_slow_node_gets_less_at_once(self):
        clock = Clock()
        picker = P2C(rng(), clock)
        nodes = filled(picker, *[1] * 10)
        for node in nodes:
            answer(picker, node, 0.01)
        answer(picker, nodes[3], 0.5)
        taken = picks(picker, 1000)
        assert taken[nodes[3]] == 0
        assert len(taken) == 9

    def test_a_slow_node_is_tried_again_after_a_while(self):
        clock = Clock()
        picker = P2C(rng(), clock)
        slow, *others = filled(picker, 1, 1, 1)
        answer(picker, slow, 5.0)
        tried = 0
        for _ in range(600):
            clock.now += 0.1
            for node in others:
                answer(picker, node, 0.01 * random.Random(clock.now).uniform(0.5, 2))
            tried += picker.pick() is slow
        assert tried > 0

    def test_fast_responses_lower_the_latency_estimate_over_time(self):
        clock = Clock()
        picker = P2C(rng(), clock)
        (node,) = filled(picker, 1)
        answer(picker, node, 1.0)
        answer(picker, node, 0.1)
        assert node.latency == pytest.approx(1.0)
        clock.now += 10
        answer(picker, node, 0.1)
        assert node.latency == pytest.approx(0.1 + 0.9 / math.e)
        answer(picker, node, 2.0)
        assert node.latency == 2.0

    @pytest.mark.parametrize("latency", [0.001, 0.1, 10.0])
    def test_a_new_node_gets_about_its_share(self, latency):
        clock, chance = Clock(), rng()
        picker = P2C(rng(), clock)
        nodes = filled(picker, *[1] * 9)
        for _ in range(50):
            for node in nodes:
                clock.now += 0.01
                answer(picker, node, latency * chance.uniform(0.5, 1.5))
        new = Node("new")
        picker.add(new)
        assert 20 < picks(picker, 1000)[new] < 250

    def test_fast_failures_do_not_attract_requests(self):
        clock = Clock()
        picker = P2C(rng(), clock)
        failing, *others = filled(picker, 1, 1, 1, 1)
        for _ in range(20):
            for node in others:
                answer(picker, node, 0.05)
            answer(picker, failing, 0.0001, ok=False)
            clock.now += 0.1
        assert picks(picker, 1000)[failing] == 0

    def test_all_nodes_are_still_tried_if_all_fail(self):
        clock = Clock()
        picker = P2C(rng(), clock)
        nodes = filled(picker, *[1] * 5)
        for _ in range(2000):
            clock.now += 0.01
            node = picker.pick()
            answer(picker, node, 0.001, ok=False)
        taken = Counter[Node]()
        for _ in range(1000):
            clock.now += 0.01
            node = picker.pick()
            answer(picker, node, 0.001, ok=False)
            taken[node] += 1
        assert all(taken[node] > 50 for node in nodes)

    @pytest.mark.parametrize("scale", [1, 100, 0.03])
    @pytest.mark.parametrize("shares", [[5, 3, 2], [1, 9], [1] * 5 + [9] * 5, [1, 1, 1, 0.1]])
    def test_idle_nodes_are_picked_by_weight(self, shares, scale):
        picker = P2C(rng(), Clock())
        nodes = filled(picker, *(share * scale for share in shares))
        taken, total = picks(picker, 40_000), sum(node.weight for node in nodes)
        for node in nodes:
            assert taken[node] == pytest.approx(40_000 * node.weight / total, rel=0.1)

    @pytest.mark.parametrize("scale", [1, 100])
    def test_busy_nodes_are_loaded_by_weight(self, scale):
        picker = P2C(rng(), Clock())
        nodes = filled(picker, *(share * scale for share in [1, 1, 2, 2, 4, 4, 0.5]))
        for _ in range(1450):
            picker.started(picker.pick())
        for node in nodes:
            assert node.active == pytest.approx(100 * node.weight / scale, rel=0.25)

    def test_an_uneven_slow_node_gets_little(self):
        clock = Clock()
        picker = P2C(rng(), clock)
        slow, *others = filled(picker, 3, 2, 1)
        for node in others:
            answer(picker, node, 0.01)
        answer(picker, slow, 1.0)
        assert picks(picker, 1000)[slow] < 200

    def test_statistics_survive_removal_reweighting_and_an_hour(self):
        clock = Clock()
        picker = P2C(rng(), clock)
        slow, fast = filled(picker, 1, 1)
        answer(picker, fast, 0.01)
        clock.now += 3605
        answer(picker, slow, 0.2)
        answer(picker, fast, 0.01)
        picker.remove(slow)
        picker.add(slow)
        picker.reweight(fast, 2)
        picker.reweight(fast, 1)
        assert picks(picker, 100) == {fast: 100}
        clock.now += 300
        assert 30 < picks(picker, 100)[slow] < 70

    def test_statistics_are_copied_from_another_picker(self):
        clock = Clock()
        picker = P2C(rng(), clock)
        clock.now += 10**6
        other = P2C(rng(), clock)
        slow, fast = filled(other, 1, 1)
        answer(other, fast, 0.01)
        answer(other, slow, 1.0)
        for node in (slow, fast):
            other.remove(node)
            picker.add(node)
        assert picks(picker, 100) == {fast: 100}

    def test_a_new_epoch_changes_no_choice(self):
        clock = Clock()
        picker = P2C(rng(), clock)
        slow, fast = filled(picker, 1, 1)
        clock.now += 3599
        answer(picker, fast, 0.01)
        answer(picker, slow, 0.2)
        clock.now += 2
        answer(picker, fast, 0.01)
        assert picker._epoch == clock.now
        assert picks(picker, 100) == {fast: 100}


def answer(picker: Picker, node: Node, seconds: float, *, ok: bool = True) -> None:
    picker.started(node)
    picker.finished(node, seconds, ok)


class TestLeastRequests:
    @given(operations)
    def test_the_picked_node_has_the_fewest_requests(self, operations):
        world = World(LeastRequests(rng()))
        for operation in operations:
            world.do(*operation)
            if world.members:
                node = world.picker.pick()
                loads = [other.active / other.weight for other in world.members]
                assert node.active / node.weight == min(loads)

    def test_ties_are_broken_at_random(self):
        picker = LeastRequests(rng())
        busy, *idle = filled(picker, *[1] * 5)
        picker.started(busy)
        taken = picks(picker, 8000)
        assert taken[busy] == 0
        assert all(taken[node] == pytest.approx(2000, rel=0.1) for node in idle)

    @pytest.mark.parametrize("shares", [(1, 2, 3, 4), (1.0, *[0.1] * 9), (1e-6, 1, 1.5, 1e6)])
    def test_idle_nodes_share_sequential_requests_by_weight(self, shares):
        picker = LeastRequests(rng())
        nodes, taken = filled(picker, *shares), Counter[Node]()
        for _ in range(20_000):
            node = picker.pick()
            taken[node] += 1
            answer(picker, node, 0.01)
        total = sum(shares)
        for node, share in zip(nodes, shares, strict=True):
            expected = 20_000 * share / total
            assert taken[node] == pytest.approx(expected, rel=0.1, abs=5)

    def test_requests_that_stay_are_spread_by_weight(self):
        picker = LeastRequests(rng())
        nodes = filled(picker, 5, 3, 2)
        for _ in range(100):
            picker.started(picker.pick())
        assert [node.active for node in nodes] == [50, 30, 20]

    def test_its_garbage_is_bounded(self):
        picker, chance = LeastRequests(rng()), rng()
        nodes = filled(picker, *[1] * 100)
        for number in range(10_000):
            picker.reweight(nodes[number % 100], chance.uniform(0.1, 10))
            for home in picker._classes.values():
                assert len(home.heap) == len(home.buckets) <= 300


class TestConsistentHash:
    KEYS = tuple(f"user-{number}" for number in range(3000))

    def owners(self, picker: Picker, keys: Iterable[str]) -> dict[str, str]:
        return {key: picker.pick(key).id for key in keys}

    def test_the_ring_is_the_same_in_every_process_and_release(self):
        picker = ConsistentHash()
        filled(picker, 1, 1, 1, 1, 2, 0.25)
        known: dict[str | bytes, str]
        known = {"b": "n4", "c": "n0", "user-1": "n3", b"user-1": "n3", "用户": "n0", b"\xff": "n1"}
        assert {key: picker.pick(key).id for key in known} == known

    @given(
        st.dictionaries(st.text(max_size=5), weights, min_size=1, max_size=12),
        st.randoms(use_true_random=False),
    )
    def test_neither_order_nor_history_matters(self, shares, chance):
        one, other = ConsistentHash(), ConsistentHash()
        for id, weight in shares.items():
            one.add(Node(id, weight))
        passing = Node("passing", 3)
        other.add(passing)
        turned = list(shares.items())
        chance.shuffle(turned)
        for id, weight in turned:
            node = Node(id)
            other.add(node)
            other.reweight(node, weight)
        other.remove(passing)
        keys = self.KEYS[:30]
        assert self.owners(one, keys) == self.owners(other, keys)

    @given(st.lists(weights, min_size=2, max_size=12), st.data())
    def test_only_the_keys_of_a_removed_node_move(self, shares, data):
        picker = ConsistentHash()
        nodes = filled(picker, *shares)
        keys = self.KEYS[:60]
        before = self.owners(picker, keys)
        gone = data.draw(st.sampled_from(nodes))
        picker.remove(gone)
        after = self.owners(picker, keys)
        assert all(before[key] in (gone.id, after[key]) for key in keys)
        picker.add(gone)
        assert self.owners(picker, keys) == before

    @given(st.lists(weights, min_size=2, max_size=8), weights, st.data())
    def test_a_weight_change_moves_keys_only_to_or_from_that_node(self, shares, weight, data):
        picker = ConsistentHash()
        node = data.draw(st.sampled_from(filled(picker, *shares)))
        keys = self.KEYS[:60]
        before = self.owners(picker, keys)
        heavier = weight > node.weight
        picker.reweight(node, weight)
        after = self.owners(picker, keys)
        for key in keys:
            assert before[key] == after[key] or (after if heavier else before)[key] == node.id

    @pytest.mark.parametrize("count", [2, 3, 5, 10, 30, 100])
    def test_a_removed_node_moves_no_more_keys_than_its_share(self, count):
        picker = ConsistentHash()
        nodes = [Node(f"10.0.{number % 7}.{number}:8080") for number in range(count)]
        for node in nodes:
            picker.add(node)
        keys = [f"order/{number}" for number in range(20_000)]
        before = self.owners(picker, keys)
        gone = nodes[count // 2]
        picker.remove(gone)
        after = self.owners(picker, keys)
        moved = [key for key in keys if before[key] != after[key]]
        assert {before[key] for key in moved} == {gone.id}
        assert len(moved) <= 1.2 / count * len(keys)

    def test_weights_are_respected_roughly(self):
        picker = ConsistentHash()
        nodes = filled(picker, *[1] * 20 + [2] * 20 + [5] * 20 + [0.25] * 20)
        counts = Counter(picker.pick(str(number)).weight for number in range(20_000))
        total = sum(node.weight for node in nodes)
        for weight, count in counts.items():
            assert count == pytest.approx(20_000 * 20 * weight / total, rel=0.25)

    def test_without_a_key_any_node_is_picked(self):
        picker = ConsistentHash(rng())
        nodes = filled(picker, *[1] * 5)
        taken = picks(picker, 2000)
        assert all(200 < taken[node] < 700 for node in nodes)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 30), st.sampled_from([1.0, 4.0])), max_size=60
    ),
    st.lists(st.binary(max_size=8), min_size=1, max_size=5),
)
def test_the_ring_agrees_with_a_search_of_all_points(operations, keys):
    ring, members = ConsistentHash(), dict[int, Node]()
    for add, owner, weight in operations:
        if add and owner not in members:
            members[owner] = Node(str(owner), weight)
            ring.add(members[owner])
        elif not add and owner in members:
            ring.remove(members.pop(owner))
    assert len(ring) == len(members)
    for circle in ring._circles.values():
        points = sorted(circle.owners)
        assert [point for arc in circle.arcs for point in arc[:-1]] == points
        for number, arc in enumerate(circle.arcs):
            following = bisect_left(points, (number + 1) << 58)
            wraps = following == len(points)
            assert arc[-1] == points[following % len(points)] + (wraps << 64)
    for key in keys:
        if members:
            weights = {owner: node.weight for owner, node in members.items()}
            assert ring.pick(key) is members[nearest_of_all(weights, key)]
        else:
            with pytest.raises(LookupError):
                ring.pick(key)


def nearest_of_all(owners: dict[int, float], key: bytes) -> int:
    def numbers(digest: bytes) -> list[int]:
        return [int.from_bytes(digest[at : at + 8], "little") for at in range(0, len(digest), 8)]

    probes = numbers(hashlib.shake_128(key).digest(168))
    return min(
        ((point - probe) % 2**64 / weight, owner)
        for owner, weight in owners.items()
        for point in numbers(hashlib.blake2b(str(owner).encode()).digest())
        for probe in probes
    )[1]
