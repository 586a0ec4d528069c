"""Read-write locks, semaphores, elections and barriers, on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import mooring
from mooring import Hub
from mooring.errors import InvalidRequest, LockLost, LockTimeout, NotHeld
from mooring.locks.admission_rules import PARTY, ContenderValue, encode_value
from mooring.locks.election import Leader
from mooring.locks.held import Held
from mooring.locks.lock import Lock
from mooring.store import Delete, Put, key, prefix
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time


class Task:
    """A task that acquires a lock, and keeps it until the test ends it."""

    def __init__(self, lock: Lock) -> None:
        self.held: Held | None = None
        self.let_go = asyncio.Event()
        self._lock = lock
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        async with self._lock as self.held:
            await self.let_go.wait()
        self.held = None

    async def done(self) -> None:
        self.let_go.set()
        await self.task


async def in_line(hub: Hub, *locks: Lock) -> list[Task]:
    """Tasks that queued in this order."""
    line: list[Task] = []
    for number, lock in enumerate(locks, 1):
        line.append(Task(lock))
        await stand(hub, lock.name, number)
    return line


async def stand(hub: Hub, name: str, count: int) -> None:
    """Wait until the store has the keys of this many contenders."""

    async def so() -> bool:
        return len((await hub.store.read(prefix(f"{name}/".encode()))).entries) == count

    await eventually(so, what=f"{count} contenders for {name}")


async def holding(line: list[Task], *numbers: int) -> None:
    """Wait until exactly these tasks hold it."""

    def so() -> bool:
        return [n for n, task in enumerate(line) if task.held is not None] == list(numbers)

    await eventually(so, what=f"{numbers} hold it")
    await asyncio.sleep(0.05)
    assert so()


async def nothing_is_left(hub: Hub) -> None:
    async def empty() -> bool:
        return await hub.locks() == []

    await eventually(empty)


async def test_readers_share_and_writers_exclude(hub: Hub, other: Hub):
    one, two = hub.rwlock("rw"), other.rwlock("rw")
    line = await in_line(
        hub, one.read(), two.read(), one.write(), two.read(), one.read(), two.write()
    )
    await holding(line, 0, 1)
    await line[0].done()
    await holding(line, 1)
    await line[1].done()
    await holding(line, 2)
    await line[2].done()
    await holding(line, 3, 4)
    await line[4].done()
    await holding(line, 3)
    await line[3].done()
    await holding(line, 5)
    await line[5].done()
    await nothing_is_left(hub)


async def test_a_writer_that_gives_up_lets_readers_pass(hub: Hub, other: Hub):
    lock = other.rwlock("rw")
    line = await in_line(hub, hub.rwlock("rw").read(), lock.write(), lock.read())
    await holding(line, 0)
    line[1].task.cancel()
    await holding(line, 0, 2)
    for task in (line[0], line[2]):
        await task.done()


async def test_a_plain_lock_is_a_writer(hub: Hub, other: Hub):
    async with hub.lock("rw"):
        assert await other.rwlock("rw").read().try_acquire() is None
        assert await other.rwlock("rw").write().try_acquire() is None
    async with hub.rwlock("rw").read():
        assert await other.lock("rw").try_acquire() is None
        async with other.rwlock("rw", timeout=0).read():
            pass


async def test_a_semaphore_limits_its_holders(hub: Hub, other: Hub):
    places = [of.semaphore("sem", 2) for of in (hub, other, hub, other, hub)]
    line = await in_line(hub, *places)
    await holding(line, 0, 1)
    await line[1].done()
    await holding(line, 0, 2)
    line[3].task.cancel()
    await asyncio.gather(line[3].task, return_exceptions=True)
    await line[0].done()
    await holding(line, 2, 4)
    tokens = [task.held.token for task in line if task.held is not None]
    assert tokens == sorted(set(tokens))
    for number in (2, 4):
        await line[number].done()
    await nothing_is_left(hub)


async def test_a_task_can_hold_several_places(hub: Hub):
    semaphore = hub.semaphore("sem", 2, timeout=0)
    async with semaphore, semaphore:
        with pytest.raises(LockTimeout):
            await semaphore.acquire()
    await nothing_is_left(hub)


async def test_leaving_a_semaphore_in_another_task_releases_the_place_of_the_first(hub: Hub):
    """As when another task closes a generator that has entered it."""
    semaphore = hub.semaphore("places", 3)

    async def generate() -> AsyncIterator[Held]:
        async with semaphore as held:
            yield held

    run = asyncio.get_running_loop().create_task
    generator = generate()
    first: Held = await run(anext(generator))  # type: ignore[arg-type]
    async with semaphore as second:
        await run(generator.aclose())  # type: ignore[attr-defined]
        assert (first.state, second.state) == ("released", "held")
        # If two tasks are alive, the owner is ambiguous and not guessed.
        await semaphore.__aenter__()
        with pytest.raises(NotHeld, match="which"):
            await run(semaphore.__aexit__())
        await semaphore.__aexit__()
        assert second.state == "held"


async def test_all_contenders_must_agree_on_the_size(hub: Hub, other: Hub):
    async with hub.semaphore("sem", 2):
        with pytest.raises(InvalidRequest, match=r"2 for .*, not 3"):
            await other.semaphore("sem", 3).acquire()
        with pytest.raises(InvalidRequest, match="another kind"):
            await other.lock("sem").acquire()
        with pytest.raises(InvalidRequest, match="another kind"):
            await other.barrier("sem", 2).wait()
        assert len((await hub.store.read(prefix(b"sem/"))).entries) == 1
    async with hub.lock("sem"):
        with pytest.raises(InvalidRequest, match="another kind"):
            await other.semaphore("sem", 2, timeout=0).acquire()


async def test_concurrent_contenders_must_agree_on_the_size(hub: Hub, other: Hub):
    """Even if they all come at once, so that none reads the first."""
    had: list[int] = []
    refused: list[int] = []

    async def use(of: Hub, size: int) -> None:
        try:
            async with of.semaphore("places", size, timeout=30):
                had.append(size)
        except InvalidRequest as error:
            assert "use the same size" in str(error)  # noqa: PT017 - some are refused, others are not
            refused.append(size)

    crowd = [2, 6, 2] * 10
    async with hub.semaphore("places", 2):
        await asyncio.gather(*(use(hub if n % 2 else other, size) for n, size in enumerate(crowd)))
    assert (had, refused) == ([2] * 20, [6] * 10)
    await nothing_is_left(hub)


@pytest.mark.parametrize("size", [0, -1, 1.5, None, True])
async def test_a_bad_size_is_refused(hub: Hub, size: int):
    with pytest.raises(InvalidRequest, match="places"):
        hub.semaphore("sem", size)
    with pytest.raises(InvalidRequest, match="parties"):
        hub.barrier("sem", size)


async def test_one_candidate_leads_and_the_next_follows(hub: Hub, other: Hub):
    assert await other.election("boss").leader() is None
    async with hub.election("boss").campaign("one") as first:
        leader = await other.election("boss").leader()
        assert leader == Leader(b"one", first.key, first.token, leader.lease if leader else 0)
        assert leader is not None
        assert leader.text == "one"
        follower = Task(other.election("boss").campaign("two"))
        await stand(hub, "boss", 2)
        await asyncio.sleep(0.1)
        assert follower.held is None
        await first.proclaim("one again")
        leader = await other.election("boss").leader()
        assert leader is not None
        assert leader.value == b"one again"
        await first.resign()
        await eventually(lambda: follower.held is not None)
        with pytest.raises(NotHeld):
            await first.proclaim("too late")
    await follower.done()
    assert await hub.election("boss").leader() is None


async def test_observers_see_every_leader(hub: Hub, other: Hub):
    seen: list[str | None] = []

    async def observe() -> None:
        async with other.election("boss").observe() as leaders:
            async for leader in leaders:
                seen.append(leader.text if leader else None)
                if leader and leader.value == b"end":
                    return

    task = asyncio.get_running_loop().create_task(observe())
    await eventually(lambda: seen == [None])
    async with hub.election("boss").campaign("one") as leadership:
        await eventually(lambda: seen[-1] == "one")
        await leadership.proclaim("two")
        await eventually(lambda: seen[-1] == "two")
    await eventually(lambda: seen[-1] is None)
    async with hub.election("boss").campaign("end"):
        await task
    assert seen == [None, "one", "two", None, "end"]


async def test_observing_ends_with_the_hub(store_url: str):
    seen = []
    async with mooring.connect(store_url) as hub:

        async def observe() -> None:
            async with hub.election("boss").observe() as leaders:
                async for leader in leaders:
                    seen.append(leader)  # noqa: PERF401 - streamed one by one

        task = asyncio.get_running_loop().create_task(observe())
        await eventually(lambda: seen == [None])
    async with asyncio.timeout(20):
        await task
    assert seen == [None]


async def test_a_deposed_leader_cannot_proclaim(hub: Hub, other: Hub):
    async def body() -> None:
        async with hub.election("boss").campaign("one") as leadership:
            await other.store.commit(Delete(key(leadership.key)))
            await leadership.proclaim("still me")

    with pytest.raises(LockLost, match="deleted"):
        await body()


@pytest.mark.parametrize(
    "value",
    [
        b'{"kind": "place", "size": 3}\xff',
        b'{"mooring":"1.4.0","addr":"10.0.0.1"}',
        b'{"mooring":"place","size":3}',
        b'{"mooring":"party","size":1}',
        b'{"mooring":"read"}',
        b'{"mooring":"read","by":"me","port":80}',
    ],
)
async def test_the_value_of_a_candidate_can_be_anything(hub: Hub, other: Hub, value: bytes):
    async with hub.election("boss").campaign(value):
        follower = Task(other.election("boss").campaign(value))

        async def waits() -> bool:
            (info,) = await hub.locks("boss")
            assert [(holder.kind, holder.value) for holder in info.holders] == [("", value)]
            return [(waiter.kind, waiter.value) for waiter in info.waiting] == [("", value)]

        await eventually(waits)
        assert follower.held is None
    await eventually(lambda: follower.held is not None)
    await follower.done()
    with pytest.raises(InvalidRequest, match="text or bytes"):
        hub.election("boss").campaign(5)  # type: ignore[arg-type]


async def test_no_party_passes_a_barrier_before_all_arrived(hub: Hub, other: Hub):
    passed: list[int] = []

    async def party(of: Hub, number: int) -> None:
        await of.barrier("start", 3, timeout=30).wait()
        passed.append(number)

    async with asyncio.TaskGroup() as group:
        group.create_task(party(hub, 0))
        group.create_task(party(other, 1))
        await stand(hub, "start", 2)
        await asyncio.sleep(0.2)
        assert passed == []
        group.create_task(party(hub, 2))
    assert sorted(passed) == [0, 1, 2]
    await nothing_is_left(hub)


async def test_a_barrier_can_be_used_repeatedly(hub: Hub, other: Hub):
    rounds = dict.fromkeys(range(3), 0)
    behind: list[int] = []

    async def party(of: Hub, number: int) -> None:
        barrier = of.barrier("start", 3, timeout=30)
        for turn in range(6):
            rounds[number] = turn
            await barrier.wait()
            behind.append(min(rounds.values()) - turn)

    await asyncio.gather(party(hub, 0), party(other, 1), party(hub, 2))
    assert set(behind) == {0}
    await nothing_is_left(hub)


async def test_every_round_of_a_barrier_has_its_numbers(hub: Hub, other: Hub):
    """Even if two rounds pass at the same time."""
    parties = [of.barrier("start", 2, timeout=30).wait() for of in (hub, other) * 4]
    assert sorted(await asyncio.gather(*parties)) == [0] * 4 + [1] * 4
    await nothing_is_left(hub)


async def test_a_party_that_gives_up_does_not_count(hub: Hub, other: Hub):
    with pytest.raises(LockTimeout):
        await other.barrier("start", 2, timeout=0.2).wait()
    waits = asyncio.get_running_loop().create_task(hub.barrier("start", 2, timeout=30).wait())
    await stand(hub, "start", 1)
    await asyncio.sleep(0.2)
    assert not waits.done()
    numbers = await asyncio.gather(waits, other.barrier("start", 2, timeout=30).wait())
    assert sorted(numbers) == [0, 1]


async def test_a_dead_party_blocks_others_only_until_their_timeout(hub: Hub):
    """As if it was killed just when the last of them arrived."""
    dead = await hub.store.grant(60)
    card = encode_value(ContenderValue(PARTY, "dead:1", 2))
    await hub.store.commit(Put(b"start/%x" % dead.id, card, dead.id))
    async with asyncio.timeout(20):
        with pytest.raises(LockTimeout, match="start"):
            await hub.barrier("start", 2, timeout=0.5).wait()
    await hub.store.revoke(dead.id)
    await nothing_is_left(hub)


async def test_the_last_party_of_a_barrier_does_not_wait(hub: Hub, other: Hub):
    with pytest.raises(LockTimeout):
        await hub.barrier("start", 2, timeout=0).wait()
    waits = asyncio.get_running_loop().create_task(other.barrier("start", 2, timeout=30).wait())
    await stand(hub, "start", 1)
    assert await hub.barrier("start", 2, timeout=0).wait() == 1
    assert await waits == 0
