"""Running health checks: which instances are probed, when, how many at once, and the reports."""

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
from mooring.registry.contract import InstanceKey
from mooring.server.health_checks.checkers import (
    Checker,
    HTTPChecker,
    Outcome,
    Target,
    load_checkers,
)
from mooring.server.health_checks.scheduler import HealthChecks
from mooring.server.health_checks.target_policy import ResolveHost, TargetPolicy
from mooring.server.live.state import Fleet
from mooring.server.settings import CheckSettings
from mooring.testing.proxy import close_server
from mooring.testing.servers import free_port
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

LAPTOP = TargetPolicy(loopback=True)
OFTEN = CheckSettings(enabled=True, interval=0.05, failures=2, timeout=10.0)


class FakeFleet:
    """A fleet whose instances the test sets, and that records the reports."""

    def __init__(self, *instances: Instance) -> None:
        self._services: dict[str, dict[str, Instance]] = {}
        self._callbacks: list[Callable[[Collection[InstanceKey]], None]] = []
        self.reports: dict[InstanceKey, list[tuple[float | None, str]]] = {}
        self.unchecked: dict[InstanceKey, str] = {}
        self.named = self.asked = 0
        self.put(*instances)

    def names(self) -> list[str]:
        self.named += 1
        return sorted(self._services)

    def service(self, name: str) -> SimpleNamespace | None:
        self.asked += 1
        instances = self._services.get(name)
        return None if instances is None else SimpleNamespace(instances=instances)

    def subscribe(self, callback: Callable[[Collection[InstanceKey]], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def report_check(
        self,
        service: str,
        id: str,
        *,
        ms: float | None = None,
        failure: Message | None = None,
        unchecked: Message | None = None,
    ) -> None:
        self.reports.setdefault((service, id), []).append((ms, str(failure or "")))
        if unchecked is not None:
            self.unchecked[service, id] = unchecked.text

    def put(self, *instances: Instance) -> None:
        for instance in instances:
            self._services.setdefault(instance.service, {})[instance.id] = instance
        self._notify([(instance.service, instance.id) for instance in instances])

    def take(self, instance: Instance) -> None:
        del self._services[instance.service][instance.id]
        self._notify([(instance.service, instance.id)])

    def _notify(self, keys: Collection[InstanceKey]) -> None:
        for callback in self._callbacks:
            callback(keys)

    def last(self, instance: Instance) -> tuple[float | None, str]:
        return self.reports.get((instance.service, instance.id), [(None, "nothing yet")])[-1]

    def count(self, instance: Instance) -> int:
        return len(self.reports.get((instance.service, instance.id), ()))


class Counting:
    """A checker that takes some time and counts."""

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
    fleet: FakeFleet,
    settings: CheckSettings = OFTEN,
    *,
    checkers: dict[str, Checker] | None = None,
    policy: TargetPolicy = LAPTOP,
    resolve: ResolveHost | None = None,
) -> HealthChecks:
    return HealthChecks(
        cast(Fleet, fleet), settings, policy=policy, checkers=checkers, resolve=resolve
    )


async def test_an_instance_becomes_unhealthy_and_recovers():
    port = free_port()
    instance = web(port)
    fleet = FakeFleet(instance)
    async with running(fleet):
        async with answering(200, port):
            await eventually(lambda: fleet.last(instance)[1] == "")
            assert (fleet.last(instance)[0] or 0) > 0
        await eventually(lambda: fleet.last(instance) == (None, "it refused the connection"))
        async with answering(503, port):
            await eventually(lambda: fleet.last(instance) == (None, "it answered 503"))
        async with answering(200, port):
            await eventually(lambda: fleet.last(instance)[1] == "")


@pytest.mark.real_time  # gRPC has its own threads
async def test_every_protocol_but_udp_is_probed():
    protocols = ("http", "https", "ws", "wss", "tcp", "grpc", "grpcs", "udp", "carrier-pigeon")
    instances = {
        protocol: Instance("orders", "127.0.0.1", free_port(), protocol) for protocol in protocols
    }
    fleet = FakeFleet(*instances.values())
    probed = [instance for name, instance in instances.items() if name in load_checkers()]
    assert len(probed) == 7
    async with running(fleet):
        await eventually(
            lambda: all(fleet.last(instance)[1] not in ("", "nothing yet") for instance in probed)
        )
    assert {id for _, id in fleet.reports} == {instance.id for instance in probed}


async def test_a_single_failure_is_not_reported():
    class Moody:
        tries = 0

        async def check(self, target: Target, *, timeout: float) -> Outcome:
            self.tries += 1
            well = self.tries % 2 == 0
            return Outcome(well, 1.0, "" if well else "it is in a mood")

    moody, instance = Moody(), web()
    fleet = FakeFleet(instance)
    async with running(fleet, checkers={"http": moody}):
        await eventually(lambda: moody.tries >= 6)
    assert {failure for _, failure in fleet.reports["orders", instance.id]} == {""}


async def test_the_response_time_is_a_moving_average():
    class Slower:
        async def check(self, target: Target, *, timeout: float) -> Outcome:
            return Outcome(True, 10.0 if fleet.count(instance) == 0 else 20.0)

    instance = web()
    fleet = FakeFleet(instance)
    async with running(fleet, checkers={"http": Slower()}):
        await eventually(lambda: fleet.count(instance) >= 30)
    times = [ms or 0 for ms, _ in fleet.reports["orders", instance.id]]
    assert times[:2] == [10.0, 13.0]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(20.0, abs=0.1)


async def test_only_the_selected_services_are_probed():
    counting = Counting()
    fleet = FakeFleet(web(service="shop/a"), web(service="shop/b"), web(service="other/c"))
    settings = CheckSettings(enabled=True, interval=0.05, services=("shop/*",))
    async with running(fleet, settings, checkers=only(counting)):
        await eventually(lambda: len(counting.probed) >= 6)
    assert {target.service for target in counting.probed} == {"shop/a", "shop/b"}


async def test_new_instances_are_probed_and_removed_ones_forgotten():
    counting, first, second = Counting(), web(1), web(2)
    fleet = FakeFleet(first)
    async with running(fleet, checkers=only(counting)):
        await eventually(lambda: fleet.count(first) > 0)
        fleet.put(second)
        await eventually(lambda: fleet.count(second) > 0)
        fleet.take(second)
        before = fleet.count(second)
        fleet.reports.clear()
        await eventually(lambda: fleet.count(first) > 3)
        assert fleet.count(second) == 0, before


async def test_the_result_for_an_instance_removed_meanwhile_is_not_reported():
    counting, instance = Counting(seconds=0.2), web()
    fleet = FakeFleet(instance)
    async with running(fleet, checkers=only(counting)):
        await eventually(lambda: counting.now == 1)
        fleet.take(instance)
        fleet.put(other := web(2))
        await eventually(lambda: fleet.count(other) > 0)
    assert fleet.count(instance) == 0


async def test_a_moved_instance_is_probed_at_its_new_address():
    counting = Counting()
    fleet = FakeFleet(Instance("orders", "127.0.0.1", 1, "http", id="a"))
    async with running(fleet, checkers=only(counting)):
        await eventually(lambda: len(counting.probed) > 0)
        fleet.put(Instance("orders", "127.0.0.1", 2, "http", id="a"))
        await eventually(lambda: counting.probed[-1].port == 2)


async def test_the_report_of_an_instance_that_is_no_longer_checked_is_cleared():
    counting = Counting()
    before = Instance("orders", "127.0.0.1", 1, "http", id="a")
    fleet = FakeFleet(before)
    async with running(fleet, checkers=only(counting)):
        await eventually(lambda: fleet.last(before) == (1.0, ""))
        fleet.put(Instance("orders", "127.0.0.1", 1, "udp", id="a"))
        assert fleet.last(before) == (None, "")


async def test_a_name_that_resolves_to_a_forbidden_address_is_not_connected_to():
    counting, instance = Counting(), web(host="metadata.attacker.test")
    fleet = FakeFleet(instance)

    async def resolve(host: str) -> Sequence[str]:
        return ["169.254.169.254"]

    async with running(fleet, checkers=only(counting), resolve=resolve):
        await eventually(lambda: fleet.count(instance) > 2)
    assert fleet.unchecked == {
        (instance.service, instance.id): "an address of its host name is link-local"
    }
    assert fleet.last(instance) == (None, ""), "not a failure"
    assert counting.probed == []


async def test_dns_rebinding_is_prevented():
    """The address that is checked and the one that is connected to come from the same lookup."""
    lookups: list[str] = []
    async with answering(200) as port:
        instance = web(port, host="rebinding.attacker.test")
        fleet = FakeFleet(instance)

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


async def test_the_next_address_of_a_name_is_tried_if_the_first_refuses():
    async with answering(200) as port:
        instance = web(port, host="two.test")
        fleet = FakeFleet(instance)

        async def resolve(host: str) -> Sequence[str]:
            return ["127.0.0.2", "127.0.0.1"]

        async with running(fleet, resolve=resolve):
            await eventually(lambda: fleet.last(instance)[1] == "")


async def test_unknown_names_and_unanswered_lookups_are_failures():
    async def resolve(host: str) -> Sequence[str]:
        if host == "slow.test":
            await asyncio.sleep(60)
        raise OSError("no such name")

    slow, wrong = web(host="slow.test"), web(host="wrong.test")
    fleet = FakeFleet(slow, wrong)
    settings = CheckSettings(enabled=True, interval=0.05, timeout=0.2)
    async with running(fleet, settings, resolve=resolve):
        await eventually(lambda: fleet.last(slow)[1] == "its host name cannot be resolved in time")
        await eventually(lambda: fleet.last(wrong)[1] == "its host name cannot be resolved")


async def test_a_broken_checker_is_reported_and_logged_once(caplog: pytest.LogCaptureFixture):
    class Broken:
        async def check(self, target: Target, *, timeout: float) -> Outcome:
            raise RuntimeError("a mistake in a checker")

    ill, well, counting = Instance("orders", "127.0.0.1", 1, "odd"), web(2), Counting()
    fleet = FakeFleet(ill, well)
    with caplog.at_level(logging.ERROR, logger="mooring"):
        checkers: dict[str, Checker] = {"odd": Broken(), "http": counting}
        async with running(fleet, checkers=checkers):
            await eventually(lambda: fleet.count(ill) >= 3 and fleet.count(well) >= 3)
    assert fleet.last(ill) == (None, ""), "that is not the fault of the instance"
    assert fleet.unchecked == {(ill.service, ill.id): "the checker of odd raised an error"}
    assert len([record for record in caplog.records if "odd" in record.getMessage()]) == 1


async def test_a_checker_that_ignores_its_timeout_is_ended():
    class Endless:
        async def check(self, target: Target, *, timeout: float) -> Outcome:
            await asyncio.Event().wait()
            raise AssertionError

    instance = web()
    fleet = FakeFleet(instance)
    settings = CheckSettings(enabled=True, interval=0.05, timeout=0.1, failures=1)
    async with running(fleet, settings, checkers={"http": Endless()}):
        await eventually(lambda: fleet.last(instance)[1] == "no answer within 100ms")


async def test_the_message_of_a_failure_is_truncated_and_made_printable():
    class Chatty:
        async def check(self, target: Target, *, timeout: float) -> Outcome:
            return Outcome(False, 1.0, "\x1b[31m\u202e" + "a" * 1000)

    instance = web()
    fleet = FakeFleet(instance)
    async with running(fleet, checkers={"http": Chatty()}):
        await eventually(lambda: fleet.count(instance) > 0)
    failure = fleet.last(instance)[1]
    assert len(failure) == 200
    assert failure.isprintable()


async def test_a_fleet_of_hundreds_stays_within_the_budget():
    counting = Counting(seconds=0.5)
    instances = [web(1000 + number) for number in range(300)]
    fleet = FakeFleet(*instances)
    settings = CheckSettings(enabled=True, interval=0.5, budget=50)
    async with running(fleet, settings, checkers=only(counting)):
        await eventually(lambda: len(counting.starts) >= 150)
    assert counting.most <= 50
    for number, start in enumerate(counting.starts):
        within = [moment for moment in counting.starts[number:] if moment - start < 1]
        assert len(within) <= 50 + 3  # late probes are followed by the next
    counts = [fleet.count(instance) for instance in instances]
    assert max(counts) <= 2, "every instance is probed before any is probed often"


async def test_instances_that_are_not_due_cost_nothing():
    counting = Counting()
    instances = [web(1000 + number) for number in range(2000)]
    fleet = FakeFleet(*instances)
    settings = CheckSettings(enabled=True, interval=60.0)
    async with running(fleet, settings, checkers=only(counting)):
        fleet.asked = fleet.named = 0
        fleet.put(web(1))
        await eventually(lambda: len(counting.probed) >= 5)
        assert fleet.named == 0
        assert fleet.asked <= 1 + len(counting.probed)


async def test_closing_ends_running_probes():
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
    async with (
        running(FakeFleet(instance), settings, checkers=only(Telling())),
        asyncio.timeout(20),
    ):
        await connected.wait()
    server.close()
    await server.wait_closed()
