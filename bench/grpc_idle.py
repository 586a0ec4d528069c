"""A process with a channel to many instances, which then makes no calls.

python -m bench.grpc_idle URL SERVICE COUNT SECONDS

Prints the time from before the channel is created until all instances are connected; then, after
SECONDS without calls, the share of one core that all its threads used meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

from bench.processes import emit
from mooring import connect
from mooring.grpc.aio import channel


async def main(url: str, service: str, count: int, seconds: float) -> None:
    async with connect(url) as hub:
        began = time.perf_counter()
        async with channel(f"etcdv3:///{service}", hub=hub) as opened:
            while sum(subchannel.ready for subchannel in opened.subchannels) < count:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.005)
            emit(time.perf_counter() - began)
            await asyncio.sleep(1)
            began, cpu = time.perf_counter(), time.process_time()
            await asyncio.sleep(seconds)
            emit((time.process_time() - cpu) / (time.perf_counter() - began))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
