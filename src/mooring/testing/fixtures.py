"""Fixtures for the tests of whoever uses Mooring. pytest finds them by itself.

| fixture | what it is | for each |
|---|---|---|
| `mooring_url` | the URL of a fresh embedded store | test |
| `mooring_hub` | a hub on it | test |
| `mooring_sync_hub` | a blocking hub on it | test |
| `mooring_etcd_server` | a real etcd on a free port | session |
| `mooring_etcd_url` | its URL, with a fresh namespace | test |
| `mooring_etcd` | a hub on that | test |
| `mooring_proxy` | a proxy before that etcd that breaks connections | test |

Async ones work with pytest-asyncio, and with anyio's plugin where that is not installed.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

# What they are made of is imported when it is used: pytest loads this module in every project.
if TYPE_CHECKING:
    import mooring
    import mooring.sync
    from mooring.testing.etcd import EtcdServer
    from mooring.testing.proxy import FaultProxy

F = TypeVar("F", bound=Callable[..., Any])


def _asynchronous(function: F) -> F:
    """A fixture for tests that are coroutines, whichever plugin runs them."""
    fixture: Callable[[F], object] = pytest.fixture
    with contextlib.suppress(ImportError):
        import pytest_asyncio

        fixture = pytest_asyncio.fixture
    return cast("F", fixture(function))


@pytest.fixture
def mooring_url() -> str:
    """The URL of an embedded store of this test's own; opened twice, it is the same store."""
    return f"memory://{uuid.uuid4().hex}"


@_asynchronous
async def mooring_hub(mooring_url: str) -> AsyncIterator[mooring.Hub]:
    """A hub on an embedded store of this test's own."""
    import mooring

    async with mooring.connect(mooring_url) as hub:
        yield hub


@pytest.fixture
def mooring_sync_hub(mooring_url: str) -> Iterator[mooring.sync.Hub]:
    """A blocking hub on an embedded store of this test's own."""
    import mooring.sync

    with mooring.sync.connect(mooring_url) as hub:
        yield hub


@pytest.fixture(scope="session")
def mooring_etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A real etcd on a free port, for all tests. Fails with the command that installs it."""
    from mooring.testing.etcd import EtcdServer

    # Nobody cuts the power of a test's machine: without synchronisation it is many times faster.
    folder = tmp_path_factory.mktemp("mooring-etcd")
    with EtcdServer(folder, flags=["--unsafe-no-fsync"]) as server:
        server.start()
        yield server


@pytest.fixture
def mooring_etcd_url(mooring_etcd_server: EtcdServer) -> str:
    """The URL of a real etcd, below a namespace of this test's own."""
    return f"{mooring_etcd_server.url}?namespace=/{uuid.uuid4().hex}"


@_asynchronous
async def mooring_etcd(mooring_etcd_url: str) -> AsyncIterator[mooring.Hub]:
    """A hub on a real etcd, below a namespace of this test's own."""
    import mooring

    async with mooring.connect(mooring_etcd_url) as hub:
        yield hub


@_asynchronous
async def mooring_proxy(mooring_etcd_server: EtcdServer) -> AsyncIterator[FaultProxy]:
    """A proxy before the real etcd, at `etcd://{mooring_proxy.address}`: it can reset connections,
    hold them up, or swallow what goes through."""
    from mooring.testing.proxy import FaultProxy

    async with FaultProxy(mooring_etcd_server.address) as proxy:
        yield proxy
