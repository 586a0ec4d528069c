"""What consumers do when the last instances leave, with and without deregistering."""

from __future__ import annotations

import asyncio
import time

import pytest

from mooring.discovery.last_known_good import GRACE
from mooring.errors import NoInstance
from mooring.hub import Hub
from mooring.model import Instance
from tests.contract.registries import RawRecords
from tests.contract.registry.test_registry import at
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time


def has_states(layout: str) -> bool:
    """Whether the record of an instance can say that it is draining."""
    return layout == "tree"  # and on Redis


async def entered(hub: Hub, port: int) -> Instance:
    """An instance that no hub of this process keeps registered."""
    return (await hub.registry.enter(at(port), ttl=60)).instance


async def test_a_vanished_fleet_is_kept_and_flagged_until_it_is_back(
    hub: Hub, other: Hub, raw_records: RawRecords, caplog: pytest.LogCaptureFixture
):
    instances = [await entered(hub, port) for port in (1, 2, 3)]
    async with other.discover("echo") as view:
        await view.wait(3, timeout=10)
        assert not view.stale
        await raw_records.delete_all()
        await eventually(lambda: view.stale)
        assert len(view.instances) == 3
        assert view.seen.kept
        assert "without deregistering" in view.seen.reason
        assert all(candidate.called for candidate in view.explain())
        # On a Redis Cluster the records are deleted one after another.
        await eventually(
            lambda: all(view.seen.reason in str(candidate) for candidate in view.explain())
        )
        async with view.pick():
            pass
        assert caplog.text.count("without deregistering") == 1
        for instance in instances:
            await hub.registry.enter(instance, ttl=60)
        await eventually(lambda: not view.stale)
        assert len(view.instances) == 3
        assert not view.seen.kept
        assert view.seen.reason == ""


async def test_instances_that_repair_themselves_stay_in_the_view(
    hub: Hub, other: Hub, raw_records: RawRecords
):
    async with (
        hub.register(at(1)) as one,
        hub.register(at(2)) as two,
        other.discover("echo") as view,
    ):
        await view.wait(2, timeout=10)
        fewest = 2

        def count(_: object) -> None:
            nonlocal fewest
            fewest = min(fewest, len(view.instances))

        view.subscribe(count)
        await raw_records.delete_all()

        async def repaired() -> bool:
            count(None)
            return await raw_records.is_right(one.instance) and await raw_records.is_right(
                two.instance
            )

        await eventually(repaired)
        await eventually(lambda: not view.stale)
        assert fewest == 2


@pytest.mark.deadline
async def test_the_last_draining_instance_is_called_while_it_serves(
    hub: Hub, other: Hub, layout: str
):
    async with hub.register(at(1)) as last, other.discover("echo", hold=1) as view:
        await view.wait(timeout=10)
        draining = asyncio.ensure_future(last.drain(linger=0.3))
        calls = 0
        while not draining.done():
            async with view.pick() as instance:
                assert instance.port == 1
            calls += 1
            await asyncio.sleep(0.02)
        assert calls
        await eventually(lambda: view.seen.kept)
        if has_states(layout):
            assert not view.stale

            def empty() -> bool:
                try:
                    view.rotation.pick()
                except NoInstance:
                    return True
                return False

            assert await eventually(empty) < GRACE


async def test_an_instance_stays_registered_as_draining_while_it_lingers(
    hub: Hub, other: Hub, layout: str
):
    async with hub.register(at(1)) as last, other.discover("echo", hold=0) as view:
        await view.wait(timeout=10)
        started = time.monotonic()
        linger = 0.5 if has_states(layout) else 60
        draining = asyncio.ensure_future(last.drain(linger=linger))
        await eventually(lambda: last.state == "draining")
        if not has_states(
            layout
        ):  # the layout has no states, and callers would go on choosing the instance

            async def is_gone() -> bool:
                return not (await other.registry.instances("echo")).instances

            await eventually(is_gone)
            draining.cancel()
            await asyncio.wait([draining])
            return
        states = []
        while view.instances:  # the view does not hold it
            states += [instance.status.state for instance in view.instances]
            async with view.pick() as instance:
                assert instance.port == 1
            await asyncio.sleep(0.01)
        assert time.monotonic() - started >= linger
        assert states[-1] == "draining"
        await draining
        assert not (await other.registry.instances("echo")).instances


async def test_a_lingering_instance_leaves_its_successor_alone(hub: Hub, other: Hub, layout: str):
    async with hub.register(at(1)) as old:
        draining = asyncio.ensure_future(old.drain(linger=0.4))
        await eventually(lambda: old.state == "draining")
        async with other.register(at(1)) as new:
            await draining
            instances = (await other.registry.instances("echo")).instances
            assert [instance.status.state for instance in instances] == ["up"]
            if has_states(layout):
                assert instances[0].incarnation == new.instance.incarnation
            assert new.state == "registered"


async def test_closing_a_lingering_registration_removes_it_at_once(hub: Hub, other: Hub):
    async with hub.register(at(1)) as last:
        draining = asyncio.ensure_future(last.drain(grace=60, linger=30))
        await eventually(lambda: last.state == "draining")
        draining.cancel()
        await asyncio.wait([draining])
    assert not (await other.registry.instances("echo")).instances


async def test_keep_holds_after_a_drain(hub: Hub, other: Hub):
    async with other.discover("echo", empty="keep", hold=0) as view:
        async with hub.register(at(1)) as last:
            await view.wait(timeout=10)
            await last.drain(linger=0)
        await eventually(lambda: view.seen.kept)
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            async with view.pick() as instance:
                assert instance.port == 1
            await asyncio.sleep(0.02)
        async with hub.register(at(2)):
            await eventually(lambda: [instance.port for instance in view.instances] == [2])


@pytest.mark.deadline
@pytest.mark.parametrize("how", ["it closes", "it leaves", "an operator deregisters it"])
async def test_a_deregistration_leaves_no_doubt(hub: Hub, other: Hub, layout: str, how: str):
    registration = hub.register(at(1))
    registered = await entered(hub, 1) if how == "it leaves" else at(1)
    async with other.discover("echo", hold=0.3) as view:
        if how != "it leaves":
            await registration.__aenter__()
        await view.wait(timeout=10)
        if how == "it closes":
            await registration.aclose()
        elif how == "it leaves":
            assert await hub.registry.leave("echo", registered.id, registered.incarnation)
        else:
            assert await hub.registry.deregister("echo", registration.instance.id)
        if not has_states(layout) and how != "an operator deregisters it":
            await eventually(lambda: view.stale)  # it looks like a deletion
            return await registration.aclose()
        doubts = 0

        def empty() -> bool:
            nonlocal doubts
            doubts += view.stale
            return not view.instances

        assert await eventually(empty) < GRACE
        assert not doubts
    await registration.aclose()
