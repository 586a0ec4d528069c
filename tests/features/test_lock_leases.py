"""The leases of contenders, on every backend: handed on, ended, and none left behind."""

from __future__ import annotations

import asyncio

import pytest

from mooring.errors import Closed, LeaseNotFound
from mooring.locks.leases import Leases
from mooring.store import Store
from mooring.store.contract import Lease
from tests.waiting import eventually


async def test_a_lease_that_has_ended_leaves_no_task(store: Store):
    before = asyncio.all_tasks()
    leases = Leases(store)
    taken = [await leases.take(10) for _ in range(5)]
    for lease in taken:
        await leases.discard(lease)
    ours = [f"{lease.id:x}" for lease in taken]

    def none() -> bool:
        names = [task.get_name() for task in asyncio.all_tasks() - before]
        return not [name for name in names if any(each in name for each in ours)]

    await eventually(none)
    await leases.aclose()


async def test_closed_while_one_is_granted_it_leaves_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """At whatever moment: who asks is told, and what the store had granted is revoked."""
    grant, grants = store.grant, list[asyncio.Task[Lease]]()

    async def recorded(ttl: float) -> Lease:
        grants.append(asyncio.get_running_loop().create_task(grant(ttl)))
        return await asyncio.shield(grants[-1])

    monkeypatch.setattr(store, "grant", recorded)
    for steps in (*range(16), 24, 32, 64):
        leases = Leases(store)
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
