"""No stale records stay in the registry, and an error of one instance does not affect others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from operator import length_hint

import pytest

import mooring
from mooring import Instance
from mooring.errors import Closed, InvalidRequest, StoreError, Unavailable
from mooring.hub import Hub
from mooring.mirror import Change
from mooring.model import Config
from mooring.registry.kv import shared_lease as leases
from mooring.settings import parse
from mooring.store import Delete, Put, key, prefix
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.waiting import eventually


def at(port: int, **fields: object) -> Instance:
    return Instance("echo", "10.0.0.1", port, **fields)  # type: ignore[arg-type]


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with mooring.connect() as opened:
        yield opened


@pytest.fixture(autouse=True)
def looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_DELETION_CHECKS", (0.2, 0.1, 0.05))


async def ports(hub: Hub) -> list[int]:
    return sorted(i.port for i in (await hub.registry.instances("echo")).instances)


async def only(hub: Hub, *expected: int) -> None:
    async def right() -> bool:
        return await ports(hub) == list(expected)

    await eventually(right)


async def test_a_cancelled_registration_leaves_nothing(tmp_path: object):
    async with mooring.connect(f"sqlite://{tmp_path}/store") as slow, slow.register(at(1)):
        for number in range(30):
            entering = asyncio.ensure_future(slow.register(at(100 + number)).__aenter__())
            for _ in range(number):
                await asyncio.sleep(0)
            entering.cancel()
            await asyncio.wait([entering])
            if not entering.cancelled():
                await entering.result().aclose()
        await only(slow, 1)


@pytest.mark.parametrize("how", ["close", "drain"])
async def test_an_instance_that_left_during_an_outage_is_removed_later(
    how: str, etcd: Callable[[str], EtcdServer], tmp_path: object
):
    server = etcd("3.5")
    name = f"namespace={tmp_path}"
    async with (
        FaultProxy(server.address) as proxy,
        mooring.connect(f"etcd://{proxy.address}?{name}&timeout=1s") as hub,
        mooring.connect(f"{server.url}?{name}") as other,
        hub.register(at(1), ttl=60),
    ):
        leaving = await hub.register(at(2), ttl=60).__aenter__()
        proxy.refuse()
        await (leaving.aclose() if how == "close" else leaving.drain(grace=2, linger=0))
        assert await ports(other) == [1, 2]
        proxy.heal()
        await only(other, 1)


async def test_instances_that_left_are_not_revived_by_a_backup(
    etcd: Callable[[str], EtcdServer], tmp_path: object
):
    """As after a restore: their keys exist again, on the lease that the others keep alive."""
    server = etcd("3.5")
    name = f"namespace={tmp_path}"
    folder = prefix(b"/registry/default/echo/10.0.0.2:2/")
    async with (
        FaultProxy(server.address) as proxy,
        mooring.connect(f"etcd://{proxy.address}?{name}&timeout=1s") as hub,
        mooring.connect(f"{server.url}?{name}") as other,
        hub.register(at(1)) as one,
        other.discover("echo") as view,
    ):
        seen: list[Change[str, Instance]] = []
        async with hub.register(Instance("echo", "10.0.0.2", 2)):
            kept = (await other.store.read(folder)).entries
        mirror = one._record._host_watch.mirror  # type: ignore[attr-defined]
        await eventually(lambda: mirror.loaded)
        proxy.refuse()
        await other.store.commit(*(Put(e.key, e.value, e.lease) for e in kept))
        await eventually(lambda: mirror.error is not None)
        assert await ports(other) == [1, 2]
        view.subscribe(lambda update: seen.extend(update.changes))
        proxy.heal()
        await only(other, 1)
        await eventually(lambda: one.state == "registered")
        await eventually(
            lambda: {change.key for change in seen if change.after is None} == {"10.0.0.2:2"}
        )


async def test_a_lease_in_use_is_kept_after_an_outage(hub: Hub):
    async with hub.register(at(1)) as one:
        lease = one._record._lease  # type: ignore[attr-defined]
        before = lease.current
        hub.registry._store_returned()  # type: ignore[attr-defined]
        assert lease.current is before


async def test_descriptions_are_written_again_if_the_store_may_be_another(hub: Hub):
    info = key(b"/registry/default/echo/info")
    async with hub.register(at(1)):
        async with hub.register(at(2)):
            pass
        await hub.store.commit(Delete(info))
        hub.registry._store_returned()  # type: ignore[attr-defined]

        async def is_described() -> bool:
            return (await hub.store.read(info)).first is not None

        await eventually(is_described)


async def test_an_instance_that_registers_again_is_not_removed_as_stale(hub: Hub):
    async with hub.register(at(1)) as one:
        lease = one._record._lease  # type: ignore[attr-defined]
        lease.delete_later([b"/registry/default/echo/10.0.0.1:2/data"])
        async with hub.register(at(2)):
            await asyncio.sleep(0.6)
            assert await ports(hub) == [1, 2]


async def test_an_instance_that_registers_while_the_last_one_leaves_is_repaired(hub: Hub):
    comes = []
    for turns in range(30):
        service = f"s{turns}"
        goes = await hub.register(Instance(service, "10.0.0.1", 1)).__aenter__()
        await eventually(lambda goes=goes: goes._record._host_watch.mirror.loaded)  # type: ignore[misc]
        leaving = asyncio.ensure_future(goes.aclose())
        for _ in range(turns):
            await asyncio.sleep(0)
        comes.append(await hub.register(Instance(service, "10.0.0.1", 2)).__aenter__())
        await leaving
    await hub.store.commit(Delete(prefix(b"/registry/")))

    async def repaired() -> bool:
        return sum(listed.instances for listed in await hub.registry.services()) == len(comes)

    await eventually(repaired)


async def test_an_instance_registers_while_the_last_one_leaves_an_unavailable_store(
    etcd: Callable[[str], EtcdServer], tmp_path: object
):
    async def comes(turns: int) -> None:
        where = f"etcd://{proxy.address}?namespace={tmp_path}/{turns}&timeout=1s"
        async with mooring.connect(where) as hub:
            goes = await hub.register(at(1), wait=0.1).__aenter__()
            leaving = asyncio.ensure_future(goes.aclose(within=0.3))
            for _ in range(turns):
                await asyncio.sleep(0)
            async with hub.register(Instance("other", "10.0.0.1", 2), wait=0.1) as one:
                await leaving
                away.release()
                await healed.wait()
                await asyncio.wait_for(one.registered(), 30)

    away, healed = asyncio.Semaphore(0), asyncio.Event()
    async with FaultProxy(etcd("3.5").address) as proxy, asyncio.TaskGroup() as group:
        proxy.refuse()
        for turns in range(8):
            group.create_task(comes(turns))
        for _ in range(8):
            await away.acquire()
        proxy.heal()
        healed.set()


async def test_a_pending_deletion_does_not_wait_for_other_instances(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leases, "_DELETION_CHECKS", (60.0,))
    folder = b"/registry/default/echo/10.0.0.1:"
    async with hub.register(at(1)) as one:
        lease = one._record._lease  # type: ignore[attr-defined]
        lease.delete_later([folder + b"2/data"])
        await eventually(lambda: length_hint(lease._to_delete[folder + b"2/data"]) == 0)
        await hub.store.commit(Put(folder + b"3/data", b"{}", lease.current.lease))
        assert await ports(hub) == [1, 3]
        lease.delete_later([folder + b"3/data"])
        await only(hub, 1)


async def test_a_lost_lease_of_one_instance_does_not_affect_another(hub: Hub):
    async with hub.register(at(1), ttl=5) as short, hub.register(at(2), ttl=60) as long:
        dead = short._record._lease.current.lease  # type: ignore[attr-defined]
        alive = long._record._lease.current.lease  # type: ignore[attr-defined]
        await hub.store.revoke(dead)
        for registration in (short, long):
            registration.update(metadata={"a": "b"})
        await only(hub, 1, 2)
        assert long._record._lease.current.lease == alive  # type: ignore[attr-defined]


async def test_a_failing_subscriber_does_not_affect_other_instances(hub: Hub):
    def fails(config: Config) -> None:
        if config.weight:
            raise ZeroDivisionError

    async with hub.register(at(1)) as one, hub.register(at(2)), hub.register(at(3)):
        one.on_config(fails)
        folder = b"/registry/default/echo/10.0.0.1:"
        await hub.store.commit(
            Put(folder + b"1/config", b'{"weight":3}'),
            Delete(prefix(folder + b"2/")),
            Delete(prefix(folder + b"3/")),
        )
        await only(hub, 1, 2, 3)


@pytest.mark.parametrize("where", ["10.0.0.1:1/config", "config"])
async def test_a_configuration_that_fails_to_decode_does_not_prevent_repair(
    hub: Hub, where: str, monkeypatch: pytest.MonkeyPatch
):
    def fails(value: bytes) -> Config:
        raise ZeroDivisionError("a layout's mistake")

    folder = b"/registry/default/echo/"
    async with hub.register(at(1)) as one:
        monkeypatch.setattr(hub.registry.layout, "decode_config", fails)  # type: ignore[attr-defined]
        await hub.store.commit(Put(folder + where.encode(), b"{}"))
        await hub.store.commit(Delete(prefix(folder + b"10.0.0.1:1/d")))
        await only(hub, 1)
        assert one.config == Config()


async def test_a_registration_that_cannot_read_its_override_is_repaired(
    monkeypatch: pytest.MonkeyPatch,
):
    def fails(record: object) -> Config:
        raise ZeroDivisionError("a mistake")

    silent = parse({"registry": {"metrics": {"enabled-metrics": []}}})
    async with (
        mooring.connect(settings=silent) as hub,
        hub.register(at(1)) as one,
        hub.register(at(2)),
    ):
        monkeypatch.setattr(type(one._record), "config", property(fails))
        await hub.store.commit(Delete(prefix(b"/registry/default/echo/")))
        await only(hub, 1, 2)


@pytest.mark.parametrize(
    "bad",
    [
        {"metrics": {"x": object()}},
        {"metrics": {"x": "\ud800"}},
        {"metrics": {(1, 2): 3}},
        {"metadata": {"a": "\ud800"}},
        {"version": 1.2},
        {"zone": 5},
    ],
)
async def test_an_invalid_update_is_refused_and_harmless(hub: Hub, bad: dict[str, object]):
    async with hub.register(at(1)) as one:
        with pytest.raises(InvalidRequest):
            one.update(**bad)  # type: ignore[arg-type]
        await hub.store.commit(Delete(prefix(b"/registry/")))
        await only(hub, 1)


async def test_an_operator_override_applies_to_one_layout_only():
    url = "memory://layouts"
    async with (
        mooring.connect(url, layout="plain:/p/") as plain,
        mooring.connect(url, layout="plain:/q/") as other,
        mooring.connect(url) as tree,
        plain.register(at(1)) as one,
        other.register(at(1)) as two,
        tree.register(at(1)) as three,
    ):
        await plain.registry.deregister("echo", "10.0.0.1:1")
        await eventually(lambda: one.state == "removed")
        await other.store.commit(Delete(prefix(b"/q/")), Delete(prefix(b"/registry/")))
        await only(other, 1)
        await only(tree, 1)
        await eventually(lambda: (two.state, three.state) == ("registered", "registered"))


async def test_a_successor_does_not_revive_an_evicted_predecessor():
    async with mooring.connect("memory://succession") as old:
        one = await old.register(at(1)).__aenter__()
        keep = one._tasks
        await keep.aclose()  # as if it were disconnected: it receives nothing
        async with mooring.connect("memory://succession") as new:
            await new.registry.deregister("echo", "10.0.0.1:1")
            async with new.register(at(1)):
                pass
            keep.start(one._keep(), name="healed")
            one._record.disturbed = True
            # It is "superseded" if its watch still shows the process that registered in between.
            await eventually(lambda: one.state in ("removed", "superseded"))
            assert await ports(new) == []


async def test_a_key_overwritten_without_a_lease_is_deleted_with_its_instance(hub: Hub):
    async with hub.register(at(1)), hub.register(at(2)) as two:
        await hub.store.commit(Put(b"/registry/default/echo/10.0.0.1:2/data", b"{}"))
        await two.aclose()
        await only(hub, 1)


async def test_a_description_that_cannot_be_written_does_not_delay_the_registration(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    whole = hub.store.commit

    async def commit(*writes: object, **rest: object) -> object:
        if any(isinstance(w, Put) and w.key.endswith(b"info") for w in writes):
            raise Unavailable("not now")
        return await whole(*writes, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(hub.store, "commit", commit)
    async with hub.register(at(1)) as one:
        assert one.state == "registered"
        assert not one._fresh


async def test_a_closed_registration_cannot_be_entered_again(hub: Hub):
    registration = hub.register(at(1))
    async with registration:
        pass
    with pytest.raises(Closed, match="create a new one"):
        await registration.__aenter__()


async def test_an_unknown_collector_is_an_error_every_time():
    settings = parse({"registry": {"metrics": {"enabled-metrics": ["memry"]}}})
    async with mooring.connect(settings=settings) as hub:
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="memory"):
                await hub.register(at(1)).__aenter__()


async def test_a_thousand_services_leave_no_task_behind(hub: Hub):
    before = len(asyncio.all_tasks())
    for number in range(100):
        async with hub.register(Instance(f"s{number}", "10.0.0.1", 1)):
            pass
    await eventually(lambda: len(asyncio.all_tasks()) <= before + 10)


@pytest.mark.deadline
async def test_a_hub_closes_its_registrations_concurrently(
    etcd: Callable[[str], EtcdServer], tmp_path: object
):
    server = etcd("3.5")
    async with (
        FaultProxy(server.address) as proxy,
        mooring.connect(f"etcd://{proxy.address}?namespace={tmp_path}") as hub,
    ):
        for port in range(1, 21):
            await hub.register(at(port)).__aenter__()
        proxy.blackhole()
        async with asyncio.timeout(4):  # about 3 s are promised, for one or for all together
            await hub.__aexit__()


async def test_a_deletion_batched_with_a_write_on_a_lost_lease_is_executed(hub: Hub):
    from mooring.registry.kv.commit_batches import CommitBatches

    await hub.store.commit(Put(b"/k", b""))
    batches = CommitBatches(hub.store)
    results = await asyncio.gather(
        batches.commit(Put(b"/first", b"")),
        batches.commit(Delete(key(b"/k"))),
        batches.commit(Put(b"/z", b"", 12345)),
        return_exceptions=True,
    )
    assert isinstance(results[2], StoreError)
    assert (await hub.store.read(key(b"/k"))).first is None
