"""Changes a service at a fixed rate: half are status changes, a quarter joins, a quarter
departures.

python -m bench.roles.churn URL INSTANCES CHANGES_PER_SECOND

Prints "ready" once the instances are registered, and then changes them until it is killed. Each
change is one commit of the keys that a registration would write.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

import uvloop

from bench.population import LAYOUT, instance, populate, puts
from bench.processes import emit
from mooring.backends import open_store
from mooring.store import Delete, Put, Store, key

_PER_TICK = 10  # changes sent concurrently
_LATE = 0.1  # seconds of delay to catch up on


async def produce(url: str, instances: int, per_second: float) -> None:
    async with open_store(url) as store:
        await populate(store, range(instances))
        emit("ready")
        clock = asyncio.get_running_loop().time
        due = clock()
        for tick in itertools.count():
            numbers = range(tick * _PER_TICK, (tick + 1) * _PER_TICK)
            await asyncio.gather(*(_change(store, instances, number) for number in numbers))
            # A longer delay is not caught up on: that would be a higher rate.
            due = max(due + _PER_TICK / per_second, clock() - _LATE)
            await asyncio.sleep(due - clock())


async def _change(store: Store, instances: int, number: int) -> None:
    turn = number // 4
    if number % 4 == 0:
        await store.commit(*puts(instance(instances + turn)))
    elif number % 4 == 2:
        names = LAYOUT.encode(instance(turn))
        await store.commit(*(Delete(key(name)) for name in names))
    else:
        # From the middle: registered now, and for a while to come.
        changed = instance(turn + instances // 4 + number * 7919 % (instances // 2), load=number)
        (_, (name, value)) = LAYOUT.encode(changed).items()
        await store.commit(Put(name, value))


if __name__ == "__main__":
    uvloop.run(produce(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
