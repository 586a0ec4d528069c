"""Opens the tenants of a store and reports the time and memory that this takes.

python -m bench.roles.tenant_reader URL TENANTS

Prints [seconds of a bare read of their keys, seconds until the tenants were loaded, longest stall
of the event loop in seconds, bytes of memory per tenant].
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time

import psutil
import uvloop

from bench.generated_tenants import KEYS
from bench.processes import emit
from mooring import connect
from mooring.tasks import Tasks

_LOOK = 0.01


async def read(url: str, tenants: int) -> None:
    async with connect(url) as hub:
        started = time.perf_counter()
        await hub.store.read(KEYS.all)
        bare = time.perf_counter() - started
        gc.collect()
        before = psutil.Process().memory_info().rss
        longest = 0.0

        async def watched() -> None:
            nonlocal longest
            while True:
                now = time.monotonic()
                await asyncio.sleep(_LOOK)
                longest = max(longest, time.monotonic() - now - _LOOK)

        watch = Tasks()
        watch.start(watched(), name="who waits for its turn")
        started = time.perf_counter()
        async with hub.tenants(wait=120) as known:
            loaded = time.perf_counter() - started
            await watch.aclose()
            assert len(known.ids()) == tenants, f"{len(known.ids())} of {tenants}"
            gc.collect()
            held = psutil.Process().memory_info().rss - before
            emit([bare, loaded, longest, held / tenants])


if __name__ == "__main__":
    uvloop.run(read(sys.argv[1], int(sys.argv[2])))
