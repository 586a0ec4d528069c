"""A read that is cancelled before its reply leaves the store unchanged. Servers of etcd before
3.5.5 panic if a transaction that only reads is cancelled in the middle (etcd-io/etcd#14110)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest

from mooring.backends import open_store
from mooring.errors import Conflict
from mooring.store import Put, Query, Store, absent, prefix
from mooring.testing.etcd import EtcdServer
from tests.backends import usual

_TRIES = usual([40], [400], reason="the same, less often")


async def _filled(store: Store) -> None:
    for start in range(0, 2000, 100):
        await store.commit(*(Put(b"/k/%d" % n, b"x" * 500) for n in range(start, start + 100)))


@pytest.mark.parametrize("tries", _TRIES)
@pytest.mark.parametrize("checked", [False, True], ids=["reads", "reads under a check"])
async def test_reads_can_be_cancelled_at_any_moment(
    fresh_etcd: Callable[..., EtcdServer], checked: bool, tries: int
):
    async with open_store(fresh_etcd().url) as store:
        await _filled(store)
        chance = random.Random(1)
        everything = [Query(prefix(b"/k/"))] * 4
        require = [absent(b"/k/1")] if checked else []

        async def read() -> None:
            with contextlib.suppress(Conflict):
                await store.commit(require=require, read=everything)

        for _ in range(tries):
            task = asyncio.ensure_future(read())
            await asyncio.sleep(chance.uniform(0, 0.02))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert len((await store.read(prefix(b"/k/"))).entries) == 2000
