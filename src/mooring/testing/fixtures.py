"""pytest fixtures for code that uses Mooring. The plugin is loaded automatically.

| fixture | what it is | created once per |
|---|---|---|
| `mooring_url` | the URL of a fresh embedded store | test |
| `mooring_hub` | a hub on that store | test |
| `mooring_sync_hub` | a blocking hub on that store | test |
| `mooring_etcd_server` | a real etcd on a free port | session |
| `mooring_etcd_url` | its URL, with a fresh namespace | test |
| `mooring_etcd` | a hub on that URL | test |
| `mooring_proxy` | a proxy in front of that etcd that can break connections | test |

The async fixtures work with pytest-asyncio, or with the anyio plugin if that is not installed.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

# Fixtures import what they use, because pytest loads this module in every project.
if TYPE_CHECKING:
    import mooring
    import mooring.sync
    from mooring.testing.etcd import EtcdServer
    from mooring.testing.proxy import FaultProxy

F = TypeVar("F", bound=Callable[..., Any])


def _asynchronous(function: F) -> F:
    """An async fixture for whichever plugin is installed."""
    fixture: Callable[[F], object] = pytest.fixture
    with contextlib.suppress(ImportError):
        import pytest_asyncio

        fixture = pytest_asyncio.fixture
    return cast("F", fixture(function))


@pytest.fixture
def mooring_url() -> str:
    """The URL of a fresh embedded store. Opening it twice opens the same store."""
    return f"memory://{uuid.uuid4().hex}"


@_asynchronous
async def mooring_hub(mooring_url: str) -> AsyncIterator[mooring.Hub]:
    """A hub on a fresh embedded store."""
    import mooring

    async with mooring.connect(mooring_url) as hub:
        yield hub


@pytest.fixture
def mooring_sync_hub(mooring_url: str) -> Iterator[mooring.sync.Hub]:
    """A blocking hub on a fresh embedded store."""
    import mooring.sync

    with mooring.sync.connect(mooring_url) as hub:
        yield hub


@pytest.fixture(scope="session")
def mooring_etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A real etcd on a free port, shared by all tests. Fails with the command that installs it."""
    from mooring.testing.etcd import EtcdServer

    # Without fsync it is many times faster. Tests need not survive a power failure.
    folder = tmp_path_factory.mktemp("mooring-etcd")
    with EtcdServer(folder, flags=["--unsafe-no-fsync"]) as server:
        server.start()
        yield server


@pytest.fixture
def mooring_etcd_url(mooring_etcd_server: EtcdServer) -> str:
    """The URL of a real etcd, with a fresh namespace."""
    return f"{mooring_etcd_server.url}?namespace=/{uuid.uuid4().hex}"


@_asynchronous
async def mooring_etcd(mooring_etcd_url: str) -> AsyncIterator[mooring.Hub]:
    """A hub on a real etcd, with a fresh namespace."""
    import mooring

    async with mooring.connect(mooring_etcd_url) as hub:
        yield hub


@_asynchronous
async def mooring_proxy(mooring_etcd_server: EtcdServer) -> AsyncIterator[FaultProxy]:
    """A proxy in front of the real etcd, at `etcd://{mooring_proxy.address}`. It can reset, delay
    or blackhole connections."""
    from mooring.testing.proxy import FaultProxy

    async with FaultProxy(mooring_etcd_server.address) as proxy:
        yield proxy
