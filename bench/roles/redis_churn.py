"""Changes a service on Redis at a fixed rate: half are status changes, a quarter joins, a quarter
departures. All registered instances send heartbeats.

python -m bench.roles.redis_churn ADDRESS INSTANCES CHANGES_PER_SECOND

Prints "ready" once the instances are registered, and then changes them until it is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

import uvloop

from bench.bare_redis import Member, register, registry_at
from bench.population import instance
from bench.processes import emit
from mooring.registry.redis.registry import RedisRegistry

_EVERY = 10.0  # seconds between heartbeats
_PER_TICK = 4  # one join, one departure, two status changes
_LATE = 0.1  # seconds of delay to catch up on


async def produce(address: str, instances: int, per_second: float) -> None:
    async with registry_at(address) as registry:
        members = dict(enumerate(await register(registry, range(instances))))
        emit("ready")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_beat(members))
            tasks.create_task(_change(registry, members, instances, per_second))


async def _beat(members: dict[int, Member]) -> None:
    while True:
        now = list(members.values())
        for first in range(0, len(now), 1000):
            some = now[first : first + 1000]
            beats = (member.record.beat(member.instance, update=False) for member in some)
            await asyncio.gather(*beats)
            await asyncio.sleep(_EVERY * len(some) / len(now))


async def _change(
    registry: RedisRegistry, members: dict[int, Member], instances: int, per_second: float
) -> None:
    clock = asyncio.get_running_loop().time
    due = clock()
    for tick in itertools.count():
        (members[instances + tick],) = await register(registry, [instances + tick])
        await members.pop(tick).record.withdraw()
        for number in (2 * tick, 2 * tick + 1):
            # From the middle: registered now, and for a while to come.
            chosen = tick + instances // 4 + number * 7919 % (instances // 2)
            changed = instance(chosen, load=number)
            await members[chosen].record.beat(changed, update=True)
        # A longer delay is not caught up on: that would be a higher rate.
        due = max(due + _PER_TICK / per_second, clock() - _LATE)
        await asyncio.sleep(due - clock())


if __name__ == "__main__":
    uvloop.run(produce(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
