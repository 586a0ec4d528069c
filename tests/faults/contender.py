"""A process that adds to a register under a lock, again and again, even after it lost the lock.

`python -m tests.faults.contender URL LOCK NAME fenced|unfenced TTL` prints a line for everything it
does: `read TOKEN` when it has read the register and is about to write, `wrote TOKEN ITEM`,
`rejected TOKEN`, `unknown TOKEN ITEM`, `lost TOKEN`. Between reading and writing it blocks for a
moment, in which a test can stop it; when it continues it writes, even if it lost the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

import mooring
from mooring.errors import Conflict, LockLost, OutcomeUnknown, StoreError
from mooring.hub import Hub
from mooring.locks.held import Held
from mooring.store import Put, key

WINDOW = 0.2


def say(*words: object) -> None:
    print(*words, flush=True)


async def main(url: str, lock: str, name: str, fenced: bool, ttl: float) -> None:
    async with mooring.connect(url) as hub:
        number = 0
        while True:
            number += 1
            held: Held | None = None
            try:
                async with hub.lock(lock, ttl=ttl) as held:
                    await add(hub, lock, held, f"{name}.{number}", fenced)
            except LockLost:
                say("lost", held.token if held else 0)
            except StoreError:
                await asyncio.sleep(0.2)


async def add(hub: Hub, lock: str, held: Held, item: str, fenced: bool) -> None:
    register = f"{lock}-register".encode()
    entry = (await hub.store.read(key(register))).first
    before = entry.value if entry else b""
    say("read", held.token)
    time.sleep(WINDOW)  # noqa: ASYNC251 - nothing else must run between reading and writing
    put = Put(register, before + item.encode() + b" ")
    write = hub.store.commit(put, require=[held.check] if fenced else [])
    writing = asyncio.get_running_loop().create_task(write)
    while not writing.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([writing])
    try:
        writing.result()
        say("wrote", held.token, item)
    except Conflict:
        say("rejected", held.token)
    except OutcomeUnknown:
        say("unknown", held.token, item)


if __name__ == "__main__":
    _, url, lock, name, mode, ttl = sys.argv
    asyncio.run(main(url, lock, name, mode == "fenced", float(ttl)))
