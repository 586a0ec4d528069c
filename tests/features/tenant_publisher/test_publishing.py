"""Publishing and deleting tenants: what is written, and what is refused."""

from __future__ import annotations

import asyncio
import os
from typing import cast

import msgspec
import pytest

import mooring.sync
from mooring.errors import InvalidRequest, NotConfigured, OutcomeUnknown, Taken
from mooring.hub import Hub
from mooring.model import JSON
from mooring.store import Committed, Put, Store, prefix
from mooring.tenants.document import parse
from mooring.tenants.parts import holder
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.read.resolution import find
from mooring.tenants.secrets import Keyring
from tests.backends import in_memory
from tests.features.tenant_files import (
    KEYS,
    assert_consistent,
    document,
    everything_of,
)
from tests.features.tenant_publisher.support import (
    RING,
    Commit,
    Leaving,
    hooked,
    revisions,
    value,
    with_faults,
)


class TestPublishing:
    async def test_a_complete_tenant_is_one_transaction_with_its_indexes(
        self, store: Store, publisher: Publisher
    ):
        done = await publisher.apply(document(1, "one"), note="first")
        assert (done.tenant, done.number, done.transactions) == (1, 1, 1)
        assert [change.path for change in done.changes] == [
            "meta",
            "domain/aliases",
            "domain/internal",
            "domain/primary",
            "database/query",
            "ftp/meta.one",
            "ftp/one_ftp",
            "storage",
        ]
        entries = (await store.read(prefix(b"jxt/"))).entries
        assert len({entry.modified for entry in entries}) == 1
        await assert_consistent(store)
        assert await value(store, KEYS.index("by-name", "租户 one/")) == {
            "id": 1,
            "code": "one",
            "primaryDomain": "one.example.com",
        }
        assert "pw-one" not in str(entries)
        assert "pw-one" not in repr(done)

    async def test_an_equal_publish_writes_nothing(self, store: Store, publisher: Publisher):
        await publisher.apply(document(1))
        before = await everything_of(store)
        done = await publisher.apply(document(1))
        assert (done.changes, done.number, done.transactions) == ((), 0, 0)
        assert await everything_of(store) == before
        assert await publisher.diff(document(1)) == []

    async def test_an_omitted_section_stays_and_an_empty_one_is_removed(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await publisher.apply(parse({"id": 1, "ftp": {}, "storage": None}))
        assert sorted(await publisher.read(1)) == [
            "database/query",
            "domain/aliases",
            "domain/internal",
            "domain/primary",
            "meta",
        ]
        await assert_consistent(store)

    async def test_parts_can_be_published_in_any_order(self, store: Store, publisher: Publisher):
        await publisher.put(1, "ftp/meta", {})
        await publisher.put(1, "domain/primary", "one.example.com")
        await assert_consistent(store)
        await publisher.put(1, "meta", {"code": "one", "name": "One"})
        await publisher.put(1, "database/meta", {"driver": "sqlite", "database": "x"})
        await publisher.put(1, "domain/aliases", ["a.example.com", "A.example.com"])
        await publisher.put(1, "domain/internal", "one.internal")
        await publisher.put(1, "storage", {"uploadQuotaGb": 1})
        await assert_consistent(store)
        assert await value(store, KEYS.index("ftp-user", "meta")) == {
            "tenantId": 1,
            "code": "one",
            "name": "One",
        }
        for path in ("ftp/meta", "domain", "database/meta", "storage"):
            await publisher.remove(1, path)
            await assert_consistent(store)
        assert list(await publisher.read(1)) == ["meta"]
        with pytest.raises(NotConfigured, match="tenant 1 has no ftp/meta"):
            await publisher.remove(1, "ftp/meta")
        with pytest.raises(InvalidRequest, match="delete the tenant"):
            await publisher.remove(1, "meta")

    async def test_a_rename_moves_and_rewrites_the_indexes_at_once(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await publisher.put(1, "meta", {"code": "uno", "name": "Uno"})
        await assert_consistent(store)
        leading = [
            KEYS.index("by-code", "uno"),
            KEYS.index("by-name", "Uno"),
            KEYS.index("ftp-user", "one_ftp"),
            KEYS.index("host", "one.example.com"),
            KEYS.index("host", "one.internal"),
        ]
        moved = await revisions(store, KEYS.part(1, "meta"), KEYS.history(1, 2), *leading)
        assert len(moved) == 1
        assert moved != {0}
        gone = [KEYS.index("by-code", "one"), KEYS.index("by-name", "租户 one/")]
        assert await revisions(store, *gone) == {0}
        assert await find(store, KEYS, "by-code", "UNO") == 1
        assert await find(store, KEYS, "by-code", "one") is None

    async def test_the_index_of_the_name_has_the_new_primary_domain(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await publisher.put(1, "domain/primary", "New.example.com")
        name = KEYS.index("by-name", "租户 one/")
        assert cast(dict[str, JSON], await value(store, name))["primaryDomain"] == "New.example.com"
        assert len(await revisions(store, name, KEYS.part(1, "domain/primary"))) == 1
        await assert_consistent(store)

    async def test_fields_of_other_programs_are_kept(self, store: Store, publisher: Publisher):
        await publisher.apply(document(1, "one"))
        raw = msgspec.json.encode({"code": "one", "name": "租户 one/", "region": "eu"})
        await store.commit(Put(KEYS.part(1, "meta"), raw))
        await publisher.apply(document(1, "one"))
        meta = cast(dict[str, JSON], (await publisher.read(1))["meta"])
        assert meta["region"] == "eu"
        await publisher.put(
            1, "meta", {"code": "one", "name": "租户 one/", "extra": {"region": None}}
        )
        assert "region" not in cast(dict[str, JSON], (await publisher.read(1))["meta"])

    async def test_an_invalid_path_is_refused(self, store: Store, publisher: Publisher):
        for path in ("nonsense", "ftp/a/b", "domain/other", "ftp"):
            with pytest.raises(InvalidRequest):
                await publisher.put(1, path, {})
            with pytest.raises(InvalidRequest):
                await publisher.change(1, lambda _, path=path: {path: {}})  # type: ignore[misc]
        assert await everything_of(store) == {}

    async def test_namespaces_are_separate(self, store: Store, publisher: Publisher):
        other = Publisher(store, Publisher(store).keys.__class__("//other/"), ring=RING)
        await publisher.apply(document(1, "one"))
        await other.apply(document(2, "one"))
        await assert_consistent(store)
        await assert_consistent(store, other.keys)
        assert b"//" not in b"".join(await everything_of(store, other.keys))


class TestNames:
    async def test_a_taken_name_is_refused_with_its_holder(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        before = await everything_of(store)
        for part, taken, what in (
            ("meta", {"code": "ONE", "name": "x"}, "the code 'ONE'"),
            ("meta", {"code": "x", "name": "租户 one/"}, "the name '租户 one/'"),
            ("ftp/one_ftp", {}, "the FTP user 'one_ftp'"),
            ("domain/primary", "WWW.one.example.com", "the host 'WWW.one.example.com'"),
            ("domain/aliases", ["x.example.com", "one.internal"], "the host 'one.internal'"),
        ):
            with pytest.raises(Taken) as error:
                await publisher.put(2, part, cast(JSON, taken))
            assert str(error.value) == f"tenant 2: {what} belongs to tenant 1 already"
            assert error.value.holder == 1
        with pytest.raises(Taken, match="belongs to tenant 1"):
            await publisher.diff(document(2, "two", ftp={"one_ftp": {}}))
        assert await everything_of(store) == before

    async def test_a_name_is_free_when_its_tenant_releases_it(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await publisher.put(1, "meta", {"code": "uno", "name": "Uno"})
        await publisher.put(2, "meta", {"code": "one", "name": "租户 one/"})
        await publisher.delete(1)
        await publisher.put(2, "ftp/one_ftp", {})
        await assert_consistent(store)

    async def test_a_stale_index_is_taken_over(self, store: Store, publisher: Publisher):
        await publisher.apply(document(1, "one"))
        stale = KEYS.index("ftp-user", "bob")
        for raw in (b'{"tenantId":1}', b'{"tenantId":77}', b'{"tenantId":-5}', b"{", b""):
            await store.commit(Put(stale, raw))
            await publisher.put(2, "ftp/bob", {})
            await assert_consistent(store)
            await publisher.remove(2, "ftp/bob")

    async def test_the_raw_name_of_an_older_publisher_counts_and_is_removed_by_a_rename(
        self, store: Store, publisher: Publisher
    ):
        raw = KEYS.as_written("by-name", "默认 租户")
        meta = msgspec.json.encode({"id": 1, "code": "one", "name": "默认 租户"})
        await store.commit(Put(KEYS.part(1, "meta"), meta), Put(raw, b'{"id":1,"code":"one"}'))
        assert await find(store, KEYS, "by-name", "默认 租户") == 1
        with pytest.raises(Taken, match="belongs to tenant 1"):
            await publisher.put(2, "meta", {"code": "two", "name": "默认 租户"})
        await publisher.put(1, "storage", {})
        assert await value(store, raw) is not None
        await publisher.put(1, "meta", {"code": "one", "name": "a b"})
        assert await value(store, raw) is None
        await assert_consistent(store)

    async def test_the_raw_name_is_removed_with_its_tenant(
        self, store: Store, publisher: Publisher
    ):
        await publisher.put(1, "meta", {"code": "one", "name": "a b"})
        await store.commit(Put(KEYS.as_written("by-name", "a b"), b'{"id":1}'))
        await publisher.delete(1)
        assert (await store.read(KEYS.indexes)).entries == ()

    async def test_names_in_capitals_of_another_publisher_count_and_are_removed(
        self, store: Store, publisher: Publisher
    ):
        code, host = KEYS.as_written("by-code", "ACME"), KEYS.as_written("host", "Shop.Example.com")
        await store.commit(
            Put(KEYS.part(1, "meta"), b'{"id":1,"code":"ACME","name":"A"}'),
            Put(KEYS.part(1, "domain/primary"), b"Shop.Example.com"),
            Put(code, b'{"id":1,"code":"ACME","name":"A"}'),
            Put(host, b'{"tenantId":1,"code":"ACME","hostType":"frontend"}'),
        )
        assert await find(store, KEYS, "by-code", "ACME") == 1
        assert await find(store, KEYS, "host", "Shop.Example.com") == 1
        with pytest.raises(Taken, match="belongs to tenant 1"):
            await publisher.put(2, "meta", {"code": "acme", "name": "B"})
        with pytest.raises(Taken, match="belongs to tenant 1"):
            await publisher.put(2, "domain/aliases", ["shop.example.com"])
        await publisher.put(1, "domain/primary", "new.example.com")
        assert await revisions(store, host) == {0}
        await publisher.delete(1)
        assert (await store.read(KEYS.indexes)).entries == ()

    async def test_a_host_is_found_as_requests_carry_it(self, store: Store, publisher: Publisher):
        await publisher.put(1, "domain/primary", "Shop.example.com")
        for asked in ("shop.example.com", "SHOP.example.com:8080", "shop.example.com."):
            assert await find(store, KEYS, "host", asked) == 1
        assert await find(store, KEYS, "host", "shop.example.com.evil") is None

    async def test_an_unreadable_tenant_keeps_its_names(self, store: Store, publisher: Publisher):
        await publisher.apply(document(2, "two"))
        await store.commit(
            Put(KEYS.part(2, "meta"), b"{broken"), Put(KEYS.part(2, "domain/aliases"), b"[broken")
        )
        leading = (await store.read(KEYS.indexes)).entries
        for path, value_ in (
            ("meta", {"code": "two", "name": "x"}),
            ("meta", {"code": "x", "name": "租户 two/"}),
            ("domain/primary", "www.two.example.com"),
            ("ftp/two_ftp", {}),
        ):
            with pytest.raises(Taken, match="belongs to tenant 2"):
                await publisher.put(1, path, cast(JSON, value_))
        await publisher.put(2, "storage", {"uploadQuotaGb": 1})
        assert (await store.read(KEYS.indexes)).entries == leading
        await publisher.put(2, "meta", {"code": "zwei", "name": "Zwei"})
        assert await find(store, KEYS, "by-code", "two") is None
        assert await find(store, KEYS, "host", "www.two.example.com") == 2

    @in_memory
    async def test_more_hosts_of_broken_aliases_than_fit_in_a_commit_are_repaired(
        self, store: Store, publisher: Publisher
    ):
        aliases: list[JSON] = [f"h{n}.example" for n in range(200)]
        await publisher.put(1, "domain/aliases", aliases)
        for wanted in (["x.example"], aliases, None):
            await store.commit(Put(KEYS.part(1, "domain/aliases"), b"[broken"))
            if wanted is None:
                await publisher.remove(1, "domain")
            else:
                await publisher.put(1, "domain/aliases", cast(JSON, wanted))
            await assert_consistent(store)

    @in_memory
    async def test_stale_indexes_of_many_deleted_tenants_are_taken_over(
        self, store: Store, publisher: Publisher
    ):
        names = [f"n{n}.example" for n in range(130)]
        users = [f"u{n}" for n in range(130)]
        stale = [KEYS.index("host", name) for name in names]
        stale += [KEYS.index("ftp-user", user) for user in users]
        for first in range(0, len(stale), 100):
            chunk = enumerate(stale[first : first + 100], start=first + 1000)
            await store.commit(*(Put(place, b'{"tenantId":%d}' % n) for n, place in chunk))
        sections = {"domain": {"aliases": names}, "ftp": {user: {} for user in users}}
        await publisher.diff(parse({"id": 1, **sections}))
        await publisher.apply(parse({"id": 1, **sections}))
        await assert_consistent(store)

    async def test_a_name_that_looks_like_another_escaped_one_is_different(
        self, store: Store, publisher: Publisher
    ):
        await publisher.put(2, "meta", {"code": "two", "name": "a b"})
        assert await find(store, KEYS, "by-name", "a%20b") is None
        await publisher.put(1, "meta", {"code": "one", "name": "a%20b"})
        assert await find(store, KEYS, "by-name", "a%20b") == 1
        assert await find(store, KEYS, "by-name", "a b") == 2


class TestDeleting:
    async def test_a_tenant_is_deleted_with_its_indexes_in_one_transaction(
        self, store: Store, publisher: Publisher
    ):
        for tenant in (1, 10, 11, 2):
            await publisher.apply(document(tenant))
        await store.commit(Put(b"jxt/tenants/1/database", b"older generation"))
        before = await everything_of(store)
        done = await publisher.delete(1)
        assert done.transactions == 1
        assert len(done.changes) == 8
        assert (await store.read(KEYS.parts(1))).entries == ()
        await assert_consistent(store)
        gone = {name for name in before if name in KEYS.parts(1)}
        gone |= {name for name, raw in before.items() if name in KEYS.indexes and holder(raw) == 1}
        assert len(gone) == 9 + 2 + 2 + 3
        after = await everything_of(store)
        assert {name: after.get(name) for name in before if name not in gone} == {
            name: raw if name != KEYS.history_head(1) else b"2"
            for name, raw in before.items()
            if name not in gone
        }
        for tenant in (10, 11, 2):
            assert len(await publisher.read(tenant)) == 8
        with pytest.raises(NotConfigured, match="tenant 1 not found"):
            await publisher.delete(1)

    async def test_a_tenant_with_an_unreadable_meta_is_deleted_with_its_indexes(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await publisher.apply(document(10, "ten"))
        await store.commit(
            Put(KEYS.part(1, "meta"), b"{broken"), Put(KEYS.part(1, "domain/aliases"), b"broken")
        )
        await publisher.delete(1)
        await assert_consistent(store)
        assert len(await publisher.read(10)) == 8

    async def test_a_broken_meta_is_repaired_with_its_indexes(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await store.commit(Put(KEYS.part(1, "meta"), b"{broken"))
        await publisher.put(1, "meta", {"code": "uno", "name": "Uno"})
        await assert_consistent(store)
        assert await find(store, KEYS, "by-code", "one") is None


class TestSharedValues:
    async def test_a_shared_value_is_written_and_removed(self, store: Store, publisher: Publisher):
        await publisher.put_common("common/resolver", {"httpType": "host"})
        await publisher.put_common("//common/storage-directory/", {"directory": "tenants"})
        await publisher.put_common("platform/configs/mail", [1, {"a": None}])
        assert await value(store, b"jxt/common/resolver") == {"httpType": "host"}
        assert await value(store, b"jxt/common/storage-directory") == {"directory": "tenants"}
        assert await value(store, b"jxt/platform/configs/mail") == [1, {"a": None}]
        await publisher.remove_common("platform/configs/mail")
        with pytest.raises(NotConfigured, match="platform/configs/mail"):
            await publisher.remove_common("platform/configs/mail")

    @pytest.mark.parametrize("how", ["before", "after"])
    async def test_a_lost_reply_is_looked_up(self, store: Store, publisher: Publisher, how: str):
        await with_faults(store, 0, how).put_common("platform/configs/mail", {"a": 1})
        assert await value(store, b"jxt/platform/configs/mail") == {"a": 1}
        await with_faults(store, 0, how).put_common("common/resolver", {"httpType": "host"})
        assert await value(store, b"jxt/common/resolver") == {"httpType": "host"}
        await with_faults(store, 0, how).remove_common("common/resolver")
        assert await value(store, b"jxt/common/resolver") is None

    async def test_an_outcome_that_cannot_be_looked_up_is_unknown(
        self, store: Store, publisher: Publisher
    ):
        away = Publisher(cast(Store, Leaving(store, 0, "after")), ring=RING)
        with pytest.raises(OutcomeUnknown, match="platform settings: a response was lost"):
            await away.put_common("platform/configs/mail", 1)

        async def hook(number: int, go: Commit) -> Committed:
            await go()
            if number == 1:
                await publisher.put_common("platform/configs/mail", "another's")
                raise OutcomeUnknown("the answer was lost")
            raise AssertionError("it was written already")

        assert (await hooked(store, hook).put_common("platform/configs/mail", 2)).number == 2
        assert await value(store, b"jxt/platform/configs/mail") == "another's"

    async def test_shared_values_have_a_history_and_can_be_rolled_back(
        self, store: Store, publisher: Publisher
    ):
        mail = "platform/configs/mail"
        assert (await publisher.put_common("common/resolver", {"httpType": "host"})).number == 1
        done = await publisher.put_common(mail, {"host": "a", "password": "hunter2"}, note="new")
        assert (done.tenant, done.number, done.transactions) == ("platform", 1, 1)
        assert (await publisher.put_common(mail, {"host": "a", "password": "hunter2"})).number == 0
        await publisher.put_common(mail, {"host": "b", "password": "hunter3"})
        await publisher.put_common("platform/configs/a/b", [1])
        removed = await publisher.remove_common(mail)
        assert removed is not None
        assert removed.number == 4
        entries = await publisher.history("platform")
        assert [(entry.number, entry.action, entry.note) for entry in entries] == [
            (1, "publish", "new"),
            (2, "publish", ""),
            (3, "publish", ""),
            (4, "delete", ""),
        ]
        stored = (await store.read(prefix(b"jxt/_history/"))).entries
        assert b"hunter" not in b"".join(entry.value for entry in stored)
        assert [diff.path for diff in await publisher.diff_rollback("platform", 1)] == [
            "platform/configs/a/b",
            mail,
        ]
        assert (await publisher.rollback("platform", 1)).number == 5
        assert await publisher.read("platform") == {mail: {"host": "a", "password": "hunter2"}}
        assert [entry.number for entry in await publisher.history("common")] == [1]
        assert await publisher.read("common") == {"common/resolver": {"httpType": "host"}}
        with pytest.raises(NotConfigured, match="platform settings: no version 9"):
            await publisher.rollback("platform", 9)

    async def test_a_diff_shows_what_would_change(self, store: Store, publisher: Publisher):
        await publisher.put_common("platform/configs/mail", {"host": "a"})
        (change,) = await publisher.diff_common("platform/configs/mail", {"host": "b"})
        assert (change.path, change.before, change.after) == (
            "platform/configs/mail",
            {"host": "a"},
            {"host": "b"},
        )
        with pytest.raises(InvalidRequest, match="did you mean"):
            await publisher.diff_common("common/resolver", {"htpType": "host"})
        assert await value(store, b"jxt/platform/configs/mail") == {"host": "a"}

    async def test_concurrent_changes_are_all_stored(self, store: Store, publisher: Publisher):
        await asyncio.gather(
            *(publisher.put_common(f"platform/configs/k{n}", n) for n in range(1, 9))
        )
        assert len(await publisher.history("platform")) == 8
        assert len(await publisher.read("platform")) == 8

    async def test_a_null_of_another_program_can_be_replaced_and_removed(
        self, store: Store, publisher: Publisher
    ):
        name = b"jxt/platform/configs/mail"
        await store.commit(Put(name, b"null"))
        await publisher.put_common("platform/configs/mail", 1)
        await store.commit(Put(name, b"null"))
        await publisher.remove_common("platform/configs/mail")
        assert await value(store, name) is None
        with pytest.raises(InvalidRequest, match="unset"):
            await publisher.put_common("platform/configs/mail", None)

    async def test_a_new_key_also_seals_the_history(self, store: Store, publisher: Publisher):
        await publisher.put_common("platform/configs/mail", {"password": "hunter2"})
        await publisher.remove_common("platform/configs/mail")
        other = Keyring([b"n" * 32, b"k" * 32])
        assert (await Publisher(store, ring=other).rekey()).entries == 2
        await Publisher(store, ring=Keyring([b"n" * 32])).rollback("platform", 1)
        assert await publisher.read("platform") == {
            "platform/configs/mail": {"password": "hunter2"}
        }

    async def test_the_sentinel_can_be_removed(self, store: Store, publisher: Publisher):
        await publisher.beat()
        await publisher.remove_common("/_health/sentinel")
        assert await value(store, KEYS.sentinel) is None
        with pytest.raises(NotConfigured, match="_health/sentinel"):
            await publisher.remove_common("_health/sentinel")
        with pytest.raises(InvalidRequest):
            await publisher.put_common("_health/sentinel", {})

    async def test_fields_of_other_programs_stay(self, store: Store, publisher: Publisher):
        await store.commit(Put(b"jxt/common/resolver", b'{"httpType":"path","theirs":1}'))
        await publisher.put_common("common/resolver", {"extra": {"theirs": None, "ours": None}})
        assert await value(store, b"jxt/common/resolver") == {}
        await store.commit(Put(b"jxt/common/resolver", b'{"httpType":"path","ours":1}'))
        await publisher.put_common("common/resolver", {"httpType": "host"})
        assert await value(store, b"jxt/common/resolver") == {"httpType": "host", "ours": 1}
        await store.commit(Put(b"jxt/common/resolver", b"{broken"))
        await publisher.put_common("common/resolver", {"httpType": "host"})
        assert await value(store, b"jxt/common/resolver") == {"httpType": "host"}

    async def test_shared_values_are_validated(self, store: Store, publisher: Publisher):
        with pytest.raises(InvalidRequest, match="did you mean 'httpType'"):
            await publisher.put_common("common/resolver", {"htpType": "host"})
        with pytest.raises(InvalidRequest, match="masked"):
            await publisher.put_common("platform/configs/mail", {"smtp": {"password": "••••••"}})
        with pytest.raises(InvalidRequest, match="JSON"):
            await publisher.put_common("platform/configs/mail", cast(JSON, {"a": {1, 2}}))
        with pytest.raises(InvalidRequest):
            await publisher.put_common("tenants/1/meta", {})
        assert await everything_of(store) == {}

    async def test_every_publish_updates_the_sentinel(self, store: Store, publisher: Publisher):
        await publisher.beat()
        first = await value(store, KEYS.sentinel)
        assert isinstance(first, dict)
        assert list(first) == ["updatedAt"]
        before = await revisions(store, KEYS.sentinel)
        await publisher.put(1, "storage", {})
        assert await revisions(store, KEYS.sentinel) == await revisions(
            store, KEYS.part(1, "storage")
        )
        assert await revisions(store, KEYS.sentinel) != before


async def test_the_environment_sets_the_namespace(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MOORING_TENANTS_NAMESPACE", "acme")
    await Publisher(store, ring=RING).apply(document(1))
    assert await value(store, b"acme/tenants/1/meta")


async def test_the_hub_provides_a_publisher(store_url: str):
    async with Hub(store_url) as hub:
        publisher = hub.publisher(by="alice", namespace="/other/")
        await publisher.apply(document(1))
        assert (await publisher.history(1))[0].by == "alice"
        assert len((await hub.store.read(prefix(b"other/tenants/1/"))).entries) == 8
        assert (
            f"@{os.uname().nodename}"
            in (
                await hub.publisher().put(2, "storage", {}),
                (await hub.publisher().history(2))[0].by,
            )[1]
        )


def test_a_blocking_publisher(store_url: str):
    with mooring.sync.connect(store_url) as hub:
        publisher = hub.publisher(by="bob")
        done = publisher.apply(document(1, "one"))
        assert done.number == 1
        assert publisher.diff(document(1, "one")) == []
        with pytest.raises(Taken, match="tenant 1"):
            publisher.put(2, "ftp/one_ftp", {})
        publisher.delete(1)
        publisher.rollback(1, 1)
        assert [entry.by for entry in publisher.history(1)] == ["bob"] * 3
        publisher.beat()
