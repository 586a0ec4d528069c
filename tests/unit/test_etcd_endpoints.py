"""Which members of a cluster clients use: spread evenly before, during and after a restart."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from mooring.settings.connections import EtcdConnectionSettings
from mooring.store.etcd.connection import EtcdConnection
from mooring.store.etcd.endpoints import Preference
from mooring.tasks import Tasks
from tests.waiting import eventually

CLIENTS = 300
TOLERANCE = 30
"""Of 100 clients for each of three members: 3.7 standard deviations of a fair choice."""


@dataclass(eq=False)
class Member:
    down_since: float = 0.0


class Client:
    """Members as one client knows them: it sees failures only of the member that it uses."""

    def __init__(self, count: int) -> None:
        self.members: list[Any] = [Member() for _ in range(count)]
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
                self.preference.current = member
                return


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
        assert all(abs(during[other] - CLIENTS / 2) <= TOLERANCE for other in rest)
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


def test_a_client_prefers_a_member_that_serves_to_one_that_failed():
    client = Client(3)
    first, second, third = client.preference._order
    client.preference.failed(first, 1.0)
    client.preference.failed(second, 2.0)
    assert client.preference.current is third
    client.returns({client.members.index(first)})
    assert client.preference.current is first
    client.preference.failed(first, 3.0)
    assert client.preference.current is third


async def test_clients_return_minutes_later_and_not_together(monkeypatch: pytest.MonkeyPatch):
    loop, pauses = asyncio.get_running_loop(), []
    call_later = loop.call_later

    def recorded(delay: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        pauses.append(delay)
        return call_later(delay, *arguments, **options)

    monkeypatch.setattr(loop, "call_later", recorded)
    settings = EtcdConnectionSettings(endpoints=tuple(f"127.0.0.1:{port}" for port in (1, 2, 3)))
    async with AsyncExitStack() as stack:
        tasks = Tasks()
        for _ in range(50):
            cluster = EtcdConnection(settings, tasks)
            stack.push_async_callback(cluster.aclose)
            cluster.move_on(cluster.endpoint)
        stack.push_async_callback(tasks.aclose)
        await eventually(lambda: sum(pause > 1 for pause in pauses) == 50, within=5)
        waits = sorted(pause for pause in pauses if pause > 1)
    assert waits[0] >= 60
    assert waits[-1] > waits[0] + 120


def test_a_restart_without_time_to_return_does_not_gather_clients_for_good(clients: list[Client]):
    for now, member in enumerate(range(3), 1):
        for client in clients:
            client.calls({0, 1, 2} - {member}, float(now))
    for client in clients:
        client.returns({0, 1, 2})
    assert all(abs(count - CLIENTS / 3) <= TOLERANCE for count in spread(clients))
