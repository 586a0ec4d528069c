"""Servers of an Hprose domain below two prefixes, followed through faults on a real etcd.

Only the layout `hprose` has two ranges: its keys are read with and without a leading slash.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from mooring.backends import open_store
from mooring.mirror import Mirror
from mooring.model import Instance
from mooring.registry.contract import Registry
from mooring.registry.kv.layouts.hprose import Hprose
from mooring.registry.kv.registry import StoreRegistry
from mooring.store import Delete, Put, Store, key
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.faults.test_etcd_cluster import restore
from tests.waiting import eventually

DOMAIN = "tcp.hello"
PLAIN, SLASHED = b"hprose-service/tcp.hello/", b"/hprose-service/tcp.hello/"


def value(port: int) -> bytes:
    return b'{"UUID":"u","Domain":"tcp.hello","ServerUrl":"tcp://10.0.0.1:%d/","CPU":1}' % port


def ports(mirror: Mirror[str, Instance]) -> dict[str, int]:
    return {id: instance.port for id, instance in mirror.items.items()}


async def reaches(mirror: Mirror[str, Instance], revision: int) -> None:
    await eventually(lambda: mirror.mark == revision)


@pytest.fixture(params=["memory", "etcd-3.5"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def following(store: Store) -> Mirror[str, Instance]:
    return Mirror(StoreRegistry(store, Hprose()).follow(DOMAIN))


class TestOnEveryStore:
    async def test_both_prefixes_are_one_domain(self, store: Store):
        await store.commit(Put(PLAIN + b"a", value(1)), Put(SLASHED + b"b", value(2)))
        async with following(store) as mirror:
            assert ports(mirror) == {"a": 1, "b": 2}
            await store.commit(Put(SLASHED + b"c", value(3)), Delete(key(PLAIN + b"a")))
            await eventually(lambda: ports(mirror) == {"b": 2, "c": 3})
            assert mirror.resyncs == 0

    async def test_a_server_under_both_prefixes_stays_until_both_keys_are_deleted(
        self, store: Store
    ):
        await store.commit(Put(PLAIN + b"a", value(1)))
        await store.commit(Put(SLASHED + b"a", value(1)))
        async with following(store) as mirror:
            assert ports(mirror) == {"a": 1}
            last = await store.commit(Delete(key(SLASHED + b"a")))
            await reaches(mirror, last.revision)
            assert ports(mirror) == {"a": 1}
            await store.commit(Delete(key(PLAIN + b"a")))
            await eventually(lambda: ports(mirror) == {})

    async def test_the_latest_write_of_a_server_under_both_prefixes_wins(self, store: Store):
        await store.commit(Put(SLASHED + b"a", value(1)))
        await store.commit(Put(PLAIN + b"a", value(2)))
        async with following(store) as mirror:
            assert ports(mirror) == {"a": 2}
            await store.commit(Put(SLASHED + b"a", value(3)))
            await eventually(lambda: ports(mirror) == {"a": 3})
            last = await store.commit(Put(SLASHED + b"a", b"rubbish"))
            await reaches(mirror, last.revision)
            assert ports(mirror) == {"a": 2}, "a bad key hides no good one"

    async def test_the_mark_advances_although_one_prefix_is_empty(self, store: Store):
        async with following(store) as mirror:
            for port in range(1, 4):
                last = await store.commit(Put(PLAIN + b"a", value(port)))
            await reaches(mirror, last.revision)

    async def test_an_equal_rewrite_notifies_no_subscriber(self, store: Store):
        await store.commit(Put(PLAIN + b"a", value(1)))
        async with following(store) as mirror:
            updates: list[object] = []
            mirror.subscribe(updates.append)
            last = await store.commit(Put(PLAIN + b"a", value(1)))
            await reaches(mirror, last.revision)
            assert updates == []

    async def test_a_listing_is_not_newer_than_its_oldest_part(self, store: Store):
        registry = StoreRegistry(cast("Store", _Between(store, PLAIN + b"late")), Hprose())
        listing = await registry.instances(DOMAIN)
        assert listing.instances == ()
        written = (await store.read(key(PLAIN + b"late"))).first
        assert written is not None
        assert listing.mark < written.created

    async def test_domains_under_both_prefixes_are_listed(self, store: Store):
        await store.commit(Put(PLAIN + b"a", value(1)), Put(SLASHED + b"b", value(2)))
        await store.commit(Put(SLASHED + b"a", value(1)))
        await store.commit(Put(b"/hprose-service/ws.hello/c", value(3)))
        services = await StoreRegistry(store, Hprose()).services()
        assert [*services] == [("tcp.hello", 2), ("ws.hello", 1)]

    async def test_an_operator_evicts_a_server_under_either_prefix(self, store: Store):
        await store.commit(Put(PLAIN + b"a", value(1)), Put(SLASHED + b"b", value(2)))
        await store.commit(Put(SLASHED + b"a", value(1)))
        registry: Registry = StoreRegistry(store, Hprose())
        assert await registry.deregister(DOMAIN, "a")
        assert await registry.deregister(DOMAIN, "b")
        assert (await registry.instances(DOMAIN)).instances == ()
        assert not await registry.deregister(DOMAIN, "b")


class _Between:
    """A store in which another client writes a key after each read."""

    def __init__(self, store: Store, name: bytes) -> None:
        self.url = store.url
        self._store, self._name = store, name

    async def read(self, *arguments: object, **options: object) -> object:
        snapshot = await self._store.read(*arguments, **options)  # type: ignore[arg-type]
        await self._store.commit(Put(self._name, value(9)))
        return snapshot


@dataclass
class Wire:
    """A mirror behind the proxy, and the store that it follows reached directly."""

    proxy: FaultProxy
    through: Store
    direct: Store

    async def agrees(self, mirror: Mirror[str, Instance]) -> bool:
        listing = await StoreRegistry(self.direct, Hprose()).instances(DOMAIN)
        return dict(mirror.items) == {instance.id: instance for instance in listing.instances}


@pytest.fixture
async def wire(
    etcd: Callable[[str], EtcdServer], request: pytest.FixtureRequest
) -> AsyncIterator[Wire]:
    server = etcd("3.5")
    url = f"{server.url}?namespace=/{random.getrandbits(64):x}"
    async with FaultProxy(server.address) as proxy, open_store(url) as direct:
        behind = url.replace(server.address, proxy.address) + "&timeout=2s"
        async with open_store(behind) as through:
            yield Wire(proxy, through, direct)


async def test_a_reset_is_resumed_although_one_prefix_is_empty(wire: Wire):
    async with following(wire.through) as mirror:
        for port in range(1, 4):
            last = await wire.direct.commit(Put(PLAIN + b"a", value(port)))
        await reaches(mirror, last.revision)
        for port in range(4, 8):
            await asyncio.sleep(0.15)
            wire.proxy.reset()
            last = await wire.direct.commit(Put(PLAIN + b"a", value(port)))
            await reaches(mirror, last.revision)
            assert ports(mirror) == {"a": port}
        assert mirror.resyncs == 0


async def test_a_mirror_agrees_after_writers_on_both_prefixes_and_resets(wire: Wire):
    async def write(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(80):
            name = chance.choice([PLAIN, SLASHED]) + chance.choice([b"a", b"b", b"c"])
            write: Put | Delete = Put(name, value(chance.randint(1, 9)))
            if chance.random() < 0.3:
                write = Delete(key(name))
            elif chance.random() < 0.1:
                write = Put(name, b"rubbish")
            await wire.direct.commit(write)
            await asyncio.sleep(0.01)

    async with following(wire.through) as mirror:
        writers = asyncio.gather(*(write(seed) for seed in range(3)))
        for _ in range(5):
            await asyncio.sleep(0.15)
            wire.proxy.reset()
        await writers
        await eventually(lambda: wire.agrees(mirror))
        assert mirror.resyncs == 0


async def test_compaction_during_an_outage_means_reading_again(wire: Wire):
    await wire.direct.commit(Put(PLAIN + b"a", value(1)), Put(SLASHED + b"b", value(2)))
    async with following(wire.through) as mirror:
        wire.proxy.refuse()
        await eventually(lambda: mirror.error is not None)
        await wire.direct.commit(Delete(key(SLASHED + b"b")))
        last = await wire.direct.commit(Put(PLAIN + b"c", value(3)))
        await wire.direct.compact(last.revision)
        assert ports(mirror) == {"a": 1, "b": 2}, "the last state is kept"
        wire.proxy.heal()
        await eventually(lambda: ports(mirror) == {"a": 1, "c": 3})
        assert mirror.resyncs == 1


async def test_compaction_of_one_quiet_prefix_is_harmless(wire: Wire):
    async with following(wire.through) as mirror:
        for port in range(1, 10):
            last = await wire.direct.commit(Put(PLAIN + b"a", value(port)))
        await wire.direct.compact(last.revision)
        await reaches(mirror, last.revision)
        await wire.direct.commit(Put(SLASHED + b"b", value(2)))
        await eventually(lambda: ports(mirror) == {"a": 9, "b": 2})


async def test_a_silently_dead_connection_is_detected(wire: Wire):
    await wire.direct.commit(Put(PLAIN + b"a", value(1)))
    async with following(wire.through) as mirror:
        wire.proxy.half_open()
        await wire.direct.commit(Put(PLAIN + b"a", value(2)), Put(SLASHED + b"b", value(3)))
        await eventually(lambda: ports(mirror) == {"a": 2, "b": 3})
        assert mirror.resyncs == 0


async def test_a_store_restored_from_a_backup_is_read_again(
    fresh_etcd: Callable[..., EtcdServer], tmp_path: Path
):
    server = fresh_etcd(series="3.4")
    async with open_store(server.url) as store:
        await store.commit(Put(PLAIN + b"a", value(1)), Put(SLASHED + b"b", value(2)))
        server.ctl("snapshot", "save", str(tmp_path / "backup"))
        async with following(store) as mirror:
            await store.commit(Put(PLAIN + b"a", value(3)))
            last = await store.commit(Delete(key(SLASHED + b"b")))
            await reaches(mirror, last.revision)
            server.kill()
            await asyncio.to_thread(restore, server, tmp_path / "backup")
            server.start()
            await eventually(lambda: ports(mirror) == {"a": 1, "b": 2})


async def test_a_slow_connection_and_busy_writers_do_not_prevent_following(wire: Wire):
    """The two prefixes are read one after the other: writes in between must not count as a
    difference, or reading would start again forever."""
    wire.proxy.delay(0.15)
    done = asyncio.Event()

    async def write() -> None:
        port = 0
        while not done.is_set():
            port = port % 60000 + 1
            await wire.direct.commit(
                Put(PLAIN + b"a", value(port)), Put(SLASHED + b"b", value(port))
            )
            await asyncio.sleep(0.02)

    writer = asyncio.ensure_future(write())
    async with following(wire.through) as mirror:
        updates: list[object] = []
        mirror.subscribe(updates.append)
        await eventually(lambda: len(updates) > 20)
        assert mirror.resyncs == 0
        done.set()
        await writer
        await eventually(lambda: wire.agrees(mirror))
