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
from mooring.tenants.read.tenants import find
from mooring.tenants.secrets import Keyring
from tests.backends import in_memory
from tests.features.tenant_files import (
    KEYS,
    document,
    everything_of,
    whole,
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
    async def test_a_whole_tenant_is_one_transaction_with_all_that_leads_to_it(
        self, store: Store, publisher: Publisher
    ):
        told = await publisher.apply(document(1, "one"), note="first")
        assert (told.tenant, told.number, told.transactions) == (1, 1, 1)
        assert [change.path for change in told.changes] == [
            "meta",
            "domain/aliases",
            "domain/internal",
            "domain/primary",
            "database/query",
            "ftp/meta.one",
            "ftp/one_ftp",
            "storage",
        ]
        found = (await store.read(prefix(b"jxt/"))).entries
        assert len({entry.modified for entry in found}) == 1
        await whole(store)
        assert await value(store, KEYS.index("by-name", "租户 one/")) == {
            "id": 1,
            "code": "one",
            "primaryDomain": "one.example.com",
        }
        assert "pw-one" not in str(found)
        assert "pw-one" not in repr(told)

    async def test_the_same_again_writes_nothing(self, store: Store, publisher: Publisher):
        await publisher.apply(document(1))
        before = await everything_of(store)
        told = await publisher.apply(document(1))
        assert (told.changes, told.number, told.transactions) == ((), 0, 0)
        assert await everything_of(store) == before
        assert await publisher.diff(document(1)) == []

    async def test_a_section_left_out_stays_and_an_empty_one_goes(
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
        await whole(store)

    async def test_part_by_part_in_any_order(self, store: Store, publisher: Publisher):
        await publisher.put(1, "ftp/meta", {})
        await publisher.put(1, "domain/primary", "one.example.com")
        await whole(store)
        await publisher.put(1, "meta", {"code": "one", "name": "One"})
        await publisher.put(1, "database/meta", {"driver": "sqlite", "database": "x"})
        await publisher.put(1, "domain/aliases", ["a.example.com", "A.example.com"])
        await publisher.put(1, "domain/internal", "one.internal")
        await publisher.put(1, "storage", {"uploadQuotaGb": 1})
        await whole(store)
        assert await value(store, KEYS.index("ftp-user", "meta")) == {
            "tenantId": 1,
            "code": "one",
            "name": "One",
        }
        for path in ("ftp/meta", "domain", "database/meta", "storage"):
            await publisher.remove(1, path)
            await whole(store)
        assert list(await publisher.read(1)) == ["meta"]
        with pytest.raises(NotConfigured, match="tenant 1 has no ftp/meta"):
            await publisher.remove(1, "ftp/meta")
        with pytest.raises(InvalidRequest, match="delete the tenant"):
            await publisher.remove(1, "meta")

    async def test_a_rename_moves_and_rewrites_what_leads_to_it_at_once(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await publisher.put(1, "meta", {"code": "uno", "name": "Uno"})
        await whole(store)
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

    async def test_a_new_primary_domain_is_told_by_the_name(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await publisher.put(1, "domain/primary", "New.example.com")
        name = KEYS.index("by-name", "租户 one/")
        assert cast(dict[str, JSON], await value(store, name))["primaryDomain"] == "New.example.com"
        assert len(await revisions(store, name, KEYS.part(1, "domain/primary"))) == 1
        await whole(store)

    async def test_what_others_wrote_is_kept(self, store: Store, publisher: Publisher):
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

    async def test_a_path_that_is_none_is_refused(self, store: Store, publisher: Publisher):
        for path in ("nonsense", "ftp/a/b", "domain/other", "ftp"):
            with pytest.raises(InvalidRequest):
                await publisher.put(1, path, {})
            with pytest.raises(InvalidRequest):
                await publisher.change(1, lambda _, path=path: {path: {}})  # type: ignore[misc]
        assert await everything_of(store) == {}

    async def test_keys_of_another_namespace_are_its_own(self, store: Store, publisher: Publisher):
        other = Publisher(store, Publisher(store).keys.__class__("//other/"), ring=RING)
        await publisher.apply(document(1, "one"))
        await other.apply(document(2, "one"))
        await whole(store)
        await whole(store, other.keys)
        assert b"//" not in b"".join(await everything_of(store, other.keys))


class TestNames:
    async def test_a_name_that_is_taken_is_refused_with_its_holder(
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

    async def test_a_name_is_free_when_its_tenant_lets_go(self, store: Store, publisher: Publisher):
        await publisher.apply(document(1, "one"))
        await publisher.put(1, "meta", {"code": "uno", "name": "Uno"})
        await publisher.put(2, "meta", {"code": "one", "name": "租户 one/"})
        await publisher.delete(1)
        await publisher.put(2, "ftp/one_ftp", {})
        await whole(store)

    async def test_what_leads_to_a_tenant_that_lays_no_claim_to_it_is_taken_over(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        stale = KEYS.index("ftp-user", "bob")
        for raw in (b'{"tenantId":1}', b'{"tenantId":77}', b'{"tenantId":-5}', b"{", b""):
            await store.commit(Put(stale, raw))
            await publisher.put(2, "ftp/bob", {})
            await whole(store)
            await publisher.remove(2, "ftp/bob")

    async def test_the_raw_name_of_an_older_publisher_counts_and_goes_with_a_rename(
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
        await whole(store)

    async def test_the_raw_name_goes_with_its_tenant(self, store: Store, publisher: Publisher):
        await publisher.put(1, "meta", {"code": "one", "name": "a b"})
        await store.commit(Put(KEYS.as_written("by-name", "a b"), b'{"id":1}'))
        await publisher.delete(1)
        assert (await store.read(KEYS.indexes)).entries == ()

    async def test_a_code_or_a_host_that_another_publisher_wrote_in_capitals_counts_and_goes(
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

    async def test_a_host_is_found_as_it_stands_in_a_request(
        self, store: Store, publisher: Publisher
    ):
        await publisher.put(1, "domain/primary", "Shop.example.com")
        for asked in ("shop.example.com", "SHOP.example.com:8080", "shop.example.com."):
            assert await find(store, KEYS, "host", asked) == 1
        assert await find(store, KEYS, "host", "shop.example.com.evil") is None

    async def test_a_tenant_that_cannot_be_understood_keeps_its_names(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(2, "two"))
        await store.commit(
            Put(KEYS.part(2, "meta"), b"{broken"), Put(KEYS.part(2, "domain/aliases"), b"[broken")
        )
        leading = (await store.read(KEYS.indexes)).entries
        for path, told in (
            ("meta", {"code": "two", "name": "x"}),
            ("meta", {"code": "x", "name": "租户 two/"}),
            ("domain/primary", "www.two.example.com"),
            ("ftp/two_ftp", {}),
        ):
            with pytest.raises(Taken, match="belongs to tenant 2"):
                await publisher.put(1, path, cast(JSON, told))
        await publisher.put(2, "storage", {"uploadQuotaGb": 1})
        assert (await store.read(KEYS.indexes)).entries == leading
        await publisher.put(2, "meta", {"code": "zwei", "name": "Zwei"})
        assert await find(store, KEYS, "by-code", "two") is None
        assert await find(store, KEYS, "host", "www.two.example.com") == 2

    @in_memory
    async def test_more_hosts_of_broken_aliases_than_a_commit_takes_are_mended(
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
            await whole(store)

    @in_memory
    async def test_what_led_to_many_tenants_that_are_gone_is_taken_over(
        self, store: Store, publisher: Publisher
    ):
        names = [f"n{n}.example" for n in range(130)]
        users = [f"u{n}" for n in range(130)]
        stale = [KEYS.index("host", name) for name in names]
        stale += [KEYS.index("ftp-user", user) for user in users]
        for first in range(0, len(stale), 100):
            chunk = enumerate(stale[first : first + 100], start=first + 1000)
            await store.commit(*(Put(place, b'{"tenantId":%d}' % n) for n, place in chunk))
        told = {"domain": {"aliases": names}, "ftp": {user: {} for user in users}}
        await publisher.diff(parse({"id": 1, **told}))
        await publisher.apply(parse({"id": 1, **told}))
        await whole(store)

    async def test_a_name_that_looks_like_another_escaped_is_not_that_one(
        self, store: Store, publisher: Publisher
    ):
        await publisher.put(2, "meta", {"code": "two", "name": "a b"})
        assert await find(store, KEYS, "by-name", "a%20b") is None
        await publisher.put(1, "meta", {"code": "one", "name": "a%20b"})
        assert await find(store, KEYS, "by-name", "a%20b") == 1
        assert await find(store, KEYS, "by-name", "a b") == 2


class TestDeleting:
    async def test_a_tenant_goes_with_all_that_leads_to_it_in_one_transaction(
        self, store: Store, publisher: Publisher
    ):
        for tenant in (1, 10, 11, 2):
            await publisher.apply(document(tenant))
        await store.commit(Put(b"jxt/tenants/1/database", b"older generation"))
        before = await everything_of(store)
        told = await publisher.delete(1)
        assert told.transactions == 1
        assert len(told.changes) == 8
        assert (await store.read(KEYS.parts(1))).entries == ()
        await whole(store)
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

    async def test_one_whose_meta_cannot_be_read_goes_with_what_leads_to_it(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await publisher.apply(document(10, "ten"))
        await store.commit(
            Put(KEYS.part(1, "meta"), b"{broken"), Put(KEYS.part(1, "domain/aliases"), b"broken")
        )
        await publisher.delete(1)
        await whole(store)
        assert len(await publisher.read(10)) == 8

    async def test_a_broken_meta_is_mended_with_what_leads_to_it(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await store.commit(Put(KEYS.part(1, "meta"), b"{broken"))
        await publisher.put(1, "meta", {"code": "uno", "name": "Uno"})
        await whole(store)
        assert await find(store, KEYS, "by-code", "one") is None


class TestWhatConcernsAll:
    async def test_it_is_written_and_removed(self, store: Store, publisher: Publisher):
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
    async def test_a_lost_answer_is_looked_up(self, store: Store, publisher: Publisher, how: str):
        await with_faults(store, 0, how).put_common("platform/configs/mail", {"a": 1})
        assert await value(store, b"jxt/platform/configs/mail") == {"a": 1}
        await with_faults(store, 0, how).put_common("common/resolver", {"httpType": "host"})
        assert await value(store, b"jxt/common/resolver") == {"httpType": "host"}
        await with_faults(store, 0, how).remove_common("common/resolver")
        assert await value(store, b"jxt/common/resolver") is None

    async def test_and_where_it_cannot_be_that_is_said(self, store: Store, publisher: Publisher):
        away = Publisher(cast(Store, Leaving(store, 0, "after")), ring=RING)
        with pytest.raises(OutcomeUnknown, match="platform settings: it may have been written"):
            await away.put_common("platform/configs/mail", 1)

        async def hook(number: int, go: Commit) -> Committed:
            await go()
            if number == 1:
                await publisher.put_common("platform/configs/mail", "another's")
                raise OutcomeUnknown("the answer was lost")
            raise AssertionError("it was written already")

        assert (await hooked(store, hook).put_common("platform/configs/mail", 2)).number == 2
        assert await value(store, b"jxt/platform/configs/mail") == "another's"

    async def test_it_has_a_history_and_can_be_rolled_back(
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
        assert [each.path for each in await publisher.diff_rollback("platform", 1)] == [
            "platform/configs/a/b",
            mail,
        ]
        assert (await publisher.rollback("platform", 1)).number == 5
        assert await publisher.read("platform") == {mail: {"host": "a", "password": "hunter2"}}
        assert [entry.number for entry in await publisher.history("common")] == [1]
        assert await publisher.read("common") == {"common/resolver": {"httpType": "host"}}
        with pytest.raises(NotConfigured, match="platform settings: no version 9"):
            await publisher.rollback("platform", 9)

    async def test_what_would_change_is_known_before(self, store: Store, publisher: Publisher):
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

    async def test_many_change_it_at_once(self, store: Store, publisher: Publisher):
        await asyncio.gather(
            *(publisher.put_common(f"platform/configs/k{n}", n) for n in range(1, 9))
        )
        assert len(await publisher.history("platform")) == 8
        assert len(await publisher.read("platform")) == 8

    async def test_a_null_that_another_program_wrote_can_be_replaced_and_removed(
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

    async def test_a_new_key_seals_its_history_too(self, store: Store, publisher: Publisher):
        await publisher.put_common("platform/configs/mail", {"password": "hunter2"})
        await publisher.remove_common("platform/configs/mail")
        other = Keyring([b"n" * 32, b"k" * 32])
        assert (await Publisher(store, ring=other).rekey()).entries == 2
        await Publisher(store, ring=Keyring([b"n" * 32])).rollback("platform", 1)
        assert await publisher.read("platform") == {
            "platform/configs/mail": {"password": "hunter2"}
        }

    async def test_the_sign_of_life_can_be_removed(self, store: Store, publisher: Publisher):
        await publisher.beat()
        await publisher.remove_common("/_health/sentinel")
        assert await value(store, KEYS.sentinel) is None
        with pytest.raises(NotConfigured, match="_health/sentinel"):
            await publisher.remove_common("_health/sentinel")
        with pytest.raises(InvalidRequest):
            await publisher.put_common("_health/sentinel", {})

    async def test_fields_that_others_wrote_stay(self, store: Store, publisher: Publisher):
        await store.commit(Put(b"jxt/common/resolver", b'{"httpType":"path","theirs":1}'))
        await publisher.put_common("common/resolver", {"extra": {"theirs": None, "ours": None}})
        assert await value(store, b"jxt/common/resolver") == {}
        await store.commit(Put(b"jxt/common/resolver", b'{"httpType":"path","ours":1}'))
        await publisher.put_common("common/resolver", {"httpType": "host"})
        assert await value(store, b"jxt/common/resolver") == {"httpType": "host", "ours": 1}
        await store.commit(Put(b"jxt/common/resolver", b"{broken"))
        await publisher.put_common("common/resolver", {"httpType": "host"})
        assert await value(store, b"jxt/common/resolver") == {"httpType": "host"}

    async def test_the_rules_hold(self, store: Store, publisher: Publisher):
        with pytest.raises(InvalidRequest, match="did you mean 'httpType'"):
            await publisher.put_common("common/resolver", {"htpType": "host"})
        with pytest.raises(InvalidRequest, match="masked"):
            await publisher.put_common("platform/configs/mail", {"smtp": {"password": "••••••"}})
        with pytest.raises(InvalidRequest, match="JSON"):
            await publisher.put_common("platform/configs/mail", cast(JSON, {"a": {1, 2}}))
        with pytest.raises(InvalidRequest):
            await publisher.put_common("tenants/1/meta", {})
        assert await everything_of(store) == {}

    async def test_every_publish_is_a_sign_of_life(self, store: Store, publisher: Publisher):
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


async def test_the_hub_gives_a_publisher(store_url: str):
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


def test_blocking_code_publishes_too(store_url: str):
    with mooring.sync.connect(store_url) as hub:
        publisher = hub.publisher(by="bob")
        told = publisher.apply(document(1, "one"))
        assert told.number == 1
        assert publisher.diff(document(1, "one")) == []
        with pytest.raises(Taken, match="tenant 1"):
            publisher.put(2, "ftp/one_ftp", {})
        publisher.delete(1)
        publisher.rollback(1, 1)
        assert [entry.by for entry in publisher.history(1)] == ["bob"] * 3
        publisher.beat()
