"""Following all services at once, and how long each instance has been silent, on every registry."""

from __future__ import annotations

import pytest

from mooring import Instance
from mooring.errors import InvalidRequest
from mooring.hub import Hub
from mooring.mirror import Mirror
from tests.contract.registries import RawRecords
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

Where = tuple[str, str]


def at(service: str, port: int) -> Instance:
    return Instance(service, "10.0.0.1", port)


def seen(mirror: Mirror[Where, Instance]) -> list[tuple[str, int]]:
    for (service, id), instance in mirror.items.items():
        assert (instance.service, instance.id) == (service, id)
    return sorted((service, instance.port) for (service, _), instance in mirror.items.items())


async def test_instances_of_all_services_are_followed(hub: Hub, other: Hub):
    async with Mirror(other.registry.follow_all()) as mirror:
        assert mirror.items == {}
        async with hub.register(at("a", 1)), hub.register(at("a", 2)):
            await eventually(lambda: seen(mirror) == [("a", 1), ("a", 2)])
            async with hub.register(at("b", 1)):
                await eventually(lambda: seen(mirror) == [("a", 1), ("a", 2), ("b", 1)])
            await eventually(lambda: seen(mirror) == [("a", 1), ("a", 2)])
        await eventually(lambda: seen(mirror) == [])


async def test_the_feed_of_all_services_is_named_by_a_message(hub: Hub):
    name = hub.registry.follow_all().name
    assert name.kind == "services_of"
    assert name.text == f"the services in {hub.registry.url}"


async def test_instances_that_are_already_registered_are_seen_at_once(hub: Hub, other: Hub):
    async with (
        hub.register(at("a", 1)),
        hub.register(at("b", 2)),
        Mirror(other.registry.follow_all()) as mirror,
    ):
        assert seen(mirror) == [("a", 1), ("b", 2)]


async def test_all_services_show_the_same_as_each_listing(hub: Hub, other: Hub):
    async with hub.register(at("a", 1)), hub.register(at("b", 2)) as b:
        if hub.registry.guarantees.describes:
            await other.registry.configure("a", set={"weight": 7})
            await other.registry.configure("b", b.instance.id, set={"enabled": False})
        async with Mirror(other.registry.follow_all()) as mirror:

            async def equal() -> bool:
                listings = [await other.registry.instances(name) for name in ("a", "b")]
                listed = {(i.service, i.id): i for listing in listings for i in listing.instances}
                return dict(mirror.items) == listed

            await eventually(equal)
        if hub.registry.guarantees.describes:
            by_service = {service: instance for (service, _), instance in mirror.items.items()}
            assert (by_service["a"].weight, by_service["b"].enabled) == (7, False)


async def test_a_service_configuration_reaches_all_its_instances(hub: Hub, other: Hub):
    if not hub.registry.guarantees.describes:
        with pytest.raises(InvalidRequest, match="has no configuration"):
            await other.registry.configure("a", set={"weight": 3})
        return
    async with (
        hub.register(at("a", 1)),
        hub.register(at("a", 2)),
        hub.register(at("b", 1)),
        Mirror(other.registry.follow_all()) as mirror,
    ):
        await other.registry.configure("a", set={"weight": 3})

        def weights() -> list[float]:
            return [instance.weight for _, instance in sorted(mirror.items.items())]

        await eventually(lambda: weights() == [3, 3, 1])
        await other.registry.configure("a", set={}, unset=("weight",))
        await eventually(lambda: weights() == [1, 1, 1])


async def test_invalid_records_hide_no_instance(hub: Hub, other: Hub, raw_records: RawRecords):
    async with hub.register(at("a", 1)), hub.register(at("b", 1)):
        await raw_records.leave_garbage("a")
        async with Mirror(other.registry.follow_all()) as mirror:
            await eventually(lambda: seen(mirror) == [("a", 1), ("b", 1)])
            async with hub.register(at("a", 2)):
                await eventually(lambda: seen(mirror) == [("a", 1), ("a", 2), ("b", 1)])


async def test_many_services_are_followed_together(hub: Hub, other: Hub):
    names = [f"s{number:02}" for number in range(12)]
    registrations = [hub.register(at(name, 1), wait=20) for name in names]
    async with Mirror(other.registry.follow_all()) as mirror:
        for registration in registrations:
            await registration.__aenter__()
        await eventually(lambda: seen(mirror) == [(name, 1) for name in names])
        for registration in registrations[1:]:
            await registration.aclose()
        await eventually(lambda: seen(mirror) == [("s00", 1)])


async def test_a_live_instance_is_silent_for_less_than_its_ttl(hub: Hub, other: Hub):
    assert await other.registry.silence("a") == {}
    async with hub.register(at("a", 1)) as one, hub.register(at("a", 2)) as two:
        silence = await other.registry.silence("a")
        assert sorted(silence) == sorted([one.instance.id, two.instance.id])
        assert all(0 <= seconds < 20 for seconds in silence.values())
    assert await other.registry.silence("a") == {}


async def test_silence_grows_until_the_next_heartbeat(hub: Hub, other: Hub):
    async with hub.register(at("a", 1), ttl=5) as one:
        id = one.instance.id
        longest = 0.0

        async def fell() -> bool:
            nonlocal longest
            now = (await other.registry.silence("a")).get(id, 0.0)
            fell, longest = now < longest, max(now, longest)
            return fell

        await eventually(fell)


async def test_without_evictions_no_brake_holds(hub: Hub):
    async with hub.register(at("a", 1)):
        evictions = hub.registry.evictions
        assert evictions is None or await evictions.brakes() == {}


async def test_the_mirror_keeps_following_after_a_service_is_forgotten(
    hub: Hub, other: Hub, caplog: pytest.LogCaptureFixture
):
    """The last configuration of the instance and of its service are deleted in one commit."""
    registry = other.registry
    async with Mirror(registry.follow_all()) as mirror:
        registration = hub.register(at("a", 1))
        async with registration:
            id = registration.instance.id
            await eventually(lambda: seen(mirror) == [("a", 1)])
            if registry.guarantees.describes:
                await registry.configure("a", id, set={"weight": 2})
                await registry.configure("a", set={"zone": "z"})
            await registry.deregister("a", id)
            await eventually(lambda: seen(mirror) == [])
            await eventually(lambda: registration.state == "removed")
        await registry.forget("a")
        async with hub.register(at("b", 1)):
            await eventually(lambda: seen(mirror) == [("b", 1)])
        assert mirror.error is None
        assert mirror.resyncs == 0
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
