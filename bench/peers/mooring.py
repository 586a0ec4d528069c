"""Ours, as a peer among the peers."""

from __future__ import annotations

import uvloop

from bench.load import KEYS, VALUE, Order, measure, order
from mooring.hub import open_store
from mooring.store import Put, key


async def run(order: Order) -> None:
    names, value = [name.encode() for name in KEYS], VALUE.encode()
    async with open_store(f"etcd://{order.host}:{order.port}") as store:
        if order.operation == "put":
            await measure(order, lambda n: store.commit(Put(names[n % len(names)], value)))
        else:
            await measure(order, lambda n: store.read(key(names[n % len(names)])))


if __name__ == "__main__":
    uvloop.run(run(order()))
