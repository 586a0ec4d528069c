"""The remaining time of a lease, which every store returns without renewing the lease."""

from __future__ import annotations

import pytest

from mooring.errors import InvalidRequest
from mooring.store import Store
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time


async def test_a_new_lease_has_its_full_time(store: Store):
    lease = await store.grant(600)
    left = await store.remaining(lease.id)
    assert left is not None
    assert left.ttl == lease.ttl
    assert left.ttl - 60 <= left.remaining <= left.ttl


async def test_the_remaining_time_decreases_until_a_renewal(store: Store):
    lease = await store.grant(600)

    async def below(seconds: float) -> bool:
        left = await store.remaining(lease.id)
        assert left is not None
        return left.remaining < seconds

    await eventually(lambda: below(599))
    await store.renew(lease.id)
    left = await store.remaining(lease.id)
    assert left is not None
    assert left.remaining > 570


async def test_an_expired_lease_has_no_remaining_time(store: Store):
    lease = await store.grant(60)
    await store.revoke(lease.id)
    assert await store.remaining(lease.id) is None
    assert await store.remaining(12345) is None


async def test_an_invalid_lease_is_refused(store: Store):
    with pytest.raises(InvalidRequest, match="lease -1"):
        await store.remaining(-1)
