"""A start from the cache file of the last tenants while the store is unavailable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import mooring
from mooring.backends import open_store
from mooring.errors import Unavailable
from mooring.store import Delete, Put, Store
from mooring.tenants.keys import TenantKeys
from mooring.tenants.read.disk_cache import TenantCache
from mooring.tenants.read.parser import Changed
from mooring.tenants.read.provider import Provider
from mooring.tenants.secrets import Keyring
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.acceptance.serving import Served
from tests.features.tenant_provider.support import DEAD, KEYS, WHOLE, common, how, part, provider
from tests.waiting import eventually


class Disconnected:
    """A store behind a proxy that lets nothing through, and the cache file of its tenants."""

    def __init__(self, direct: Store, through: Store, proxy: FaultProxy, file: Path) -> None:
        self.direct, self.through, self.proxy, self.file = direct, through, proxy, file


@pytest.fixture
async def disconnected(
    etcd: Callable[[str], EtcdServer], tmp_path: Path
) -> AsyncIterator[Disconnected]:
    server = etcd("3.5")
    async with FaultProxy(server.address) as proxy:
        options = f"?namespace=/{tmp_path.name}-{id(proxy)}"
        async with (
            open_store(f"{server.url}{options}") as direct,
            open_store(f"etcd://{proxy.address}{options}&timeout=1s") as through,
        ):
            file = tmp_path / "tenants.copy"
            await direct.commit(*WHOLE)
            async with provider(through, file=file):
                pass
            proxy.refuse()
            yield Disconnected(direct, through, proxy, file)


@pytest.fixture(params=["etcd", "mooring serve"])
def stopped(
    request: pytest.FixtureRequest, fresh_etcd: Callable[..., EtcdServer], tmp_path: Path
) -> tuple[str, Path]:
    """The URL of a server that was stopped, and the cache folder of a hub that used it."""
    folder = tmp_path / "cache"

    async def publish(url: str) -> None:
        async with mooring.connect(url, cache=folder) as hub:
            await hub.store.commit(*WHOLE)
            async with hub.tenants():
                pass

    if request.param == "etcd":
        server = fresh_etcd()
        asyncio.run(publish(server.url))
        server.kill()
        return server.url, folder
    with Served(f"sqlite://{tmp_path}/store") as served:
        asyncio.run(publish(served.url))
    return served.url, folder


@pytest.mark.deadline
async def test_a_start_from_the_file_does_not_wait_if_the_connection_is_refused(
    stopped: tuple[str, Path],
):
    url, folder = stopped
    async with mooring.connect(url, cache=folder) as hub:
        started = time.monotonic()
        async with hub.tenants() as t:
            assert time.monotonic() - started < 0.8
            assert t.stale
            assert t.by_code("acme") == 1


@pytest.mark.parametrize("stopped", ["etcd"], indirect=True)
@pytest.mark.parametrize(
    "other",
    [
        lambda address: f"etcd://127.0.0.1:1,{address}",
        lambda address: f"etcd://someone:secret@{address}?timeout=1s",
        lambda address: f"etcd://{address.replace('127.0.0.1', 'localhost')}?timeout=1s",
    ],
    ids=["endpoints", "credentials", "name"],
)
async def test_another_url_of_the_same_cluster_uses_the_copy(
    stopped: tuple[str, Path], other: Callable[[str], str]
):
    url, folder = stopped
    (first,) = folder.iterdir()
    async with (
        mooring.connect(other(url.removeprefix("etcd://")), cache=folder) as hub,
        hub.tenants() as t,
    ):
        assert t.stale
        assert t.by_code("acme") == 1
    assert [*folder.iterdir()] == [first]


@pytest.mark.parametrize("other", ["same", "another"])
async def test_the_copy_of_another_cluster_is_discarded_once_the_store_answers(
    fresh_etcd: Callable[..., EtcdServer],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    other: str,
):
    one, two = fresh_etcd(), fresh_etcd()
    file = tmp_path / "tenants.copy"
    async with open_store(one.url) as store:
        await store.commit(*WHOLE)
        async with provider(store, file=file):
            pass
    server = one if other == "same" else two
    async with open_store(server.url) as store:
        await store.commit(
            Delete(KEYS.parts(10)),
            part(3, "meta", {"code": "new"}),
            Put(b"jxt/common/resolver", b"{"),
        )
    async with (
        FaultProxy(server.address) as proxy,
        open_store(f"etcd://{proxy.address}?timeout=1s") as through,
    ):
        proxy.refuse()
        async with provider(through, file=file) as t:
            assert t.stale
            assert {*t.ids()} == {1, 10}
            changes: list[Changed] = []
            t.subscribe(changes.append)
            proxy.heal()
            await eventually(lambda: not t.stale)
            if other == "same":
                assert {*t.ids()} == {1, 3}
                assert how(t) == "host", "the last good value is of this cluster"
                assert "discarded" not in caplog.text
            else:
                assert {*t.ids()} == {3}
                assert how(t) == "unknown", "the last good value is of another cluster"
                assert t.platform("limits") is None
                assert t.health is None
                assert {(c.tenant, c.after is None) for c in changes} == {
                    (1, True),
                    (3, False),
                    (10, True),
                }
                assert caplog.text.count("was discarded: it is of another cluster") == 1
        again = TenantCache(file, namespace="jxt").load()
        assert again is not None
        assert again.identity == through.identity


class TestStartFromFile:
    async def test_the_file_is_used_until_the_store_is_back(
        self, disconnected: Disconnected, caplog: pytest.LogCaptureFixture
    ):
        await disconnected.direct.commit(
            Delete(KEYS.parts(10)),
            part(1, "meta", {"code": "renamed"}),
            part(3, "meta", {"code": "new"}),
            common("common/resolver", {"httpType": "path"}),
        )
        async with provider(disconnected.through, file=disconnected.file, wait=30) as t:
            assert t.stale
            assert t.age == float("inf")
            assert {*t.ids()} == {1, 10}
            assert t.by_code("acme") == 1
            assert t.by_host("www.acme.example") == 1, "indexes are rebuilt"
            assert how(t) == "host"
            assert t.health is not None
            assert t.revision > 0
            assert caplog.text.count("using the copy") == 1
            changes: list[Changed] = []
            t.subscribe(changes.append)
            disconnected.proxy.heal()
            await eventually(lambda: not t.stale)
            assert {*t.ids()} == {1, 3}
            assert t.by_code("acme") is None
            assert t.by_code("renamed") == 1
            await eventually(lambda: how(t) == "path")
            assert {(c.tenant, *sorted(c.kinds)) for c in changes} == {
                (1, "meta"),
                (3, "meta"),
                (10, "meta"),
            }
            await disconnected.direct.commit(part(3, "meta", {"code": "newer"}))
            await eventually(lambda: t.by_code("newer") == 3)

    async def test_the_last_good_resolver_is_in_the_file(self, disconnected: Disconnected):
        disconnected.proxy.heal()
        async with provider(disconnected.through, file=disconnected.file) as t:
            await disconnected.direct.commit(Put(b"jxt/common/resolver", b"{"))
            await eventually(lambda: "jxt/common/resolver" in t.problems)
        disconnected.proxy.refuse()
        async with provider(disconnected.through, file=disconnected.file) as t:
            assert how(t) == "host"
            disconnected.proxy.heal()
            await eventually(lambda: not t.stale)
            await eventually(lambda: "jxt/common/resolver" in t.problems)
            assert how(t) == "host"

    async def test_closing_before_catching_up_keeps_the_file(self, disconnected: Disconnected):
        before = disconnected.file.read_bytes()
        async with provider(disconnected.through, file=disconnected.file):
            pass
        assert disconnected.file.read_bytes() == before

    async def test_a_damaged_file_is_not_used(
        self, disconnected: Disconnected, caplog: pytest.LogCaptureFixture
    ):
        disconnected.file.write_bytes(
            disconnected.file.read_bytes().replace(b'"port": 3306', b'"port": 3307')
        )
        with pytest.raises(Unavailable):
            async with provider(disconnected.through, file=disconnected.file, wait=0.3):
                pass
        assert "tenants.copy cannot be used" in caplog.text
        disconnected.proxy.heal()
        async with provider(disconnected.through, file=disconnected.file) as t:
            assert t.by_code("acme") == 1

    @pytest.mark.parametrize("stopped", ["etcd"], indirect=True)
    async def test_a_file_of_other_addresses_or_another_namespace_is_not_used(
        self,
        stopped: tuple[str, Path],
        disconnected: Disconnected,
        caplog: pytest.LogCaptureFixture,
    ):
        """Otherwise services would use the databases that it names."""
        (file,) = stopped[1].iterdir()
        for url in (DEAD, f"{stopped[0]}?namespace=/other/&timeout=500ms"):
            async with mooring.connect(url) as hub:
                with pytest.raises(Unavailable):
                    async with hub.tenants(file=file, wait=0.3):
                        pass
            assert f"and the store is at {url.removeprefix('etcd://')[:11]}" in caplog.text
            caplog.clear()
        with pytest.raises(Unavailable):
            async with Provider(
                disconnected.through,
                TenantKeys("other"),
                Keyring(),
                file=disconnected.file,
                wait=0.3,
            ):
                pass
        assert "it holds the namespace jxt, and other is needed" in caplog.text

    async def test_after_a_damaged_file_a_start_waits_for_the_store(
        self, disconnected: Disconnected, caplog: pytest.LogCaptureFixture
    ):
        disconnected.file.write_bytes(disconnected.file.read_bytes()[:-1])
        entering = asyncio.ensure_future(
            provider(disconnected.through, file=disconnected.file, wait=20).__aenter__()
        )
        await eventually(lambda: "it is damaged" in caplog.text)
        disconnected.proxy.heal()
        t = await entering
        assert t.by_code("acme") == 1
