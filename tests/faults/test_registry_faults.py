"""Registrations and views on a three-node etcd that is killed, cut off, wiped and restored."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import mooring
from mooring import Instance
from mooring.discovery.last_known_good import RetainedFeed
from mooring.hub import Hub
from mooring.store import Delete, Put, prefix
from mooring.testing.etcd import EtcdCluster, EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.faults.test_etcd_cluster import restore
from tests.waiting import eventually

COUNT = 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path) as members:
        members.start()
        yield members


@contextlib.asynccontextmanager
async def fleet(hub: Hub, count: int = COUNT, ttl: float = 15.0) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for port in range(1, count + 1):
            await stack.enter_async_context(
                hub.register(Instance("echo", "10.0.0.1", port), ttl=ttl)
            )
        yield


async def all_there(hub: Hub, count: int = COUNT) -> bool:
    return len((await hub.registry.instances("echo")).instances) == count


@pytest.mark.timeout(180)
@pytest.mark.deadline
async def test_a_rolling_kill_of_every_member_under_load_loses_no_instance(cluster: EtcdCluster):
    async with (
        mooring.connect(cluster.url) as hub,
        mooring.connect(cluster.url) as consumer,
        fleet(hub),
        consumer.discover("echo") as view,
    ):
        missed: list[str] = []

        async def call() -> None:
            while True:
                async with view.pick():
                    if len(view.instances) != COUNT:
                        missed.append(f"{len(view.instances)}")
                await asyncio.sleep(0.005)

        async def write() -> None:
            for number in range(1_000_000):
                with contextlib.suppress(mooring.MooringError):
                    await hub.store.commit(Put(b"/load", b"%d" % number))
                await asyncio.sleep(0.005)

        load = [asyncio.ensure_future(call()), asyncio.ensure_future(write())]
        for member in cluster.members:
            member.kill()
            await asyncio.sleep(0.5)
            await asyncio.to_thread(member.start)
        for task in load:
            task.cancel()
        await asyncio.wait(load)

        async def healed() -> bool:
            return await all_there(consumer) and len(view.instances) == COUNT

        await eventually(healed, within=2)
        assert not missed


@pytest.mark.timeout(120)
@pytest.mark.deadline
async def test_a_disconnected_client_is_back_two_seconds_after_healing(
    etcd: Callable[[str], EtcdServer],
):
    """Disconnected for longer than its lease: other clients see it leave and return."""
    server, namespace = etcd("3.5"), f"namespace=/{uuid.uuid4().hex}"
    async with (
        FaultProxy(server.address) as proxy,
        mooring.connect(f"etcd://{proxy.address}?{namespace}&timeout=1s") as hub,
        mooring.connect(f"{server.url}?{namespace}") as consumer,
        fleet(hub, ttl=2),
        consumer.discover("echo") as view,
    ):
        proxy.blackhole()

        async def gone() -> bool:
            return not (await consumer.registry.instances("echo")).instances

        await eventually(gone)
        await eventually(lambda: view.stale)
        assert len(view.instances) == COUNT, (
            "all went without deregistering: the view keeps its list"
        )
        proxy.heal()

        async def back() -> bool:
            return len((await consumer.registry.instances("echo")).instances) == COUNT

        await eventually(back, within=2)
        await eventually(lambda: len(view.instances) == COUNT and not view.stale, within=2)


@pytest.mark.deadline
async def test_a_wiped_registry_is_restored(etcd: Callable[[str], EtcdServer]):
    url = f"{etcd('3.5').url}?namespace=/{uuid.uuid4().hex}"
    async with mooring.connect(url) as hub, mooring.connect(url) as other, fleet(hub):
        for _ in range(3):
            await other.store.commit(Delete(prefix(b"/registry/")))

            async def back() -> bool:
                return await all_there(other)

            await eventually(back, within=2)
        assert await other.registry.info(group="default") == mooring.Group("default")


@pytest.mark.timeout(120)
@pytest.mark.deadline
async def test_a_registry_restored_from_a_backup_has_all_instances_again(
    fresh_etcd: Callable[..., EtcdServer], tmp_path: Path
):
    """The backup was made before half of the fleet registered, and before some left."""
    server = fresh_etcd(series="3.4")
    async with (
        mooring.connect(server.url) as hub,
        mooring.connect(server.url) as consumer,
        contextlib.AsyncExitStack() as stack,
    ):
        for port in range(1, 6):
            await stack.enter_async_context(hub.register(Instance("echo", "10.0.0.1", port)))
        leaving = [hub.register(Instance("echo", "10.0.0.1", port)) for port in range(90, 95)]
        for registration in leaving:
            await registration.__aenter__()
        await asyncio.to_thread(server.ctl, "snapshot", "save", str(tmp_path / "backup"))
        for registration in leaving:
            await registration.aclose()
        for port in range(6, 11):
            await stack.enter_async_context(hub.register(Instance("echo", "10.0.0.1", port)))
        view = await stack.enter_async_context(consumer.discover("echo"))
        assert len(view.instances) == 10
        server.kill()
        await asyncio.to_thread(restore, server, tmp_path / "backup")
        await asyncio.to_thread(server.start)

        # The backup has ten as well, but five of them have left.
        async def whole() -> bool:
            with contextlib.suppress(mooring.MooringError):
                listed = (await consumer.registry.instances("echo")).instances
                shown = [
                    sorted(instance.port for instance in some) for some in (listed, view.instances)
                ]
                return shown == [[*range(1, 11)]] * 2
            return False

        await eventually(whole, within=2)


TTL = 1.0

SERVICE = """
import asyncio, sys
import mooring

async def main(url):
    async with mooring.connect(url) as hub:
        async with hub.register(mooring.Instance("echo", "10.0.0.1", 1), ttl=1):
            print("ready", flush=True)
            await asyncio.sleep(1000)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.deadline
async def test_a_killed_process_is_removed_within_its_ttl_and_a_second(
    fresh_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
):
    defaults = RetainedFeed.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(RetainedFeed.__init__, "__kwdefaults__", {**defaults, "grace": 0.5})
    url = fresh_etcd().url  # the shared one grants no lease of less than 2 s
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVICE, url, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    async with mooring.connect(url) as hub:
        await process.stdout.readline()
        async with hub.discover("echo") as view:
            assert len(view.instances) == 1
            process.kill()

            async def gone() -> bool:
                return not (await hub.registry.instances("echo")).instances

            await eventually(gone, within=TTL + 1)
            await eventually(lambda: view.stale)
            await eventually(lambda: not view.instances and not view.stale)
    await process.wait()


async def away(seconds: float, fresh_etcd: Callable[..., EtcdServer]) -> None:
    """The registry stops for this time; consumers continue to call, and no call fails."""
    server = fresh_etcd()
    async with (
        mooring.connect(server.url) as hub,
        mooring.connect(server.url) as consumer,
        fleet(hub, 3, ttl=2),
        consumer.discover("echo") as view,
    ):
        server.kill()
        until = time.monotonic() + seconds
        calls = 0
        while time.monotonic() < until:
            async with view.pick():
                calls += 1
            await asyncio.sleep(0.01)
        assert len(view.instances) == 3
        await asyncio.to_thread(server.start)

        async def healed() -> bool:
            with contextlib.suppress(mooring.MooringError):
                return await all_there(consumer, 3) and not view.stale
            return False

        await eventually(healed, within=2)
        assert calls > seconds


@pytest.mark.deadline
async def test_an_outage_of_the_registry_longer_than_the_ttl(fresh_etcd: Callable[..., EtcdServer]):
    await away(5, fresh_etcd)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_an_outage_of_the_registry_of_ten_minutes(fresh_etcd: Callable[..., EtcdServer]):
    await away(600, fresh_etcd)
