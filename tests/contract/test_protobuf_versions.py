"""Our messages work with every protobuf runtime that a project may require."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.testing.etcd import EtcdServer
from tests.backends import usual

SCRIPT = """
import asyncio, sys
import google.protobuf
from mooring.backends import open_store
from mooring.store import Put, Query, absent, key, prefix

async def main():
    async with open_store(sys.argv[1]) as store:
        async with store.watch(prefix(b"/")) as watch:
            lease = await store.grant(30)
            await store.commit(Put(b"/a", b"1", lease.id), require=[absent(b"/a")],
                               read=[Query(key(b"/a"))])
            batch = await anext(watch)
        assert batch.events[0].entry == (await store.read(key(b"/a"))).first
        await store.renew(lease.id)
        await store.revoke(lease.id)
    print(google.protobuf.__version__)

asyncio.run(main())
"""


@pytest.mark.parametrize("major", usual(["5", "6"], ["7"], reason="all other tests run with it"))
def test_a_round_trip(major: str, etcd: Callable[[str], EtcdServer]):
    environment = dict(os.environ)
    if major != "7":  # the version with which the other tests run
        folder = Path(".tools", f"protobuf-{major}").resolve()
        assert folder.is_dir(), "an older protobuf is missing: make tools"
        environment["PYTHONPATH"] = str(folder)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, f"{etcd('3.5').url}?namespace=/proto{major}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"{major}.")
