"""A fresh etcd, and the bare driver to it: gRPC's own stubs with nothing of ours around a call."""

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
# In the form that gRPC works with, as ours: it takes time to make it of tuples for every call.
METADATA = grpc.aio.Metadata(("hasleader", "true"))


@contextmanager
def fresh_etcd() -> Iterator[EtcdServer]:
    """An empty server, which does not wait for the disk: the clients are what is measured."""
    with (
        tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder,
        EtcdServer(Path(folder), flags=["--unsafe-no-fsync"]) as server,
    ):
        server.start()
        yield server


@asynccontextmanager
async def bare(server: EtcdServer) -> AsyncIterator[Methods]:
    """The stubs, on a channel of their own with the options that ours has."""
    endpoint = EtcdEndpoint(server.address, None, "")
    try:
        yield endpoint.methods
    finally:
        await endpoint.channel.close()
