"""The contract of every registry: on every store, in every layout, and on Redis."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import mooring
from mooring import Instance
from mooring.errors import InUse, InvalidName, InvalidRequest, Removed, Superseded
from mooring.hub import Hub
from mooring.mirror import Mirror
from mooring.model import JSON
from mooring.registry.contract import Registry
from mooring.registry.kv import registry as on_store
from tests.backends import BACKENDS
from tests.contract.registries import RawRecords, places
from tests.contract.registry.conftest import named
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

once = pytest.mark.parametrize(
    "place", [("memory", "tree"), ("redis-7.0", "")], indirect=True, ids=named
)
"""Refused before the store or Redis is asked, so that no place can differ."""


@pytest.fixture(params=places(BACKENDS, ["6.2", "7.0", "cluster"]), ids=named)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    chosen: tuple[str, str] = request.param
    return chosen


def at(port: int, **fields: object) -> Instance:
    return Instance("echo", "10.0.0.1", port, **fields)  # type: ignore[arg-type]


async def ports(registry: Registry, service: str = "echo") -> list[int]:
    return sorted(instance.port for instance in (await registry.instances(service)).instances)


async def test_a_registered_instance_is_listed_until_it_leaves(hub: Hub, other: Hub):
    async with hub.register(at(1)), hub.register(at(2)):
        assert await ports(other.registry) == [1, 2]
    assert await ports(other.registry) == []


async def test_services_are_listed_with_their_instance_counts(hub: Hub, other: Hub):
    assert await other.registry.services() == []
    async with hub.register(at(1)), hub.register(at(2)), hub.register(Instance("b", "h", 1)):
        assert [*await other.registry.services()] == [("b", 1), ("echo", 2)]


async def test_a_follower_sees_instances_come_and_go(hub: Hub, other: Hub):
    async with Mirror(other.registry.follow("echo")) as mirror:
        assert mirror.items == {}
        async with hub.register(at(1)):
            await eventually(lambda: len(mirror.items) == 1)
            async with hub.register(at(2)):
                await eventually(lambda: len(mirror.items) == 2)
        await eventually(lambda: not mirror.items)


async def test_the_same_instance_twice_in_one_hub_is_refused(hub: Hub):
    one = at(1, id="u")
    async with hub.register(one):
        with pytest.raises(InUse, match="registered here already"):
            async with hub.register(one):
                pass
    async with hub.register(one) as again:
        assert again.state == "registered"


async def test_the_newest_incarnation_wins_and_the_older_leaves_it_alone(
    hub: Hub, other: Hub, raw_records: RawRecords
):
    one = at(1, id="u")
    async with hub.register(one) as older:
        async with other.register(one) as newer:
            await eventually(lambda: older.state == "superseded")
            assert newer.state == "registered"
            (listed,) = (await other.registry.instances("echo")).instances
            await asyncio.sleep(0.1)
            (again,) = (await other.registry.instances("echo")).instances
            assert again.incarnation == listed.incarnation
        assert await ports(other.registry) == []
        with pytest.raises(Superseded):
            await older.registered()
    assert older.state == "superseded"


async def test_an_instance_evicted_by_an_operator_stays_out(hub: Hub, other: Hub):
    async with hub.register(at(1, id="u")) as one, hub.register(at(2, id="v")):
        assert await other.registry.deregister("echo", one.instance.id)
        await eventually(lambda: one.state == "removed")
        assert await ports(other.registry) == [2]
        with pytest.raises(Removed):
            await one.registered()
        assert not await other.registry.deregister("echo", one.instance.id)


@pytest.mark.deadline
async def test_a_restarted_process_can_register_again(
    hub: Hub, other: Hub, raw_records: RawRecords
):
    async with hub.register(at(1, id="u")) as one:
        await other.registry.deregister("echo", one.instance.id)
        await eventually(lambda: one.state == "removed")
    async with hub.register(at(1, id="u")) as again:
        assert again.state == "registered"
        await raw_records.delete_all()

        async def back() -> bool:
            return await ports(other.registry) == [1]

        await eventually(back, within=2)


@pytest.mark.deadline
async def test_deleted_keys_are_restored(hub: Hub, other: Hub, raw_records: RawRecords):
    async with hub.register(at(1)):
        await raw_records.delete_all()

        async def back() -> bool:
            return await ports(other.registry) == [1]

        await eventually(back, within=2)


@pytest.mark.deadline
async def test_an_overwritten_value_is_repaired(hub: Hub, other: Hub, raw_records: RawRecords):
    async with hub.register(at(1, id="u")) as one:
        listed = (await other.registry.instances("echo")).instances
        await raw_records.spoil(one.instance)

        async def right() -> bool:
            return await raw_records.is_right(one.instance)

        await eventually(right, within=2)
        again = (await other.registry.instances("echo")).instances
        assert [i.address for i in again] == [i.address for i in listed]
        await eventually(lambda: one.state == "registered")


async def test_foreign_and_invalid_records_are_skipped_and_reported(
    hub: Hub, other: Hub, raw_records: RawRecords
):
    async with hub.register(at(1, id="u")) as one:
        bad = await raw_records.leave_garbage("echo")
        listing = await other.registry.instances("echo")
        assert [instance.id for instance in listing.instances] == [one.instance.id]
        assert bad in {problem.key for problem in listing.problems}
        assert await other.registry.services() == [("echo", 1)]
        assert await other.registry.names() == ["echo"]
        async with other.discover("echo") as view:
            assert [instance.id for instance in view.instances] == [one.instance.id]


@once
@pytest.mark.parametrize("service", ["", "a/b/c", "info", "a\n"])
async def test_a_bad_name_is_refused_before_anything_is_written(
    hub: Hub, raw_records: RawRecords, service: str
):
    before = await raw_records.everything()
    with pytest.raises(InvalidName):
        await hub.registry.instances(service)
    with pytest.raises(InvalidName):
        hub.discover(service)
    assert await raw_records.everything() == before


@once
@pytest.mark.parametrize("ttl", [0, -1, float("nan")])
async def test_a_bad_ttl_is_refused(hub: Hub, ttl: float):
    with pytest.raises(InvalidRequest):
        async with hub.register(at(1), ttl=ttl):
            pass


async def test_operator_overrides_reach_the_instance_and_its_consumers(hub: Hub, other: Hub):
    if not hub.registry.guarantees.describes:
        with pytest.raises(InvalidRequest, match="no configuration"):
            await hub.registry.configure("echo", set={"weight": 1})
        return
    async with hub.register(at(1)) as one, other.discover("echo") as view:
        await other.registry.configure("echo", set={"weight": 7, "timeout": 2.5, "zone": "s"})
        await other.registry.configure("echo", one.instance.id, set={"zone": "own"})
        await eventually(lambda: one.config.zone == "own" and one.config.weight == 7)
        assert one.config.values == {"timeout": 2.5}
        await eventually(lambda: [(i.weight, i.zone) for i in view.instances] == [(7.0, "own")])
        await other.registry.configure("echo", one.instance.id, set={"enabled": False})
        await eventually(lambda: not len(view.rotation.picker))
        after = await other.registry.configure("echo", set={}, unset=("weight", "zone"))
        assert after == {"timeout": 2.5}
        await eventually(lambda: view.instances[0].weight == 1.0)
    assert await other.registry.config("echo", "10.0.0.1:1") == {"zone": "own", "enabled": False}
    assert await ports(other.registry) == []


@pytest.mark.describes
async def test_a_description_is_never_overwritten_by_an_instance(hub: Hub):
    instance = msgspec.structs.replace(at(1), service="Common/echo")
    async with hub.register(instance):
        assert await hub.registry.info(group="Common") == mooring.Group("Common")
        await hub.registry.describe(group="Common", set={"department": "d"})
        service = await hub.registry.describe(service="Common/echo", set={"displayName": "验证码"})
        assert service == mooring.Service("Common/echo", "验证码")
        assert await hub.registry.groups() == ["Common"]
    async with hub.register(instance):
        assert await hub.registry.info(group="Common") == mooring.Group("Common", department="d")
        assert await hub.registry.info(service="Common/echo") == service
    with pytest.raises(InvalidRequest, match="'owner': choose one of description, displayName"):
        await hub.registry.describe(service="Common/echo", set={"owner": "me"})


@pytest.mark.describes
async def test_described_services_are_known_without_instances(hub: Hub):
    await hub.registry.describe(service="shop/orders", set={"displayName": "Orders"})
    await hub.registry.describe(group="Sales", set={"department": "d"})
    assert await hub.registry.services() == [("shop/orders", 0)]
    assert sorted(await hub.registry.groups()) == ["Sales", "shop"]
    async with hub.register(msgspec.structs.replace(at(1), service="shop/orders")):
        assert await hub.registry.services("shop") == [("shop/orders", 1)]


@once
@pytest.mark.describes
async def test_an_invalid_configuration_is_refused(hub: Hub):
    wrong: dict[str, JSON] = {"weight": "heavy", "enabled": 1, "zone": [], "metadata": 5}
    for field, value in wrong.items():
        with pytest.raises(InvalidRequest, match=f"config of echo .*{field}"):
            await hub.registry.configure("echo", set={field: value})
    assert await hub.registry.config("echo") == {}


@once
@pytest.mark.parametrize(
    "value", [float("nan"), float("-inf"), object(), {1, 2}, {1: 2}, [{"a": {2: 3}}], "\ud800"]
)
@pytest.mark.describes
async def test_values_that_json_cannot_represent_are_refused(hub: Hub, value: Any):
    for field in ("weight", "own"):
        with pytest.raises(InvalidRequest, match="config"):
            await hub.registry.configure("echo", set={field: value})
    assert await hub.registry.config("echo") == {}


@pytest.mark.describes
async def test_an_unreadable_configuration_is_reported_and_can_be_replaced(
    hub: Hub, raw_records: RawRecords, caplog: pytest.LogCaptureFixture
):
    await hub.registry.configure("echo", set={"enabled": False})
    await raw_records.spoil_config("echo")
    with pytest.raises(InvalidRequest, match=r"echo.*config.* is not valid JSON"):
        await hub.registry.config("echo")
    with pytest.raises(InvalidRequest, match=r"info.* is not valid JSON"):
        await hub.registry.info(service="echo")
    assert await hub.registry.configure("echo", set={"weight": 1}) == {"weight": 1}
    service = await hub.registry.describe(service="echo", set={"description": "d"})
    assert await hub.registry.config("echo") == {"weight": 1}
    assert await hub.registry.info(service="echo") == service
    assert caplog.text.count("its 5 bytes are replaced") == 2
    await raw_records.spoil_config("echo")
    assert await hub.registry.configure("echo", set={}, unset=("enabled",)) == {}
    assert await hub.registry.config("echo") == {}


@once
@pytest.mark.describes
async def test_a_description_is_text(hub: Hub):
    service = await hub.registry.describe(service="echo", set={"description": "d"})
    for wrong in (5, None, "\ud800"):
        with pytest.raises(InvalidRequest, match="description"):
            await hub.registry.describe(service="echo", set={"description": wrong})  # type: ignore[dict-item]
    assert await hub.registry.info(service="echo") == service


async def test_groups_of_any_size_are_listed(
    hub: Hub, raw_records: RawRecords, layout: str, monkeypatch: pytest.MonkeyPatch
):
    """More services than fit on a page, in groups and in the default one."""
    monkeypatch.setattr(on_store, "_PAGE", 25)
    names = [f"{group}/s{n}" for group in ("a", "b", "z") for n in range(40)]
    names += [f"m{n}" for n in range(40)]
    grouped = layout != "hprose"
    if not grouped:
        names = [f"m{n}" for n in range(150)]
    await raw_records.add_services(names)
    assert sorted(await hub.registry.groups()) == (
        ["a", "b", "default", "z"] if grouped else ["default"]
    )
    assert len(await hub.registry.services()) == len(names)
    if grouped:
        assert len(await hub.registry.services("b")) == 40


async def test_forgetting_a_service_without_instances_removes_its_configuration(
    hub: Hub, other: Hub
):
    registry, describes = other.registry, other.registry.guarantees.describes
    async with hub.register(at(1)) as one, hub.register(Instance("echo2", "h", 1)):
        if describes:
            await registry.describe(service="echo", set={"displayName": "Echo"})
            await registry.configure("echo", set={"limit": 5})
            await registry.configure("echo", one.instance.id, set={"weight": 3})
        assert not await registry.forget("echo")
        if describes:
            assert await registry.config("echo") == {"limit": 5}
        await one.aclose()
        assert await registry.forget("echo")
        assert [*await registry.services()] == [("echo2", 1)]
        if describes:
            assert (await registry.info(service="echo")).display_name == ""
            assert await registry.config("echo") == {}
            assert await registry.config("echo", one.instance.id) == {}
        assert await registry.forget("echo")  # a service that never existed
        async with hub.register(at(1)):
            assert [*await registry.services()] == [("echo", 1), ("echo2", 1)]


async def test_an_instance_evicted_from_a_forgotten_service_stays_out(hub: Hub, other: Hub):
    entered = await hub.registry.enter(at(1))
    assert await other.registry.deregister("echo", entered.instance.id)
    assert await other.registry.forget("echo")
    with pytest.raises(Removed):
        await hub.registry.enter(entered.instance)


@pytest.mark.describes
async def test_concurrent_configuration_changes_are_all_kept(hub: Hub, other: Hub):
    await asyncio.gather(
        *(
            (hub if n % 2 else other).registry.configure("echo", set={f"key{n}": n})
            for n in range(20)
        )
    )
    assert await hub.registry.config("echo") == {f"key{n}": n for n in range(20)}
