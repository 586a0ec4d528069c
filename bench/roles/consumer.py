"""A consumer that reports when it sees instances join and leave.

python -m bench.roles.consumer {mooring,bare,kazoo} ADDRESS

Prints "ready", then for each change [name, whether the instance is present, time]. The time is that
of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping

import uvloop

from bench.bare_etcd import METADATA
from bench.population import SERVICE
from bench.processes import emit
from bench.zookeeper import client
from mooring import Instance, connect
from mooring.mirror import Update
from mooring.store import prefix
from mooring.store.etcd.endpoints import EtcdEndpoint
from mooring.store.etcd.proto import DELETE, WatchCreateRequest, WatchRequest

BARE = prefix(b"/bench/bare/")
"""The range of the bare watch."""
NODES = "/bench/nodes"
"""The node whose children kazoo watches."""


async def mooring(address: str) -> None:
    """A live view: an instance is seen once it can be picked."""

    def changed(update: Update[str, Instance]) -> None:
        moment = time.monotonic()
        for change in update.changes:
            if (change.before is None) != (change.after is None):
                emit([change.key, change.after is not None, moment])

    async with connect(f"etcd://{address}") as hub, hub.discover(SERVICE) as view:
        view.subscribe(changed)
        emit("ready")
        await asyncio.Event().wait()


async def bare(address: str) -> None:
    """gRPC's own stub: a key is seen once its event was read."""
    call = EtcdEndpoint(address, None, "").methods.watch(metadata=METADATA)
    create = WatchCreateRequest(key=BARE.start, range_end=BARE.end)
    await call.write(WatchRequest(create_request=create))
    assert (await call.read()).created
    emit("ready")
    while True:
        events = (await call.read()).events
        moment = time.monotonic()
        for event in events:
            emit([event.kv.key.decode(), event.type != DELETE, moment])


async def kazoo(address: str) -> None:
    """kazoo's recipe: a node is seen once `ChildrenWatch` reports it."""
    with client(address) as connected:
        known: set[str] = set(connected.get_children(NODES))

        def changed(children: list[str]) -> None:
            moment, there = time.monotonic(), set(children)
            for name in sorted(known ^ there):
                emit([name, name in there, moment])
            known.clear()
            known.update(there)

        connected.ChildrenWatch(NODES, changed)
        emit("ready")
        signal.pause()  # kazoo runs its own threads


KINDS: Mapping[str, Callable[[str], Coroutine[object, object, None]]] = {
    "mooring": mooring,
    "bare": bare,
    "kazoo": kazoo,
}

if __name__ == "__main__":
    uvloop.run(KINDS[sys.argv[1]](sys.argv[2]))
