"""etcd-client-py: a binding of the Rust client, which runs its own threads."""

from __future__ import annotations

import uvloop

from bench.load import KEYS, VALUE, Order, measure, order
from etcd_client import Client, ConnectOptions  # type: ignore[import-not-found]


async def run(order: Order) -> None:
    names, value = [name.encode() for name in KEYS], VALUE.encode()
    options = ConnectOptions().with_timeout(5.0)
    async with Client([f"http://{order.host}:{order.port}"], options).connect() as client:
        if order.operation == "put":
            await measure(order, lambda n: client.put(names[n % len(names)], value))
        else:
            await measure(order, lambda n: client.get(names[n % len(names)]))


if __name__ == "__main__":
    uvloop.run(run(order()))
