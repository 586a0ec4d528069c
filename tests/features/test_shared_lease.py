"""The lease that the registrations of a process share: what remains of a lease that was given
up."""

from __future__ import annotations

import asyncio

import pytest

from mooring.registry.kv.shared_lease import SharedLease
from mooring.session import Session
from mooring.store import Store
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time


class Keeper:
    """A holder of keys on the lease."""

    def __init__(self) -> None:
        self.lease = self.losses = 0

    def lost(self) -> None:
        self.losses += 1

    def pulse(self) -> None: ...


def waiting_for_loss() -> list[str]:
    return [name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("lease ")]


async def test_no_task_waits_for_the_loss_of_a_lease_that_was_given_up(store: Store):
    shared, one, two = SharedLease(store, 15.0), Keeper(), Keeper()
    shared.acquire(one)
    shared.acquire(two)
    for _ in range(3):
        await shared.discard(await shared.session())
    for _ in range(3):
        await give_up_by_replacing(shared, one, two)
    session = await shared.session()
    await eventually(lambda: waiting_for_loss() == [f"lease {session.lease:x}"])
    one.losses = 0
    await store.revoke(session.lease)
    session._lose("a renewal found it gone")
    await eventually(lambda: one.losses == 1 and not waiting_for_loss())
    await shared.release(one, within=3)
    await shared.release(two, within=3)


async def give_up_by_replacing(shared: SharedLease, one: Keeper, two: Keeper) -> Session:
    session = await shared.session()
    await shared.release(two, within=3)
    shared.acquire(two)
    shared.replace()
    return session
