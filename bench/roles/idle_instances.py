"""A process that keeps instances registered, does nothing else, and reports the cost.

python -m bench.roles.idle_instances URL INSTANCES SETTLE SECONDS

Prints "ready" once all are registered. After another SETTLE seconds it measures for SECONDS, and
prints [share of one core, wake-ups per second, number of registrations].
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import sys
import time

import uvloop

from bench.population import here
from bench.processes import emit
from mooring import connect
from mooring.registry.registration import Registration

_TOGETHER = 8


async def rest(url: str, instances: int, settle: float, seconds: float) -> None:
    numbers, registered = iter(range(instances)), list[Registration]()
    async with connect(url) as hub:

        async def register() -> None:
            for number in numbers:
                registered.append(await hub.register(here(number)).__aenter__())

        await asyncio.gather(*itertools.starmap(register, itertools.repeat((), _TOGETHER)))
        emit("ready")
        await asyncio.sleep(settle)
        before, used, started = _wakeups(), time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        elapsed = time.monotonic() - started
        share, wakeups = (time.process_time() - used) / elapsed, (_wakeups() - before) / elapsed
        emit(
            [share, wakeups, sum(registration.state == "registered" for registration in registered)]
        )


def _wakeups() -> int:
    """How often any thread of this process has blocked."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


if __name__ == "__main__":
    uvloop.run(rest(sys.argv[1], *map(int, sys.argv[2:3]), *map(float, sys.argv[3:])))
