"""How calls are distributed: simulated fleets of unequal weights, latencies, health and ages, under
callers that each make one call after another, 1, 4 or 64 of them at once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

import pytest

from mooring.discovery.balance import NAMES, Node
from mooring.discovery.exclusion import Selector
from mooring.discovery.resilience import Resilience
from mooring.discovery.rotation import Rotation
from mooring.model import Instance, State, Status

CALLS = 4000
CONCURRENCY = [1, 4, 64]
at_each_concurrency = pytest.mark.parametrize("concurrency", CONCURRENCY)


def instance(
    port: int, *, healthy: bool = True, state: State = "up", zone: str = "", weight: float = 1.0
) -> Instance:
    status = Status(healthy=healthy, state=state)
    return Instance("echo", "10.0.0.1", port, zone=zone, weight=weight, status=status)


class Fleet:
    """Instances behind a rotation, on a separate clock."""

    def __init__(self, policy: str, *, zone: str = "", slow_start: float = 0.0) -> None:
        self.now = 1000.0
        self.rotation = Rotation(
            "echo",
            policy=policy,
            selector=Selector(zone=zone),
            resilience=Resilience(slow_start=slow_start),
            rng=random.Random(11),
            clock=lambda: self.now,
        )

    def add(self, instances: Iterable[Instance], *, new: bool = False) -> None:
        for instance in instances:
            self.rotation.put(instance, self.now, first=not new)

    def shares(
        self, concurrency: int, latency: Callable[[int], float] = lambda port: 0.01
    ) -> dict[int, float]:
        """The share of the calls that each port gets. A call takes its instance's latency."""
        rotation, chance = self.rotation, random.Random(5)
        under_way: list[tuple[float, int, float, Node]] = []
        taken: Counter[int] = Counter()

        def end_one() -> None:
            self.now, _, began, node = heappop(under_way)
            rotation.finished(node, self.now - began, True, self.now)

        for number in range(CALLS):
            if len(under_way) == concurrency:
                end_one()
            node = rotation.pick()
            rotation.picker.started(node)
            port = node.item.instance.port
            taken[port] += 1
            takes = latency(port) * chance.uniform(0.8, 1.2)
            heappush(under_way, (self.now + takes, number, self.now, node))
        while under_way:
            end_one()
        return {port: count / CALLS for port, count in taken.items()}


class TestLeastRequests:
    @at_each_concurrency
    def test_unequal_weights(self, concurrency: int):
        fleet = Fleet("least_requests")
        fleet.add(instance(port, weight=port) for port in (1, 2, 3, 4))
        shares = fleet.shares(concurrency)
        for port in (1, 2, 3, 4):
            if concurrency == 4:  # one each: an idle instance is always the best
                assert 0.2 < shares[port] < 0.3
            else:
                assert shares[port] == pytest.approx(port / 10, rel=0.15)

    @at_each_concurrency
    def test_an_instance_that_is_ten_times_slower_gets_fewer_calls(self, concurrency: int):
        fleet = Fleet("least_requests")
        fleet.add(instance(port) for port in range(1, 6))
        shares = fleet.shares(concurrency, lambda port: 0.1 if port == 1 else 0.01)
        if concurrency == 1:
            assert shares[1] == pytest.approx(0.2, rel=0.15)
        else:  # while it is busy, others are not
            assert 0.01 < shares[1] < 0.1
        others = [shares[port] for port in range(2, 6)]
        assert max(others) < 1.2 * min(others)

    @at_each_concurrency
    def test_one_warm_and_nine_new_instances(self, concurrency: int):
        fleet = Fleet("least_requests", slow_start=3600)
        fleet.add([instance(1)])
        fleet.add((instance(port) for port in range(2, 11)), new=True)
        shares = fleet.shares(concurrency)
        new = [shares[port] for port in range(2, 11)]
        assert min(new) > 0.03
        assert max(new) < 0.1  # less than if all were warm
        assert shares[1] > 2 * max(new)
        if concurrency != 4:
            assert shares[1] == pytest.approx(1 / 1.9, rel=0.1)


@pytest.mark.parametrize("policy", [name for name in NAMES if name != "round_robin"])
@at_each_concurrency
def test_new_instances_get_less_until_they_are_warm(policy: str, concurrency: int):
    fleet = Fleet(policy, slow_start=3600)
    fleet.add(instance(port) for port in (1, 2))
    fleet.add((instance(port) for port in (3, 4)), new=True)
    shares = fleet.shares(concurrency)
    for new in (3, 4):
        assert 0.02 < shares[new] < 0.27  # at most its part: an idle one is the best
    fleet.now += 3600
    fleet.rotation.tick(fleet.now)
    shares = fleet.shares(concurrency)
    for port in (1, 2, 3, 4):
        assert shares[port] == pytest.approx(0.25, rel=0.3)


@pytest.mark.parametrize("policy", [name for name in NAMES if name != "consistent_hash"])
class TestZones:
    """Ten instances in the caller's zone and ten in another."""

    def fleet(self, policy: str, healthy: int, *, slow_start: float = 0.0) -> Fleet:
        fleet = Fleet(policy, zone="here", slow_start=slow_start)
        fleet.add(instance(p, zone="here", healthy=p <= healthy) for p in range(1, 11))
        fleet.add(instance(p, zone="there") for p in range(11, 21))
        return fleet

    @at_each_concurrency
    @pytest.mark.parametrize(
        ("healthy", "stay"), [(10, 1.0), (7, 1.0), (5, 5 / 7), (1, 1 / 7), (0, 0.0)]
    )
    def test_calls_spill_over_in_proportion(
        self, policy: str, concurrency: int, healthy: int, stay: float
    ):
        shares = self.fleet(policy, healthy).shares(concurrency)
        here = {port: share for port, share in shares.items() if port <= 10}
        assert sum(here.values()) == pytest.approx(stay, abs=0.03)
        assert max(here, default=0) <= healthy  # the unhealthy are not called
        assert max(here.values(), default=0.0) < 0.2  # one that is left is not run down
        if stay < 1:
            far_shares = [shares[port] for port in range(11, 21)]
            assert max(far_shares) < 2.5 * min(far_shares)

    @at_each_concurrency
    def test_new_instances_of_the_zone_are_not_flooded(self, policy: str, concurrency: int):
        """All of the zone are replaced at once, and begin with a tenth of their weight."""
        fleet = Fleet(policy, zone="here", slow_start=3600)
        fleet.add(instance(port, zone="there") for port in range(11, 21))
        fleet.add((instance(port, zone="here") for port in range(1, 11)), new=True)
        shares = fleet.shares(concurrency)
        assert sum(shares[port] for port in range(1, 11)) == pytest.approx(1 / 7, abs=0.03)
        fleet.now += 3600
        fleet.rotation.tick(fleet.now)
        shares = fleet.shares(concurrency)
        assert set(shares) <= set(range(1, 11))

    @at_each_concurrency
    def test_new_instances_of_other_zones_are_not_flooded(self, policy: str, concurrency: int):
        """One of ten is left here, and all others are new: there is no reason to leave for them."""
        fleet = Fleet(policy, zone="here", slow_start=3600)
        fleet.add(instance(p, zone="here", healthy=p <= 2) for p in range(1, 11))
        fleet.add((instance(p, zone="there") for p in range(11, 31)), new=True)
        shares = fleet.shares(concurrency)
        assert max(shares) <= 2

    @at_each_concurrency
    def test_zones_that_are_equally_bad_keep_their_callers(self, policy: str, concurrency: int):
        fleet = Fleet(policy, zone="here")
        fleet.add(instance(p, zone="here", healthy=p <= 6) for p in range(1, 11))
        fleet.add(instance(p, zone="there", healthy=p <= 16) for p in range(11, 21))
        assert max(fleet.shares(concurrency)) <= 6

    @at_each_concurrency
    def test_a_healthy_zone_keeps_callers_of_other_zones_from_unhealthy_instances(
        self, policy: str, concurrency: int
    ):
        """8 of 17 are healthy: too few of all, and enough of the other zone."""
        fleet = Fleet(policy, zone="here")
        fleet.add(instance(p, zone="here", healthy=p == 1) for p in range(1, 11))
        fleet.add(instance(p, zone="there") for p in range(11, 18))
        shares = fleet.shares(concurrency)
        assert set(shares) == {1, *range(11, 18)}
        assert shares[1] == pytest.approx(1 / 7, abs=0.03)

    @at_each_concurrency
    def test_callers_of_a_healthy_zone_do_not_panic_with_others(
        self, policy: str, concurrency: int
    ):
        fleet = Fleet(policy, zone="here")
        fleet.add(instance(p, zone="here", healthy=p <= 6) for p in range(1, 11))
        fleet.add(instance(p, zone="there", healthy=p == 11) for p in range(11, 21))
        assert set(fleet.shares(concurrency)) == set(range(1, 7))

    @at_each_concurrency
    def test_all_are_called_if_no_zone_has_enough(self, policy: str, concurrency: int):
        fleet = Fleet(policy, zone="here")
        fleet.add(instance(p, zone="here", healthy=p == 1) for p in range(1, 11))
        fleet.add(instance(p, zone="there", healthy=p == 11) for p in range(11, 21))
        assert set(fleet.shares(concurrency)) == set(range(1, 21))

    @at_each_concurrency
    def test_calls_spill_over_while_most_of_the_zone_drains(self, policy: str, concurrency: int):
        """One of ten stays, and does not get the calls of those that leave."""
        fleet = Fleet(policy, zone="here")
        fleet.add(
            instance(p, zone="here", state="up" if p == 1 else "draining") for p in range(1, 11)
        )
        fleet.add(instance(p, zone="there") for p in range(11, 21))
        shares = fleet.shares(concurrency)
        assert set(shares) == {1, *range(11, 21)}
        assert shares[1] == pytest.approx(1 / 7, abs=0.03)

    @at_each_concurrency
    def test_successors_in_slow_start_are_not_flooded_while_the_zone_drains(
        self, policy: str, concurrency: int
    ):
        """A rolling update of the zone has replaced half of it: the new ones begin with a tenth of
        their weight, and those that they replace drain."""
        fleet = Fleet(policy, zone="here", slow_start=3600)
        fleet.add(instance(p, zone="there") for p in range(11, 21))
        fleet.add(instance(p, zone="here", state="draining") for p in range(6, 11))
        fleet.add((instance(p, zone="here") for p in range(1, 6)), new=True)
        shares = fleet.shares(concurrency)
        assert set(shares) == {*range(1, 6), *range(11, 21)}
        assert sum(shares[p] for p in range(1, 6)) == pytest.approx(0.05 / 0.7, abs=0.03)

    @at_each_concurrency
    def test_draining_instances_count_if_no_other_is_usable(self, policy: str, concurrency: int):
        fleet = Fleet(policy, zone="here")
        fleet.add(
            instance(p, zone="here", healthy=False, state="up" if p > 2 else "draining")
            for p in range(2, 11)
        )
        fleet.add([instance(1, zone="here", state="draining")])
        fleet.add(instance(p, zone="there", state="draining") for p in range(11, 21))
        shares = fleet.shares(concurrency)
        assert set(shares) == {1, *range(11, 21)}
        assert shares[1] == pytest.approx(1 / 7, abs=0.03)
