"""Who makes a service on Redis change, so many times a second: half of the changes are of a status,
and an instance joins for each one that leaves. All that are there beat as they should.

python -m bench.roles.redis_producer ADDRESS INSTANCES CHANGES_PER_SECOND

It tells "ready" once the instances are there, and then changes them until it is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

import uvloop

from bench.bare_redis import Member, register, registry_at
from bench.population import instance
from bench.processes import tell
from mooring.registry.redis.registry import RedisRegistry

_EVERY = 10.0  # seconds between beats
_PER_TICK = 4  # one comes, one goes, two change
_LATE = 0.1  # seconds that are made up for


async def produce(address: str, instances: int, per_second: float) -> None:
    async with registry_at(address) as registry:
        members = dict(enumerate(await register(registry, range(instances))))
        tell("ready")
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
            # Among those in the middle, which are there and will be for a while.
            chosen = tick + instances // 4 + number * 7919 % (instances // 2)
            changed = instance(chosen, load=number)
            await members[chosen].record.beat(changed, update=True)
        # What could not be sent in time is not made up for: that would be another rate.
        due = max(due + _PER_TICK / per_second, clock() - _LATE)
        await asyncio.sleep(due - clock())


if __name__ == "__main__":
    uvloop.run(produce(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
