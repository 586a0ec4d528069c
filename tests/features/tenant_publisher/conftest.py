"""A publisher, on the embedded store and on etcd."""

from __future__ import annotations

import pytest

from mooring.store import Store
from mooring.tenants.publish.publisher import Publisher
from tests.backends import USUAL, usual
from tests.features.tenant_publisher.support import RING


@pytest.fixture(params=usual(USUAL, ["sqlite"]))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def publisher(store: Store) -> Publisher:
    return Publisher(store, ring=RING, by="alice")
