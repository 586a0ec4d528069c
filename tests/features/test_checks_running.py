"""HealthChecks at work: who is probed, when, how often at once, and what is told of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from mooring.messages import Message
from mooring.model import Instance
from mooring.server.health_checks.checkers import (
    Checker,
    HTTPChecker,
    Outcome,
    Target,
    load_checkers,
)
from mooring.server.health_checks.scheduler import HealthChecks, Key
from mooring.server.health_checks.target_policy import Resolver, TargetPolicy
from mooring.server.live.state import Fleet
from mooring.server.settings import CheckSettings
from mooring.testing.proxy import close_server
from mooring.testing.servers import free_port
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

LAPTOP = TargetPolicy(loopback=True)
OFTEN = CheckSettings(enabled=True, interval=0.05, failures=2, timeout=10.0)


class Picture:
    """What is registered, as a test says."""

    def __init__(self, *instances: Instance) -> None:
        self._services: dict[str, dict[str, Instance]] = {}
        self._callbacks: list[Callable[[Collection[Key]], None]] = []
        self.told: dict[Key, list[tuple[float | None, str]]] = {}
        self.unchecked: dict[Key, str] = {}
        self.named = self.asked = 0
        self.put(*instances)

    def names(self) -> list[str]:
        self.named += 1
        return sorted(self._services)

    def service(self, name: str) -> SimpleNamespace | None:
        self.asked += 1
        instances = self._services.get(name)
        return None if instances is None else SimpleNamespace(instances=instances)

    def subscribe(self, callback: Callable[[Collection[Key]], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def report_check(
        self, service: str, id: str, ms: float | None, failure: Message | None = None
    ) -> None:
        self.told.setdefault((service, id), []).append((ms, str(failure or "")))

    def report_unchecked(self, service: str, id: str, reason: Message) -> None:
        self.told.setdefault((service, id), []).append((None, ""))
        self.unchecked[service, id] = reason.text

    def put(self, *instances: Instance) -> None:
        for instance in instances:
            self._services.setdefault(instance.service, {})[instance.id] = instance
        self._tell([(instance.service, instance.id) for instance in instances])

    def take(self, instance: Instance) -> None:
        del self._services[instance.service][instance.id]
        self._tell([(instance.service, instance.id)])

    def _tell(self, keys: Collection[Key]) -> None:
        for callback in self._callbacks:
            callback(keys)

    def last(self, instance: Instance) -> tuple[float | None, str]:
        return self.told.get((instance.service, instance.id), [(None, "nothing yet")])[-1]

    def count(self, instance: Instance) -> int:
        return len(self.told.get((instance.service, instance.id), ()))


class Counting:
    """A checker that takes its time and counts."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self.now = self.most = 0
        self.starts: list[float] = []
        self.probed: list[Target] = []

    async def check(self, target: Target, *, timeout: float) -> Outcome:
        self.starts.append(asyncio.get_running_loop().time())
        self.probed.append(target)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self._seconds)
        finally:
            self.now -= 1
        return Outcome(True, 1.0)


def only(checker: Counting | HTTPChecker, protocol: str = "http") -> dict[str, Checker]:
    return {protocol: checker}


def web(port: int = 80, *, host: str = "127.0.0.1", service: str = "orders") -> Instance:
    return Instance(service, host, port, "http", id=f"{host}:{port}")


@asynccontextmanager
async def answering(status: int = 200, port: int = 0) -> AsyncIterator[int]:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 %d\r\n\r\n" % status)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await close_server(server)
        await server.wait_closed()


def running(
    fleet: Picture,
    settings: CheckSettings = OFTEN,
    *,
    checkers: dict[str, Checker] | None = None,
    policy: TargetPolicy = LAPTOP,
    resolve: Resolver | None = None,
) -> HealthChecks:
    return HealthChecks(
        cast(Fleet, fleet), settings, policy=policy, checkers=checkers, resolve=resolve
    )


async def test_one_that_is_well_falls_ill_and_recovers():
    port = free_port()
    instance = web(port)
    fleet = Picture(instance)
    async with running(fleet):
        async with answering(200, port):
            await eventually(lambda: fleet.last(instance)[1] == "")
            assert (fleet.last(instance)[0] or 0) > 0
        await eventually(lambda: fleet.last(instance) == (None, "it refused the connection"))
        async with answering(503, port):
            await eventually(lambda: fleet.last(instance) == (None, "it answered 503"))
        async with answering(200, port):
            await eventually(lambda: fleet.last(instance)[1] == "")


@pytest.mark.real_time  # gRPC has threads of its own
async def test_every_protocol_of_the_contract_is_probed_but_udp():
    protocols = ("http", "https", "ws", "wss", "tcp", "grpc", "grpcs", "udp", "carrier-pigeon")
    instances = {
        protocol: Instance("orders", "127.0.0.1", free_port(), protocol) for protocol in protocols
    }
    fleet = Picture(*instances.values())
    probed = [instance for name, instance in instances.items() if name in load_checkers()]
    assert len(probed) == 7
    async with running(fleet):
        await eventually(
            lambda: all(fleet.last(each)[1] not in ("", "nothing yet") for each in probed)
        )
    assert {id for _, id in fleet.told} == {each.id for each in probed}


async def test_one_failure_alone_is_not_told():
    class Moody:
        tries = 0

        async def check(self, target: Target, *, timeout: float) -> Outcome:
            self.tries += 1
            well = self.tries % 2 == 0
            return Outcome(well, 1.0, "" if well else "it is in a mood")

    moody, instance = Moody(), web()
    fleet = Picture(instance)
    async with running(fleet, checkers={"http": moody}):
        await eventually(lambda: moody.tries >= 6)
    assert {failure for _, failure in fleet.told["orders", instance.id]} == {""}


async def test_the_response_time_is_an_average_that_follows():
    class Slower:
        async def check(self, target: Target, *, timeout: float) -> Outcome:
            return Outcome(True, 10.0 if fleet.count(instance) == 0 else 20.0)

    instance = web()
    fleet = Picture(instance)
    async with running(fleet, checkers={"http": Slower()}):
        await eventually(lambda: fleet.count(instance) >= 30)
    times = [ms or 0 for ms, _ in fleet.told["orders", instance.id]]
    assert times[:2] == [10.0, 13.0]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(20.0, abs=0.1)


async def test_only_the_services_that_are_named_are_probed():
    counting = Counting()
    fleet = Picture(web(service="shop/a"), web(service="shop/b"), web(service="other/c"))
    settings = CheckSettings(enabled=True, interval=0.05, services=("shop/*",))
    async with running(fleet, settings, checkers=only(counting)):
        await eventually(lambda: len(counting.probed) >= 6)
    assert {target.service for target in counting.probed} == {"shop/a", "shop/b"}


async def test_one_that_comes_later_is_probed_and_one_that_is_gone_is_forgotten():
    counting, first, second = Counting(), web(1), web(2)
    fleet = Picture(first)
    async with running(fleet, checkers=only(counting)):
        await eventually(lambda: fleet.count(first) > 0)
        fleet.put(second)
        await eventually(lambda: fleet.count(second) > 0)
        fleet.take(second)
        before = fleet.count(second)
        fleet.told.clear()
        await eventually(lambda: fleet.count(first) > 3)
        assert fleet.count(second) == 0, before


async def test_what_is_learnt_of_one_that_went_meanwhile_is_not_told():
    counting, instance = Counting(seconds=0.2), web()
    fleet = Picture(instance)
    async with running(fleet, checkers=only(counting)):
        await eventually(lambda: counting.now == 1)
        fleet.take(instance)
        fleet.put(other := web(2))
        await eventually(lambda: fleet.count(other) > 0)
    assert fleet.count(instance) == 0


async def test_one_that_moves_is_probed_where_it_is_now():
    counting = Counting()
    fleet = Picture(Instance("orders", "127.0.0.1", 1, "http", id="a"))
    async with running(fleet, checkers=only(counting)):
        await eventually(lambda: len(counting.probed) > 0)
        fleet.put(Instance("orders", "127.0.0.1", 2, "http", id="a"))
        await eventually(lambda: counting.probed[-1].port == 2)


async def test_one_that_ceases_to_be_checked_has_nothing_told_of_it():
    counting = Counting()
    before = Instance("orders", "127.0.0.1", 1, "http", id="a")
    fleet = Picture(before)
    async with running(fleet, checkers=only(counting)):
        await eventually(lambda: fleet.last(before) == (1.0, ""))
        fleet.put(Instance("orders", "127.0.0.1", 1, "udp", id="a"))
        assert fleet.last(before) == (None, "")


async def test_a_name_that_leads_to_a_forbidden_address_is_not_connected_to():
    counting, instance = Counting(), web(host="metadata.attacker.test")
    fleet = Picture(instance)

    async def resolve(host: str) -> Sequence[str]:
        return ["169.254.169.254"]

    async with running(fleet, checkers=only(counting), resolve=resolve):
        await eventually(lambda: fleet.count(instance) > 2)
    assert fleet.unchecked == {
        (instance.service, instance.id): "an address of its host name is link-local"
    }
    assert fleet.last(instance) == (None, ""), "which is no failure"
    assert counting.probed == []


async def test_a_name_that_leads_elsewhere_next_time_is_connected_to_where_it_was_allowed():
    """Rebinding: what is checked and what is connected to come from one and the same lookup."""
    lookups: list[str] = []
    async with answering(200) as port:
        instance = web(port, host="rebinding.attacker.test")
        fleet = Picture(instance)

        async def resolve(host: str) -> Sequence[str]:
            lookups.append("127.0.0.1" if len(lookups) % 2 == 0 else "169.254.169.254")
            return [lookups[-1]]

        counting = Counting()
        settings = CheckSettings(enabled=True, interval=0.05, failures=1)
        async with running(fleet, settings, checkers=only(counting), resolve=resolve):
            await eventually(lambda: len(lookups) >= 6)
        assert {target.address for target in counting.probed} == {"127.0.0.1"}
        assert len(counting.probed) <= (len(lookups) + 1) // 2
        assert ("orders", instance.id) in fleet.unchecked


async def test_the_next_address_of_a_name_is_tried_where_nobody_is_at_the_first():
    async with answering(200) as port:
        instance = web(port, host="two.test")
        fleet = Picture(instance)

        async def resolve(host: str) -> Sequence[str]:
            return ["127.0.0.2", "127.0.0.1"]

        async with running(fleet, resolve=resolve):
            await eventually(lambda: fleet.last(instance)[1] == "")


async def test_a_name_that_nobody_has_and_one_that_is_never_answered_for():
    async def resolve(host: str) -> Sequence[str]:
        if host == "slow.test":
            await asyncio.sleep(60)
        raise OSError("no such name")

    slow, wrong = web(host="slow.test"), web(host="wrong.test")
    fleet = Picture(slow, wrong)
    settings = CheckSettings(enabled=True, interval=0.05, timeout=0.2)
    async with running(fleet, settings, resolve=resolve):
        await eventually(lambda: fleet.last(slow)[1] == "its host name cannot be resolved in time")
        await eventually(lambda: fleet.last(wrong)[1] == "its host name cannot be resolved")


async def test_a_checker_that_is_broken_is_told_and_logged_once(caplog: pytest.LogCaptureFixture):
    class Broken:
        async def check(self, target: Target, *, timeout: float) -> Outcome:
            raise RuntimeError("a mistake in a checker")

    ill, well, counting = Instance("orders", "127.0.0.1", 1, "odd"), web(2), Counting()
    fleet = Picture(ill, well)
    with caplog.at_level(logging.ERROR, logger="mooring"):
        checkers: dict[str, Checker] = {"odd": Broken(), "http": counting}
        async with running(fleet, checkers=checkers):
            await eventually(lambda: fleet.count(ill) >= 3 and fleet.count(well) >= 3)
    assert fleet.last(ill) == (None, ""), "that is not the fault of the instance"
    assert fleet.unchecked == {(ill.service, ill.id): "the checker of odd is broken"}
    assert len([record for record in caplog.records if "odd" in record.getMessage()]) == 1


async def test_a_checker_that_keeps_to_no_time_is_ended():
    class Endless:
        async def check(self, target: Target, *, timeout: float) -> Outcome:
            await asyncio.Event().wait()
            raise AssertionError

    instance = web()
    fleet = Picture(instance)
    settings = CheckSettings(enabled=True, interval=0.05, timeout=0.1, failures=1)
    async with running(fleet, settings, checkers={"http": Endless()}):
        await eventually(lambda: fleet.last(instance)[1] == "no answer within 100ms")


async def test_a_failure_in_others_words_is_cut_and_made_printable():
    class Chatty:
        async def check(self, target: Target, *, timeout: float) -> Outcome:
            return Outcome(False, 1.0, "\x1b[31m\u202e" + "a" * 1000)

    instance = web()
    fleet = Picture(instance)
    async with running(fleet, checkers={"http": Chatty()}):
        await eventually(lambda: fleet.count(instance) > 0)
    failure = fleet.last(instance)[1]
    assert len(failure) == 200
    assert failure.isprintable()


async def test_the_budget_is_kept_to_by_a_fleet_of_hundreds():
    counting = Counting(seconds=0.5)
    instances = [web(1000 + number) for number in range(300)]
    fleet = Picture(*instances)
    settings = CheckSettings(enabled=True, interval=0.5, budget=50)
    async with running(fleet, settings, checkers=only(counting)):
        await eventually(lambda: len(counting.starts) >= 150)
    assert counting.most <= 50
    for number, start in enumerate(counting.starts):
        within = [each for each in counting.starts[number:] if each - start < 1]
        assert len(within) <= 50 + 3  # those that woke up late come with the next
    counts = [fleet.count(each) for each in instances]
    assert max(counts) <= 2, "everybody has a turn before somebody has many"


async def test_who_is_not_due_costs_nothing():
    counting = Counting()
    instances = [web(1000 + number) for number in range(2000)]
    fleet = Picture(*instances)
    settings = CheckSettings(enabled=True, interval=60.0)
    async with running(fleet, settings, checkers=only(counting)):
        fleet.asked = fleet.named = 0
        fleet.put(web(1))
        await eventually(lambda: len(counting.probed) >= 5)
        assert fleet.named == 0
        assert fleet.asked <= 1 + len(counting.probed)


async def test_it_stops_while_probes_are_under_way():
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    instance = web(server.sockets[0].getsockname()[1])
    connected = asyncio.Event()

    class Telling(HTTPChecker):
        async def check(self, target: Target, *, timeout: float) -> Outcome:
            connected.set()
            return await super().check(target, timeout=timeout)

    settings = CheckSettings(enabled=True, interval=0.05, timeout=600.0)
    async with running(Picture(instance), settings, checkers=only(Telling())), asyncio.timeout(20):
        await connected.wait()
    server.close()
    await server.wait_closed()
