"""Which members of a cluster clients use: spread evenly before, during and after a restart."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from mooring.store.etcd.endpoints import Preference

CLIENTS = 300
TOLERANCE = 30
"""Of 100 clients for each of three members: 3.7 standard deviations of a fair choice."""


@dataclass(eq=False)
class Member:
    down_since: float = 0.0


class Client:
    """Members as one client knows them: it hears of a failure only from the one that it uses."""

    def __init__(self, count: int) -> None:
        self.members = [Member() for _ in range(count)]
        self.preference = Preference(self.members)

    @property
    def uses(self) -> int:
        return self.members.index(self.preference.current)

    def calls(self, up: set[int], now: float) -> None:
        """A call: it fails over until a member answers."""
        while self.uses not in up:
            self.preference.failed(self.preference.current, now)
        self.preference.current.down_since = 0.0

    def returns(self, up: set[int]) -> None:
        for member in self.preference.better:
            if self.members.index(member) in up:
                member.down_since = 0.0
                return self.preference.use(member)


@pytest.fixture
def clients() -> list[Client]:
    random.seed(7)
    return [Client(3) for _ in range(CLIENTS)]


def spread(clients: list[Client]) -> list[int]:
    counts = Counter(client.uses for client in clients)
    return [counts[member] for member in range(3)]


def test_clients_are_spread_after_a_rolling_restart(clients: list[Client]):
    start = spread(clients)
    assert all(abs(count - CLIENTS / 3) <= TOLERANCE for count in start)
    for now, member in enumerate(range(3), 1):
        rest = {0, 1, 2} - {member}
        for client in clients:
            client.calls(rest, now)
        during = spread(clients)
        assert during[member] == 0
        # Nobody returned yet in this simulation, so the worst is after the last restart.
        assert sum(during) == CLIENTS
        for client in random.sample(clients, CLIENTS):
            client.returns({0, 1, 2})
    assert spread(clients) == start


def test_clients_of_a_failed_member_spread_over_the_others(clients: list[Client]):
    for client in clients:
        client.calls({1, 2}, 1.0)
    gone, *rest = spread(clients)
    assert gone == 0
    assert all(abs(count - CLIENTS / 2) <= TOLERANCE for count in rest)


def test_a_client_tries_every_member_in_turn_while_none_serves():
    client = Client(3)
    tried = []
    for now in range(1, 7):
        tried.append(client.uses)
        client.preference.failed(client.preference.current, float(now))
    assert sorted(tried[:3]) == sorted(tried[3:]) == [0, 1, 2]


def test_a_restart_without_time_to_return_does_not_gather_clients_for_good(clients: list[Client]):
    for now, member in enumerate(range(3), 1):
        for client in clients:
            client.calls({0, 1, 2} - {member}, float(now))
    for client in clients:
        client.returns({0, 1, 2})
    assert all(abs(count - CLIENTS / 3) <= TOLERANCE for count in spread(clients))
