"""Locks: fair, fenced, released without a trace, and their loss is reported."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Callable

import pytest

import mooring
from mooring import Hub
from mooring.errors import (
    Closed,
    Conflict,
    InvalidName,
    InvalidRequest,
    LockLost,
    LockTimeout,
    NotHeld,
    Reentered,
)
from mooring.locks.held import Held
from mooring.messages import verbatim
from mooring.store import Delete, Put, Range, key, prefix
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.backends import without_store
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

LOCKS = prefix(b"lock/")


async def contenders(hub: Hub, range: Range = LOCKS) -> int:
    return len((await hub.store.read(range)).entries)


async def waiting(hub: Hub, count: int) -> None:
    """Wait until this number of contenders holds the lock or waits for it."""

    async def enough() -> bool:
        return await contenders(hub) == count

    await eventually(enough, what=f"{count} contenders")


class Waiter:
    """A task that acquires the lock, and keeps it until the test ends it."""

    def __init__(self, hub: Hub, **options: float) -> None:
        self.held: Held | None = None
        self.let_go = asyncio.Event()
        self._lock = hub.lock("lock", **options)
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        async with self._lock as self.held:
            await self.let_go.wait()
        self.held = None

    async def has_it(self) -> Held:
        await eventually(lambda: self.held is not None, what="a turn")
        assert self.held is not None
        return self.held

    async def done(self) -> None:
        self.let_go.set()
        await self.task


async def queued(hub: Hub, *hubs: Hub) -> list[Waiter]:
    """Waiters that queued in this order."""
    line = []
    before = await contenders(hub)
    for number, hub_ in enumerate(hubs, before + 1):
        line.append(Waiter(hub_))
        await waiting(hub, number)
    return line


async def test_a_lock_has_one_holder_at_a_time(hub: Hub, other: Hub):
    holding, most, total = 0, 0, 0

    async def work(of: Hub) -> None:
        nonlocal holding, most, total
        for _ in range(5):
            async with of.lock("lock"):
                holding += 1
                most = max(most, holding)
                total += 1
                await asyncio.sleep(0)
                holding -= 1

    await asyncio.gather(*(work(of) for of in (hub, other) for _ in range(4)))
    assert (most, total) == (1, 40)
    assert await contenders(hub) == 0


async def test_a_lock_is_granted_in_the_order_of_arrival(hub: Hub, other: Hub):
    line = await queued(hub, hub, other, hub, other)
    tokens = []
    for waiter in line:
        tokens.append((await waiter.has_it()).token)
        assert [other_waiter.held is not None for other_waiter in line].count(True) == 1
        await waiter.done()
    assert tokens == sorted(tokens)


async def test_contenders_of_one_process_have_separate_leases(hub: Hub):
    line = await queued(hub, hub, hub, hub)
    entries = (await hub.store.read(LOCKS)).entries
    assert len({entry.lease for entry in entries}) == 3
    assert {entry.key for entry in entries} == {b"lock/%x" % entry.lease for entry in entries}
    for waiter in line:
        await waiter.done()


async def test_the_check_of_a_lock_holds_only_while_it_is_held(hub: Hub, other: Hub):
    async with hub.lock("lock") as held:
        assert held.token == held.check.expected
        held.ensure()
        assert not held.suspended
        assert 0 < held.remaining <= 10
        await hub.store.commit(Put(b"/x", b"1"), require=[held.check])
    async with other.lock("lock") as later:
        assert later.token > held.token
        with pytest.raises(Conflict):
            await hub.store.commit(Put(b"/x", b"2"), require=[held.check])
    assert held.state == "released"
    with pytest.raises(NotHeld):
        await held.release()


async def test_try_acquire_does_not_wait_and_leaves_nothing(hub: Hub, other: Hub):
    async with hub.lock("lock"):
        assert await other.lock("lock").try_acquire() is None
        assert await contenders(hub) == 1
    held = await other.lock("lock").try_acquire()
    assert held is not None
    await held.release()
    assert await contenders(hub) == 0


@pytest.mark.parametrize(("timeout", "when"), [(0, "immediately"), (1, "within 1s")])
async def test_a_timeout_names_the_holder_and_leaves_nothing(
    hub: Hub, other: Hub, timeout: float, when: str
):
    async with hub.lock("lock") as held:
        with pytest.raises(LockTimeout, match=f"the lock 'lock' was not acquired {when}") as late:
            await other.lock("lock", timeout=timeout).acquire()
        if timeout:
            assert f"token {held.token}" in str(late.value)
        assert isinstance(late.value, TimeoutError)
        assert await contenders(hub) == 1
    async with other.lock("lock", timeout=20):
        pass


@pytest.mark.deadline
@pytest.mark.parametrize("stands", [True, False])
async def test_a_timeout_is_kept_if_the_store_does_not_answer(
    etcd: Callable[[str], EtcdServer], stands: bool
):
    """Within a second more, for a waiter and for a new contender; and nothing is left."""
    url = f"{etcd('3.5').url}?namespace=/{uuid.uuid4().hex}"
    async with (
        FaultProxy(etcd("3.5").address) as proxy,
        mooring.connect(url) as other,
        mooring.connect(url.replace(etcd("3.5").address, proxy.address)) as hub,
        other.lock("lock"),
    ):
        async with hub.lock("before"):  # its lease is available
            pass
        if not stands:
            proxy.blackhole()
        asked = time.monotonic()
        waiter = Waiter(hub, timeout=2)
        if stands:
            await waiting(other, 2)
            proxy.blackhole()
        with pytest.raises(LockTimeout):
            await waiter.task
        assert time.monotonic() - asked < 2 + 1 + 0.5  # both times pass in full, and then it ends
        proxy.heal()
        proxy.reset()
        await waiting(other, 1)


async def test_a_cancelled_wait_leaves_nothing(hub: Hub, other: Hub):
    first, *rest = await queued(hub, hub, other, other, hub)
    for waiter in rest:
        waiter.task.cancel()
        waiter.task.cancel()  # an impatient caller cancels twice
    results = await asyncio.gather(*(waiter.task for waiter in rest), return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert await contenders(hub) == 1
    await first.done()


async def test_cancelling_at_any_moment_leaves_nothing(hub: Hub):
    for turns in range(12):
        waiter = Waiter(hub)
        for _ in range(turns):
            await asyncio.sleep(0)
        waiter.task.cancel()
        await asyncio.gather(waiter.task, return_exceptions=True)
    await waiting(hub, 0)
    async with hub.lock("lock", timeout=20):
        pass


async def test_names_with_a_common_prefix_are_independent(hub: Hub, other: Hub):
    async with (
        hub.lock("/mylock"),
        other.lock("/mylock2", timeout=0),
        other.lock("/mylock/below", timeout=0),
    ):
        pass
    async with other.lock("/mylock/below"), hub.lock("/mylock", timeout=20):
        pass


async def test_earlier_keys_below_the_name_are_ignored(hub: Hub, other: Hub):
    """Of any kind, even if the holder must be known at once."""
    async with other.semaphore("/mylock/places", 2), other.lock("/mylock/below"):
        for lock in (
            hub.lock("/mylock"),
            hub.semaphore("/mylock", 3),
            hub.rwlock("/mylock").read(),
        ):
            async with lock as held:
                held.ensure()
            tried = await lock.try_acquire()
            assert tried is not None
            await tried.release()
        async with hub.lock("/mylock", timeout=0):
            pass
        async with other.lock("/mylock"):
            assert await hub.lock("/mylock").try_acquire() is None
            with pytest.raises(InvalidRequest, match="another kind"):
                await hub.semaphore("/mylock", 3).try_acquire()


async def test_waiting_for_oneself_is_refused(hub: Hub):
    lock = hub.lock("lock")
    async with lock:
        with pytest.raises(Reentered, match="'lock'"):
            async with lock:
                pass
        with pytest.raises(Reentered):
            await hub.lock("lock", timeout=0).acquire()
    async with lock:
        pass


async def test_a_task_refused_for_another_kind_still_cannot_wait_for_itself(hub: Hub):
    async with hub.lock("lock"):
        for ask in (hub.semaphore("lock", 2).acquire, hub.barrier("lock", 2).wait):
            with pytest.raises(InvalidRequest, match="another kind"):
                await ask()
            with pytest.raises(Reentered):
                await hub.lock("lock", timeout=1).acquire()


async def test_closing_a_lost_place_late_does_not_release_a_later_lock(hub: Hub):
    place = await hub.semaphore("lock", 2).acquire()
    await hub.store.commit(Delete(key(place.key)))
    await asyncio.wait_for(place.lost.wait(), 20)
    async with hub.lock("lock"):
        await place.aclose()
        with pytest.raises(Reentered):
            await hub.lock("lock", timeout=1).acquire()


async def test_a_lock_object_can_serve_many_tasks(hub: Hub):
    lock, done = hub.lock("lock"), []

    async def work(number: int) -> None:
        async with lock as held:
            await asyncio.sleep(0)
            held.ensure()
            done.append(number)

    await asyncio.gather(*map(work, range(5)))
    assert sorted(done) == [0, 1, 2, 3, 4]


async def lose(hub: Hub, held: Held) -> None:
    """Revoke its lease, like an operator."""
    await hub.store.revoke(int(held.key.rpartition(b"/")[2], 16))


async def test_a_lost_lease_cancels_the_body_and_leaving_raises(hub: Hub, other: Hub):
    reached = cancelled = False
    task = asyncio.current_task()
    assert task is not None
    lock = hub.lock("lock", ttl=15)

    async def body() -> None:
        nonlocal reached, cancelled
        async with lock as held:
            helds.append(held)
            await lose(other, held)
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                cancelled = True
                raise
            reached = True

    helds: list[Held] = []
    with pytest.raises(LockLost, match="'lock'") as lost:
        await body()
    assert cancelled
    assert not reached
    assert helds[0].lost.is_set()
    assert helds[0].state == "lost"
    assert isinstance(lost.value.__cause__, asyncio.CancelledError)
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # no cancellation is left over
    async with hub.lock("lock", timeout=20):
        pass


async def test_a_deleted_key_is_a_lost_lock(hub: Hub, other: Hub):
    async def body() -> None:
        async with hub.lock("lock", ttl=60) as held:
            await other.store.commit(Delete(key(held.key)))
            await asyncio.sleep(30)

    with pytest.raises(LockLost, match="deleted"):
        await body()


async def test_an_unnoticed_loss_is_raised_when_leaving(hub: Hub, other: Hub):
    with pytest.raises(LockLost):
        async with hub.lock("lock", ttl=60) as held:
            await other.store.commit(Delete(key(held.key)))


async def test_a_body_that_continues_after_a_loss_cannot_commit(hub: Hub, other: Hub):
    async def body() -> None:
        async with hub.lock("lock", ttl=15) as held:
            await lose(other, held)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(30)
            async with other.lock("lock", timeout=20) as theirs:
                assert theirs.token > held.token
                with pytest.raises(Conflict):
                    await hub.store.commit(Put(b"/x", b""), require=[held.check])
            with pytest.raises(LockLost):
                held.ensure()

    with pytest.raises(LockLost):
        await body()


async def test_an_error_of_the_body_is_not_hidden_by_the_loss(hub: Hub, other: Hub):
    async def body() -> None:
        async with hub.lock("lock", ttl=60) as held:
            await other.store.commit(Delete(key(held.key)))
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as raised:
        await body()
    assert "is lost" in raised.value.__notes__[0]


async def test_closing_in_the_body_does_not_hide_a_loss(hub: Hub):
    async def body() -> None:
        async with hub.lock("lock") as held:
            try:
                await lose(hub, held)
                await asyncio.sleep(60)
            finally:
                await held.aclose()

    with pytest.raises(LockLost):
        await body()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_forked_child_that_leaves_the_body_releases_nothing(hub: Hub):
    """It leaves the same blocks, but holds nothing."""
    lock, queue = hub.lock("lock"), hub._queue()
    async with lock as held:
        child = os.fork()
        if not child:
            silent = False
            try:
                with contextlib.suppress(NotHeld):
                    held.ensure()
                    os._exit(2)
                for leaving in (lock.__aexit__(), held.aclose(), queue.aclose()):
                    with contextlib.suppress(StopIteration):
                        leaving.send(None)  # sends nothing to the store
                        os._exit(3)
                silent = True
            finally:
                os._exit(0 if silent else 1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert await contenders(hub) == 1
        held.ensure()


async def test_a_cancellation_from_outside_wins_over_the_loss(hub: Hub, other: Hub):
    entered = asyncio.Event()

    async def body() -> None:
        async with hub.lock("lock", ttl=60) as held:
            entered.set()
            try:
                await asyncio.sleep(10)
            finally:
                held._lose(verbatim("for the test"))

    task = asyncio.get_running_loop().create_task(body())
    await entered.wait()
    (held,) = [info.holders[0] for info in await other.locks("lock")]
    assert held.token
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await waiting(other, 0)


async def test_a_simultaneous_cancellation_and_loss_is_a_cancellation(hub: Hub):
    entered: asyncio.Future[Held] = asyncio.get_running_loop().create_future()

    async def body() -> None:
        async with hub.lock("lock", ttl=60) as held:
            entered.set_result(held)
            await asyncio.sleep(10)

    for lost_first in (True, False):
        entered = asyncio.get_running_loop().create_future()
        task = asyncio.get_running_loop().create_task(body())
        held = await entered
        steps = [lambda held=held: held._lose(verbatim("for the test")), task.cancel]
        for step in steps if lost_first else reversed(steps):
            step()
        with pytest.raises(asyncio.CancelledError):
            await task
    await waiting(hub, 0)


async def test_timeouts_around_and_inside_the_body_are_kept(hub: Hub):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), hub.lock("lock"):
            await asyncio.sleep(10)
    async with hub.lock("lock"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.sleep(10)
    assert await contenders(hub) == 0


@pytest.mark.real_time
async def test_a_blocked_event_loop_loses_the_lock_by_its_own_clock(hub: Hub):
    async def body() -> None:
        async with hub.lock("lock", ttl=2) as held:
            time.sleep(2.2)  # noqa: ASYNC251 - blocking the loop is the point
            assert held.state == "lost"
            assert held.remaining == 0

    with pytest.raises(LockLost, match="renewed in time"):
        await body()
    await waiting(hub, 0)


async def test_a_lock_can_be_held_longer_than_its_ttl(hub: Hub, other: Hub):
    async with hub.lock("lock", ttl=5) as held:
        with pytest.raises(LockTimeout):
            await other.lock("lock", timeout=5.5).acquire()
        assert held.state == "held"


async def test_waiters_in_the_middle_can_leave_in_any_way(hub: Hub, other: Hub):
    line = await queued(hub, hub, other, hub, other, hub, other)
    holder, cancelled, revoked, deleted, last, _ = line
    entries = sorted((await hub.store.read(LOCKS)).entries, key=lambda entry: entry.created)
    cancelled.task.cancel()
    await hub.store.revoke(entries[2].lease)
    await hub.store.commit(Delete(key(entries[3].key)))
    await asyncio.sleep(0.3)
    assert [waiter for waiter in line if waiter.held is not None] == [holder]
    await holder.done()
    assert (await last.has_it()).token == entries[4].created
    await last.done()
    await line[5].has_it()
    await line[5].done()
    await asyncio.gather(revoked.done(), deleted.done())  # these two queued again
    assert await contenders(hub) == 0


async def test_a_lock_acquired_without_a_block_is_released_explicitly(hub: Hub, other: Hub):
    held = await hub.lock("lock").acquire()
    assert await other.lock("lock").try_acquire() is None
    async with held:
        pass
    held = await hub.lock("lock").acquire()
    await held.aclose()
    await held.aclose()
    assert await contenders(hub) == 0


async def test_closing_the_hub_releases_everything(store_url: str, other: Hub):
    async with mooring.connect(store_url) as hub:
        held = await hub.lock("lock", ttl=600).acquire()
        waiter = Waiter(hub)
        await waiting(other, 2)
    assert held.lost.is_set()
    with pytest.raises(Exception, match="closed"):
        await waiter.task
    async with other.lock("lock", timeout=20):
        pass
    assert await contenders(other) == 0


async def test_a_closed_hub_has_left_no_key(store_url: str, other: Hub):
    """At once, before any TTL: neither the key of a holder nor those of waiters."""
    holder = await other.lock("lock").acquire()
    async with mooring.connect(store_url) as hub:
        apart = asyncio.Event()

        async def hold() -> None:
            async with hub.lock("lock/apart", ttl=600):
                apart.set()
                await asyncio.sleep(60)

        holding = asyncio.get_running_loop().create_task(hold())
        waiters = [Waiter(hub, ttl=600) for _ in range(3)]
        await apart.wait()
        await waiting(other, 5)
    assert await contenders(other) == 1
    for task in (holding, *(waiter.task for waiter in waiters)):
        with pytest.raises((Closed, LockLost), match="closed"):
            await task
    await holder.release()


async def test_a_lock_requested_while_the_hub_closes_is_not_held(store_url: str, other: Hub):
    """At any moment: the caller gets an error, no body continues, no key is left."""
    for steps in (*range(24), 32, 48, 64, 96):
        hub = await mooring.connect(store_url).__aenter__()

        async def hold(hub: Hub = hub) -> None:
            async with hub.lock("lock", ttl=600):
                await asyncio.sleep(60)

        task = asyncio.get_running_loop().create_task(hold())
        for _ in range(steps):
            await asyncio.sleep(0)
        await hub.__aexit__(None, None, None)
        assert await contenders(other) == 0, steps
        done, _ = await asyncio.wait([task], timeout=20)
        assert done, f"after {steps} steps it hangs, or holds what is not there"
        assert isinstance(task.exception(), mooring.errors.MooringError)


@without_store
@pytest.mark.parametrize("name", ["", "a/", "/", "a\nb", "a\0", "\ud800"])
async def test_a_bad_name_is_refused(hub: Hub, name: str):
    with pytest.raises(InvalidName, match="name"):
        hub.lock(name)
    with pytest.raises(InvalidName):
        hub.election(name)


@without_store
@pytest.mark.parametrize("ttl", [0, -1, 0.5, float("nan"), 1e10, True, "10s", None])
async def test_a_bad_ttl_is_refused(hub: Hub, ttl: float):
    with pytest.raises(InvalidRequest, match="TTL"):
        hub.lock("lock", ttl=ttl)


async def test_a_ttl_that_the_store_cannot_keep_is_refused(hub: Hub, backend: str):
    if backend in ("memory", "sqlite"):
        async with hub.lock("lock", ttl=1):
            pass
        return
    with pytest.raises(InvalidRequest, match=r"too short for .*: it must be at least 2s"):
        await hub.lock("lock", ttl=1).acquire()


@without_store
@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
async def test_a_bad_timeout_is_refused(hub: Hub, timeout: float):
    with pytest.raises(InvalidRequest, match="timeout"):
        hub.lock("lock", timeout=timeout)


async def test_holders_and_waiters_are_listed(hub: Hub, other: Hub):
    line = await queued(hub, hub, other)
    async with hub.lock("lock2"):
        queues = await other.locks("lock")
        assert [info.name for info in queues] == ["lock", "lock2"]
        assert len(queues[0].holders) == len(queues[0].waiting) == 1
        assert queues[0].holders[0].by
        assert await other.locks("lock2/") == []
        held = await line[0].has_it()
        assert queues[0].holders[0].token == held.token
    for waiter in line:
        await waiter.done()
    assert await other.locks() == []
