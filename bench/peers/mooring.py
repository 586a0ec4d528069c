"""Our client, run like the other clients."""

from __future__ import annotations

import itertools

import uvloop

from bench.load import KEYS, VALUE, Order, measure, order
from bench.population import here
from mooring.backends import open_store
from mooring.hub import connect
from mooring.store import Put, key


async def run(order: Order) -> None:
    if order.operation == "register":
        return await register(order)
    names, value = [name.encode() for name in KEYS], VALUE.encode()
    async with open_store(f"etcd://{order.host}:{order.port}") as store:
        if order.operation == "put":
            await measure(order, lambda n: store.commit(Put(names[n % len(names)], value)))
        else:
            await measure(order, lambda n: store.read(key(names[n % len(names)])))


async def register(order: Order) -> None:
    """Registers instances, which stay registered until the end."""
    numbers = itertools.count()
    async with connect(f"etcd://{order.host}:{order.port}") as hub:

        async def enter(_: int) -> None:
            registration = await hub.register(here(next(numbers))).__aenter__()
            assert registration.state == "registered"

        await measure(order, enter)


if __name__ == "__main__":
    uvloop.run(run(order()))
