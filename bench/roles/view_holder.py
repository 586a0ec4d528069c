"""A process that holds a view of a service and reports its cost.

python -m bench.roles.view_holder URL SECONDS

Prints "ready", then at that interval [share of one core, changes per second, number of instances,
longest stall of the event loop in seconds].
"""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

from bench.population import SERVICE
from bench.processes import emit
from mooring import Instance, connect
from mooring.mirror import Update

_LOOK = 0.02


async def follow(url: str, seconds: float) -> None:
    changes = 0

    def changed(update: Update[str, Instance]) -> None:
        nonlocal changes
        changes += len(update.changes)

    async with connect(url) as hub, hub.discover(SERVICE) as view:
        view.subscribe(changed)
        emit("ready")
        while True:
            before, started, used = changes, time.monotonic(), time.process_time()
            longest = await _held_up(seconds)
            share, elapsed = time.process_time() - used, time.monotonic() - started
            emit([share / elapsed, (changes - before) / elapsed, len(view.rotation), longest])


async def _held_up(seconds: float) -> float:
    """The longest delay of a wake-up within this time."""
    longest, end = 0.0, time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        await asyncio.sleep(_LOOK)
        longest = max(longest, time.monotonic() - now - _LOOK)
    return longest


if __name__ == "__main__":
    uvloop.run(follow(sys.argv[1], float(sys.argv[2])))
