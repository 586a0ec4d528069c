"""The last state in a file, and a start from it where the store is away."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import mooring
import mooring.sync
from mooring.errors import Unavailable
from mooring.hub import open_store
from mooring.store import Delete, Put, Store
from mooring.tenants.copy import CopyFile
from mooring.tenants.keys import Keys
from mooring.tenants.provider import Provider
from mooring.tenants.reading import Changed
from mooring.tenants.secrets import Keyring
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.acceptance.serving import Served
from tests.backends import in_memory
from tests.features.tenant_provider.support import DEAD, KEYS, WHOLE, common, how, part, provider
from tests.waiting import eventually


class TestFile:
    async def test_it_is_written_for_its_owner_alone(self, store: Store, tmp_path: Path):
        file = tmp_path / "new" / "tenants.copy"
        await store.commit(*WHOLE)
        async with provider(store, file=file):
            await eventually(file.exists)
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert [path.name for path in file.parent.iterdir()] == [file.name]

    async def test_it_holds_the_last_state_when_it_is_closed(self, store: Store, tmp_path: Path):
        file = tmp_path / "tenants.copy"
        async with provider(store, file=file) as t:
            await eventually(file.exists)
            first = file.read_bytes()
            await store.commit(*WHOLE)
            await eventually(lambda: t.by_code("ten") == 10)
        assert file.read_bytes() != first
        assert b"acme.internal" in file.read_bytes()

    async def test_what_a_killed_process_left_is_removed(self, store: Store, tmp_path: Path):
        """It holds passwords."""
        file, left = tmp_path / "tenants.copy", tmp_path / ".unfinished-abc"
        left.write_bytes(b"s3cret")
        async with provider(store, file=file):
            await eventually(file.exists)
        assert not left.exists()
        left.write_bytes(b"s3cret")
        assert CopyFile(file, namespace="jxt").load() is not None
        assert not left.exists()

    async def test_a_disk_that_cannot_be_written_costs_the_copy_alone(
        self, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ):
        (tmp_path / "file").touch()
        async with provider(store, file=tmp_path / "file" / "tenants.copy") as t:
            await store.commit(*WHOLE)
            await eventually(lambda: t.by_code("ten") == 10)
        assert caplog.text.count("no copy of the tenants is kept") == 1

    @pytest.mark.parametrize("how", ["group", "others", "owner"])
    async def test_one_that_another_user_may_have_written_is_not_used(
        self, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
    ):
        file = tmp_path / "tenants.copy"
        await store.commit(*WHOLE)
        async with provider(store, file=file):
            await eventually(file.exists)
        copy = CopyFile(file, namespace="jxt")
        assert copy.usable()
        assert copy.load() is not None
        if how == "owner":
            if os.geteuid() != 0:
                return  # only root can give a file away
            os.chown(file, 12345, -1)
        else:
            file.chmod(0o620 if how == "group" else 0o602)
        assert not copy.usable()
        assert copy.load() is None
        expected = "another user owns it" if how == "owner" else "other users may write it"
        assert expected in caplog.text

    async def test_the_hub_keeps_it_in_its_cache_folder(self, store_url: str, tmp_path: Path):
        folder = tmp_path / "cache"
        async with mooring.connect(store_url, cache=folder) as hub:
            for namespace in ("jxt", "other/ns"):
                async with hub.tenants(namespace=namespace):
                    pass
        names = sorted(path.name.partition(".")[0] for path in folder.iterdir())
        assert names == ["tenants-jxt", "tenants-other%2Fns"]


class Away:
    """A store behind a proxy that lets nothing through, and a file of what it had."""

    def __init__(self, direct: Store, through: Store, proxy: FaultProxy, file: Path) -> None:
        self.direct, self.through, self.proxy, self.file = direct, through, proxy, file


@pytest.fixture
async def away(etcd: Callable[[str], EtcdServer], tmp_path: Path) -> AsyncIterator[Away]:
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
            yield Away(direct, through, proxy, file)


@pytest.fixture(params=["etcd", "mooring serve"])
def stopped(
    request: pytest.FixtureRequest, fresh_etcd: Callable[..., EtcdServer], tmp_path: Path
) -> tuple[str, Path]:
    """The URL of a server that runs no longer, and the cache folder of a hub that used it."""
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
async def test_it_starts_from_the_file_at_once_if_the_connection_is_refused(
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
async def test_another_url_of_the_same_cluster_finds_the_copy(
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
            told: list[Changed] = []
            t.subscribe(told.append)
            proxy.heal()
            await eventually(lambda: not t.stale, within=10)
            if other == "same":
                assert {*t.ids()} == {1, 3}
                assert how(t) == "host", "the last good value is of this cluster"
                assert "discarded" not in caplog.text
            else:
                assert {*t.ids()} == {3}
                assert how(t) == "unknown", "the last good value is of another cluster"
                assert t.platform("limits") is None
                assert t.health is None
                assert {(c.tenant, c.after is None) for c in told} == {
                    (1, True),
                    (3, False),
                    (10, True),
                }
                assert caplog.text.count("was discarded: it is of another cluster") == 1
        again = CopyFile(file, namespace="jxt").load()
        assert again is not None
        assert again.identity == through.identity


class TestStartFromFile:
    async def test_it_starts_and_catches_up(self, away: Away, caplog: pytest.LogCaptureFixture):
        await away.direct.commit(
            Delete(KEYS.parts(10)),
            part(1, "meta", {"code": "renamed"}),
            part(3, "meta", {"code": "new"}),
            common("common/resolver", {"httpType": "path"}),
        )
        async with provider(away.through, file=away.file, wait=30) as t:
            assert t.stale
            assert t.age == float("inf")
            assert {*t.ids()} == {1, 10}
            assert t.by_code("acme") == 1
            assert t.by_host("www.acme.example") == 1, "indexes are built anew"
            assert how(t) == "host"
            assert t.health is not None
            assert t.revision > 0
            assert caplog.text.count("stands in") == 1
            told: list[Changed] = []
            t.subscribe(told.append)
            away.proxy.heal()
            await eventually(lambda: not t.stale, within=10)
            assert {*t.ids()} == {1, 3}
            assert t.by_code("acme") is None
            assert t.by_code("renamed") == 1
            await eventually(lambda: how(t) == "path")
            assert {(c.tenant, *sorted(c.kinds)) for c in told} == {
                (1, "meta"),
                (3, "meta"),
                (10, "meta"),
            }
            await away.direct.commit(part(3, "meta", {"code": "newer"}))
            await eventually(lambda: t.by_code("newer") == 3)

    async def test_the_last_good_resolver_is_in_the_file(self, away: Away):
        away.proxy.heal()
        async with provider(away.through, file=away.file) as t:
            await away.direct.commit(Put(b"jxt/common/resolver", b"{"))
            await eventually(lambda: "jxt/common/resolver" in t.problems)
        away.proxy.refuse()
        async with provider(away.through, file=away.file) as t:
            assert how(t) == "host"
            away.proxy.heal()
            await eventually(lambda: not t.stale, within=10)
            await eventually(lambda: "jxt/common/resolver" in t.problems)
            assert how(t) == "host"

    async def test_the_file_may_stand_in_while_the_store_is_read(
        self, store: Store, tmp_path: Path
    ):
        """A short wait: the file comes while what was read is turned into tenants."""
        file = tmp_path / "tenants.copy"
        for first in range(1, 1500, 100):
            await store.commit(
                *(part(n, "meta", {"code": f"c{n}"}) for n in range(first, first + 100))
            )
        async with provider(store, file=file):
            pass
        await store.commit(
            Delete(KEYS.parts(7)),
            part(8, "meta", {"code": "other"}),
            part(2000, "meta", {"code": "new"}),
            *WHOLE[-4:],
        )
        async with provider(store, file=file, wait=0.0) as t:
            known = dict(t.snapshot.tenants)
            told: list[Changed] = []
            t.subscribe(told.append)
            await eventually(lambda: t.by_code("new") == 2000 and how(t) == "host")
            for change in told:
                assert known.get(change.tenant) == change.before
                if change.after is None:
                    del known[change.tenant]
                else:
                    known[change.tenant] = change.after
            assert known == dict(t.snapshot.tenants)
            await eventually(lambda: t.health is not None and t.platform("limits") is not None)
            async with provider(store) as fresh:
                assert t.snapshot == fresh.snapshot

    async def test_closing_before_it_caught_up_keeps_the_file(self, away: Away):
        before = away.file.read_bytes()
        async with provider(away.through, file=away.file):
            pass
        assert away.file.read_bytes() == before

    @pytest.mark.parametrize(
        "damage",
        [
            lambda raw: b"",
            lambda raw: raw[:-1],
            lambda raw: raw + b"x",
            lambda raw: raw[: raw.index(b"\n")],
            lambda raw: raw.replace(b'"port": 3306', b'"port": 3307'),
            lambda raw: b"\xff" * 100_000,
            lambda raw: raw.replace(b'"format":2', b'"format":9'),
        ],
        ids=["empty", "short", "long", "head alone", "a digit", "rubbish", "format"],
    )
    @in_memory
    async def test_a_damaged_file_is_told(
        self,
        store: Store,
        tmp_path: Path,
        damage: Callable[[bytes], bytes],
        caplog: pytest.LogCaptureFixture,
    ):
        file = tmp_path / "tenants.copy"
        await store.commit(*WHOLE)
        async with provider(store, file=file):
            pass
        assert CopyFile(file, namespace="jxt").load() is not None
        raw = file.read_bytes()
        file.write_bytes(damage(raw))
        assert file.read_bytes() != raw
        assert CopyFile(file, namespace="jxt").load() is None
        assert "tenants.copy cannot be used" in caplog.text

    async def test_a_damaged_file_is_not_believed(
        self, away: Away, caplog: pytest.LogCaptureFixture
    ):
        away.file.write_bytes(away.file.read_bytes().replace(b'"port": 3306', b'"port": 3307'))
        with pytest.raises(Unavailable):
            async with provider(away.through, file=away.file, wait=0.3):
                pass
        assert "tenants.copy cannot be used" in caplog.text
        away.proxy.heal()
        async with provider(away.through, file=away.file) as t:
            assert t.by_code("acme") == 1

    @pytest.mark.parametrize("stopped", ["etcd"], indirect=True)
    async def test_a_file_of_other_addresses_or_another_namespace_is_not_used(
        self, stopped: tuple[str, Path], away: Away, caplog: pytest.LogCaptureFixture
    ):
        """Services would use the databases that it names."""
        (file,) = stopped[1].iterdir()
        for url in (DEAD, f"{stopped[0]}?namespace=/other/&timeout=500ms"):
            async with mooring.connect(url) as hub:
                with pytest.raises(Unavailable):
                    async with hub.tenants(file=file, wait=0.3):
                        pass
            assert f"and the store is at {url.removeprefix('etcd://')[:11]}" in caplog.text
            caplog.clear()
        with pytest.raises(Unavailable):
            async with Provider(away.through, Keys("other"), Keyring(), file=away.file, wait=0.3):
                pass
        assert "it holds the namespace jxt, and other is needed" in caplog.text

    async def test_a_damaged_file_does_not_keep_it_from_waiting_for_the_store(
        self, away: Away, caplog: pytest.LogCaptureFixture
    ):
        away.file.write_bytes(away.file.read_bytes()[:-1])
        entering = asyncio.ensure_future(
            provider(away.through, file=away.file, wait=20).__aenter__()
        )
        await eventually(lambda: "it is damaged" in caplog.text)
        away.proxy.heal()
        t = await entering
        assert t.by_code("acme") == 1
