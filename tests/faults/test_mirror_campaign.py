"""A long campaign of random faults on a three-node etcd: a mirror misses and invents nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from pathlib import Path

import pytest

from mooring.backends import open_store
from mooring.errors import StoreError
from mooring.mirror import Mirror, RangeFeed
from mooring.session import Session
from mooring.store import Store, key, prefix
from mooring.testing.etcd import EtcdCluster
from mooring.testing.proxy import FaultProxy
from tests.faults.mirror_recorder import PREFIX, Recorder, writing
from tests.waiting import eventually

log = logging.getLogger(__name__)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_a_mirror_agrees_after_every_fault(tmp_path: Path, soak_seconds: float):
    chance = random.Random()
    with EtcdCluster(tmp_path) as cluster:
        cluster.start()
        async with contextlib.AsyncExitStack() as stack:
            proxies = [
                await stack.enter_async_context(FaultProxy(member.address))
                for member in cluster.members
            ]
            behind = "etcd://" + ",".join(proxy.address for proxy in proxies)
            store = await stack.enter_async_context(open_store(behind))
            writer = await stack.enter_async_context(open_store(cluster.url))
            mirror = Mirror(RangeFeed(store, prefix(PREFIX)))
            await stack.enter_async_context(mirror)
            session = await stack.enter_async_context(Session(store, ttl=60))
            recorder = Recorder(mirror)
            faults = Faults(cluster, proxies, writer, chance)
            until = time.monotonic() + soak_seconds
            rounds = 0
            while time.monotonic() < until:
                async with writing(writer, pause=0.02):
                    fault = chance.choice(faults.all)
                    await fault()
                    await asyncio.sleep(chance.uniform(0, 1))
                faults.heal()
                await eventually(lambda: not mirror.stale, within=15, what=fault.__name__)
                await recorder.agrees(writer, within=15)
                marks = [update.mark for update in recorder.updates if not update.resync]
                assert marks == sorted(set(marks)), fault.__name__
                assert session.state in ("alive", "suspended"), fault.__name__
                rounds += 1
            log.info("%d rounds, %d resyncs", rounds, mirror.resyncs)


class Faults:
    def __init__(
        self, cluster: EtcdCluster, proxies: list[FaultProxy], store: Store, chance: random.Random
    ) -> None:
        self.cluster, self.proxies, self.store, self.chance = cluster, proxies, store, chance
        self.all = [
            self.kill,
            self.pause,
            self.reset,
            self.half_open,
            self.blackhole,
            self.blackhole_all,
            self.compact_while_disconnected,
        ]

    async def kill(self) -> None:
        member = self.chance.choice(self.cluster.members)
        member.kill()
        await asyncio.sleep(self.chance.uniform(0, 2))
        await asyncio.to_thread(member.start)

    async def pause(self) -> None:
        member = self.chance.choice(self.cluster.members)
        member.pause()
        await asyncio.sleep(self.chance.uniform(0, 6))
        member.resume()

    async def reset(self) -> None:
        for _ in range(5):
            self.chance.choice(self.proxies).reset()
            await asyncio.sleep(self.chance.uniform(0, 0.3))

    async def half_open(self) -> None:
        for proxy in self.proxies:
            proxy.half_open()

    async def blackhole(self) -> None:
        self.chance.choice(self.proxies).blackhole()
        await asyncio.sleep(self.chance.uniform(0, 6))

    async def blackhole_all(self) -> None:
        for proxy in self.proxies:
            proxy.blackhole()
        await asyncio.sleep(self.chance.uniform(0, 8))

    async def compact_while_disconnected(self) -> None:
        for proxy in self.proxies:
            proxy.refuse()
        await asyncio.sleep(1)
        with contextlib.suppress(StoreError):
            await self.store.compact((await self.store.read(key(PREFIX))).revision)

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.heal()
