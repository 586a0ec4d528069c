"""Services that a server knows are known after a restart, and to servers that start later."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import mooring
from mooring.mirror import Mirror, RangeFeed
from mooring.model import Instance
from mooring.server.live import service_history
from mooring.server.live.service_history import ServiceHistory
from mooring.testing.redis import RedisServer
from tests.admin import Admin
from tests.features.test_admin_record_store import given_key
from tests.waiting import eventually

CART = "shop/cart"


@pytest.fixture(params=["sqlite", "etcd-3.5", "redis-7.0"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_history, "EVERY", 0.05)


async def written(admin: Admin) -> dict[str, tuple[bool, bool]]:
    """The stored state: whether each service is empty, and whether it was lost."""
    assert admin.server.shared is not None
    store = await admin.server.shared.store()
    snapshot = await store.read(mooring.store.prefix(b"/mooring/services/"))
    decode = service_history._decoder.decode
    records = [(entry.key, decode(entry.value)) for entry in snapshot.entries]
    return {
        name.decode().rpartition("/")[2]: (record.emptied is not None, record.lost)
        for name, record in records
    }


async def becomes(admin: Admin, wanted: dict[str, tuple[bool, bool]]) -> None:
    async def is_so() -> bool:
        return await written(admin) == wanted

    await eventually(is_so)


async def test_the_loss_of_the_last_instance_is_known_after_a_restart(
    store_url: str, tmp_path: Path
):
    async with Admin(store_url, folder=tmp_path) as admin:
        async with admin.hub.register(Instance(CART, "10.0.0.1", 80)):
            await becomes(admin, {"shop%2Fcart": (False, False)})
        await becomes(admin, {"shop%2Fcart": (True, False)})
        known = admin.fleet.service(CART)
        assert known is not None
        emptied = known.emptied
    async with Admin(store_url, folder=tmp_path) as admin:
        await eventually(lambda: admin.fleet.loaded and bool(admin.fleet.service(CART)))
        known = admin.fleet.service(CART)
        assert known is not None

        def is_restored() -> bool:
            return (known.emptied, known.lost, known.absent) == (emptied, False, False)

        await eventually(is_restored)
        names = [
            service["serviceName"]
            for service in (await admin.get("/admin/registry/services")).json()
        ]
        assert names == [CART]
        async with admin.hub.register(Instance(CART, "10.0.0.1", 80)):
            await becomes(admin, {"shop%2Fcart": (False, False)})
            assert known.emptied is None


async def test_a_service_that_ended_while_no_server_ran_is_reported_as_missing(
    store_url: str, tmp_path: Path
):
    async with (
        mooring.connect(store_url) as hub,
        hub.register(Instance(CART, "10.0.0.1", 80)),
        Admin(store_url, folder=tmp_path) as admin,
    ):
        await becomes(admin, {"shop%2Fcart": (False, False)})
    async with Admin(store_url, folder=tmp_path) as admin:
        outlook = admin.server.problems

        def is_a_problem() -> bool:
            return [(problem.kind, problem.service) for problem in outlook.problems()] == [
                ("absent", CART)
            ]

        await eventually(is_a_problem)
        await becomes(admin, {"shop%2Fcart": (True, True)})


async def test_a_service_forgotten_right_after_a_start_stays_forgotten(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with Admin(store_url, folder=tmp_path) as admin:
        async with admin.hub.register(Instance(CART, "10.0.0.1", 80)):
            await becomes(admin, {"shop%2Fcart": (False, False)})
        await becomes(admin, {"shop%2Fcart": (True, False)})
    monkeypatch.setattr(service_history, "EVERY", 0.5)
    async with Admin(store_url, folder=tmp_path) as admin:
        await eventually(lambda: admin.fleet.forget(CART))
        await becomes(admin, {})


async def test_a_service_forgotten_while_the_store_lags_stays_forgotten(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(service_history, "RangeFeed", LateFeed)
    async with Admin(store_url, folder=tmp_path) as admin:
        async with admin.hub.register(Instance(CART, "10.0.0.1", 80)):
            await becomes(admin, {"shop%2Fcart": (False, False)})
        await becomes(admin, {"shop%2Fcart": (True, False)})
        assert admin.fleet.forget(CART)
        await becomes(admin, {})


class LateFeed(RangeFeed):
    """Delivers each change half a second late."""

    @contextlib.asynccontextmanager
    async def follow(self, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
        async with super().follow(*arguments, **named) as steps:
            yield _LateSteps(steps)


class _LateSteps:
    def __init__(self, steps: Any) -> None:
        self._steps = steps

    @property
    def heard(self) -> float:
        heard: float = self._steps.heard
        return heard

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._late()

    async def _late(self) -> AsyncIterator[Any]:
        async for step in self._steps:
            await asyncio.sleep(0.5)
            yield step


class TestSeveralServers:
    @pytest.fixture(params=["sqlite", "etcd-3.5"])
    def backend(self, request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name

    async def test_servers_share_known_and_forgotten_services(self, store_url: str, tmp_path: Path):
        a, b = given_key(tmp_path, "a", "b")
        async with Admin(store_url, folder=a) as one:
            async with one.hub.register(Instance(CART, "10.0.0.1", 80)):
                await becomes(one, {"shop%2Fcart": (False, False)})
            await becomes(one, {"shop%2Fcart": (True, False)})
            async with Admin(store_url, folder=b) as other:

                def knows() -> bool:
                    known = other.fleet.service(CART)
                    return known is not None and known.emptied is not None

                await eventually(knows)
                gone = await one.delete("/admin/registry/services/shop%2Fcart")
                assert gone.status_code == 204
                await becomes(one, {})
                await eventually(lambda: other.fleet.service(CART) is None)
                async with one.hub.register(Instance(CART, "10.0.0.1", 80)):
                    await eventually(lambda: other.fleet.service(CART) is not None)
                    await becomes(other, {"shop%2Fcart": (False, False)})

    async def test_the_first_of_two_concurrent_writes_wins(self, store_url: str, tmp_path: Path):
        a, b = given_key(tmp_path, "a", "b")
        async with Admin(store_url, folder=a) as one, Admin(store_url, folder=b):
            store, root = one.hub.store, b"/mooring/services/late/"
            async with Mirror(RangeFeed(store, mooring.store.prefix(root))) as mirror:
                pass  # from now on it lags
            async with one.hub.register(Instance(CART, "10.0.0.1", 80)):
                await eventually(lambda: one.fleet.service(CART) is not None)
                name = root + b"shop%2Fcart"
                await store.commit(mooring.store.Put(name, b"what another server wrote"))
                assert one.server.shared is not None
                history = ServiceHistory(one.fleet, one.server.shared.store, "late")
                await history._write(store, mirror)
                entry = (await store.read(mooring.store.key(name))).first
                assert entry is not None
                assert entry.value == b"what another server wrote"

    async def test_a_forgotten_service_is_written_even_after_another_server_wrote(
        self, store_url: str, tmp_path: Path
    ):
        async with Admin(store_url, folder=tmp_path) as one:
            store, root = one.hub.store, b"/mooring/services/late/"
            name, range = root + b"shop%2Fcart", mooring.store.prefix(root)
            assert one.server.shared is not None
            history = ServiceHistory(one.fleet, one.server.shared.store, "late")
            async with Mirror(RangeFeed(store, range)) as mirror:
                async with one.hub.register(Instance(CART, "10.0.0.1", 80)):
                    await eventually(lambda: one.fleet.service(CART) is not None)
                    await history._write(store, mirror)
                await eventually(lambda: name in mirror.items)
            # From now on the mirror lags.
            await store.commit(mooring.store.Put(name, b"{}"))
            await eventually(lambda: one.fleet.forget(CART))
            await history._write(store, mirror)
            assert (await store.read(mooring.store.key(name))).first is not None
            async with Mirror(RangeFeed(store, range)) as mirror:
                await history._write(store, mirror)
            assert (await store.read(mooring.store.key(name))).first is None

    async def test_another_registry_beside_the_store_has_a_separate_history(
        self, store_url: str, tmp_path: Path, redis: Callable[[str], RedisServer]
    ):
        a, b = given_key(tmp_path, "a", "b")
        beside = f"{redis('7.0').url}?namespace={uuid.uuid4().hex}"
        async with (
            Admin(store_url, folder=a) as one,
            Admin(store_url, registry=beside, folder=b) as other,
        ):
            async with other.hub.register(Instance(CART, "10.0.0.1", 80)):
                await becomes(other, {"shop%2Fcart": (False, False)})
            await becomes(other, {"shop%2Fcart": (True, False)})
            async with one.hub.register(Instance("mail", "10.0.0.1", 80)):
                await becomes(one, {"shop%2Fcart": (True, False), "mail": (False, False)})
        async with Admin(store_url, folder=a) as one:
            await eventually(lambda: one.fleet.service("mail") is not None)
            assert one.fleet.service(CART) is None
