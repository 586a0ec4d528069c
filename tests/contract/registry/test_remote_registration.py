"""Instances whose heartbeats are sent on their behalf behave like others, on every registry."""

from __future__ import annotations

import msgspec
import pytest

from mooring import Instance
from mooring.errors import InvalidRequest, Removed, Superseded, TooLarge
from mooring.hub import Hub
from mooring.registry.contract import Registry, RemoteRegistration
from tests.contract.registries import RawRecords
from tests.contract.registry.conftest import named
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

PLACES = [
    *((backend, "tree") for backend in ("memory", "etcd-3.5")),
    *(("memory", layout) for layout in ("plain:/services/", "endpoints:/e/", "hprose")),
    *((backend, "") for backend in ("redis-6.2", "redis-cluster")),
]


@pytest.fixture(params=PLACES, ids=named)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    chosen: tuple[str, str] = request.param
    return chosen


def at(port: int, **fields: object) -> Instance:
    return Instance("echo", "10.0.0.1", port, **fields)  # type: ignore[arg-type]


async def ports(registry: Registry) -> list[int]:
    return sorted(instance.port for instance in (await registry.instances("echo")).instances)


async def beat(registry: Registry, entered: RemoteRegistration, **status: object) -> bool:
    instance = entered.instance
    return await registry.beat("echo", instance.id, instance.incarnation, **status)  # type: ignore[arg-type]


async def back(registry: Registry, entered: RemoteRegistration) -> RemoteRegistration:
    """Enter again as the same incarnation."""
    return await registry.enter(entered.instance)


async def leave(registry: Registry, entered: RemoteRegistration) -> bool:
    return await registry.leave("echo", entered.instance.id, entered.instance.incarnation)


async def test_an_instance_enters_beats_through_any_process_and_leaves(hub: Hub, other: Hub):
    entered = await hub.registry.enter(at(1), ttl=30)
    assert entered.instance.incarnation
    assert 0 < entered.every < entered.ttl
    assert await ports(other.registry) == [1]
    assert await beat(other.registry, entered)
    assert await beat(hub.registry, entered)
    assert await leave(other.registry, entered)
    assert await ports(hub.registry) == []
    assert not await beat(hub.registry, entered)
    assert not await leave(hub.registry, entered)


async def test_a_heartbeat_reports_the_status(hub: Hub, other: Hub):
    if not hub.registry.guarantees.describes:
        entered = await hub.registry.enter(at(1))
        assert await beat(hub.registry, entered, healthy=False)
        return
    entered = await hub.registry.enter(at(1, metadata={"rack": "r1"}, version="1.2.0"))
    metrics = {"memory": {"usagePercent": 41.5}}
    assert await beat(other.registry, entered, healthy=False, state="draining", metrics=metrics)
    (instance,) = (await hub.registry.instances("echo")).instances
    assert (instance.status.healthy, instance.status.state) == (False, "draining")
    assert instance.status.metrics == metrics
    assert await beat(other.registry, entered)
    assert await beat(other.registry, entered, healthy=True)
    (instance,) = (await hub.registry.instances("echo")).instances
    assert (instance.status.healthy, instance.status.state) == (True, "draining")
    assert instance.status.metrics == metrics
    assert (instance.metadata, instance.version) == ({"rack": "r1"}, "1.2.0")
    assert instance.status.registered_at is not None


async def test_a_later_incarnation_supersedes(hub: Hub, other: Hub):
    first = await hub.registry.enter(at(1, id="u"))
    second = await other.registry.enter(at(1, id="u"))
    assert first.instance.incarnation != second.instance.incarnation
    with pytest.raises(Superseded):
        await beat(hub.registry, first)
    with pytest.raises(Superseded):
        await back(hub.registry, first)
    assert not await leave(hub.registry, first)
    assert await beat(hub.registry, second)
    assert await ports(hub.registry) == [1]


async def test_an_instance_that_left_can_return(hub: Hub, other: Hub):
    entered = await hub.registry.enter(at(1))
    assert await leave(other.registry, entered)
    assert not await beat(hub.registry, entered)
    assert await ports(hub.registry) == []
    again = await back(hub.registry, entered)
    assert await beat(other.registry, again)
    assert await ports(other.registry) == [1]
    assert await leave(hub.registry, again)
    assert await ports(other.registry) == []


async def test_a_superseded_instance_that_left_stays_superseded(hub: Hub, other: Hub):
    first = await hub.registry.enter(at(1, id="u"))
    second = await other.registry.enter(at(1, id="u"))
    assert not await leave(hub.registry, first)
    with pytest.raises(Superseded):
        await back(other.registry, first)
    assert await beat(hub.registry, second)


async def test_an_evicted_instance_with_a_live_successor_is_superseded(hub: Hub):
    first = await hub.registry.enter(at(1, id="u"))
    assert await hub.registry.deregister("echo", first.instance.id)
    with pytest.raises(Removed):
        await back(hub.registry, first)
    await hub.registry.enter(at(1, id="u"))
    with pytest.raises(Superseded):
        await beat(hub.registry, first)
    with pytest.raises(Superseded):
        await back(hub.registry, first)


@pytest.mark.describes
async def test_an_instance_that_returns_keeps_its_metrics(hub: Hub, other: Hub):
    entered = await hub.registry.enter(at(1))
    metrics = {"memory": {"usagePercent": 41.5}}
    assert await beat(hub.registry, entered, metrics=metrics)
    (before,) = (await hub.registry.instances("echo")).instances
    await back(other.registry, entered)
    (instance,) = (await hub.registry.instances("echo")).instances
    assert instance.status.metrics == metrics
    assert instance.status.registered_at == before.status.registered_at
    await hub.registry.enter(at(1, id=entered.instance.id))
    (restarted,) = (await hub.registry.instances("echo")).instances
    assert restarted.status.metrics == {}


async def test_a_process_supersedes_a_remote_registration(hub: Hub, other: Hub):
    first = await hub.registry.enter(at(1, id="u"))
    async with other.register(at(1, id="u")) as registration:
        with pytest.raises(Superseded):
            await beat(hub.registry, first)
        assert not await leave(hub.registry, first)
        assert registration.state == "registered"
    assert not await beat(hub.registry, first)


async def test_a_remote_registration_supersedes_a_process(hub: Hub, other: Hub):
    async with other.register(at(1, id="u")) as registration:
        entered = await hub.registry.enter(at(1, id="u"))
        await eventually(lambda: registration.state == "superseded")
    assert await ports(hub.registry) == [1]
    assert await beat(hub.registry, entered)


async def test_an_operator_evicts_an_instance_for_good(hub: Hub, other: Hub):
    entered = await hub.registry.enter(at(1))
    assert await other.registry.deregister("echo", entered.instance.id)
    with pytest.raises(Removed):
        await beat(hub.registry, entered)
    with pytest.raises(Removed):
        await back(hub.registry, entered)
    assert await ports(hub.registry) == []
    restarted = msgspec.structs.replace(entered.instance, incarnation="")
    again = await hub.registry.enter(restarted)  # its process restarted
    assert await beat(other.registry, again)
    assert await ports(hub.registry) == [1]


async def test_an_instance_whose_record_was_deleted_returns_unchanged(
    hub: Hub, raw_records: RawRecords
):
    entered = await hub.registry.enter(at(1))
    await raw_records.delete_all()
    assert not await beat(hub.registry, entered)
    again = await back(hub.registry, entered)
    assert await beat(hub.registry, again)
    assert await ports(hub.registry) == [1]


async def test_an_instance_repairs_its_overwritten_record(hub: Hub, raw_records: RawRecords):
    entered = await hub.registry.enter(at(1))
    await raw_records.spoil(entered.instance)
    assert not await beat(hub.registry, entered)
    again = await back(hub.registry, entered)
    assert await beat(hub.registry, again)
    assert await raw_records.is_right(again.instance)


async def test_entering_again_without_having_left_changes_nothing(hub: Hub, other: Hub):
    entered = await hub.registry.enter(at(1))
    again = await back(other.registry, entered)
    assert await beat(hub.registry, again)
    assert await ports(hub.registry) == [1]


async def test_an_instance_without_heartbeats_expires(hub: Hub):
    if not hub.registry.guarantees.renews:
        return  # on Redis, cleanup evicts it like every other instance
    entered = await hub.registry.enter(at(1), ttl=1)
    await eventually(lambda: _gone(hub))
    assert not await beat(hub.registry, entered)


async def _gone(hub: Hub) -> bool:
    return await ports(hub.registry) == []


async def test_invalid_arguments_are_refused(hub: Hub):
    entered = await hub.registry.enter(at(1))
    with pytest.raises(InvalidRequest):
        await hub.registry.beat("echo", entered.instance.id, "")
    with pytest.raises(InvalidRequest):
        await hub.registry.leave("echo", entered.instance.id, "")
    with pytest.raises(InvalidRequest):
        await beat(hub.registry, entered, metrics={"a": object()})
    with pytest.raises(InvalidRequest):
        await hub.registry.enter(at(2), ttl=-1)
    if hub.registry.guarantees.describes:
        with pytest.raises(TooLarge):
            await beat(hub.registry, entered, metrics={"a": "x" * 3_000_000})
    assert await beat(hub.registry, entered)
