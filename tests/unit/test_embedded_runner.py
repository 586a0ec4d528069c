"""Memory stores of one name, in one process, across threads."""

from __future__ import annotations

import asyncio
import threading
import uuid

import pytest

from mooring.hub import connect
from mooring.store import Put, key, prefix
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.store import EmbeddedStore, memory_runner
from tests.waiting import eventually


async def test_stores_without_a_name_are_apart():
    async with connect("memory://") as one, connect("memory://") as two:
        await one.store.commit(Put(b"/a", b""))
        assert (await two.store.read(key(b"/a"))).first is None


async def test_a_name_is_forgotten_with_the_last_hub():
    url = f"memory://{uuid.uuid4().hex}"
    async with connect(url) as one:
        await one.store.commit(Put(b"/a", b""))
        async with connect(url) as two:
            assert (await two.store.read(key(b"/a"))).first is not None
    async with connect(url) as three:
        assert (await three.store.read(key(b"/a"))).first is None


async def test_a_name_is_forgotten_despite_open_watches_and_leases():
    url = f"memory://{uuid.uuid4().hex}"
    for _ in range(3):
        async with connect(url) as hub:
            assert (await hub.store.read(key(b"/a"))).first is None
            async with hub.session(ttl=5), hub.mirror(prefix(b"/")):
                await hub.store.commit(Put(b"/a", b""))


async def test_a_lease_expires_after_its_store_was_closed():
    url = f"memory://{uuid.uuid4().hex}"
    async with connect(url) as one, connect(url) as two:
        lease = await two.store.grant(2)
        await two.store.commit(Put(b"/a", b"", lease.id))
        async with one.mirror(prefix(b"/")) as mirror:
            await two.store.aclose()
            await eventually(lambda: not mirror.items, within=5)


async def test_a_busy_loop_of_calls_lets_other_tasks_run():
    """Sessions are renewed by such a task."""
    async with connect("memory://") as hub:
        ran = asyncio.Event()
        asyncio.get_running_loop().call_soon(ran.set)
        for _ in range(1000):
            await hub.store.commit(Put(b"/a", b""))
        assert ran.is_set()


@pytest.mark.real_time
async def test_event_loops_in_other_threads_share_the_store():
    """A watch in one loop sees the writes of another, and no write of many threads is lost."""
    url = f"memory://{uuid.uuid4().hex}"
    threads, commits = 4, 200

    async def write(writer: int) -> None:
        async with connect(url) as hub:
            for n in range(commits):
                await hub.store.commit(Put(b"/%d/%d" % (writer, n), b""))

    async with connect(url) as hub, hub.store.watch(prefix(b"/")) as watch:
        running = [
            threading.Thread(target=asyncio.run, args=(write(writer),)) for writer in range(threads)
        ]
        for thread in running:
            thread.start()
        async with asyncio.timeout(40):
            revisions = [(await anext(watch)).revision for _ in range(threads * commits)]
        for thread in running:
            await asyncio.to_thread(thread.join)
        assert revisions == list(range(revisions[0], revisions[0] + threads * commits))
        assert len((await hub.store.read(prefix(b"/"))).entries) == threads * commits


async def test_a_lease_expires_without_any_call():
    async with connect("memory://") as hub:
        lease = await hub.store.grant(2)
        put = await hub.store.commit(Put(b"/a", b"", lease.id))
        async with hub.store.watch(key(b"/a"), after=put.revision) as watch:
            async with asyncio.timeout(5):
                batch = await anext(watch)
        assert batch.events[0].entry is None


async def test_compacted_history_is_dropped_without_any_call():
    host = memory_runner("", Engine)
    async with EmbeddedStore(host, url="memory://") as store:
        for n in range(3000):
            done = await store.commit(Put(b"/a", b"%d" % n))
        await store.compact(done.revision)
        await eventually(lambda: not host.read(lambda engine: engine.forgetting))
        assert len(host.read(lambda engine: engine._keys._versions[b"/a"])) == 1
