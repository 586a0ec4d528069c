"""A crowd in one queue, many of which die: fair, without a thundering herd, without leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

import mooring
from mooring.errors import LeaseNotFound, LockLost, StoreError
from mooring.hub import Hub
from mooring.locks.watched_queue import Waiter
from mooring.store import Delete, Store, key, prefix
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

CROWD = 200
NAME = "crowd"


@pytest.fixture
def admitted(monkeypatch: pytest.MonkeyPatch) -> list[Waiter]:
    """The waiters that were admitted, in order."""
    admitted: list[Waiter] = []
    admit = Waiter.admit

    def recording_admit(waiter: Waiter) -> None:
        admitted.append(waiter)
        admit(waiter)

    monkeypatch.setattr(Waiter, "admit", recording_admit)
    return admitted


class Crowd:
    def __init__(self, hubs: list[Hub]) -> None:
        self.hubs = hubs
        self.tokens: list[int] = []
        """Of the holders, in the order in which they held it."""
        self.holding = 0
        self.together = 0
        """How often two held it at a time."""

    async def stand(self, hub: Hub) -> None:
        async with hub.lock(NAME, ttl=30) as held:
            self.tokens.append(held.token)
            self.holding += 1
            self.together += self.holding > 1
            try:
                await asyncio.sleep(0)
            finally:
                self.holding -= 1


async def seen_leases(store: Store, seen: set[int], stands: asyncio.Event) -> None:
    async with store.watch(prefix(f"{NAME}/".encode())) as watch:
        stands.set()
        async for batch in watch:
            seen.update(event.entry.lease for event in batch.events if event.entry)


@pytest.mark.timeout(120)
async def test_a_crowd_with_many_deaths(store_url: str, store: Store, admitted: list[Waiter]):
    chance = random.Random(7)
    leases: set[int] = set()
    loop = asyncio.get_running_loop()
    stands = asyncio.Event()
    watching = loop.create_task(seen_leases(store, leases, stands))
    await stands.wait()
    async with contextlib.AsyncExitStack() as stack:
        hubs = [await stack.enter_async_context(mooring.connect(store_url)) for _ in range(4)]
        crowd = Crowd(hubs)
        holder = await hubs[0].lock(NAME).acquire()
        tasks = [loop.create_task(crowd.stand(chance.choice(hubs))) for _ in range(CROWD)]

        async def standing(count: int) -> bool:
            return (
                len((await store.read(prefix(f"{NAME}/".encode()), keys_only=True)).entries)
                == count
            )

        await eventually(lambda: standing(CROWD + 1), within=60, what="everybody in line")
        before = len(admitted)
        dying = loop.create_task(deaths(store, tasks, chance))
        await eventually(lambda: sum(task.done() for task in tasks) > 10, what="some are gone")
        await holder.release()
        await asyncio.wait(tasks)
        await dying
        cancelled = sum(task.cancelled() for task in tasks)
        errors = [task.exception() for task in tasks if not task.cancelled()]
        # A holder whose lease was revoked at the moment of its turn gets an error.
        assert all(error is None or isinstance(error, LockLost) for error in errors)
        assert cancelled > 10
        assert len(crowd.tokens) >= CROWD - cancelled - sum(map(bool, errors))
        assert crowd.tokens == sorted(set(crowd.tokens)), "an inversion"
        assert crowd.together == 0
        # A waiter is admitted exactly once for each turn.
        assert len(admitted) - before <= len(crowd.tokens) + cancelled
        assert await standing(0)
    watching.cancel()
    for lease in leases:
        with pytest.raises(LeaseNotFound):
            await store.renew(lease)
    assert len(leases) >= CROWD


async def deaths(store: Store, tasks: list[asyncio.Task[None]], chance: random.Random) -> None:
    """Cancel tasks, revoke leases and delete keys at random."""
    victims = chance.sample(range(len(tasks)), 80)
    for number, victim in enumerate(victims):
        if number % 2:
            tasks[victim].cancel()
            continue
        line = (await store.read(prefix(f"{NAME}/".encode()))).entries
        waiting = sorted(line, key=lambda entry: entry.created)[1:]
        if waiting:
            entry = chance.choice(waiting)
            with contextlib.suppress(StoreError):
                if number % 4:
                    await store.revoke(entry.lease)
                else:
                    await store.commit(Delete(key(entry.key)))
        await asyncio.sleep(0.002)


@pytest.mark.timeout(120)
async def test_every_release_wakes_one_waiter(store_url: str, admitted: list[Waiter]):
    async with mooring.connect(store_url) as hub:
        holder = await hub.lock(NAME).acquire()
        admitted.clear()
        order: list[int] = []

        async def stand(number: int) -> None:
            async with hub.lock(NAME, ttl=30):
                order.append(number)

        tasks = [asyncio.get_running_loop().create_task(stand(number)) for number in range(50)]

        async def standing() -> bool:
            (info,) = await hub.locks(NAME)
            return len(info.waiting) == 50

        await eventually(standing, within=30)
        assert admitted == []
        await holder.release()
        await asyncio.gather(*tasks)
        assert len(admitted) == 50
        assert sorted(order) == list(range(50))
