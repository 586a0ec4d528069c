"""Our locks, run like those of the other clients."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import uvloop

from bench.load import Load, Order, answer, in_flight, order
from mooring.hub import Hub, connect
from mooring.store import Delete, Put, Query, absent, key, prefix

_WARM_UP = 0.5
# Unique to this process: a cancelled recipe leaves its key behind.
_NAME = f"/bench/lock-{os.getpid()}"


async def run(order: Order) -> None:
    url = f"etcd://{order.host}:{order.port}"
    what, _, count = order.operation.partition(" of ")
    async with AsyncExitStack() as stack:
        hubs = [await stack.enter_async_context(connect(url)) for _ in range(2)]
        if what == "uncontended":
            lock = hubs[0].lock(_NAME)

            async def call(_: int) -> None:
                async with lock:
                    pass

            await in_flight(call, 1, _WARM_UP)
            answer(await in_flight(call, 1, order.seconds))
        else:
            contend = recipe if what == "recipe" else ours
            answer(await hand_over(contend, hubs, int(count), order.seconds))


Contend = Callable[[Hub], AbstractAsyncContextManager[object]]


def ours(hub: Hub) -> AbstractAsyncContextManager[object]:
    return hub.lock(_NAME)


class recipe:
    """The textbook lock: keys on leases; the oldest holds, each waiter watches its predecessor."""

    def __init__(self, hub: Hub) -> None:
        self._store = hub.store
        self._lease = 0
        self._start = f"{_NAME}/".encode()

    async def __aenter__(self) -> None:
        self._lease = self._lease or (await self._store.grant(60)).id
        self._key = self._start + b"%x" % self._lease
        made = await self._store.commit(
            Put(self._key, b"", self._lease),
            require=[absent(self._key)],
            read=[Query(prefix(self._start), limit=1, order="created")],
        )
        first = made.reads[0].entries[0]
        while first.key != self._key:
            async with self._store.watch(key(first.key), after=made.revision) as watch:
                await anext(watch)
            answer = await self._store.read(prefix(self._start), limit=1, order="created")
            first = answer.entries[0]

    async def __aexit__(self, *_: object) -> None:
        await self._store.commit(Delete(key(self._key)))


async def all_queued(hub: Hub, contenders: int) -> None:
    """Wait until nine of ten contenders are queued. The others are about to queue again."""
    start = _NAME.encode()
    while True:
        answer = await hub.store.read(prefix(start), keys_only=True)
        if len(answer.entries) >= 0.9 * contenders:
            return
        await asyncio.sleep(0.1)


async def hand_over(contend: Contend, hubs: list[Hub], contenders: int, seconds: float) -> Load:
    """Contenders on two connections that acquire the lock again as soon as they have released it. A
    hand-off lasts from a release to the acquisition by another contender."""
    changes, latencies = 0, list[float]()
    last, released, end = -1, 0.0, float("inf")
    clock = time.perf_counter

    async def contender(number: int) -> None:
        nonlocal changes, last, released
        lock = contend(hubs[number % 2])
        while clock() < end:
            async with lock:
                if last != number:
                    changes += 1
                    latencies.append(clock() - released)
                last = number
                released = clock()

    tasks = [asyncio.create_task(contender(number)) for number in range(contenders)]
    await all_queued(hubs[0], contenders)
    await asyncio.sleep(_WARM_UP)
    changes, start = 0, clock()
    latencies.clear()
    await asyncio.sleep(seconds)
    done, elapsed, taken = changes, clock() - start, sorted(latencies)
    end = 0.0
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return Load(done / elapsed, taken[len(taken) // 2] * 1000)


if __name__ == "__main__":
    logging.getLogger("mooring").setLevel(
        logging.ERROR
    )  # otherwise it warns that the machine is busy
    uvloop.run(run(order()))
