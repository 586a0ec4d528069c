"""Other etcd clients, in separate Python processes, with `mooring serve`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.serving import Served

AETCD = """
import asyncio, sys
import aetcd

async def main(port):
    async with aetcd.Client("127.0.0.1", port, timeout=20) as client:
        await client.put(b"a/1", b"1")
        await client.put(b"a/2", b"2")
        assert (await client.get(b"a/1")).value == b"1"
        found = await client.get_prefix(b"a/", sort_order="descend", sort_target="key")
        assert [each.key for each in found] == [b"a/2", b"a/1"]
        lease = await client.lease(30)
        await client.put(b"l", b"x", lease=lease)
        await lease.refresh()
        assert await lease.keys() == [b"l"]
        watch = await client.watch_prefix(b"w")
        await client.put(b"w1", b"1")
        await client.delete(b"w1")
        names = []
        async for event in watch:
            names.append(event.kv.key)
            if len(names) == 2:
                break
        assert names == [b"w1", b"w1"]
        await watch.cancel()
        assert await client.replace(b"a/1", b"1", b"10")
        async with client.lock(b"lock", ttl=10) as lock:
            assert await lock.is_acquired()
        await lease.revoke()
        assert await client.get(b"l") is None
        assert (await client.delete_prefix(b"a/")).deleted == 2

asyncio.run(main(int(sys.argv[1])))
"""

ETCETRA = """
import asyncio, sys
from etcetra import EtcdClient, HostPortPair

async def main(port):
    async with EtcdClient(HostPortPair("127.0.0.1", port)).connect() as client:
        await client.put("a/1", "1")
        await client.put("a/2", "2")
        assert await client.get("a/1") == "1"
        assert dict(await client.get_prefix("a/")) == {"a/1": "1", "a/2": "2"}
        lease = await client.grant_lease(30)
        await client.put("l", "x", lease=lease)
        ready, events = asyncio.Event(), []

        async def watch():
            async for event in client.watch("w", ready_event=ready):
                events.append(event)
                if len(events) == 2:
                    return

        watching = asyncio.create_task(watch())
        await asyncio.wait_for(ready.wait(), 20)
        await client.put("w", "1")
        await client.put("w", "2")
        await asyncio.wait_for(watching, 20)
        await client.revoke_lease(lease)
        assert await client.get("l") is None
        await client.delete_prefix("a/")

asyncio.run(main(int(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    with Served("memory://") as served:
        yield served.etcd.rpartition(":")[2]


@pytest.mark.parametrize(("name", "script"), [("aetcd", AETCD), ("etcetra", ETCETRA)])
def test_another_client_works_with_mooring_serve(port: str, name: str, script: str):
    folder = Path(".tools", name).resolve()
    assert folder.is_dir(), f"{name} is missing: make tools"
    run = subprocess.run(
        [sys.executable, "-c", script, port],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert run.returncode == 0, run.stderr
