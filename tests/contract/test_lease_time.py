"""What is left of a lease: told by every store, and told without renewing it."""

from __future__ import annotations

import pytest

from mooring.errors import InvalidRequest
from mooring.store import Store
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time


async def test_a_lease_has_its_whole_time_when_it_is_granted(store: Store):
    lease = await store.grant(600)
    told = await store.remaining(lease.id)
    assert told is not None
    assert told.ttl == lease.ttl
    assert told.ttl - 60 <= told.remaining <= told.ttl


async def test_it_runs_down_though_it_is_asked_for_and_a_renewal_gives_it_back(store: Store):
    lease = await store.grant(600)

    async def below(seconds: float) -> bool:
        told = await store.remaining(lease.id)
        assert told is not None
        return told.remaining < seconds

    await eventually(lambda: below(599))
    await store.renew(lease.id)
    told = await store.remaining(lease.id)
    assert told is not None
    assert told.remaining > 570


async def test_of_one_that_is_gone_nothing_is_told(store: Store):
    lease = await store.grant(60)
    await store.revoke(lease.id)
    assert await store.remaining(lease.id) is None
    assert await store.remaining(12345) is None


async def test_what_is_no_lease_is_refused(store: Store):
    with pytest.raises(InvalidRequest, match="lease -1"):
        await store.remaining(-1)
