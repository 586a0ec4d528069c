"""The contract of registries on stores: leases, and the stored keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import pytest

import mooring
from mooring.errors import OutcomeUnknown, Superseded, TooLarge, Unavailable
from mooring.hub import Hub
from mooring.store import Committed, Delete, Put, everything, key
from tests.backends import USUAL
from tests.contract.registries import places
from tests.contract.registry.conftest import named
from tests.contract.registry.test_registry import at, ports
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time


@pytest.fixture(params=places(USUAL), ids=named)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    chosen: tuple[str, str] = request.param
    return chosen


@pytest.mark.deadline
async def test_a_revoked_lease_is_replaced(hub: Hub, other: Hub):
    async with hub.register(at(1)), hub.register(at(2)):
        held = (await hub.store.read(everything())).entries
        (lease,) = {entry.lease for entry in held if entry.lease}
        await hub.store.revoke(lease)

        async def back() -> bool:
            return await ports(other.registry) == [1, 2]

        await eventually(back, within=2)


async def test_registrations_of_one_process_share_a_lease_and_the_last_revokes_it(hub: Hub):
    async with hub.register(at(1)):
        async with hub.register(at(2)):
            held = (await hub.store.read(everything())).entries
            assert len({entry.lease for entry in held if entry.lease}) == 1
        left = (await hub.store.read(everything())).entries
        assert any(entry.lease for entry in left)
    left = (await hub.store.read(everything())).entries
    assert not any(entry.lease for entry in left)


@pytest.mark.describes
async def test_unknown_fields_survive_an_update(hub: Hub):
    name = b"/registry/default/echo/info"
    await hub.store.commit(Put(name, b'{"displayName":"old","ours":[1]}'))
    service = await hub.registry.describe(service="echo", set={"displayName": "验证码"})
    assert service == mooring.Service("echo", "验证码")
    entry = (await hub.store.read(key(name))).first
    assert entry is not None
    assert entry.value == '{"displayName":"验证码","ours":[1]}'.encode()


@pytest.mark.describes
async def test_groups_and_services_get_descriptions_that_are_never_overwritten(hub: Hub):
    instance = msgspec.structs.replace(at(1), service="Common/echo")
    async with hub.register(instance):
        assert await hub.registry.info(group="Common") == mooring.Group("Common")
        await hub.registry.describe(group="Common", set={"department": "d"})
    async with hub.register(instance):
        assert await hub.registry.info(group="Common") == mooring.Group("Common", department="d")
    assert await hub.registry.services() == [("Common/echo", 0)]
    assert await hub.registry.groups() == ["Common"]


async def test_oversized_metrics_do_not_prevent_the_repair_of_a_record(
    hub: Hub, other: Hub, caplog: pytest.LogCaptureFixture
):
    """Everything else is still written, and the problem is logged."""
    async with hub.register(at(1)) as one:
        one.update(metrics={"large": "x" * 2_000_000}, healthy=False)
        if hub.registry.guarantees.describes:

            async def reported() -> bool:
                (listed,) = (await other.registry.instances("echo")).instances
                return not listed.status.healthy and not listed.status.metrics

            await eventually(reported)
            await eventually(lambda: caplog.text.count("no metrics are written") == 1)
        await hub.store.commit(Delete(everything()))

        async def back() -> bool:
            return await ports(other.registry) == [1]

        await eventually(back)
        await eventually(lambda: one.state == "registered")


@pytest.mark.describes
async def test_a_record_that_the_store_refuses_stays_unchanged(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The operator of an etcd can set lower limits than usual."""
    whole = hub.store.commit

    async def commit(*writes: Put | Delete, **rest: Any) -> Committed:
        if any(isinstance(write, Put) and len(write.value) > 2_000 for write in writes):
            raise TooLarge("over the limit of 2000")
        return await whole(*writes, **rest)

    monkeypatch.setattr(hub.store, "commit", commit)
    async with hub.register(at(1)) as one:
        one.update(metadata={"a": "x" * 3_000}, healthy=False)

        async def reported() -> bool:
            (listed,) = (await other.registry.instances("echo")).instances
            return not listed.status.healthy and not listed.metadata

        await eventually(reported)
        left_out = "over the limit of 2000: its other fields stay as they were"
        await eventually(lambda: left_out in caplog.text)
        await eventually(lambda: one.state == "registered")
        one.update(metadata={"a": "short"})

        async def better() -> bool:
            (listed,) = (await other.registry.instances("echo")).instances
            return dict(listed.metadata) == {"a": "short"}

        await eventually(better)


async def test_an_instance_evicted_from_one_service_stays_in_another(
    hub: Hub, place: tuple[str, str]
):
    if not place[1].startswith(("plain", "endpoints")):
        return
    grouped = msgspec.structs.replace(at(1), service="default/echo")
    async with hub.register(at(1)) as bare, hub.register(grouped) as other:
        await hub.registry.deregister("echo", bare.instance.id)
        await eventually(lambda: bare.state == "removed")
        await hub.store.commit(Delete(next(iter(hub._layout.ranges("default/echo")))))

        async def back() -> bool:
            return await ports(hub.registry, "default/echo") == [1]

        await eventually(back)
        await eventually(lambda: other.state == "registered")


async def test_invalid_service_names_are_not_listed(hub: Hub, place: tuple[str, str]):
    if place[1] != "tree":
        return
    for name in (" lead", "info"):
        bad = f"/registry/default/{name}/10.0.0.1:80/data".encode()
        await hub.store.commit(Put(bad, b"{}"))
    async with hub.register(at(1)):
        assert await hub.registry.services() == [("echo", 1)]


class LostAnswers:
    """Stands between a hub and its store: the reply to the first commit is lost, and then the hub
    is disconnected until `cut` is reset. `arrives`: whether that first commit takes effect."""

    def __init__(self, hub: Hub, monkeypatch: pytest.MonkeyPatch, *, arrives: bool) -> None:
        self.cut, self.tries = False, 0
        self._commit, self._arrives = hub.store.commit, arrives
        for call in ("read", "grant", "renew"):
            monkeypatch.setattr(hub.store, call, self._unless_cut(getattr(hub.store, call)))
        monkeypatch.setattr(hub.store, "commit", self.commit)

    async def commit(self, *writes: Put | Delete, **rest: Any) -> Committed:
        if self.cut:
            raise Unavailable("cut off")
        self.tries += bool(writes)
        if not writes or self.tries > 1:
            return await self._commit(*writes, **rest)
        if self._arrives:
            await self._commit(*writes, **rest)
        self.cut = True
        raise OutcomeUnknown("the answer was lost")

    def _unless_cut(self, call: Callable[..., Awaitable[object]]) -> Callable[..., Any]:
        async def called(*arguments: Any, **options: Any) -> object:
            if self.cut:
                raise Unavailable("cut off")
            return await call(*arguments, **options)

        return called


@pytest.mark.parametrize("expires", [False, True])
async def test_an_unconfirmed_registration_leaves_its_successor_alone(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch, expires: bool
):
    """Its first write took effect, but the reply was lost, and a newer process registered at its
    address before it could check, with its record still stored or expired."""
    lost = LostAnswers(hub, monkeypatch, arrives=True)
    async with hub.register(at(1, id="u"), wait=0.1) as older:
        await eventually(lambda: lost.cut)
        assert older.state == "registering"
        if expires:
            held = (await other.store.read(everything())).entries
            await other.store.revoke(next(entry.lease for entry in held if entry.lease))
        async with other.register(at(1, id="u")) as newer:
            lost.cut = False
            await eventually(lambda: older.state == "superseded")
            await asyncio.sleep(0.1)
            assert newer.state == "registered"
            assert await ports(other.registry) == [1]
        with pytest.raises(Superseded):
            await older.registered()


async def test_a_registration_that_never_arrived_replaces_an_older_process(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    async with other.register(at(1, id="u")) as older:
        lost = LostAnswers(hub, monkeypatch, arrives=False)
        async with hub.register(at(1, id="u"), wait=0.1) as newer:
            await eventually(lambda: lost.cut)
            older.update(healthy=False)
            if other.registry.guarantees.describes:

                async def reported() -> bool:
                    (listed,) = (await other.registry.instances("echo")).instances
                    return not listed.status.healthy

                await eventually(reported)
            lost.cut = False
            await eventually(lambda: newer.state == "registered")
            await eventually(lambda: older.state == "superseded")
            assert await ports(other.registry) == [1]


async def test_an_unconfirmed_registration_learns_that_it_was_evicted(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    lost = LostAnswers(hub, monkeypatch, arrives=True)
    async with hub.register(at(1, id="u"), wait=0.1) as one:
        await eventually(lambda: lost.cut)
        assert await other.registry.deregister("echo", one.instance.id)
        lost.cut = False
        await eventually(lambda: one.state == "removed")
        assert await ports(other.registry) == []


async def test_a_registration_that_never_arrived_is_not_blocked_by_the_eviction_of_its_predecessor(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    async with other.register(at(1, id="u")) as older:
        await other.registry.deregister("echo", older.instance.id)
        await eventually(lambda: older.state == "removed")
    lost = LostAnswers(hub, monkeypatch, arrives=False)
    async with hub.register(at(1, id="u"), wait=0.1) as one:
        await eventually(lambda: lost.cut)
        lost.cut = False
        await eventually(lambda: one.state == "registered")
        await hub.store.commit(Delete(next(iter(hub._layout.ranges("echo")))))

        async def back() -> bool:
            return await ports(other.registry) == [1]

        await eventually(back)


@pytest.mark.describes
async def test_registering_while_the_service_is_forgotten_keeps_its_configuration(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    registry = hub.registry
    await registry.describe(service="echo", set={"displayName": "Echo"})
    await registry.configure("echo", set={"limit": 5})
    await registry.configure("echo", "10.0.0.1:1", set={"weight": 3})
    commit = hub.store.commit

    async def late(*writes: Any, **named: Any) -> Committed:
        monkeypatch.undo()
        await other.registry.enter(
            at(1)
        )  # after the hub has read the service, and before it is deleted
        return await commit(*writes, **named)

    monkeypatch.setattr(hub.store, "commit", late)
    assert not await registry.forget("echo")
    assert await registry.config("echo") == {"limit": 5}
    assert await registry.config("echo", "10.0.0.1:1") == {"weight": 3}
    assert (await registry.info(service="echo")).display_name == "Echo"
    (instance,) = (await registry.instances("echo")).instances
    assert instance.weight == 3


@pytest.mark.describes
async def test_registering_while_a_large_service_is_forgotten_keeps_all_of_it(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    registry = hub.registry
    for port in range(1, 150):
        await registry.configure("echo", f"10.0.0.1:{port}", set={"enabled": False})
    configured = {entry.key for entry in (await hub.store.read(everything())).entries}
    commit, commits = hub.store.commit, 0

    async def late(*writes: Any, **named: Any) -> Committed:
        nonlocal commits
        commits += 1
        done = await commit(*writes, **named)
        if commits == 1:  # between two commits of the deletion
            await other.registry.enter(at(1))
        return done

    monkeypatch.setattr(hub.store, "commit", late)
    assert not await registry.forget("echo")
    kept = {entry.key for entry in (await hub.store.read(everything())).entries}
    assert configured <= kept
    assert await registry.config("echo", "10.0.0.1:1") == {"enabled": False}


@pytest.mark.describes
async def test_registering_describes_a_forgotten_service_again(hub: Hub, other: Hub):
    async with hub.register(at(1)):
        pass
    assert await other.registry.forget("echo")
    assert await other.registry.services() == []
    async with hub.register(at(1)):
        pass
    assert [service.name for service in await other.registry.services()] == ["echo"]


@pytest.mark.describes
async def test_a_service_with_much_configuration_is_forgotten_completely(hub: Hub):
    for port in range(1, 150):
        await hub.registry.configure("echo", f"10.0.0.1:{port}", set={"weight": 3})
    assert await hub.registry.forget("echo")
    assert (await hub.store.read(everything())).entries == ()


def before_a_deletion(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]
) -> None:
    """Act once, after the hub has read what it deletes and before it deletes it."""
    commit = hub.store.commit

    async def late(*writes: Any, **named: Any) -> Committed:
        if any(isinstance(write, Delete) for write in writes):
            monkeypatch.undo()
            await act()
        return await commit(*writes, **named)

    monkeypatch.setattr(hub.store, "commit", late)


async def test_leaving_while_the_successor_enters_leaves_it_alone(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    older = (await hub.registry.enter(at(1, id="u"))).instance
    before_a_deletion(hub, monkeypatch, lambda: other.registry.enter(at(1, id="u")))
    assert not await hub.registry.leave("echo", older.id, older.incarnation)
    assert await ports(other.registry) == [1]


async def test_closing_a_registration_while_its_successor_enters_leaves_it_alone(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    async with hub.register(at(1, id="u")):
        before_a_deletion(hub, monkeypatch, lambda: other.registry.enter(at(1, id="u")))
    assert await ports(other.registry) == [1]


async def test_an_instance_that_leaves_before_its_deregistration_has_no_tombstone(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    one = (await other.registry.enter(at(1, id="u"))).instance
    leave = partial(other.registry.leave, "echo", one.id, one.incarnation)
    before_a_deletion(hub, monkeypatch, leave)
    assert not await hub.registry.deregister("echo", one.id)
    entries = (await hub.store.read(everything())).entries
    assert [entry.key for entry in entries if entry.lease] == []
