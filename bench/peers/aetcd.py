"""aetcd: asyncio on grpc.aio."""

from __future__ import annotations

import aetcd  # type: ignore[import-not-found]
import uvloop

from bench.load import KEYS, VALUE, Order, measure, order


async def run(order: Order) -> None:
    names, value = [name.encode() for name in KEYS], VALUE.encode()
    async with aetcd.Client(order.host, order.port, timeout=5) as client:
        if order.operation == "put":
            await measure(order, lambda n: client.put(names[n % len(names)], value))
        else:
            await measure(order, lambda n: client.get(names[n % len(names)]))


if __name__ == "__main__":
    uvloop.run(run(order()))
