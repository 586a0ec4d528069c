"""The tenants of a store in memory: always current, and always consistent."""

from __future__ import annotations

import asyncio
import datetime
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable

import pytest

import mooring
import mooring.sync
from mooring.backends import open_store
from mooring.errors import Closed, InvalidRequest, NotConfigured, Unavailable
from mooring.store import Delete, Put, Store, key, prefix
from mooring.tenants.keys import TenantKeys
from mooring.tenants.model import Resolver
from mooring.tenants.read.parser import Changed
from mooring.tenants.read.provider import Provider
from mooring.tenants.read.tenants import DatabaseCache, DomainCache, FtpCache, StorageCache, Tenants
from mooring.tenants.secrets import Keyring
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.backends import in_memory
from tests.features.tenant_provider.support import (
    DEAD,
    KEYS,
    WHOLE,
    common,
    content,
    how,
    part,
    provider,
    where,
)
from tests.waiting import PATIENCE, eventually, until


class TestLookups:
    async def test_every_lookup(self, store: Store):
        await store.commit(*WHOLE)
        async with provider(store) as t:
            assert {*t.ids()} == {1, 10}
            assert {*t.enabled()} == {1}
            assert 10 in t.ids()
            assert 10 not in t.enabled()
            database = t.database(1, "evidence-query")
            assert database is not None
            assert (database.host, database.port) == ("db", 3306)
            assert database.password is not None
            assert database.password.reveal() == "p"
            assert {*t.databases(1)} == {"evidence-query", "meta"}
            assert {*t.ftp(1)} == {"meta", "bob", "eve"}
            assert {*t.active_ftp(1)} == {"meta", "bob"}
            user = t.ftp_user("meta")
            assert user is not None
            assert user.home_directory == "/m"
            assert t.ftp_user_taken("eve")
            assert t.by_ftp_user("bob") == 1
            domain = t.domain(1)
            assert domain is not None
            assert domain.hosts == ("acme.example", "www.acme.example", "acme.internal")
            storage = t.storage(1)
            assert storage is not None
            assert storage.upload_quota_gb == 5
            meta = t.meta(1)
            assert meta is not None
            assert meta.name == "甲 公司"
            assert t.by_code("aCME") == 1
            assert t.by_name("甲 公司") == 1
            for host in ("ACME.example", "www.acme.EXAMPLE", "acme.internal"):
                assert t.by_host(host) == 1
            assert how(t) == "host"
            assert where(t) == "d"
            assert t.platform("limits") == {"a": [1]}
            assert t.health == datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
            assert not t.stale
            assert t.age < 3

    @pytest.mark.parametrize("unknown", [2, 10])
    async def test_missing_values_are_none_and_never_an_exception(self, store: Store, unknown: int):
        await store.commit(*WHOLE[:11])
        async with provider(store) as t:
            none: list[object] = [
                t.database(unknown, "evidence-query"),
                t.database(1, "nothing"),
                t.domain(unknown),
                t.storage(unknown),
                t.meta(2),
                t.get(2),
                t.ftp_user("nobody"),
                t.by_ftp_user("nobody"),
                t.by_host("acme"),
                t.by_code("acm"),
                t.by_name("acme"),
                t.platform("limits"),
                t.health,
            ]
            assert none == [None] * len(none)
            assert not t.ftp_user_taken("nobody")
            assert t.databases(unknown) == {}
            assert t.ftp(unknown) == t.active_ftp(unknown) == {}
            assert t.resolver == Resolver()
            assert where(t) == "tenants"

    async def test_the_errors_of_the_caches_name_what_is_missing(self, store: Store):
        await store.commit(*WHOLE)
        async with provider(store) as t:
            databases, ftp = DatabaseCache(t), FtpCache(t)
            assert databases.get(1, "evidence-query").port == 3306
            assert len(databases.all(1)) == 2
            assert ftp.user("bob").tenant_id == ftp.get(1, "bob").tenant_id == 1
            assert (len(ftp.all(1)), len(ftp.active(1))) == (3, 2)
            assert StorageCache(t).get(1).tenant_id == 1
            assert DomainCache(t).get(1).primary == "Acme.example"
            assert DomainCache(t).tenant("acme.example") == 1
            lacking: list[tuple[Callable[[], object], str]] = [
                (lambda: databases.get(1, "none"), r"tenant 1 .* 'none'"),
                (lambda: databases.get(7, "none"), r"'none': tenant 7 not found"),
                (lambda: databases.all(10), "tenant 10 has no databases"),
                (lambda: ftp.get(1, "zoe"), "tenant 1 .* 'zoe'"),
                (lambda: ftp.user("zoe"), "'zoe'"),
                (lambda: ftp.all(10), "tenant 10"),
                (lambda: ftp.active(10), "tenant 10"),
                (lambda: StorageCache(t).get(10), "tenant 10 has no storage"),
                (lambda: DomainCache(t).get(10), "tenant 10 has no domain"),
                (lambda: DomainCache(t).tenant("x.example"), "x.example"),
            ]
            for look, message in lacking:
                with pytest.raises(NotConfigured, match=message):
                    look()


class TestFollowing:
    async def test_a_domain_can_be_written_before_its_meta(self, store: Store, tenants: Tenants):
        await store.commit(part(1, "domain/primary", "a.example"), part(1, "ftp/bob", {}))
        await eventually(lambda: tenants.by_host("a.example") == 1)
        assert tenants.meta(1) is None
        assert 1 not in tenants.enabled()
        await store.commit(part(1, "meta", {"code": "a"}))
        await eventually(lambda: tenants.by_code("A") == 1)
        assert tenants.by_host("a.example") == 1
        await store.commit(Delete(KEYS.parts(1)))
        await eventually(lambda: len(tenants.ids()) == 0)
        assert tenants.by_host("a.example") is tenants.by_code("a") is None

    async def test_deleting_tenant_1_does_not_affect_tenant_10(self, store: Store):
        await store.commit(*WHOLE)
        async with provider(store) as t:
            ten = t.get(10)
            await store.commit(Delete(KEYS.parts(1)))
            await eventually(lambda: t.get(1) is None)
            assert t.get(10) is ten

    async def test_common_settings_are_followed(self, store: Store, tenants: Tenants):
        await store.commit(*WHOLE[-4:])
        await eventually(lambda: how(tenants) == "host")
        await eventually(lambda: tenants.platform("limits") == {"a": [1]})
        await eventually(lambda: tenants.health is not None)
        await store.commit(*(Delete(key(put.key)) for put in WHOLE[-4:]))
        await eventually(lambda: how(tenants) == "header")
        await eventually(lambda: tenants.platform("limits") is None)
        await eventually(lambda: where(tenants) == "tenants")
        await eventually(lambda: tenants.health is None)

    @in_memory
    async def test_a_revision_is_applied_as_a_whole(self, store: Store, tenants: Tenants):
        """Two tenants always hold the same number in all their parts."""
        mixed: list[object] = []
        changes: list[Changed] = []

        def numbers() -> set[object]:
            snapshot = tenants.snapshot
            values: set[object] = set()
            for tenant in snapshot.tenants.values():
                meta, storage = tenant.meta, tenant.storage
                values |= {meta and meta.name, storage and str(storage.max_concurrent_uploads)}
                values |= {tenant.domain.primary.partition(".")[0] or None}
                values |= {user.description for user in tenant.ftp.values()}
            values |= {name.partition("-")[0] for name in snapshot.names.holders} - values
            return values

        def check(change: Changed) -> None:
            changes.append(change)
            if len(seen := numbers()) > 1:
                mixed.append(seen)

        stopped = threading.Event()

        def read() -> None:
            while not stopped.is_set():
                if len(seen := numbers()) > 1:
                    mixed.append(seen)

        tenants.subscribe(check)
        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        try:
            for n in range(20):
                last = await store.commit(
                    *(
                        put
                        for id in (1, 2)
                        for put in (
                            part(id, "meta", {"name": f"{n}"}),
                            part(id, "domain/primary", f"{n}.example"),
                            part(id, "storage", {"maxConcurrentUploads": n}),
                            part(id, "ftp/bob", {"description": f"{n}"}),
                        )
                    )
                )
            await eventually(lambda: tenants.revision >= last.revision)
        finally:
            stopped.set()
            for reader in readers:
                await asyncio.to_thread(reader.join)
        assert mixed == []
        assert len(changes) == 40

    async def test_callbacks_can_select_a_tenant_and_a_kind(self, store: Store, tenants: Tenants):
        received: dict[str, list[Changed]] = {name: [] for name in ("all", "one", "meta", "both")}
        ends = [
            tenants.subscribe(received["all"].append),
            tenants.subscribe(received["one"].append, tenant=1),
            tenants.subscribe(received["meta"].append, kind="meta"),
            tenants.subscribe(received["both"].append, tenant=1, kind="ftp"),
        ]
        await store.commit(part(1, "meta", {"code": "a"}), part(2, "ftp/bob", {}))
        await store.commit(part(1, "ftp/eve", {}))
        await store.commit(Delete(KEYS.parts(2)))
        await eventually(lambda: len(received["all"]) == 4)
        assert [(c.tenant, set(c.kinds)) for c in received["all"]] == [
            (1, {"meta"}),
            (2, {"ftp"}),
            (1, {"ftp"}),
            (2, {"ftp"}),
        ]
        assert received["all"][0].before is None
        assert received["all"][3].after is None
        assert [c.tenant for c in received["one"]] == [1, 1]
        assert received["meta"] == received["all"][:1]
        assert received["both"] == received["all"][2:3]
        for end in (*ends, *ends):
            end()
        await store.commit(part(1, "meta", {"code": "b"}))
        await eventually(lambda: tenants.by_code("b") == 1)
        assert len(received["all"]) == 4

    def test_an_unknown_kind_is_refused(self):
        with pytest.raises(InvalidRequest, match=r"one of meta, domain.*'nonsense'"):
            Tenants().subscribe(lambda _: None, kind="nonsense")  # type: ignore[arg-type]

    def test_ended_subscriptions_leave_nothing_behind(self):
        live = Tenants()
        changes: list[Changed] = []
        ends = [live.subscribe(changes.append, tenant=id) for id in range(1000)]
        ends += [live.subscribe(changes.append, tenant=1), live.subscribe(changes.append)]
        for end in (*ends, *ends):
            end()
        assert live._callbacks == {}
        end = live.subscribe(changes.append, tenant=1)
        ends[1]()
        live.show(live.snapshot, [Changed(1, frozenset({"meta"}), None, None)])
        assert len(changes) == 1
        end()

    async def test_a_callback_sees_the_state_after_its_change(self, store: Store, tenants: Tenants):
        seen: list[bool] = []
        tenants.subscribe(lambda change: seen.append(tenants.get(change.tenant) == change.after))
        await store.commit(part(1, "meta", {}))
        await eventually(lambda: seen == [True])

    async def test_a_failing_callback_does_not_affect_others(
        self, store: Store, tenants: Tenants, caplog: pytest.LogCaptureFixture
    ):
        changes: list[Changed] = []

        def broken(_: Changed) -> None:
            raise ValueError("a subscriber's mistake")

        tenants.subscribe(broken)
        tenants.subscribe(changes.append)
        await store.commit(part(1, "meta", {}))
        await eventually(lambda: len(changes) == 1)
        assert "a subscriber's mistake" in caplog.text
        assert tenants.get(1) is not None

    async def test_broken_values_are_omitted_and_reported(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ):
        await store.commit(
            part(1, "meta", '{"code": '),
            part(1, "ftp/bob", '["s3cret"]'),
            part(1, "storage", {}),
            part(2, "meta", {"code": "fine"}),
            Put(b"jxt/tenants/3/\xff", b""),
            Put(b"jxt/tenants/3/database", b"{"),
            Put(b"jxt/common/resolver", b"?"),
        )
        async with provider(store) as t:
            assert {*t.ids()} == {1, 2}
            assert t.meta(1) is None
            assert t.by_code("fine") == 2
            assert dict(t.problems) == {
                "jxt/tenants/1/meta": "not JSON",
                "jxt/tenants/1/ftp/bob": "not a JSON object",
                "jxt/common/resolver": "not JSON",
            }
            assert caplog.text.count("is left out") == 3
            assert "s3cret" not in caplog.text
            await store.commit(part(1, "meta", {"code": "mended"}))
            await eventually(lambda: t.by_code("mended") == 1)
            assert "jxt/tenants/1/meta" not in t.problems

    async def test_a_broken_resolver_keeps_its_last_good_value(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ):
        await store.commit(*WHOLE)
        async with provider(store) as t:
            await store.commit(common("common/resolver", {"httpType": "hots"}))
            await eventually(lambda: "jxt/common/resolver" in t.problems)
            assert how(t) == "host"
            assert (
                caplog.text.count("jxt/common/resolver stays as it was: the value: httpType") == 1
            )
            async with provider(store) as fresh:
                assert fresh.resolver is None, "it never knew what was meant"
            await store.commit(Delete(KEYS.common))
            await eventually(lambda: how(t) == "header")

    async def test_the_lower_id_wins_a_contested_host(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ):
        await store.commit(part(10, "domain/primary", "a.example"))
        await store.commit(part(9, "domain/aliases", ["A.example"]))
        async with provider(store) as t:
            assert t.by_host("a.example") == 9
            assert caplog.text.count("'a.example' is claimed by tenant 10") == 1
            await store.commit(part(2, "domain/internal", "a.example"))
            await eventually(lambda: t.by_host("a.example") == 2)
            await store.commit(Delete(KEYS.parts(2)), Delete(KEYS.parts(9)))
            await eventually(lambda: t.by_host("a.example") == 10)

    async def test_everything_is_read_again_from_time_to_time(self, store: Store):
        await store.commit(part(1, "meta", {"code": "a"}))
        async with Provider(store, KEYS, Keyring(), afresh=0.05) as t:
            one = t.get(1)
            for n in range(20):
                await store.commit(part(2, "meta", {"code": f"b{n}"}))
                await eventually(lambda n=n: t.by_code(f"b{n}") == 2)  # type: ignore[misc]
                await asyncio.sleep(0.02)
            assert t.get(1) is one, "an unchanged tenant is not rebuilt"

    async def test_namespaces_are_separate(self, store: Store):
        await store.commit(*WHOLE)
        async with Provider(store, TenantKeys("/other//ns/"), Keyring()) as t:
            assert len(t.ids()) == 0
            await store.commit(Put(b"other/ns/tenants/5/meta", b'{"code": "x"}'))
            await eventually(lambda: t.by_code("x") == 5)


class TestLifetime:
    async def test_the_tenants_stay_readable_after_closing(self, store: Store):
        await store.commit(*WHOLE)
        holder = provider(store)
        async with holder as t:
            assert not t.stale
        assert t.stale
        assert t.by_code("acme") == 1
        await holder.aclose()
        with pytest.raises(Closed):
            await holder.__aenter__()

    async def test_publisher_and_provider_share_the_name_of_the_keyring_option(
        self, store_url: str
    ):
        ring = Keyring([b"k" * 32])
        async with mooring.connect(store_url) as hub:
            publisher = hub.publisher(keyring=ring)
            await publisher.put(1, "meta", {"code": "a", "name": "A"})
            await publisher.put(
                1, "database/one", {"driver": "mysql", "database": "d", "password": "p"}
            )
            async with hub.tenants(keyring=ring) as t:
                database = t.database(1, "one")
                assert database is not None
                assert database.password is not None
                assert database.password.reveal() == "p"

    async def test_closing_the_hub_closes_the_provider(self, store_url: str):
        async with mooring.connect(store_url) as hub:
            await hub.store.commit(*WHOLE)
            tenants = await hub.tenants().__aenter__()
            assert not tenants.stale
        assert tenants.stale
        with pytest.raises(Closed):
            hub.tenants()

    def test_a_missing_extra_is_named_and_the_rest_works(self):
        script = """
import asyncio, sys
sys.modules["immutables"] = sys.modules["cryptography"] = None
import mooring
from mooring.errors import MissingExtra
from mooring.store import Put

async def main():
    async with mooring.connect("memory://") as hub:
        await hub.store.commit(Put(b"/a", b""))
        try:
            hub.tenants()
        except MissingExtra as error:
            print(error)

asyncio.run(main())
"""
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        assert "mooring[tenants]" in run.stdout

    async def test_a_start_without_a_store_and_a_file_fails(self):
        async with open_store(DEAD) as store:
            with pytest.raises(Unavailable, match="tenants of 'jxt'"):
                async with provider(store, wait=0.3):
                    pass

    async def test_a_start_waits_for_a_slow_store(self, etcd: Callable[[str], EtcdServer]):
        async with (
            FaultProxy(etcd("3.5").address) as proxy,
            open_store(f"etcd://{proxy.address}?namespace=/{uuid.uuid4()}") as store,
        ):
            await store.commit(*WHOLE)
            proxy.delay(0.3)
            async with provider(store, wait=0.1) as t:
                assert t.by_code("acme") == 1

    async def test_a_start_fails_when_the_store_is_closed(self, caplog: pytest.LogCaptureFixture):
        async with open_store(DEAD) as store:
            entering = asyncio.ensure_future(provider(store, wait=30).__aenter__())
            await eventually(lambda: "is unavailable" in caplog.text)
            await store.aclose()
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(Closed):
                    await entering


class TestBlocking:
    @pytest.fixture
    def hub(self, store_url: str) -> mooring.sync.Hub:
        return mooring.sync.connect(store_url)

    def test_threads_read_the_same_tenants(self, hub: mooring.sync.Hub):
        with hub:
            hub.store.commit(*WHOLE)
            with hub.tenants() as tenants:
                assert type(tenants) is Tenants
                assert tenants.by_code("acme") == 1
                changes: list[Changed] = []
                end = tenants.subscribe(changes.append, tenant=2)
                hub.store.commit(part(2, "meta", {"code": "two"}))
                until(lambda: tenants.by_code("two") == 2)
                until(lambda: len(changes) == 1)
                end()
                wrong: list[object] = []

                def read() -> None:
                    wrong.extend(
                        tenants.age
                        for _ in range(2000)
                        if tenants.database(1, "evidence-query") is None or tenants.stale
                    )

                threads = [threading.Thread(target=read) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for n in range(20):
                    hub.store.commit(part(3, "meta", {"code": f"c{n}"}))
                for thread in threads:
                    thread.join()
                assert wrong == []
            assert tenants.stale
            assert tenants.by_code("acme") == 1

    def test_a_blocking_provider_can_be_opened_and_closed_without_a_block(
        self, hub: mooring.sync.Hub
    ):
        with hub:
            held = hub.tenants(keyring=Keyring([b"k" * 32]))
            assert isinstance(held, mooring.sync.Provider)
            tenants = held.open()
            assert len(tenants.ids()) == 0
            held.close()


async def test_the_tenants_agree_with_the_store_after_many_writers(store: Store):
    async def write(writer: int) -> None:
        for n in range(40):
            id = (writer * 7 + n) % 12 + 1
            if n % 6 == 5:
                await store.commit(Delete(KEYS.parts(id)))
            else:
                await store.commit(
                    part(id, "meta", {"code": f"c{id}", "name": f"{writer}-{n}"}),
                    part(id, f"ftp/u{n % 3}", {}),
                    part(id, "domain/primary", f"h{n % 4}.example"),
                )
            await asyncio.sleep(0)

    async with provider(store) as live:
        await asyncio.gather(*(write(writer) for writer in range(4)))
        last = (await store.commit(part(99, "meta", {}))).revision
        await eventually(lambda: live.revision >= last)
        async with provider(store) as fresh:
            assert content(live) == content(fresh)
        assert len((await store.read(prefix(b"jxt/tenants/"))).entries) > 0
