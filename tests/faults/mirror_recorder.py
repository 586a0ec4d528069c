"""Did a mirror see exactly what happened? A writer keeps the history, a recorder the updates."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

from mooring.errors import StoreError
from mooring.mirror import Mirror, Update
from mooring.store import Delete, Entry, Put, Store, key, prefix
from tests.waiting import eventually

PREFIX = b"/f/"


class Recorder:
    """The updates of a mirror, compared with the history of the store."""

    def __init__(self, mirror: Mirror[bytes, Entry]) -> None:
        self.start = mirror.mark
        self.updates: list[Update[bytes, Entry]] = []
        self.mirror = mirror
        mirror.subscribe(self.updates.append)

    async def agrees(self, store: Store, *, within: float = 20.0) -> None:
        """Assert that the mirror ends equal to the store, and saw every revision once, in order."""

        async def equal() -> bool:
            truth = await store.read(prefix(PREFIX))
            return dict(self.mirror.items) == {e.key: e for e in truth.entries}

        await eventually(equal, within=within, what="the mirror equals the store")
        state: dict[bytes, Entry | None] = {}
        for update in self.updates:
            for change in update.changes:
                if change.key in state:
                    assert state[change.key] == change.before, "a change was missed or repeated"
                state[change.key] = change.after

    async def saw_every_revision(self, store: Store) -> None:
        """Assert that the updates are the history, which a separate watch reads, without a
        resync."""
        await self.agrees(store)
        assert not any(update.resync for update in self.updates)
        recorded = [(u.mark, [(c.key, c.after) for c in u.changes]) for u in self.updates]
        truth: list[object] = []
        async with store.watch(prefix(PREFIX), after=self.start) as watch:
            while len(truth) < len(recorded):
                async with asyncio.timeout(20):
                    batch = await anext(watch)
                truth.append((batch.revision, [(e.key, e.entry) for e in batch.events]))
        assert recorded == truth


@contextlib.asynccontextmanager
async def writing(store: Store, *, pause: float = 0.005) -> AsyncIterator[list[int]]:
    """Write continuously, as far as the store accepts it; yields the revisions so far."""
    revisions: list[int] = []
    chance = random.Random(7)

    async def write() -> None:
        while True:
            name = PREFIX + b"%d" % chance.randrange(20)
            other = PREFIX + b"other%d" % chance.randrange(5)
            with contextlib.suppress(StoreError):
                if chance.random() < 0.2:
                    done = await store.commit(Delete(key(name)), Put(other, b"x"))
                else:
                    done = await store.commit(Put(name, b"%d" % len(revisions)))
                revisions.append(done.revision)
            await asyncio.sleep(pause)

    task = asyncio.get_running_loop().create_task(write())
    try:
        yield revisions
    finally:
        task.cancel()
        await asyncio.wait([task])
