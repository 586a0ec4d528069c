"""What a registry on a store promises beside what all do: leases, and the keys as they lie."""

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
async def test_unknown_fields_survive_an_edit(hub: Hub):
    name = b"/registry/default/echo/info"
    await hub.store.commit(Put(name, b'{"displayName":"old","ours":[1]}'))
    told = await hub.registry.describe(service="echo", set={"displayName": "验证码"})
    assert told == mooring.Service("echo", "验证码")
    entry = (await hub.store.read(key(name))).first
    assert entry is not None
    assert entry.value == '{"displayName":"验证码","ours":[1]}'.encode()


@pytest.mark.describes
async def test_every_group_and_service_has_a_description_that_is_never_overwritten(hub: Hub):
    instance = msgspec.structs.replace(at(1), service="Common/echo")
    async with hub.register(instance):
        assert await hub.registry.info(group="Common") == mooring.Group("Common")
        await hub.registry.describe(group="Common", set={"department": "d"})
    async with hub.register(instance):
        assert await hub.registry.info(group="Common") == mooring.Group("Common", department="d")
    assert await hub.registry.services() == [("Common/echo", 0)]
    assert await hub.registry.groups() == ["Common"]


async def test_metrics_that_are_too_large_keep_no_record_from_repair(
    hub: Hub, other: Hub, caplog: pytest.LogCaptureFixture
):
    """All else that it says goes on, and somebody is told."""
    async with hub.register(at(1)) as one:
        one.update(metrics={"large": "x" * 2_000_000}, healthy=False)
        if hub.registry.guarantees.describes:

            async def told() -> bool:
                (listed,) = (await other.registry.instances("echo")).instances
                return not listed.status.healthy and not listed.status.metrics

            await eventually(told)
            await eventually(lambda: caplog.text.count("no metrics are written") == 1)
        await hub.store.commit(Delete(everything()))

        async def back() -> bool:
            return await ports(other.registry) == [1]

        await eventually(back)
        await eventually(lambda: one.state == "registered")


@pytest.mark.describes
async def test_what_a_store_takes_no_longer_stays_as_it_was(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """An operator of etcd may allow less than others do."""
    whole = hub.store.commit

    async def commit(*writes: Put | Delete, **rest: Any) -> Committed:
        if any(isinstance(write, Put) and len(write.value) > 2_000 for write in writes):
            raise TooLarge("over the limit of 2000")
        return await whole(*writes, **rest)

    monkeypatch.setattr(hub.store, "commit", commit)
    async with hub.register(at(1)) as one:
        one.update(metadata={"a": "x" * 3_000}, healthy=False)

        async def told() -> bool:
            (listed,) = (await other.registry.instances("echo")).instances
            return not listed.status.healthy and not listed.metadata

        await eventually(told)
        left_out = "over the limit of 2000: its other fields stay as they were"
        await eventually(lambda: left_out in caplog.text)
        await eventually(lambda: one.state == "registered")
        one.update(metadata={"a": "short"})

        async def better() -> bool:
            (listed,) = (await other.registry.instances("echo")).instances
            return dict(listed.metadata) == {"a": "short"}

        await eventually(better)


async def test_who_is_taken_out_of_one_service_stays_in_another(hub: Hub, place: tuple[str, str]):
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


async def test_a_name_that_cannot_be_asked_for_is_not_listed(hub: Hub, place: tuple[str, str]):
    if place[1] != "tree":
        return
    for name in (" lead", "info"):
        bad = f"/registry/default/{name}/10.0.0.1:80/data".encode()
        await hub.store.commit(Put(bad, b"{}"))
    async with hub.register(at(1)):
        assert await hub.registry.services() == [("echo", 1)]


class LostAnswers:
    """Stands between a hub and its store: the answer to the first commit is lost, and then the hub
    is cut off until it heals. `arrives`: that first commit does happen."""

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
async def test_one_that_never_heard_that_it_was_registered_leaves_a_successor_alone(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch, expires: bool
):
    """Its first write happened, the answer was lost, and before it could ask a newer process came
    to its address, whether its record was still there or not."""
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


async def test_one_that_never_came_in_takes_the_place_of_an_older_process(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    async with other.register(at(1, id="u")) as older:
        lost = LostAnswers(hub, monkeypatch, arrives=False)
        async with hub.register(at(1, id="u"), wait=0.1) as newer:
            await eventually(lambda: lost.cut)
            older.update(healthy=False)
            if other.registry.guarantees.describes:

                async def told() -> bool:
                    (listed,) = (await other.registry.instances("echo")).instances
                    return not listed.status.healthy

                await eventually(told)
            lost.cut = False
            await eventually(lambda: newer.state == "registered")
            await eventually(lambda: older.state == "superseded")
            assert await ports(other.registry) == [1]


async def test_one_that_never_heard_that_it_was_registered_hears_that_it_was_taken_out(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    lost = LostAnswers(hub, monkeypatch, arrives=True)
    async with hub.register(at(1, id="u"), wait=0.1) as one:
        await eventually(lambda: lost.cut)
        assert await other.registry.deregister("echo", one.instance.id)
        lost.cut = False
        await eventually(lambda: one.state == "removed")
        assert await ports(other.registry) == []


async def test_one_that_never_came_in_is_not_kept_out_by_what_befell_who_was_there_before(
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
async def test_who_registers_while_its_service_is_forgotten_finds_what_was_said_of_it(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    registry = hub.registry
    await registry.describe(service="echo", set={"displayName": "Echo"})
    await registry.configure("echo", set={"limit": 5})
    await registry.configure("echo", "10.0.0.1:1", set={"weight": 3})
    commit = hub.store.commit

    async def late(*writes: Any, **named: Any) -> Committed:
        monkeypatch.undo()
        await other.registry.enter(at(1))  # after it was looked at, and before it is deleted
        return await commit(*writes, **named)

    monkeypatch.setattr(hub.store, "commit", late)
    assert not await registry.forget("echo")
    assert await registry.config("echo") == {"limit": 5}
    assert await registry.config("echo", "10.0.0.1:1") == {"weight": 3}
    assert (await registry.info(service="echo")).display_name == "Echo"
    (found,) = (await registry.instances("echo")).instances
    assert found.weight == 3


@pytest.mark.describes
async def test_who_registers_while_much_is_forgotten_finds_all_of_it(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    registry = hub.registry
    for port in range(1, 150):
        await registry.configure("echo", f"10.0.0.1:{port}", set={"enabled": False})
    said = {entry.key for entry in (await hub.store.read(everything())).entries}
    commit, commits = hub.store.commit, 0

    async def late(*writes: Any, **named: Any) -> Committed:
        nonlocal commits
        commits += 1
        done = await commit(*writes, **named)
        if commits == 1:  # between one part of it and the next
            await other.registry.enter(at(1))
        return done

    monkeypatch.setattr(hub.store, "commit", late)
    assert not await registry.forget("echo")
    there = {entry.key for entry in (await hub.store.read(everything())).entries}
    assert said <= there
    assert await registry.config("echo", "10.0.0.1:1") == {"enabled": False}


@pytest.mark.describes
async def test_a_service_that_was_forgotten_is_described_again_by_who_registers(
    hub: Hub, other: Hub
):
    async with hub.register(at(1)):
        pass
    assert await other.registry.forget("echo")
    assert await other.registry.services() == []
    async with hub.register(at(1)):
        pass
    assert [each.name for each in await other.registry.services()] == ["echo"]


@pytest.mark.describes
async def test_a_service_of_which_much_was_said_is_forgotten_whole(hub: Hub):
    for port in range(1, 150):
        await hub.registry.configure("echo", f"10.0.0.1:{port}", set={"weight": 3})
    assert await hub.registry.forget("echo")
    assert (await hub.store.read(everything())).entries == ()


def before_a_deletion(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]
) -> None:
    """Act once, after the hub has looked at what it deletes and before it does so."""
    commit = hub.store.commit

    async def late(*writes: Any, **named: Any) -> Committed:
        if any(isinstance(write, Delete) for write in writes):
            monkeypatch.undo()
            await act()
        return await commit(*writes, **named)

    monkeypatch.setattr(hub.store, "commit", late)


async def test_one_that_leaves_as_its_successor_enters_leaves_it_alone(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    older = (await hub.registry.enter(at(1, id="u"))).instance
    before_a_deletion(hub, monkeypatch, lambda: other.registry.enter(at(1, id="u")))
    assert not await hub.registry.leave("echo", older.id, older.incarnation)
    assert await ports(other.registry) == [1]


async def test_a_registration_that_ends_as_its_successor_enters_leaves_it_alone(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    async with hub.register(at(1, id="u")):
        before_a_deletion(hub, monkeypatch, lambda: other.registry.enter(at(1, id="u")))
    assert await ports(other.registry) == [1]


async def test_one_that_leaves_before_an_operator_deregisters_it_has_no_tombstone(
    hub: Hub, other: Hub, monkeypatch: pytest.MonkeyPatch
):
    one = (await other.registry.enter(at(1, id="u"))).instance
    leave = partial(other.registry.leave, "echo", one.id, one.incarnation)
    before_a_deletion(hub, monkeypatch, leave)
    assert not await hub.registry.deregister("echo", one.id)
    there = (await hub.store.read(everything())).entries
    assert [entry.key for entry in there if entry.lease] == []
