"""The tenants of a store at hand: live, whole, and from a file where the store is away."""

from __future__ import annotations

import asyncio
import datetime
import json
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path

import pytest

import mooring
import mooring.sync
from mooring.errors import Closed, InvalidRequest, NotConfigured, Unavailable
from mooring.hub import open_store
from mooring.store import Delete, Entry, Put, Store, key, prefix
from mooring.tenants.caches import DatabaseCache, DomainCache, FtpCache, StorageCache
from mooring.tenants.copy import CopyFile
from mooring.tenants.keys import Keys
from mooring.tenants.live import Tenants
from mooring.tenants.pacing import Paced
from mooring.tenants.provider import Provider
from mooring.tenants.reading import Changed, KeyChange, Outcome, Reading
from mooring.tenants.secrets import Keyring
from mooring.tenants.snapshot import Snapshot
from mooring.tenants.values import Resolver
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.waiting import eventually, until

KEYS = Keys()
DEAD = "etcd://127.0.0.1:1"


@pytest.fixture(params=["memory", "etcd-3.5"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def part(tenant: int, path: str, value: object) -> Put:
    raw = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    return Put(KEYS.part(tenant, path), raw)


def common(path: str, value: object) -> Put:
    return Put(f"jxt/{path}".encode(), json.dumps(value).encode())


def how(tenants: Tenants) -> str:
    return tenants.resolver.http_type if tenants.resolver else "unknown"


def where(tenants: Tenants) -> str:
    return tenants.storage_directory.directory if tenants.storage_directory else "unknown"


def provider(store: Store, *, file: Path | None = None, wait: float = 5.0) -> Provider:
    return Provider(store, KEYS, Keyring(), file=file, wait=wait)


@pytest.fixture
async def tenants(store: Store) -> AsyncIterator[Tenants]:
    async with provider(store) as live:
        yield live


WHOLE = (
    part(1, "meta", {"code": "Acme", "name": "甲 公司", "status": "active"}),
    part(1, "domain/primary", "Acme.example"),
    part(1, "domain/aliases", ["www.acme.example"]),
    part(1, "domain/internal", '"acme.internal"'),
    part(1, "database/evidence-query", {"host": "db", "port": 3306, "password": "p"}),
    part(1, "database/meta", {"enabled": False}),
    part(1, "ftp/meta", {"homeDirectory": "/m"}),
    part(1, "ftp/bob", {"status": "active"}),
    part(1, "ftp/eve", {"status": "inactive"}),
    part(1, "storage", {"uploadQuotaGb": 5}),
    part(10, "meta", {"code": "Ten", "name": "Ten", "status": "suspended"}),
    common("common/resolver", {"httpType": "host"}),
    common("common/storage-directory", {"directory": "d"}),
    common("platform/configs/limits", {"a": [1]}),
    common("_health/sentinel", {"updatedAt": "2024-05-06T07:08:09Z"}),
)


class TestLookups:
    async def test_each_is_answered(self, store: Store):
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
    async def test_what_is_missing_is_none_and_never_an_exception(self, store: Store, unknown: int):
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

    async def test_the_caches_name_what_is_missing(self, store: Store):
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
                (lambda: databases.get(7, "none"), r"no tenant 7.* 'none'"),
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
    async def test_a_domain_may_come_before_its_meta(self, store: Store, tenants: Tenants):
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

    async def test_deleting_tenant_1_leaves_10_alone(self, store: Store):
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

    async def test_a_revision_is_seen_whole_or_not_at_all(self, store: Store, tenants: Tenants):
        """Two tenants always hold the same number, in all their parts."""
        mixed: list[object] = []
        told: list[Changed] = []

        def numbers() -> set[object]:
            snapshot = tenants.snapshot
            found: set[object] = set()
            for tenant in snapshot.tenants.values():
                meta, storage = tenant.meta, tenant.storage
                found |= {meta and meta.name, storage and str(storage.max_concurrent_uploads)}
                found |= {tenant.domain.primary.partition(".")[0] or None}
                found |= {each.description for each in tenant.ftp.values()}
            found |= {name.partition("-")[0] for name in snapshot.names.holders} - found
            return found

        def check(change: Changed) -> None:
            told.append(change)
            if len(seen := numbers()) > 1:
                mixed.append(seen)

        stopped = threading.Event()

        def read() -> None:
            while not stopped.is_set():
                if len(seen := numbers()) > 1:
                    mixed.append(seen)

        tenants.subscribe(check)
        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        try:
            for n in range(40):
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
            await eventually(lambda: tenants.revision == last.revision)
        finally:
            stopped.set()
            for reader in readers:
                await asyncio.to_thread(reader.join)
        assert mixed == []
        assert len(told) == 80

    async def test_callbacks_are_by_tenant_and_kind(self, store: Store, tenants: Tenants):
        told: dict[str, list[Changed]] = {name: [] for name in ("all", "one", "meta", "both")}
        ends = [
            tenants.subscribe(told["all"].append),
            tenants.subscribe(told["one"].append, tenant=1),
            tenants.subscribe(told["meta"].append, kind="meta"),
            tenants.subscribe(told["both"].append, tenant=1, kind="ftp"),
        ]
        await store.commit(part(1, "meta", {"code": "a"}), part(2, "ftp/bob", {}))
        await store.commit(part(1, "ftp/eve", {}))
        await store.commit(Delete(KEYS.parts(2)))
        await eventually(lambda: len(told["all"]) == 4)
        assert [(c.tenant, set(c.kinds)) for c in told["all"]] == [
            (1, {"meta"}),
            (2, {"ftp"}),
            (1, {"ftp"}),
            (2, {"ftp"}),
        ]
        assert told["all"][0].before is None
        assert told["all"][3].after is None
        assert [c.tenant for c in told["one"]] == [1, 1]
        assert told["meta"] == told["all"][:1]
        assert told["both"] == told["all"][2:3]
        for end in (*ends, *ends):
            end()
        await store.commit(part(1, "meta", {"code": "b"}))
        await eventually(lambda: tenants.by_code("b") == 1)
        assert len(told["all"]) == 4

    def test_a_kind_that_is_none_is_refused(self):
        with pytest.raises(InvalidRequest, match=r"'nonsense'.* one of meta, domain"):
            Tenants().subscribe(lambda _: None, kind="nonsense")  # type: ignore[arg-type]

    def test_subscriptions_that_ended_leave_nothing_behind(self):
        live = Tenants()
        told: list[Changed] = []
        ends = [live.subscribe(told.append, tenant=id) for id in range(1000)]
        ends += [live.subscribe(told.append, tenant=1), live.subscribe(told.append)]
        for end in (*ends, *ends):
            end()
        assert live._callbacks == {}
        end = live.subscribe(told.append, tenant=1)
        ends[1]()
        live.show(live.snapshot, [Changed(1, frozenset({"meta"}), None, None)])
        assert len(told) == 1
        end()

    async def test_a_callback_sees_what_it_is_told(self, store: Store, tenants: Tenants):
        seen: list[bool] = []
        tenants.subscribe(lambda change: seen.append(tenants.get(change.tenant) == change.after))
        await store.commit(part(1, "meta", {}))
        await eventually(lambda: seen == [True])

    async def test_a_callback_that_fails_hurts_nobody(
        self, store: Store, tenants: Tenants, caplog: pytest.LogCaptureFixture
    ):
        told: list[Changed] = []

        def broken(_: Changed) -> None:
            raise ValueError("a subscriber's mistake")

        tenants.subscribe(broken)
        tenants.subscribe(told.append)
        await store.commit(part(1, "meta", {}))
        await eventually(lambda: len(told) == 1)
        assert "a subscriber's mistake" in caplog.text
        assert tenants.get(1) is not None

    async def test_broken_values_are_left_out_and_reported(
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

    async def test_a_resolver_that_breaks_stays_as_it_was(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ):
        await store.commit(*WHOLE)
        async with provider(store) as t:
            await store.commit(common("common/resolver", {"httpType": "hots"}))
            await eventually(lambda: "jxt/common/resolver" in t.problems)
            assert how(t) == "host"
            assert caplog.text.count("jxt/common/resolver stays as it was: Invalid enum") == 1
            async with provider(store) as fresh:
                assert fresh.resolver is None, "it never knew what was meant"
            await store.commit(Delete(KEYS.common))
            await eventually(lambda: how(t) == "header")

    async def test_of_two_that_claim_a_host_the_lower_id_has_it(
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

    async def test_all_is_read_anew_from_time_to_time(self, store: Store):
        await store.commit(part(1, "meta", {"code": "a"}))
        async with Provider(store, KEYS, Keyring(), afresh=0.05) as t:
            one = t.get(1)
            for n in range(20):
                await store.commit(part(2, "meta", {"code": f"b{n}"}))
                await eventually(lambda n=n: t.by_code(f"b{n}") == 2)  # type: ignore[misc]
                await asyncio.sleep(0.02)
            assert t.get(1) is one, "who did not change is not made anew"

    async def test_another_namespace_is_another_world(self, store: Store):
        await store.commit(*WHOLE)
        async with Provider(store, Keys("/other//ns/"), Keyring()) as t:
            assert len(t.ids()) == 0
            await store.commit(Put(b"other/ns/tenants/5/meta", b'{"code": "x"}'))
            await eventually(lambda: t.by_code("x") == 5)


class Stumbling:
    """A reading that fails as long as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.updates = self.anew = self.waits = False
        apply, anew = Reading.apply, Reading.anew

        def stumbling_apply(
            reading: Reading, snapshot: Snapshot, changes: Iterable[KeyChange]
        ) -> Outcome:
            if self.updates:
                raise RuntimeError("a mistake")
            return apply(reading, snapshot, changes)

        def stumbling_anew(
            reading: Reading, shown: Snapshot, entries: Mapping[bytes, Entry]
        ) -> Paced[Outcome]:
            while self.waits:
                yield
            if self.anew:
                raise RuntimeError("another mistake")
            return (yield from anew(reading, shown, entries))

        monkeypatch.setattr(Reading, "apply", stumbling_apply)
        monkeypatch.setattr(Reading, "anew", stumbling_anew)


@pytest.fixture
def stumbling(monkeypatch: pytest.MonkeyPatch) -> Stumbling:
    return Stumbling(monkeypatch)


class TestRecovery:
    """An update that cannot be applied is not lost: all is put together anew."""

    async def test_it_is_made_good_at_once(
        self, store: Store, stumbling: Stumbling, caplog: pytest.LogCaptureFixture
    ):
        await store.commit(*WHOLE)
        async with provider(store) as t:
            told: list[Changed] = []
            t.subscribe(told.append)
            stumbling.updates = True
            last = await store.commit(
                Delete(KEYS.parts(10)),
                part(1, "storage", {"uploadQuotaGb": 6}),
                part(2, "meta", {"code": "two"}),
            )
            await eventually(lambda: t.by_code("two") == 2)
            assert t.revision == last.revision
            assert {*t.ids()} == {1, 2}
            assert not t.stale
            assert [(c.tenant, *c.kinds) for c in told] == [
                (1, "storage"),
                (2, "meta"),
                (10, "meta"),
            ]
            assert caplog.text.count("could not be applied") == 1
            assert caplog.text.count("nothing is missing") == 1
            stumbling.updates = False
            async with provider(store) as fresh:
                assert t.snapshot == fresh.snapshot

    async def test_until_it_is_made_good_it_is_stale_and_the_last_state_stays(
        self, store: Store, stumbling: Stumbling, caplog: pytest.LogCaptureFixture
    ):
        await store.commit(*WHOLE)
        async with Provider(store, KEYS, Keyring(), afresh=0.3) as t:
            stumbling.updates = stumbling.anew = True
            await store.commit(part(1, "meta", {"code": "one"}))
            await eventually(lambda: t.stale)
            stumbling.updates = False
            await store.commit(part(2, "meta", {"code": "two"}), WHOLE[-1])
            await store.commit(common("platform/configs/limits", {"a": [2]}))
            await eventually(lambda: caplog.text.count("another mistake") > 0)
            await asyncio.sleep(1)  # tries, and reads of everything
            assert t.stale
            assert t.age == float("inf")
            assert {*t.ids()} == {1, 10}
            assert t.by_code("acme") == 1
            assert caplog.text.count("could not be applied") == 2, "once for each mistake"
            stumbling.anew = False
            await eventually(lambda: not t.stale)
            assert t.by_code("acme") is None
            assert (t.by_code("one"), t.by_code("two")) == (1, 2)
            assert t.platform("limits") == {"a": [2]}
            await store.commit(part(2, "meta", {"code": "newer"}))
            await eventually(lambda: t.by_code("newer") == 2)
            async with provider(store) as fresh:
                assert t.snapshot == fresh.snapshot

    async def test_what_comes_meanwhile_is_not_lost(self, store: Store, stumbling: Stumbling):
        await store.commit(*WHOLE)
        async with provider(store) as t:
            known = dict(t.snapshot.tenants)

            def hear(change: Changed) -> None:
                assert known.get(change.tenant) == change.before
                known.pop(change.tenant, None)
                if change.after is not None:
                    known[change.tenant] = change.after

            t.subscribe(hear)
            stumbling.updates = stumbling.waits = True
            await store.commit(part(1, "meta", {"code": "one"}))
            await eventually(lambda: t.stale)
            stumbling.updates = False
            await store.commit(part(2, "meta", {"code": "two"}), Delete(KEYS.parts(10)))
            await store.commit(common("common/resolver", {"httpType": "path"}))
            last = await store.commit(Delete(KEYS.parts(2)), part(3, "meta", {"code": "three"}))
            await asyncio.sleep(0.3)
            assert {*t.ids()} == {1, 10}
            stumbling.waits = False
            await eventually(lambda: how(t) == "path" and t.revision == last.revision)
            async with provider(store) as fresh:
                assert t.snapshot == fresh.snapshot
            assert known == dict(t.snapshot.tenants)
            assert {*known} == {1, 3}

    async def test_settings_are_made_good_and_the_last_good_resolver_stays(
        self, store: Store, stumbling: Stumbling
    ):
        await store.commit(*WHOLE)
        async with provider(store) as t:
            await store.commit(Put(b"jxt/common/resolver", b"{"))
            await eventually(lambda: "jxt/common/resolver" in t.problems)
            stumbling.updates = True
            await store.commit(Delete(key(b"jxt/common/storage-directory")))
            await eventually(lambda: where(t) == "tenants")
            assert how(t) == "host"
            assert "jxt/common/resolver" in t.problems
            await store.commit(Delete(KEYS.common))
            await eventually(lambda: how(t) == "header")
            await store.commit(Delete(KEYS.health))
            await eventually(lambda: t.health is None)
            assert not t.problems

    async def test_a_start_waits_for_it(self, store: Store, stumbling: Stumbling):
        await store.commit(*WHOLE)
        stumbling.updates = True
        async with provider(store) as t:
            assert how(t) == "host"
            assert t.health is not None
            assert t.by_code("acme") == 1
        stumbling.anew = True
        with pytest.raises(Unavailable, match="mistake"):
            async with provider(store, wait=0.3):
                pass

    async def test_the_file_is_of_all_that_was_read(
        self, store: Store, stumbling: Stumbling, tmp_path: Path
    ):
        file = tmp_path / "tenants.copy"
        await store.commit(*WHOLE)
        async with provider(store, file=file) as t:
            await eventually(file.exists)
            stumbling.updates = True
            await store.commit(part(2, "meta", {"code": "two"}))
            await eventually(lambda: t.by_code("two") == 2)
        copy = CopyFile(file, store=store.url, namespace="jxt").load()
        assert copy is not None
        assert copy.revision == t.revision
        assert part(2, "meta", {"code": "two"}).value in {entry.value for entry in copy.entries}

    async def test_a_value_nested_too_deep_keeps_no_other_from_being_seen(
        self, store: Store, tenants: Tenants
    ):
        """Some can just be decoded, and not compared: which ones, depends on who calls."""
        for depth in (101, *range(960, 1000)):
            nested = "[" * depth + "]" * depth
            for n in range(2):
                done = await store.commit(
                    part(1, "database/q", f'{{"driver":"{n}","x":{nested}}}'),
                    part(2, "meta", {"code": f"{depth}-{n}"}),
                )
            revision = done.revision
            await eventually(lambda revision=revision: tenants.revision >= revision)  # type: ignore[misc]
            assert tenants.by_code(f"{depth}-1") == 2
        assert not tenants.stale


class TestLifetime:
    async def test_it_stays_readable_when_it_is_closed(self, store: Store):
        await store.commit(*WHOLE)
        holder = provider(store)
        async with holder as t:
            assert not t.stale
        assert t.stale
        assert t.by_code("acme") == 1
        await holder.aclose()
        with pytest.raises(Closed):
            await holder.__aenter__()

    async def test_both_sides_take_the_keys_by_one_name(self, store_url: str):
        ring = Keyring([b"k" * 32])
        async with mooring.connect(store_url) as hub:
            publisher = hub.publisher(keyring=ring)
            await publisher.put(1, "meta", {"code": "a", "name": "A"})
            await publisher.put(
                1, "database/one", {"driver": "mysql", "database": "d", "password": "p"}
            )
            async with hub.tenants(keyring=ring) as t:
                found = t.database(1, "one")
                assert found is not None
                assert found.password is not None
                assert found.password.reveal() == "p"

    async def test_closing_the_hub_closes_it(self, store_url: str):
        async with mooring.connect(store_url) as hub:
            await hub.store.commit(*WHOLE)
            tenants = await hub.tenants().__aenter__()
            assert not tenants.stale
        assert tenants.stale
        with pytest.raises(Closed):
            hub.tenants()

    def test_without_its_extra_it_names_it_and_the_rest_works(self):
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

    async def test_without_a_store_and_a_file_it_says_so(self):
        async with open_store(DEAD) as store:
            with pytest.raises(Unavailable, match="tenants of 'jxt'"):
                async with provider(store, wait=0.3):
                    pass

    async def test_a_store_that_takes_long_to_read_is_waited_for(
        self, etcd: Callable[[str], EtcdServer]
    ):
        async with (
            FaultProxy(etcd("3.5").address) as proxy,
            open_store(f"etcd://{proxy.address}?namespace=/{id(proxy)}") as store,
        ):
            await store.commit(*WHOLE)
            proxy.delay(0.3)
            async with provider(store, wait=0.1) as t:
                assert t.by_code("acme") == 1

    async def test_who_enters_it_hears_that_its_store_is_closed(self):
        async with open_store(DEAD) as store:
            entering = asyncio.ensure_future(provider(store, wait=30).__aenter__())
            await asyncio.sleep(0.1)
            await store.aclose()
            async with asyncio.timeout(5):
                with pytest.raises(Closed):
                    await entering


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
        assert CopyFile(file, store=store.url, namespace="jxt").load() is not None
        assert not left.exists()

    async def test_a_disk_that_cannot_be_written_costs_the_copy_alone(
        self, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ):
        (tmp_path / "file").touch()
        async with provider(store, file=tmp_path / "file" / "tenants.copy") as t:
            await store.commit(*WHOLE)
            await eventually(lambda: t.by_code("ten") == 10)
        assert caplog.text.count("no copy of the tenants is kept") == 1

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
            lambda raw: raw.replace(b'"format":1', b'"format":9'),
        ],
        ids=["empty", "short", "long", "head alone", "a digit", "rubbish", "format"],
    )
    async def test_a_damaged_file_is_not_believed(
        self,
        away: Away,
        damage: Callable[[bytes], bytes],
        caplog: pytest.LogCaptureFixture,
    ):
        raw = away.file.read_bytes()
        away.file.write_bytes(damage(raw))
        assert away.file.read_bytes() != raw
        with pytest.raises(Unavailable):
            async with provider(away.through, file=away.file, wait=0.3):
                pass
        assert "tenants.copy cannot be used" in caplog.text
        away.proxy.heal()
        async with provider(away.through, file=away.file) as t:
            assert t.by_code("acme") == 1

    async def test_a_file_of_another_store_or_namespace_is_not_used(
        self, away: Away, caplog: pytest.LogCaptureFixture
    ):
        async with open_store(DEAD) as other:
            with pytest.raises(Unavailable):
                async with provider(other, file=away.file, wait=0.3):
                    pass
        assert "and not of 'jxt' in etcd://127.0.0.1:1" in caplog.text
        with pytest.raises(Unavailable):
            async with Provider(away.through, Keys("other"), Keyring(), file=away.file, wait=0.3):
                pass
        assert "and not of 'other'" in caplog.text

    async def test_a_damaged_file_does_not_keep_it_from_waiting_for_the_store(self, away: Away):
        away.file.write_bytes(away.file.read_bytes()[:-1])
        entering = asyncio.ensure_future(
            provider(away.through, file=away.file, wait=20).__aenter__()
        )
        await asyncio.sleep(0.3)
        away.proxy.heal()
        t = await entering
        assert t.by_code("acme") == 1


class TestBlocking:
    @pytest.fixture
    def hub(self, store_url: str) -> mooring.sync.Hub:
        return mooring.sync.connect(store_url)

    def test_threads_read_the_very_tenants(self, hub: mooring.sync.Hub):
        with hub:
            hub.store.commit(*WHOLE)
            with hub.tenants() as tenants:
                assert type(tenants) is Tenants
                assert tenants.by_code("acme") == 1
                told: list[Changed] = []
                end = tenants.subscribe(told.append, tenant=2)
                hub.store.commit(part(2, "meta", {"code": "two"}))
                until(lambda: tenants.by_code("two") == 2)
                until(lambda: len(told) == 1)
                end()
                wrong: list[object] = []

                def read() -> None:
                    wrong.extend(
                        tenants.age
                        for _ in range(2000)
                        if tenants.database(1, "evidence-query") is None or tenants.stale
                    )

                threads = [threading.Thread(target=read) for _ in range(8)]
                for thread in threads:
                    thread.start()
                for n in range(20):
                    hub.store.commit(part(3, "meta", {"code": f"c{n}"}))
                for thread in threads:
                    thread.join()
                assert wrong == []
            assert tenants.stale
            assert tenants.by_code("acme") == 1

    def test_it_is_opened_and_closed_without_a_block(self, hub: mooring.sync.Hub):
        with hub:
            held = hub.tenants(keyring=Keyring([b"k" * 32]))
            assert isinstance(held, mooring.sync.Provider)
            tenants = held.open()
            assert len(tenants.ids()) == 0
            held.close()


async def test_it_agrees_with_the_store_after_many_writers(store: Store):
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
        await eventually(lambda: live.revision == last)
        async with provider(store) as fresh:
            assert live.snapshot == fresh.snapshot
        assert len((await store.read(prefix(b"jxt/tenants/"))).entries) > 0
