"""A store that is out of space: everything that shows its state reports that, and reads work."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mooring.errors import OutOfSpace
from mooring.server.live import problems
from mooring.store import Delete, Put, key
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.store import EmbeddedStore
from mooring.testing.etcd import EtcdServer
from tests.admin import Admin
from tests.waiting import eventually

Disarm = Callable[[Admin], Awaitable[None]]


@pytest.fixture(params=["sqlite", "etcd"])
def limited(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    fresh_etcd: Callable[..., EtcdServer],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[str, Disarm]:
    """A small store, and a function that makes room in it."""
    monkeypatch.setattr(problems, "EVERY", 0.05)
    if request.param == "sqlite":

        async def disarm_here(admin: Admin) -> None:
            store = admin.hub.store
            assert isinstance(store, EmbeddedStore)

            def disarm(engine: Engine, _: float) -> None:
                engine.out_of_space = False

            await store._runner.write(disarm)

        return f"sqlite://{tmp_path / 'store'}?quota=500KiB", disarm_here
    server = fresh_etcd(flags=["--quota-backend-bytes=2000000", "--unsafe-no-fsync"])

    async def disarm_etcd(admin: Admin) -> None:
        store = admin.hub.store
        await store.commit(Delete(key(b"/fill")))
        await store.compact((await store.read(key(b"/fill"))).revision)
        server.ctl("defrag")
        server.ctl("alarm", "disarm")

    return server.url, disarm_etcd


async def test_an_alarm_of_the_store_is_a_problem_a_metric_and_in_readyz(
    limited: tuple[str, Disarm], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    url, disarm = limited
    async with Admin(url, folder=tmp_path) as admin:

        async def reported() -> tuple[list[str], str, int, str]:
            overview = (await admin.get("/admin/overview")).json()
            metrics = (await admin.get("/metrics")).text
            value = metrics.partition("\nmooring_store_alarm ")[2].partition("\n")[0]
            ready = await admin.get("/readyz", as_=None)
            kinds = [problem["kind"] for problem in overview["problems"]]
            return kinds, value, ready.status_code, ready.text

        well: tuple[list[str], str, int, str] = ([], "0.0", 200, "ok\n")

        async def is_well() -> bool:
            return await reported() == well

        await eventually(is_well)
        with contextlib.suppress(OutOfSpace):
            while True:  # etcd checks its size now and then
                await admin.hub.store.commit(Put(b"/fill", b"x" * 100_000))

        async def is_reported() -> bool:
            return await reported() == (
                ["store_alarm"],
                "1.0",
                200,
                "ok, but the store has an alarm\n",
            )

        await eventually(is_reported)
        problem = (await admin.get("/admin/overview")).json()["problems"][0]
        assert (problem["severity"], problem["service"]) == ("critical", "")
        assert "NOSPACE" in problem["text"]
        assert problem["since"]
        assert caplog.text.count("raised an alarm") == 1
        await disarm(admin)

        await eventually(is_well)
