"""etcetra: asyncio on grpc.aio. Its reads are serializable, and calls have no deadline."""

from __future__ import annotations

import uvloop
from etcetra import EtcdClient, HostPortPair  # type: ignore[import-not-found]

from bench.load import KEYS, VALUE, Order, measure, order


async def run(order: Order) -> None:
    async with EtcdClient(HostPortPair(order.host, order.port)).connect() as client:
        if order.operation == "put":
            await measure(order, lambda n: client.put(KEYS[n % len(KEYS)], VALUE))
        else:
            await measure(order, lambda n: client.get(KEYS[n % len(KEYS)]))


if __name__ == "__main__":
    uvloop.run(run(order()))
