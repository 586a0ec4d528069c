"""The Lock and Election services, on a real etcd and on `mooring serve`: the same responses."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

import mooring
from mooring import Hub
from mooring.backends import open_store
from mooring.etcd_server.locking import ServerLocks
from mooring.store import Store, prefix
from mooring.store.etcd import proto
from mooring.store.etcd.proto import Methods
from mooring.testing.etcd import EtcdServer
from tests.acceptance.serving import Served
from tests.backends import usual
from tests.contract.side_by_side import methods
from tests.waiting import eventually


@pytest.fixture(
    params=usual(["etcd-3.5", "served"], ["etcd-3.4"], reason="ours is compared with etcd 3.5")
)
def address(
    request: pytest.FixtureRequest, etcd: Callable[[str], EtcdServer], served: Callable[[], str]
) -> str:
    if request.param == "served":
        return served().removeprefix("etcd://")
    return etcd(request.param.removeprefix("etcd-")).address


@pytest.fixture
async def calls(address: str) -> AsyncIterator[Methods]:
    async with methods(address) as calls_:
        yield calls_


@pytest.fixture
async def hub(address: str) -> AsyncIterator[Hub]:
    async with mooring.connect(f"etcd://{address}") as opened:
        yield opened


@pytest.fixture
def name() -> bytes:
    return uuid.uuid4().hex.encode()


async def lease(calls: Methods, ttl: int = 60) -> int:
    return int((await calls.grant(proto.LeaseGrantRequest(TTL=ttl))).ID)


async def lock(calls: Methods, name: bytes, lease: int) -> Any:
    return await calls.lock(proto.LockRequest(name=name, lease=lease))


async def keys(calls: Methods, name: bytes) -> int:
    keys_ = await calls.range(proto.RangeRequest(key=name + b"/", range_end=name + b"0"))
    return len(keys_.kvs)


async def stands(calls: Methods, name: bytes, count: int) -> None:
    async def so() -> bool:
        return await keys(calls, name) == count

    await eventually(so, within=30, what=f"{count} contenders")


async def test_a_lock_is_granted_in_order(calls: Methods, name: bytes):
    one, two = await lease(calls), await lease(calls)
    first = await lock(calls, name, one)
    assert first.key == name + b"/%x" % one
    assert first.header.revision
    second = asyncio.ensure_future(lock(calls, name, two))
    await stands(calls, name, 2)
    await asyncio.sleep(0.1)
    assert not second.done()
    await calls.unlock(proto.UnlockRequest(key=first.key))
    assert (await second).key == name + b"/%x" % two
    await calls.unlock(proto.UnlockRequest(key=(await second).key))
    assert await keys(calls, name) == 0


async def test_a_lease_has_only_one_place_in_the_queue(calls: Methods, name: bytes):
    one = await lease(calls)
    first, again = await lock(calls, name, one), await lock(calls, name, one)
    assert first.key == again.key
    assert await keys(calls, name) == 1


async def test_a_waiting_client_that_retries_is_answered_twice(calls: Methods, name: bytes):
    """Both calls of a client that retries share one place, and get the lock together."""
    first = await lock(calls, name, await lease(calls))
    two, three = await lease(calls), await lease(calls)
    waiting = asyncio.ensure_future(lock(calls, name, two))
    await stands(calls, name, 2)
    again = asyncio.ensure_future(lock(calls, name, two))
    third = asyncio.ensure_future(lock(calls, name, three))
    await stands(calls, name, 3)
    await calls.unlock(proto.UnlockRequest(key=first.key))
    async with asyncio.timeout(20):
        assert (await waiting).key == (await again).key == name + b"/%x" % two
    assert await keys(calls, name) == 2
    assert not third.done()
    third.cancel()
    await stands(calls, name, 1)


@pytest.fixture
async def memory() -> AsyncIterator[Store]:
    async with open_store(f"memory://{uuid.uuid4().hex}") as opened:
        yield opened


@pytest.fixture
async def locks(memory: Store) -> AsyncIterator[ServerLocks]:
    made = ServerLocks(memory)
    yield made
    await made.aclose()


async def places(store: Store) -> int:
    return len((await store.read(prefix(b"name/"))).entries)


async def two_wait(locks: ServerLocks, store: Store) -> bool:
    """Whether two calls wait at the second place."""
    counts = [calls.count for calls in locks._calls.values() if not calls.changing.locked()]
    return 2 in counts and await places(store) == 2


@pytest.mark.parametrize("gives_up", [0, 1])
async def test_a_cancelled_call_leaves_its_place_to_the_other_call_of_the_lease(
    locks: ServerLocks, memory: Store, gives_up: int
):
    one, two = (await memory.grant(60)).id, (await memory.grant(60)).id
    first = await locks.acquire(b"name", one, b"")
    both = [asyncio.ensure_future(locks.acquire(b"name", two, b"")) for _ in range(2)]
    await eventually(lambda: two_wait(locks, memory))
    both[gives_up].cancel()
    await asyncio.wait([both[gives_up]])
    assert await places(memory) == 2
    await locks.release(first.key)
    assert (await asyncio.wait_for(both[1 - gives_up], 20)).lease == two
    assert await places(memory) == 1


async def test_a_cancelled_call_does_not_release_the_lock_that_its_lease_holds(
    locks: ServerLocks, memory: Store
):
    """Another call of the same lease holds the lock; this one is cancelled at any moment."""
    lease = (await memory.grant(60)).id
    await locks.acquire(b"name", lease, b"")
    for steps in range(12):
        again = asyncio.ensure_future(locks.acquire(b"name", lease, b""))
        for _ in range(steps):
            await asyncio.sleep(0)
        again.cancel()
        await asyncio.wait([again])
        assert await places(memory) == 1, steps


async def test_a_call_that_is_cancelled_at_any_moment_leaves_no_place(
    locks: ServerLocks, memory: Store
):
    await locks.acquire(b"name", (await memory.grant(60)).id, b"")
    for steps in range(12):
        waits = asyncio.ensure_future(locks.acquire(b"name", (await memory.grant(60)).id, b""))
        for _ in range(steps):
            await asyncio.sleep(0)
        waits.cancel()
        await asyncio.wait([waits])
        assert await places(memory) == 1, steps


async def test_a_lock_without_a_lease_gets_one(calls: Methods, name: bytes):
    won = await lock(calls, name, 0)
    response = await calls.range(proto.RangeRequest(key=won.key))
    left = await calls.time_to_live(proto.LeaseTimeToLiveRequest(ID=response.kvs[0].lease))
    assert left.grantedTTL == 60


async def test_an_expired_lease_is_refused(calls: Methods, name: bytes):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await lock(calls, name, 12345)
    assert refused.value.details() == "etcdserver: requested lease not found"
    assert refused.value.code() is grpc.StatusCode.UNKNOWN


async def test_a_waiting_lease_is_not_renewed(calls: Methods, name: bytes):
    """Its client must renew it: if the client hangs, the other keys of the lease must expire
    too."""
    first = await lock(calls, name, await lease(calls))
    short = await lease(calls, 4)
    await calls.put(proto.PutRequest(key=name + b"-instance", value=b"", lease=short))
    waiting = asyncio.ensure_future(lock(calls, name, short))
    await stands(calls, name, 2)
    await stands(calls, name, 1)
    assert not (await calls.range(proto.RangeRequest(key=name + b"-instance"))).kvs
    await calls.unlock(proto.UnlockRequest(key=first.key))
    done, _ = await asyncio.wait([waiting], timeout=20)
    assert done, "and the call ends; etcd 3.4 says that it was won"
    waiting.exception()


async def test_a_disconnected_waiter_leaves_no_key(calls: Methods, name: bytes):
    await lock(calls, name, await lease(calls))
    waiting = asyncio.ensure_future(lock(calls, name, await lease(calls)))
    await stands(calls, name, 2)
    waiting.cancel()
    await stands(calls, name, 1)


async def test_locks_of_etcd_and_of_mooring_exclude_each_other(
    calls: Methods, hub: Hub, name: bytes
):
    won = await lock(calls, name, await lease(calls))
    assert await hub.lock(name.decode()).try_acquire() is None
    await calls.unlock(proto.UnlockRequest(key=won.key))
    async with hub.lock(name.decode(), timeout=20):
        waiting = asyncio.ensure_future(lock(calls, name, await lease(calls)))
        await stands(calls, name, 2)
        await asyncio.sleep(0.1)
        assert not waiting.done()
    await waiting


async def campaign(calls: Methods, name: bytes, lease: int, value: bytes) -> Any:
    return await calls.campaign(proto.CampaignRequest(name=name, lease=lease, value=value))


async def test_an_election_from_campaign_to_resignation(calls: Methods, hub: Hub, name: bytes):
    with pytest.raises(grpc.aio.AioRpcError) as no_leader:
        await calls.leader(proto.LeaderRequest(name=name))
    assert no_leader.value.details() == "election: no leader"
    seen = []
    observing = calls.observe(proto.LeaderRequest(name=name))

    async def observe() -> None:
        async for answer in observing:
            seen.append(answer.kv.value)  # noqa: PERF401 - streamed one by one

    watching = asyncio.ensure_future(observe())
    one = await lease(calls)
    won = await campaign(calls, name, one, b"one")
    assert won.leader.name == name
    assert won.leader.key == name + b"/%x" % one
    assert won.leader.lease == one
    assert (await calls.leader(proto.LeaderRequest(name=name))).kv.value == b"one"
    await eventually(lambda: seen == [b"one"])
    await calls.proclaim(proto.ProclaimRequest(leader=won.leader, value=b"more"))
    await eventually(lambda: seen == [b"one", b"more"])
    rival = asyncio.ensure_future(campaign(calls, name, await lease(calls), b"two"))
    await stands(calls, name, 2)
    leader = await hub.election(name.decode()).leader()
    assert leader is not None
    assert (leader.value, leader.token) == (b"more", won.leader.rev)
    await calls.resign(proto.ResignRequest(leader=won.leader))
    await rival
    await eventually(lambda: seen == [b"one", b"more", b"two"])
    with pytest.raises(grpc.aio.AioRpcError) as deposed:
        await calls.proclaim(proto.ProclaimRequest(leader=won.leader, value=b"no"))
    assert deposed.value.details() == "election: not leader"
    observing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


async def test_requests_without_a_leader_or_key_are_refused(calls: Methods):
    for call in (calls.proclaim(proto.ProclaimRequest()), calls.resign(proto.ResignRequest())):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.details() == '"leader" field must be provided'
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await calls.unlock(proto.UnlockRequest())
    assert refused.value.details() == "etcdserver: key is not provided"
    assert refused.value.code() is grpc.StatusCode.UNKNOWN


@pytest.mark.deadline
async def test_waiting_calls_fail_when_the_server_stops(name: bytes):
    with Served("memory://") as server:
        async with methods(server.etcd) as calls:
            await lock(calls, name, await lease(calls))
            waiting = asyncio.ensure_future(lock(calls, name, await lease(calls)))
            await stands(calls, name, 2)
            server.process.terminate()
            with pytest.raises(grpc.aio.AioRpcError) as stopped:
                await waiting
            assert stopped.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await asyncio.to_thread(server.end, 8) == 0  # not for its grace of ten
