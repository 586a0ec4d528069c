"""A hub releases everything that it holds, even if closing is interrupted."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import mooring
from mooring import Instance
from mooring.errors import Closed, InvalidRequest, MissingExtra
from mooring.registry.registration import Registration
from mooring.store.contract import prefix
from mooring.store.embedded.sqlite_file import Journal

ONE = Instance("echo", "10.0.0.1", 80)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13])
async def test_cancelling_the_close_leaves_nothing_open(tmp_path: Path, turns: int):
    leaving = asyncio.Event()

    async def use() -> None:
        async with mooring.connect(f"sqlite://{tmp_path}/store") as hub:
            await hub.register(ONE).__aenter__()
            await hub.discover("echo").__aenter__()
            await hub.lock("a").acquire()
            leaving.set()

    task = asyncio.get_running_loop().create_task(use())
    await leaving.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    Journal(tmp_path / "store").close()  # raises if the file is still in use
    async with mooring.connect(f"sqlite://{tmp_path}/store") as hub:
        assert (await hub.registry.instances("echo")).instances == ()
        assert await hub.locks() == []


async def test_a_failure_to_close_one_thing_leaves_no_other_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def broken(_: Registration) -> None:
        raise ValueError("boom")

    hub = await mooring.connect(f"sqlite://{tmp_path}/store").__aenter__()
    registration = hub.register(ONE)
    await hub.lock("a").acquire()
    monkeypatch.setattr(Registration, "aclose", broken)
    with pytest.raises(ValueError, match="boom"):
        await hub.__aexit__(None, None, None)
    del registration
    with pytest.raises(Closed):
        _ = hub.registry
    Journal(tmp_path / "store").close()


async def test_a_hub_that_cannot_be_entered_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for module in [name for name in sys.modules if name.startswith("mooring.registry.redis")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "redis", None)
    hub = mooring.connect(f"sqlite://{tmp_path}/store", registry="redis://127.0.0.1:1")
    with pytest.raises(MissingExtra):
        await hub.__aenter__()
    Journal(tmp_path / "store").close()


class TestTenantsNamespace:
    """One setting for all uses of tenants by a hub."""

    async def test_readers_and_publishers_share_the_namespace(self):
        async with mooring.connect("memory://", tenants_namespace="acme/prod") as hub:
            await hub.publisher().put(7, "meta", {"code": "acme", "name": "Acme"})
            assert (await hub.store.read(prefix(b"acme/prod/tenants/7/"))).entries
            async with hub.tenants() as tenants:
                assert tenants.by_code("acme") == 7
            async with hub.tenants(namespace="jxt") as others:
                assert others.by_code("acme") is None

    async def test_the_environment_sets_the_namespace(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("MOORING_TENANTS_NAMESPACE", "acme")
        assert mooring.connect("memory://").tenants_namespace == "acme"
        assert mooring.connect("memory://", tenants_namespace="x").tenants_namespace == "x"
        monkeypatch.setenv("MOORING_TENANTS_NAMESPACE", "")
        assert mooring.connect("memory://").tenants_namespace == "jxt"

    def test_an_empty_namespace_is_rejected(self):
        with pytest.raises(InvalidRequest, match="namespace"):
            mooring.connect("memory://", tenants_namespace="//")
