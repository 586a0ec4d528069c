"""The leases of contenders, on every backend: reused, ended, and none left behind."""

from __future__ import annotations

import asyncio

import pytest

from mooring.errors import Closed, LeaseNotFound
from mooring.locks.lease_pool import LeasePool
from mooring.locks.lock import Lock
from mooring.locks.queue import Queue
from mooring.session import clock
from mooring.store import Store
from mooring.store.contract import Lease
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time


async def test_an_ended_lease_leaves_no_task(store: Store):
    before = asyncio.all_tasks()
    leases = LeasePool(store)
    taken = [await leases.take(10) for _ in range(5)]
    for lease in taken:
        await leases.discard(lease)
    ours = [f"{lease.id:x}" for lease in taken]

    def none() -> bool:
        names = [task.get_name() for task in asyncio.all_tasks() - before]
        return not [name for name in names if any(prefix_ in name for prefix_ in ours)]

    await eventually(none)
    await leases.aclose()


async def test_the_time_of_a_lease_counts_from_its_request(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """For a grant and for a renewal: a holder must not trust a lease that the store has ended."""
    grant, renew, sent = store.grant, store.renew, list[float]()

    async def slow_grant(ttl: float) -> Lease:
        sent.append(clock())
        lease = await grant(ttl)
        await asyncio.sleep(0.5)
        return lease

    async def slow_renew(lease: int) -> float:
        began = clock()
        ttl = await renew(lease)
        await asyncio.sleep(0.5)
        sent.append(began)  # not if the session gave up this renewal
        return ttl

    monkeypatch.setattr(store, "grant", slow_grant)
    monkeypatch.setattr(store, "renew", slow_renew)
    queue = Queue(store)
    lock = Lock(queue, "sends", ttl=6, timeout=None)
    rounded = 1e-6
    async with lock as held:
        end = clock() + held.remaining
        assert end <= sent[-1] + 6 + rounded
        await eventually(lambda: clock() + held.remaining > end + 0.3)
        assert clock() + held.remaining <= sent[-1] + 6 + rounded
    await queue.aclose()


async def test_closing_during_a_grant_leaves_no_lease(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """At any moment: the caller gets an error, and a lease that the store granted is revoked."""
    grant, grants = store.grant, list[asyncio.Task[Lease]]()

    async def recorded(ttl: float) -> Lease:
        grants.append(asyncio.get_running_loop().create_task(grant(ttl)))
        return await asyncio.shield(grants[-1])

    monkeypatch.setattr(store, "grant", recorded)
    for steps in (*range(16), 24, 32, 64):
        leases = LeasePool(store)
        asks = asyncio.get_running_loop().create_task(leases.take(600))
        for _ in range(steps):
            await asyncio.sleep(0)
        await leases.aclose()
        done, _ = await asyncio.wait([asks], timeout=20)
        assert done, steps
        if (error := asks.exception()) is not None:
            assert isinstance(error, Closed)
    assert grants
    for granted in grants:
        with pytest.raises(LeaseNotFound):
            await store.renew((await granted).id)
