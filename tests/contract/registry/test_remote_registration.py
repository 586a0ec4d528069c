"""Instances whose beats come from elsewhere: on every registry as good as those that are kept."""

from __future__ import annotations

import msgspec
import pytest

from mooring import Instance
from mooring.errors import InvalidRequest, Removed, Superseded, TooLarge
from mooring.hub import Hub
from mooring.registry.contract import Registry, RemoteRegistration
from tests.contract.registries import Hands
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


async def beat(registry: Registry, entered: RemoteRegistration, **said: object) -> bool:
    who = entered.instance
    return await registry.beat("echo", who.id, who.incarnation, **said)  # type: ignore[arg-type]


async def back(registry: Registry, entered: RemoteRegistration) -> RemoteRegistration:
    """Enter again as the same."""
    return await registry.enter(entered.instance)


async def leave(registry: Registry, entered: RemoteRegistration) -> bool:
    return await registry.leave("echo", entered.instance.id, entered.instance.incarnation)


async def test_one_enters_beats_through_any_process_and_leaves(hub: Hub, other: Hub):
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


async def test_a_beat_says_how_it_is(hub: Hub, other: Hub):
    if not hub.registry.guarantees.describes:
        entered = await hub.registry.enter(at(1))
        assert await beat(hub.registry, entered, healthy=False)
        return
    entered = await hub.registry.enter(at(1, metadata={"rack": "r1"}, version="1.2.0"))
    metrics = {"memory": {"usagePercent": 41.5}}
    assert await beat(other.registry, entered, healthy=False, state="draining", metrics=metrics)
    (found,) = (await hub.registry.instances("echo")).instances
    assert (found.status.healthy, found.status.state) == (False, "draining")
    assert found.status.metrics == metrics
    assert await beat(other.registry, entered)
    assert await beat(other.registry, entered, healthy=True)
    (found,) = (await hub.registry.instances("echo")).instances
    assert (found.status.healthy, found.status.state) == (True, "draining")
    assert found.status.metrics == metrics
    assert (found.metadata, found.version) == ({"rack": "r1"}, "1.2.0")
    assert found.status.registered_at is not None


async def test_the_next_to_enter_supersedes(hub: Hub, other: Hub):
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


async def test_one_that_left_by_itself_may_come_back(hub: Hub, other: Hub):
    entered = await hub.registry.enter(at(1))
    assert await leave(other.registry, entered)
    assert not await beat(hub.registry, entered)
    assert await ports(hub.registry) == []
    again = await back(hub.registry, entered)
    assert await beat(other.registry, again)
    assert await ports(other.registry) == [1]
    assert await leave(hub.registry, again)
    assert await ports(other.registry) == []


async def test_a_superseded_one_that_left_is_still_superseded(hub: Hub, other: Hub):
    first = await hub.registry.enter(at(1, id="u"))
    second = await other.registry.enter(at(1, id="u"))
    assert not await leave(hub.registry, first)
    with pytest.raises(Superseded):
        await back(other.registry, first)
    assert await beat(hub.registry, second)


async def test_a_removed_one_whose_successor_lives_is_superseded(hub: Hub):
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
async def test_one_that_comes_back_keeps_its_metrics(hub: Hub, other: Hub):
    entered = await hub.registry.enter(at(1))
    metrics = {"memory": {"usagePercent": 41.5}}
    assert await beat(hub.registry, entered, metrics=metrics)
    (before,) = (await hub.registry.instances("echo")).instances
    await back(other.registry, entered)
    (found,) = (await hub.registry.instances("echo")).instances
    assert found.status.metrics == metrics
    assert found.status.registered_at == before.status.registered_at
    await hub.registry.enter(at(1, id=entered.instance.id))
    (anew,) = (await hub.registry.instances("echo")).instances
    assert anew.status.metrics == {}


async def test_a_process_supersedes_one_that_entered(hub: Hub, other: Hub):
    first = await hub.registry.enter(at(1, id="u"))
    async with other.register(at(1, id="u")) as registration:
        with pytest.raises(Superseded):
            await beat(hub.registry, first)
        assert not await leave(hub.registry, first)
        assert registration.state == "registered"
    assert not await beat(hub.registry, first)


async def test_one_that_enters_supersedes_a_process(hub: Hub, other: Hub):
    async with other.register(at(1, id="u")) as registration:
        entered = await hub.registry.enter(at(1, id="u"))
        await eventually(lambda: registration.state == "superseded")
    assert await ports(hub.registry) == [1]
    assert await beat(hub.registry, entered)


async def test_an_operator_takes_one_out_for_good(hub: Hub, other: Hub):
    entered = await hub.registry.enter(at(1))
    assert await other.registry.deregister("echo", entered.instance.id)
    with pytest.raises(Removed):
        await beat(hub.registry, entered)
    with pytest.raises(Removed):
        await back(hub.registry, entered)
    assert await ports(hub.registry) == []
    anew = msgspec.structs.replace(entered.instance, incarnation="")
    again = await hub.registry.enter(anew)  # its process was started anew
    assert await beat(other.registry, again)
    assert await ports(hub.registry) == [1]


async def test_one_whose_record_was_deleted_comes_back_as_the_same(hub: Hub, hands: Hands):
    entered = await hub.registry.enter(at(1))
    await hands.delete_all()
    assert not await beat(hub.registry, entered)
    again = await back(hub.registry, entered)
    assert await beat(hub.registry, again)
    assert await ports(hub.registry) == [1]


async def test_one_whose_record_was_overwritten_puts_it_right(hub: Hub, hands: Hands):
    entered = await hub.registry.enter(at(1))
    await hands.spoil(entered.instance)
    assert not await beat(hub.registry, entered)
    again = await back(hub.registry, entered)
    assert await beat(hub.registry, again)
    assert await hands.is_right(again.instance)


async def test_one_that_comes_back_though_it_never_was_away_is_the_same(hub: Hub, other: Hub):
    entered = await hub.registry.enter(at(1))
    again = await back(other.registry, entered)
    assert await beat(hub.registry, again)
    assert await ports(hub.registry) == [1]


async def test_without_beats_its_time_runs_out(hub: Hub):
    if not hub.registry.guarantees.renews:
        return  # on Redis it is cleanup's to say, as of all others
    entered = await hub.registry.enter(at(1), ttl=1)
    await eventually(lambda: _gone(hub))
    assert not await beat(hub.registry, entered)


async def _gone(hub: Hub) -> bool:
    return await ports(hub.registry) == []


async def test_what_cannot_be_is_refused(hub: Hub):
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
