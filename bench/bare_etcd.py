"""A fresh etcd, and the bare driver to it: gRPC's own stubs without our client."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc.aio

from mooring.store.etcd.endpoints import EtcdEndpoint
from mooring.store.etcd.proto import Methods
from mooring.testing.etcd import EtcdServer

TIMEOUT = 5.0
# In gRPC's internal form, as in our client: converting tuples on every call costs time.
METADATA = grpc.aio.Metadata(("hasleader", "true"))


@contextmanager
def fresh_etcd() -> Iterator[EtcdServer]:
    """An empty server without fsync, so that the clients are measured and not the disk."""
    with (
        tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder,
        EtcdServer(Path(folder), flags=["--unsafe-no-fsync"]) as server,
    ):
        server.start()
        yield server


@asynccontextmanager
async def bare(server: EtcdServer) -> AsyncIterator[Methods]:
    """The stubs, on their own channel with the same options as ours."""
    endpoint = EtcdEndpoint(server.address, None, "")
    try:
        yield endpoint.methods
    finally:
        await endpoint.channel.close()
