"""A provider of tenants, on the embedded store and on etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mooring.store import Store
from mooring.tenants.read.tenants import Tenants
from tests.backends import USUAL
from tests.features.tenant_provider.support import provider


@pytest.fixture(params=USUAL)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def tenants(store: Store) -> AsyncIterator[Tenants]:
    async with provider(store) as live:
        yield live
