"""The bridge between old and new keys of tenants, and a copy, over faulty connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Callable

import pytest

from mooring.backends import open_store
from mooring.errors import NotConfigured, StoreError, Taken
from mooring.migrate.jxt.bridge import Bridge
from mooring.migrate.jxt.migration import Migration
from mooring.store import Delete, Put, Store, prefix
from mooring.tasks import Tasks
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.secrets import Keyring
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.features.jxt_store import dump, encoded, level, made
from tests.waiting import eventually

UNITS = range(1, 9)


async def write(store: Store, chance: random.Random) -> None:
    """Write a random part on one of the sides, or on both."""
    publisher, unit, value = Publisher(store, ring=Keyring()), chance.choice(UNITS), chance.random()
    root = f"jxt//tenants/{unit}"
    quota = encoded({"uploadQuotaGb": value})
    what = chance.randrange(5)
    if what == 0:
        await store.commit(Put(f"{root}/storage".encode(), quota))
    elif what == 1:
        users = encoded([{"username": f"u{unit}", "description": str(value)}])
        await store.commit(Put(f"{root}/ftp".encode(), users))
    elif what == 2:
        await publisher.put(unit, "storage", {"uploadQuotaGb": value})
    elif what == 3:
        with contextlib.suppress(Taken):
            await publisher.put(unit, "domain/primary", f"shared{chance.randrange(4)}.example.com")
    elif chance.random() < 0.5:
        await store.commit(Delete(prefix(f"{root}/".encode())))
    else:
        try:
            await publisher.delete(unit)
        except NotConfigured:
            await publisher.put(unit, f"ftp/u{unit}", {"description": str(value)})


@pytest.mark.timeout(120)
async def test_a_bridge_continues_over_broken_connections(etcd: Callable[[str], EtcdServer]):
    server, chance = etcd("3.5"), random.Random(5)
    namespace = f"?namespace=/{uuid.uuid4().hex}/"
    tasks = Tasks()
    async with (
        FaultProxy(server.address) as proxy,
        open_store(f"{server.url}{namespace}") as direct,
        open_store(f"etcd://{proxy.address}{namespace}&timeout=2s") as behind,
    ):
        bridge = Bridge(Migration(behind, ring=Keyring()))
        running = tasks.start(bridge.run(), name="bridge")
        try:
            for fault in (proxy.reset, proxy.half_open, proxy.mute, proxy.refuse, proxy.reset):
                for _ in range(8):
                    await write(direct, chance)
                fault()
                for _ in range(8):
                    await write(direct, chance)
                await asyncio.sleep(chance.uniform(0, 0.3))
                proxy.heal()
            await eventually(lambda: level(direct, Keyring()), within=40)
            assert not running.done()
        finally:
            await tasks.aclose()


@pytest.mark.timeout(120)
async def test_a_copy_whose_replies_were_lost_can_be_repeated(etcd: Callable[[str], EtcdServer]):
    server, old = etcd("3.5"), made(6, 40)
    namespace = f"?namespace=/{uuid.uuid4().hex}/"
    async with (
        FaultProxy(server.address) as proxy,
        open_store(f"{server.url}{namespace}") as direct,
        open_store(f"etcd://{proxy.address}{namespace}&timeout=2s") as behind,
    ):
        await old.write(direct)
        migration = Migration(behind, ring=Keyring())
        for patience in (3, 8, 15):
            try:
                done = 0
                async for _ in migration.copy():
                    done += 1
                    if done == patience:
                        proxy.half_open()
            except StoreError:
                pass
            proxy.heal()
        async for _ in migration.copy():
            pass
        old.check_new(await dump(direct))
