"""The leases of contenders, on every backend: handed on, ended, and none left behind."""

from __future__ import annotations

import asyncio

from mooring.locks.leases import Leases
from mooring.store import Store
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
