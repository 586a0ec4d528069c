"""A lease that is kept alive, and that knows when it is not."""

from __future__ import annotations

import asyncio
import time

import pytest

from mooring.errors import LeaseNotFound, SessionLost
from mooring.session import Session, clock
from mooring.store import Lease, Put, Store, key, prefix
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time


async def test_many_sessions_and_their_keys_survive_their_ttl(store: Store):
    sessions = [Session(store, ttl=5) for _ in range(30)]
    for session in sessions:
        await session.__aenter__()
        await store.commit(Put(b"/here/%d" % session.lease, b"", session.lease))
    await asyncio.sleep(5.5)  # real time is what is tested
    assert len((await store.read(prefix(b"/here/"))).entries) == 30
    await eventually(lambda: {session.state for session in sessions} == {"alive"})  # none was lost
    for session in sessions:
        assert 0 < session.remaining <= session.ttl
    await asyncio.gather(*(session.aclose() for session in sessions))
    assert {session.state for session in sessions} == {"closed"}
    assert (await store.read(prefix(b"/here/"))).first is None


async def test_leaving_a_session_deletes_its_keys_at_once(store: Store):
    async with Session(store, ttl=30) as session:
        await store.commit(Put(b"/here", b"", session.lease))
    assert (await store.read(key(b"/here"))).first is None
    assert session.state == "closed"
    with pytest.raises(SessionLost, match="closed"):
        session.check()


async def test_a_revoked_lease_is_a_lost_session(store: Store):
    async with Session(store, ttl=3) as session:
        session.check()
        await store.revoke(session.lease)
        async with asyncio.timeout(20):
            await session.lost.wait()
        assert session.state == "lost"
        assert session.remaining == 0
        with pytest.raises(SessionLost, match=f"{session.lease:x}"):
            session.check()


@pytest.mark.real_time
async def test_a_blocked_event_loop_loses_the_session_by_its_own_clock(store: Store):
    """A blocked loop cannot renew: the session must not trust a lease that may have expired."""
    async with Session(store, ttl=1) as session:
        time.sleep(session.ttl + 0.2)  # noqa: ASYNC251 - blocking the loop is the point
        assert session.state == "lost"
        with pytest.raises(SessionLost):
            session.check()
        async with asyncio.timeout(5):
            await session.lost.wait()


async def test_a_cancelled_body_revokes_the_lease(store: Store):
    entered = asyncio.Event()
    leases = []

    async def body() -> None:
        async with Session(store, ttl=30) as session:
            leases.append(session.lease)
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.get_running_loop().create_task(body())
    await entered.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # an impatient caller cancels twice
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(LeaseNotFound):
        await store.renew(leases[0])


ROUNDED = 1e-6
"""Seconds by which a sum of durations may differ from the total."""


async def test_the_time_counts_from_when_the_grant_was_sent(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """The clock of the store may have started right after that, however late its reply is."""
    grant, sent = store.grant, list[float]()

    async def slow(ttl: float) -> Lease:
        sent.append(clock())
        lease = await grant(ttl)
        await asyncio.sleep(0.5)
        return lease

    monkeypatch.setattr(store, "grant", slow)
    async with Session(store, ttl=10) as session:
        assert clock() + session.remaining <= sent[0] + session.ttl + ROUNDED


async def test_the_time_counts_from_when_the_renewal_was_sent(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    renew, sent = store.renew, list[float]()

    async def slow(lease: int) -> float:
        began = clock()
        ttl = await renew(lease)
        await asyncio.sleep(0.5)
        sent.append(began)  # not if the session gave up this renewal
        return ttl

    monkeypatch.setattr(store, "renew", slow)
    async with Session(store, ttl=6) as session:
        end = clock() + session.remaining
        await eventually(lambda: clock() + session.remaining > end + 0.3)
        assert clock() + session.remaining <= sent[-1] + session.ttl + ROUNDED


async def test_cancelling_the_entry_revokes_the_lease(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """The store has granted the lease, and its reply is still on the way."""
    leases: list[int] = []
    grant = store.grant

    async def slow(ttl: float) -> Lease:
        lease = await grant(ttl)
        leases.append(lease.id)
        await asyncio.sleep(0.2)
        return lease

    monkeypatch.setattr(store, "grant", slow)
    entering = asyncio.get_running_loop().create_task(Session(store, ttl=30).__aenter__())
    await eventually(lambda: bool(leases))
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    with pytest.raises(LeaseNotFound):
        await store.renew(leases[0])
