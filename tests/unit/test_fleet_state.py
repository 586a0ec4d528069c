"""The live state of the fleet, with a registry in memory."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Collection
from typing import Any

import msgspec
import pytest

import mooring
from mooring import Instance
from mooring.errors import InvalidRequest
from mooring.hub import Hub
from mooring.messages import message
from mooring.mirror import Change, Update
from mooring.model import Status, now
from mooring.registry.contract import Registry
from mooring.registry.evictions import Brake
from mooring.server.live import services
from mooring.server.live import state as live
from mooring.server.live.state import Fleet
from mooring.server.live.summary import MAX_METRICS, NOT_OBSERVED, HealthCounts
from tests.waiting import eventually


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with mooring.connect("memory://") as opened:
        yield opened


@pytest.fixture
async def fleet(hub: Hub) -> AsyncIterator[Fleet]:
    async with Fleet(hub.registry) as opened:
        await eventually(lambda: opened.loaded)
        yield opened


def at(service: str, port: int = 1) -> Instance:
    return Instance(service, "h", port)


def instances(fleet: Fleet, service: str) -> list[str]:
    known = fleet.service(service)
    return [] if known is None else [*known.instances]


def kinds(fleet: Fleet, service: str, id: str = "") -> list[str]:
    return [event.kind for event in fleet.timeline(service, id)]


def impatient(registry: Registry, late: float) -> None:
    """Make the instances of a registry late after this many seconds."""
    registry.guarantees = msgspec.structs.replace(registry.guarantees, late=late)


async def test_services_are_sorted_and_subscribers_get_changes(hub: Hub, fleet: Fleet):
    changes: list[Collection[tuple[str, str]]] = []
    end = fleet.subscribe(changes.append)
    before = fleet.version
    async with hub.register(at("b")), hub.register(at("a")):
        await eventually(lambda: fleet.names() == ["a", "b"])
        assert {key for keys in changes for key in keys} == {("a", "h:1"), ("b", "h:1")}
        assert fleet.version > before
    end()
    changes.clear()
    await eventually(lambda: not any(fleet.service(name).instances for name in "ab"))  # type: ignore[union-attr]
    assert changes == []
    assert fleet.names() == ["a", "b"]


async def test_a_failing_subscriber_does_not_affect_others(hub: Hub, fleet: Fleet):
    changes: list[Collection[tuple[str, str]]] = []

    def stumble(_: Collection[tuple[str, str]]) -> None:
        raise ZeroDivisionError

    fleet.subscribe(stumble)
    fleet.subscribe(changes.append)
    async with hub.register(at("a")):
        await eventually(lambda: bool(changes))


async def test_a_service_without_instances_stays_until_one_registers(hub: Hub, fleet: Fleet):
    async with hub.register(at("a")):
        await eventually(lambda: fleet.service("a") is not None)
        known = fleet.service("a")
        assert known is not None
        assert known.emptied is None
    await eventually(lambda: known.emptied is not None)
    assert kinds(fleet, "a") == ["added", "state", "removed", "emptied"]
    async with hub.register(at("a")):
        await eventually(lambda: known.emptied is None)
        assert list(known.instances) == ["h:1"]


async def test_instances_present_at_the_start_are_no_events(hub: Hub):
    async with hub.register(at("a")) as one, Fleet(hub.registry) as fleet:
        await eventually(lambda: fleet.loaded)
        assert kinds(fleet, "a") == []
        (event,) = fleet.timeline("a", "h:1")
        assert event.time == one.instance.status.registered_at
        assert event.text == "registered at h:1, before this server started"


async def test_silence_is_sampled_soon_after_a_registration(hub: Hub, fleet: Fleet):
    async with hub.register(at("a")):
        await eventually(lambda: fleet.observation("a", "h:1").silence is not None)
        assert fleet.observation("a", "h:1").last_heartbeat is not None
    await eventually(lambda: fleet.observation("a", "h:1").silence is None)


async def test_a_silent_instance_is_late_until_its_next_heartbeat(hub: Hub, fleet: Fleet):
    impatient(hub.registry, late=30.0)
    async with hub.register(at("a")):
        await eventually(lambda: fleet.observation("a", "h:1").silence is not None)
        version = fleet.version
        fleet.update_silence("a", {"h:1": 31.0, "unknown": 99.0})
        assert fleet.observation("a", "h:1").late
        assert fleet.version == version + 1
        fleet.update_silence("a", {"h:1": 1.0})
        assert not fleet.observation("a", "h:1").late
        late = [event.text for event in fleet.timeline("a", "h:1") if event.kind == "late"]
        assert late == ["heartbeat late: silent for 31 s", "heartbeats resumed"]


async def test_an_instance_that_the_registry_does_not_list_is_missing(
    hub: Hub, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    impatient(hub.registry, late=30.0)

    async def no_silence(_: str) -> dict[str, float]:
        return {}

    async with hub.register(at("a")):
        await eventually(lambda: fleet.observation("a", "h:1").silence is not None)
        monkeypatch.setattr(hub.registry, "silence", no_silence)
        known = fleet.service("a")
        assert known is not None
        await eventually(lambda: fleet.observation("a", "h:1").missing)
        first = fleet.observation("a", "h:1")
        assert (first.late, fleet.rendering.counts(known)) == (True, HealthCounts(1, 1, 0, 0))
        (abnormal,) = fleet.rendering.summary(known).abnormal_instances
        assert abnormal.reason == "missing from the registry"
        fleet.update_silence("a", {})
        later = fleet.observation("a", "h:1")
        assert later.silence is not None
        assert later.silence > (first.silence or 0)
        assert later.last_heartbeat == first.last_heartbeat
        monkeypatch.undo()
        await eventually(lambda: not fleet.observation("a", "h:1").missing)
        late = [event.text for event in fleet.timeline("a", "h:1") if event.kind == "late"]
        assert late == ["missing from the registry", "heartbeats resumed"]


async def test_one_sample_without_an_instance_does_not_make_it_missing(hub: Hub, fleet: Fleet):
    impatient(hub.registry, late=30.0)
    async with hub.register(at("a")):
        await eventually(lambda: fleet.observation("a", "h:1").silence is not None)
        fleet.update_silence("a", {})
        fleet.update_silence("a", {"h:1": 1.0})
        fleet.update_silence("a", {})
        assert not fleet.observation("a", "h:1").late
        assert not [event for event in fleet.timeline("a") if event.kind == "late"]


async def test_a_sample_is_visible_but_no_change(hub: Hub, fleet: Fleet):
    async with hub.register(at("a")):
        await eventually(lambda: fleet.observation("a", "h:1").silence is not None)
        known = fleet.service("a")
        assert known is not None
        version, stamp = fleet.version, known.stamp
        fleet.update_silence("a", {"h:1": 0.5})
        assert fleet.version == version
        assert known.stamp != stamp
        assert fleet.rendering.summary(known).avg_heartbeat_delay == 500


REFUSED = message("probe_refused")
LINK_LOCAL = message("address_refused", problem=message("target_link_local"))


async def test_a_check_result_is_an_event_when_it_changes(hub: Hub, fleet: Fleet):
    async with hub.register(at("a")):
        await eventually(lambda: fleet.service("a") is not None)
        version = fleet.version
        fleet.report_check("a", "h:1", ms=12.0)
        fleet.report_check("a", "h:1", ms=14.0)
        assert fleet.observation("a", "h:1").response_time == 14.0
        assert fleet.version == version
        fleet.report_check("a", "h:1", failure=REFUSED)
        fleet.report_check("a", "h:1", failure=message("probe_unreachable"))
        fleet.report_check("a", "h:1", ms=15.0)
        assert fleet.version == version + 2
        assert fleet.observation("a", "h:1").check_failure is None
        checks = [event.text for event in fleet.timeline("a", "h:1") if event.kind == "check"]
        assert checks == ["check failing: it refused the connection", "check passing"]
        fleet.report_check("a", "gone", failure=REFUSED)
        assert fleet.observation("a", "gone").check_failure is None


async def test_a_skipped_check_is_not_a_failure(hub: Hub, fleet: Fleet):
    async with hub.register(at("a")):
        await eventually(lambda: fleet.service("a") is not None)
        fleet.report_check("a", "h:1", failure=REFUSED)
        fleet.report_check("a", "h:1", unchecked=LINK_LOCAL)
        assert fleet.observation("a", "h:1").check_failure is None
        assert fleet.observation("a", "h:1").unchecked == LINK_LOCAL
        checks = [event.text for event in fleet.timeline("a", "h:1") if event.kind == "check"]
        assert checks == [
            "check failing: it refused the connection",
            "not checked: its address is link-local",
        ]


async def test_a_brake_is_an_event_when_it_engages_and_releases(fleet: Fleet):
    fleet.update_brakes({"a": Brake(3, 4, 0, 0).message})
    fleet.update_brakes({"a": Brake(4, 4, 0, 0).message})
    assert fleet.brake("a") == Brake(4, 4, 0, 0).message
    fleet.update_brakes({})
    assert fleet.brake("a") is None
    assert [event.text for event in fleet.timeline("a")] == [
        f"the brake is engaged: {Brake(3, 4, 0, 0)}",
        "the brake is released",
    ]


async def test_a_service_that_only_has_a_name_is_forgotten_after_a_while(
    hub: Hub, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    async with hub.register(at("lives")):
        await eventually(lambda: fleet.service("lives") is not None)
        fleet.update_names(["described", "lives", "short"])
        assert fleet.names() == ["described", "lives", "short"]
        fleet.update_names(["described", "lives"])
        assert fleet.names() == ["described", "lives", "short"]
        for name in fleet.names():
            known = fleet.service(name)
            assert known is not None
            known.since = now() - datetime.timedelta(seconds=services.FORGET_LOST + 1)
        fleet.update_names(["described"])
        assert fleet.names() == ["described", "lives"]
        monkeypatch.setattr(live, "_MAX_EMPTY", 1)
        fleet.update_names(["described", "x", "y", "z"])
        fleet.update_names(["described"])
        assert fleet.names() == ["described", "lives", "z"]


async def test_a_service_that_another_server_forgot_is_forgotten_here_too(hub: Hub, fleet: Fleet):
    await hub.registry.enter(at("a"), ttl=5.0)
    await eventually(lambda: fleet.service("a") is not None)
    known = fleet.service("a")
    assert known is not None
    await eventually(lambda: known.emptied is not None, within=30)
    await fleet._poller._poll_names()
    assert fleet.names() == ["a"]  # its description is still there
    assert await hub.registry.forget("a")
    await fleet._poller._poll_names()
    assert not fleet.names()


async def test_a_service_without_description_stays_when_its_instances_are_lost(
    hub: Hub, fleet: Fleet
):
    async with hub.register(at("a")):
        await eventually(lambda: fleet.service("a") is not None)
        fleet.update_names(["a"], kept=["a"])  # read before it registered
    await eventually(lambda: not instances(fleet, "a"))
    fleet.update_names(["a"])  # read before it left
    fleet.update_names([])
    assert fleet.names() == ["a"]
    fleet.update_names(["a"], kept=["a"])
    async with hub.register(at("a")):
        await eventually(lambda: len(instances(fleet, "a")) == 1)
    await eventually(lambda: not instances(fleet, "a"))
    fleet.update_names([])
    assert fleet.names() == ["a"]


async def test_a_list_that_includes_silent_services_does_not_forget_any(hub: Hub, fleet: Fleet):
    hub.registry.guarantees = msgspec.structs.replace(hub.registry.guarantees, keeps_names=False)
    await hub.registry.describe(service="a", set={"description": "as if its last one were silent"})
    await fleet._poller._poll_names()
    assert await hub.registry.forget("a")  # as if cleanup had evicted it
    await fleet._poller._poll_names()
    assert fleet.names() == ["a"]


async def test_rendered_text_is_reused_until_the_instance_changes(hub: Hub, fleet: Fleet):
    async with hub.register(at("a", 1)), hub.register(at("a", 2)):
        await eventually(
            lambda: NOT_OBSERVED not in [fleet.observation("a", id) for id in ("h:1", "h:2")]
        )
        known, rendering = fleet.service("a"), fleet.rendering
        assert known is not None
        one = rendering.instance_text(known, "h:1")
        await hub.registry.configure("a", "h:1", set={"weight": 3})
        await eventually(lambda: known.instances["h:1"].weight == 3)
        assert b'"weight":3.0' in rendering.instance_text(known, "h:1")
        assert one != rendering.instance_text(known, "h:1")
        again = rendering.instance_text(known, "h:2")
        assert rendering.instance_text(known, "h:2") is again
        detail = msgspec.json.decode(rendering.detail_text(known))
        assert [instance["instanceId"] for instance in detail["instances"]] == ["h:1", "h:2"]


async def test_a_layout_that_cannot_list_services_has_no_fleet_state():
    async with mooring.connect("memory://", layout="plain") as hub:
        with pytest.raises(InvalidRequest, match="has no root"):
            Fleet(hub.registry)


async def test_an_instance_with_excessive_data_hides_no_other(hub: Hub, fleet: Fleet):
    deep: dict[str, Any] = {"end": 1}
    for _ in range(400):
        deep = {"deeper": deep}
    wide: dict[str, Any] = {f"n{number}": number for number in range(10_000)}
    long_ago = datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=14)))
    async with hub.register(at("a", 1)), hub.register(at("a", 2)) as bad:
        await eventually(lambda: fleet.service("a") is not None)
        known = fleet.service("a")
        assert known is not None
        status = Status(metrics={"deep": deep, "wide": wide}, updated_at=long_ago)
        worse = msgspec.structs.replace(
            bad.instance, status=status, version="v" * 10_000, metadata={"k" * 10_000: "v"}
        )
        await eventually(lambda: len(known.instances) == 2)
        change = Change(("a", "h:2"), bad.instance, worse)
        fleet._changed(Update(fleet._mirror.mark, (change,)))
        assert len(fleet.rendering.summary(known).aggregated_metrics) < 2 * MAX_METRICS
        sample = fleet.history("a", "h:2")[-1]
        assert len(sample.metrics) == MAX_METRICS
        assert max(len(event.text) for event in fleet.timeline("a")) < 500
        shown = msgspec.json.decode(fleet.rendering.detail_text(known))["instances"]
        assert [instance["instanceId"] for instance in shown] == ["h:1", "h:2"]
        assert shown[1]["lastMetadataUpdate"] is None


async def test_a_service_whose_last_instance_deregistered_was_not_lost(hub: Hub, fleet: Fleet):
    async with hub.register(at("a")), hub.register(at("b")):
        await eventually(lambda: fleet.names() == ["a", "b"])
        a, b = fleet.service("a"), fleet.service("b")
        assert a is not None
        assert b is not None
    await eventually(lambda: a.emptied is not None and b.emptied is not None)
    assert (a.lost, b.lost) == (False, False)
    assert fleet.timeline("a")[-1].text == "its last instance deregistered"
    assert fleet.timeline("a")[-2].text == "left after draining"


async def test_a_service_whose_last_instance_fell_silent_was_lost(hub: Hub, fleet: Fleet):
    await hub.registry.enter(at("a"), ttl=5.0)
    await eventually(lambda: fleet.service("a") is not None)
    known = fleet.service("a")
    assert known is not None
    await eventually(lambda: known.emptied is not None, within=30)
    assert known.lost
    assert fleet.timeline("a")[-1].text == "its last instance was lost"
    assert fleet.timeline("a")[-2].text == "lost: its heartbeats stopped"


async def test_an_instance_removed_by_an_operator_is_not_lost(hub: Hub, fleet: Fleet):
    entered = await hub.registry.enter(at("a"), ttl=60.0)
    await eventually(lambda: fleet.observation("a", "h:1").silence is not None)
    fleet.update_silence("a", {"h:1": 50.0})
    fleet._signals.reported(("a", "h:1"), 0.0)
    fleet.expect_departure("a", "h:1", "removed")
    fleet.expect_departure("a", "unknown", "removed")
    await hub.registry.leave("a", "h:1", entered.instance.incarnation)
    known = fleet.service("a")
    assert known is not None
    await eventually(lambda: known.emptied is not None)
    assert not known.lost
    assert fleet.timeline("a")[-2].text == "left: an operator deregistered it"


@pytest.mark.parametrize("names_first", [False, True])
async def test_a_service_that_is_empty_at_the_start_is_absent_until_an_instance_registers(
    hub: Hub, names_first: bool
):
    await hub.registry.describe(service="a", set={"description": "died, perhaps"})
    async with hub.register(at("b")):
        fleet = Fleet(hub.registry)
        if names_first:
            fleet.update_names(["a", "b"])
        async with fleet:
            await eventually(lambda: fleet.loaded)
            await eventually(lambda: fleet.names() == ["a", "b"])
            known = [fleet.service(name) for name in "ab"]
            assert [service and service.absent for service in known] == [True, False]
            fleet.update_names(["a", "b", "just described"])
            assert not fleet.service("just described").absent  # type: ignore[union-attr]
            async with hub.register(at("a")):
                await eventually(lambda: not fleet.service("a").absent)  # type: ignore[union-attr]
            await eventually(lambda: not instances(fleet, "a"))
            assert not fleet.service("a").absent  # type: ignore[union-attr]


async def test_a_forgotten_service_stays_forgotten_until_an_instance_registers(
    hub: Hub, fleet: Fleet
):
    changes: list[Collection[tuple[str, str]]] = []
    async with hub.register(at("a")):
        await eventually(lambda: fleet.service("a") is not None)
        assert not fleet.forget("a")
    await eventually(lambda: fleet.service("a").emptied is not None)  # type: ignore[union-attr]
    fleet.subscribe(changes.append)
    assert fleet.forget("a")
    assert changes == [[("a", "")]]
    assert not fleet.names()
    assert not fleet.timeline("a")
    assert not fleet.forget("a")
    fleet.update_names(["a", "b"])  # its description is still there
    assert fleet.names() == ["b"]
    fleet.update_names(["b"])
    fleet.update_names(["a", "b"])  # another description was written
    assert fleet.names() == ["a", "b"]
    assert fleet.forget("a")
    async with hub.register(at("a")):
        await eventually(lambda: fleet.names() == ["a", "b"])


async def test_a_forgotten_service_that_returns_has_no_history(hub: Hub, fleet: Fleet):
    stamps = []
    for _ in range(2):
        async with hub.register(at("a", 1)), hub.register(at("a", 2)):
            await eventually(lambda: len(instances(fleet, "a")) == 2)
            stamps.append(fleet.service("a").stamp)  # type: ignore[union-attr]
        await eventually(lambda: not instances(fleet, "a"))
        assert fleet.forget("a")
    assert stamps[0] < stamps[1]
    assert fleet.service("a") is None


async def test_a_service_whose_last_instance_deregistered_is_forgotten_sooner(
    hub: Hub, fleet: Fleet
):
    async with hub.register(at("left")), hub.register(at("lost")):
        await eventually(lambda: fleet.names() == ["left", "lost"])
    known = [fleet.service(name) for name in ("left", "lost")]
    await eventually(lambda: all(service and service.emptied for service in known))
    for service in known:
        assert service is not None
        service.emptied = now() - datetime.timedelta(seconds=services.FORGET_DEREGISTERED + 1)
        service.lost = service.name == "lost"
    fleet.update_names([])
    assert fleet.names() == ["lost"]
