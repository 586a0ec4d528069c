"""Publishing tenants, on the embedded store and on etcd."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec
import pytest

import mooring.sync
from mooring.errors import (
    InvalidRequest,
    NotConfigured,
    OutcomeUnknown,
    Taken,
    TooLarge,
    Unavailable,
    Undecipherable,
)
from mooring.hub import Hub
from mooring.model import JSON
from mooring.store import Committed, Delete, Put, Store, key, prefix
from mooring.tenants.document import parse
from mooring.tenants.finding import find
from mooring.tenants.indexing import holder
from mooring.tenants.publisher import Publisher
from mooring.tenants.publishing import Unread
from mooring.tenants.secrets import Keyring
from tests.features.tenant_files import (
    KEYS,
    Interrupted,
    Stopped,
    document,
    everything_of,
    whole,
)

Commit = Callable[[], Awaitable[Committed]]

RING = Keyring([b"k" * 32])
NO_KEY = Keyring()


@pytest.fixture(params=["memory", "sqlite", "etcd-3.5"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def publisher(store: Store) -> Publisher:
    return Publisher(store, ring=RING, by="alice")


def with_faults(store: Store, after: int, how: str, ring: Keyring = RING) -> Publisher:
    return Publisher(cast(Store, Interrupted(store, after, how)), ring=ring, by="alice")


class Hooked(Interrupted):
    """A store to whose commits something happens: `hook` gets their number and the commit."""

    def __init__(self, store: Store, hook: Callable[[int, Commit], Awaitable[Committed]]) -> None:
        super().__init__(store, 0, "")
        self.hook, self.count = hook, 0

    async def commit(self, *writes, require=(), read=()):
        async def go() -> Committed:
            return await self._store.commit(*writes, require=require, read=read)

        if not writes:
            return await go()
        self.count += 1
        return await self.hook(self.count, go)


def hooked(
    store: Store, hook: Callable[[int, Commit], Awaitable[Committed]], ring: Keyring = RING
) -> Publisher:
    return Publisher(cast(Store, Hooked(store, hook)), ring=ring, by="alice")


class Leaving(Interrupted):
    """A store that is away from the moment that an answer is lost."""

    async def commit(self, *writes, **options):
        if self.lost:
            raise Unavailable("nothing listens")
        return await super().commit(*writes, **options)

    async def read(self, *args, **options):
        if self.lost:
            raise Unavailable("nothing listens")
        return await self._store.read(*args, **options)


async def value(store: Store, name: bytes) -> JSON:
    entry = (await store.read(key(name))).first
    return None if entry is None else msgspec.json.decode(entry.value)


async def revisions(store: Store, *names: bytes) -> set[int]:
    found = [(await store.read(key(name))).first for name in names]
    return {entry.modified if entry else 0 for entry in found}


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
        for part, value, what in (
            ("meta", {"code": "ONE", "name": "x"}, "the code 'ONE'"),
            ("meta", {"code": "x", "name": "租户 one/"}, "the name '租户 one/'"),
            ("ftp/one_ftp", {}, "the FTP user 'one_ftp'"),
            ("domain/primary", "WWW.one.example.com", "the host 'WWW.one.example.com'"),
            ("domain/aliases", ["x.example.com", "one.internal"], "the host 'one.internal'"),
        ):
            with pytest.raises(Taken) as error:
                await publisher.put(2, part, cast(JSON, value))
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


class TestWritersWithoutAHistory:
    """Other programs write the same keys, and know nothing of ours."""

    async def test_a_rename_meanwhile_is_not_overlooked(self, store: Store, publisher: Publisher):
        await publisher.put(1, "meta", {"code": "a", "name": "A"})

        async def hook(number: int, go: Commit) -> Committed:
            if number == 1:
                await store.commit(Put(KEYS.part(1, "meta"), b'{"code":"b","name":"B"}'))
            return await go()

        await hooked(store, hook).put(1, "ftp/bob", {})
        assert await value(store, KEYS.index("ftp-user", "bob")) == {
            "tenantId": 1,
            "code": "b",
            "name": "B",
        }

    async def test_nor_between_two_transactions(self, store: Store, publisher: Publisher):
        async def hook(number: int, go: Commit) -> Committed:
            if number == 3:
                await store.commit(Put(KEYS.part(1, "meta"), b'{"code":"b","name":"B"}'))
            return await go()

        told = huge()
        await hooked(store, hook).apply(parse(told))
        await whole(store)

    async def test_a_deletion_meanwhile_is_not_overlooked(self, store: Store, publisher: Publisher):
        await publisher.apply(document(1, "one"))
        seen: list[set[str]] = []

        async def hook(number: int, go: Commit) -> Committed:
            if number == 1:
                await store.commit(Delete(prefix(b"jxt/tenants/")))
            return await go()

        def change(there):
            seen.append(set(there))
            return {**there, "storage": {}}

        await hooked(store, hook).change(1, change)
        assert seen[-1] == set()

    @pytest.mark.parametrize("users", [0, 300])
    async def test_what_comes_while_a_tenant_is_deleted_goes_with_what_leads_to_it(
        self, store: Store, publisher: Publisher, users: int
    ):
        await publisher.apply(parse(huge(users)))
        last = 3 if users else 1

        async def hook(number: int, go: Commit) -> Committed:
            if number == last:
                await store.commit(
                    Put(KEYS.part(1, "ftp/late"), b"{}"),
                    Put(KEYS.index("ftp-user", "late"), b'{"tenantId":1}'),
                )
            return await go()

        await hooked(store, hook).delete(1)
        assert (await store.read(prefix(b"jxt/tenants/"))).entries == ()

    async def test_what_no_part_explains_goes_with_its_tenant(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await publisher.apply(document(10, "ten"))
        await store.commit(
            Put(KEYS.part(1, "meta"), b'{"code":"other","name":"x"}'),
            Delete(key(KEYS.part(1, "domain/primary"))),
        )
        await publisher.delete(1)
        await whole(store)
        assert len(await publisher.read(10)) == 8


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
        with pytest.raises(NotConfigured, match="there is no tenant 1"):
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


def huge(users: int = 300, code: str = "huge", size: int = 0) -> dict[str, JSON]:
    ftp: dict[str, JSON] = {f"user{n}": {"description": "x" * size} for n in range(users)}
    return {"id": 1, "meta": {"code": code, "name": code}, "ftp": ftp}


class TestTooMuchForOneTransaction:
    async def test_it_is_split_by_object_and_says_so(
        self, store: Store, publisher: Publisher, caplog
    ):
        told = await publisher.apply(parse(huge()))
        assert told.transactions > 1
        assert told.number == told.transactions
        assert len(told.changes) == 301
        assert f"written in {told.transactions}" in caplog.text
        await whole(store)
        renamed = await publisher.apply(parse(huge(code="other")))
        assert renamed.transactions > 1
        await whole(store)

    @pytest.mark.parametrize("after", range(6))
    async def test_each_part_of_it_is_whole(self, store: Store, publisher: Publisher, after: int):
        with pytest.raises(Stopped):
            await with_faults(store, after, "stop").apply(parse(huge(700)))
        await whole(store)
        await publisher.apply(parse(huge(700)))
        assert len(await publisher.read(1)) == 701
        await whole(store)

    @pytest.mark.parametrize("size", [0, 12_000])
    async def test_a_deletion_that_was_stopped_is_resumed(
        self, store: Store, publisher: Publisher, size: int
    ):
        await publisher.apply(document(10))
        await publisher.apply(parse(huge(size=size)))
        before = dict(await publisher.read(1))
        stopped = 0
        while True:
            try:
                await with_faults(store, 1, "stop").delete(1)
            except Stopped:
                stopped += 1
                data = (await store.read(KEYS.parts(1), keys_only=True)).entries
                left = (await store.read(KEYS.indexes)).entries
                mine = [entry for entry in left if b"user" in entry.key.rpartition(b"/")[2]]
                assert data
                assert len(data) == 301 or mine == []
                continue
            except NotConfigured:
                pass
            break
        assert stopped >= 2
        assert await publisher.read(1) == {}
        await whole(store)
        assert len(await publisher.read(10)) == 8
        newest = (await publisher.history(1))[-1].number
        undone = [entry for entry in await publisher.history(1) if entry.action == "delete"]
        assert sum(len(entry.changes) for entry in undone) == 301
        assert newest == undone[-1].number
        await publisher.rollback(1, undone[0].number - 1)
        assert await publisher.read(1) == before
        await whole(store)

    async def test_a_long_history_of_large_entries_does_not_hinder(
        self, store: Store, publisher: Publisher
    ):
        for n in range(10):
            await publisher.put(1, "storage", {"extra": {"x": f"{n}" * 300_000}})
        await publisher.delete(1)
        assert len(await publisher.history(1)) == 11

    async def test_a_tenant_may_have_more_hosts_than_a_commit_takes(
        self, store: Store, publisher: Publisher
    ):
        def hosts(*numbers: int) -> dict[str, JSON]:
            aliases: list[JSON] = [f"h{n}.example" for n in numbers]
            return {
                "id": 1,
                "meta": {"code": "many", "name": "Many"},
                "domain": {"aliases": aliases},
            }

        for numbers in (range(300), range(250, 500), range(0), range(150), range(140, 290)):
            told = hosts(*numbers)
            assert await publisher.diff(parse(told))
            done = await publisher.apply(parse(told))
            assert done.number == (await publisher.history(1))[-1].number
            assert (await publisher.read(1)).get("domain/aliases", []) == [
                f"h{n}.example" for n in numbers
            ]
            await whole(store)
        await publisher.rollback(1, 3)
        assert len(cast(list[JSON], (await publisher.read(1))["domain/aliases"])) == 300
        await whole(store)

    @pytest.mark.parametrize("how", ["stop", "before", "after"])
    @pytest.mark.parametrize("after", range(4))
    async def test_each_of_its_stages_is_whole(
        self, store: Store, publisher: Publisher, how: str, after: int
    ):
        aliases: list[JSON] = [f"h{n}.example" for n in range(350)]
        told = parse({"id": 1, "meta": {"code": "x", "name": "x"}, "domain": {"aliases": aliases}})
        interrupted = with_faults(store, after, how)
        if how == "stop":
            with pytest.raises(Stopped):
                await interrupted.apply(told)
            await whole(store)
            await publisher.apply(told)
        else:
            assert (await interrupted.apply(told)).transactions == 4
        assert (await publisher.read(1))["domain/aliases"] == aliases
        assert len(await publisher.history(1)) == 4
        await whole(store)

    async def test_a_host_that_is_taken_stops_all_stages(self, store: Store, publisher: Publisher):
        await publisher.put(2, "domain/primary", "h349.example")
        before = await everything_of(store)
        aliases: list[JSON] = [f"h{n}.example" for n in range(350)]
        with pytest.raises(Taken, match="belongs to tenant 2"):
            await publisher.put(1, "domain/aliases", aliases)
        with pytest.raises(TooLarge, match="storage"):
            await publisher.apply(
                parse(
                    {
                        "id": 1,
                        "domain": {"aliases": aliases[:300]},
                        "storage": {"extra": {"x": "a" * 1_600_000}},
                    }
                )
            )
        assert await everything_of(store) == before

    async def test_hosts_that_are_too_many_in_the_end_are_refused_at_the_begin(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        before = await everything_of(store)
        long = ".".join(letter * 58 for letter in "abcd")
        told = parse(
            {
                "id": 1,
                "meta": {"code": "new", "name": "New"},
                "domain": {"aliases": [f"{long}.h{n}" for n in range(2500)]},
            }
        )
        for call in (publisher.diff, publisher.apply):
            with pytest.raises(TooLarge, match="domain"):
                await call(told)
        assert await everything_of(store) == before

    @pytest.mark.parametrize("action", ["apply", "delete"])
    async def test_who_is_interrupted_between_two_transactions_hears_of_the_first(
        self, store: Store, publisher: Publisher, action: str
    ):
        await publisher.apply(parse(huge()))

        async def hook(number: int, go: Commit) -> Committed:
            if number == 2:
                raise Unavailable("the server is down")
            return await go()

        interrupted = hooked(store, hook)
        renamed = parse(huge(code="other"))
        with pytest.raises(OutcomeUnknown, match=r"tenant 1: written in part.*server is down"):
            await (interrupted.delete(1) if action == "delete" else interrupted.apply(renamed))
        await (publisher.delete(1) if action == "delete" else publisher.apply(parse(huge())))
        await whole(store)

    async def test_that_a_name_was_taken_in_the_middle_is_noted(self, store: Store, caplog):
        other = Publisher(store, ring=RING)

        async def hook(number: int, go: Commit) -> Committed:
            if number == 2:
                await other.put(2, "ftp/user99", {})
            return await go()

        with pytest.raises(Taken, match="'user99' belongs to tenant 2") as error:
            await hooked(store, hook).apply(parse(huge()))
        assert "written in part" in error.value.__notes__[0]
        assert "written in part" in caplog.text

    async def test_a_deletion_says_in_how_many_it_was_made(
        self, store: Store, publisher: Publisher, caplog
    ):
        await publisher.apply(parse(huge()))
        newest = (await publisher.history(1))[-1].number
        count = 0

        async def hook(number: int, go: Commit) -> Committed:
            nonlocal count
            count = number
            return await go()

        told = await hooked(store, hook).delete(1)
        assert told.aside + told.transactions == count > 2
        assert told.number - told.transactions == newest
        assert f"written in {count}" in caplog.text

    async def test_a_value_that_no_store_takes_is_refused_whole(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1))
        before = await everything_of(store)
        told = huge()
        told["storage"] = {"extra": {"x": "a" * 1_600_000}}
        with pytest.raises(TooLarge, match="tenant 1: storage is larger"):
            await publisher.apply(parse(told))
        with pytest.raises(TooLarge):
            await publisher.diff(parse(told))
        assert await everything_of(store) == before

    @pytest.mark.parametrize("raw", [b'{"token":"%s"}', b'{"x":"%s"}', b"{%s"])
    async def test_what_others_wrote_too_large_can_be_replaced_and_deleted(
        self, store: Store, publisher: Publisher, raw: bytes
    ):
        for tenant in (1, 2):
            await store.commit(Put(KEYS.part(tenant, "storage"), raw % (b"x" * 1_400_000)))
        await publisher.put(1, "storage", {"uploadQuotaGb": 1, "extra": {"x": None, "token": None}})
        assert (await publisher.read(1))["storage"] == {"tenantId": 1, "uploadQuotaGb": 1}
        await publisher.delete(2)
        assert await publisher.read(2) == {}
        await publisher.rollback(2, 0)
        assert await publisher.read(2) == {}

    async def test_what_one_commit_takes_is_taken_with_its_history(
        self, store: Store, publisher: Publisher
    ):
        """Whatever passes the estimate fits the store, secrets and all."""
        for n, extra in enumerate(
            (
                {"x": "a" * 690_000},
                {f"token{n}": "x" for n in range(2000)},
                {"token": "x" * 300_000},
                {"x": "\x00" * 80_000},
                {"x": "默" * 80_000},
            )
        ):
            await publisher.put(100 + n, "storage", {"extra": cast(JSON, extra)})
            await publisher.delete(100 + n)

    async def test_a_split_publish_that_is_overtaken_goes_on(self, store: Store):
        """Somebody else publishes between its parts: both are there at the end."""
        one, other = Publisher(store, ring=RING), Publisher(store, ring=RING)

        async def small() -> None:
            for n in range(10):
                await other.put(1, "storage", {"uploadQuotaGb": n})

        told, _ = await asyncio.gather(one.apply(parse(huge(400))), small())
        assert len({change.path for change in told.changes}) == 401
        assert (await other.read(1))["storage"] == {"tenantId": 1, "uploadQuotaGb": 9}
        await whole(store)


class TestLostAnswers:
    @pytest.mark.parametrize("how", ["before", "after"])
    @pytest.mark.parametrize("after", [0, 1, 2])
    async def test_a_publish_happens_once_and_is_reported_right(
        self, store: Store, publisher: Publisher, how: str, after: int
    ):
        told = await with_faults(store, after, how).apply(parse(huge(250)))
        entries = await publisher.history(1)
        assert [entry.number for entry in entries] == list(range(1, told.number + 1))
        assert told.transactions == len(entries) > 1
        changed = [step.path for entry in entries for step in entry.changes]
        assert sorted(changed) == sorted(change.path for change in told.changes)
        assert len(changed) == len(set(changed)) == 251
        await whole(store)

    @pytest.mark.parametrize("how", ["before", "after"])
    async def test_a_small_one_too(self, store: Store, publisher: Publisher, how: str):
        told = await with_faults(store, 0, how).apply(document(1))
        assert (told.number, told.transactions, len(told.changes)) == (1, 1, 8)
        assert len(await publisher.history(1)) == 1

    async def test_it_does_not_overwrite_who_came_after_it(self, store: Store):
        """It did happen, and the answer was lost: what another wrote then stays."""
        other = Publisher(store, ring=RING)

        class Overtaken(Interrupted):
            async def commit(self, *writes, **options):
                try:
                    return await super().commit(*writes, **options)
                except OutcomeUnknown:
                    await other.put(1, "storage", {"uploadQuotaGb": 2})
                    raise

        one = Publisher(cast(Store, Overtaken(store, 0, "after")), ring=RING)
        told = await one.put(1, "storage", {"uploadQuotaGb": 1})
        assert told.number == 1
        assert (await other.read(1))["storage"] == {"tenantId": 1, "uploadQuotaGb": 2}
        assert [entry.number for entry in await other.history(1)] == [1, 2]

    async def test_that_it_cannot_be_told_any_more_is_said(self, store: Store):
        other = Publisher(store, ring=RING, keep=1)

        class Overtaken(Interrupted):
            async def commit(self, *writes, **options):
                try:
                    return await super().commit(*writes, **options)
                except OutcomeUnknown:
                    await other.put(1, "storage", {"uploadQuotaGb": 2})
                    await other.put(1, "storage", {"uploadQuotaGb": 3})
                    raise

        one = Publisher(cast(Store, Overtaken(store, 0, "after")), ring=RING)
        with pytest.raises(OutcomeUnknown, match="trimmed"):
            await one.put(1, "storage", {"uploadQuotaGb": 1})
        assert (await other.read(1))["storage"] == {"tenantId": 1, "uploadQuotaGb": 3}

    @pytest.mark.parametrize("how", ["before", "after"])
    @pytest.mark.parametrize("users", [2, 250])
    @pytest.mark.parametrize("after", [0, 1])
    async def test_a_deletion_happens_once(
        self, store: Store, publisher: Publisher, how: str, users: int, after: int
    ):
        await publisher.apply(parse(huge(users)))
        told = await with_faults(store, after, how).delete(1)
        assert len(told.changes) == users + 1
        deleted = [entry for entry in await publisher.history(1) if entry.action == "delete"]
        assert [len(entry.changes) for entry in deleted] == [users + 1]
        assert await publisher.read(1) == {}
        await whole(store)

    async def test_a_deletion_that_happened_does_not_delete_who_came_after_it(self, store: Store):
        other = Publisher(store, ring=RING)
        await other.apply(document(1))

        class Overtaken(Interrupted):
            async def commit(self, *writes, **options):
                try:
                    return await super().commit(*writes, **options)
                except OutcomeUnknown:
                    await other.apply(document(1))
                    raise

        await Publisher(cast(Store, Overtaken(store, 0, "after")), ring=RING).delete(1)
        assert len(await other.read(1)) == 8

    @pytest.mark.parametrize("how", ["before", "after"])
    @pytest.mark.parametrize("after", [0, 1])
    async def test_a_rollback_happens_once(
        self, store: Store, publisher: Publisher, how: str, after: int
    ):
        there = await publisher.apply(parse(huge(200)))
        await publisher.apply(parse({"id": 1, "ftp": {}}))
        told = await with_faults(store, after, how).rollback(1, there.number)
        assert len(told.changes) == 200
        entries = [entry for entry in await publisher.history(1) if entry.action == "rollback"]
        assert told.transactions == len(entries) > 1
        await whole(store)

    @pytest.mark.parametrize("users", [1, 300])
    async def test_that_it_cannot_be_looked_up_is_not_that_nothing_was_written(
        self, store: Store, users: int
    ):
        away = Publisher(cast(Store, Leaving(store, 2 if users > 1 else 0, "after")), ring=RING)
        with pytest.raises(OutcomeUnknown, match=r"tenant 1: .*written.*nothing listens"):
            await away.apply(parse(huge(users)))
        assert len(await Publisher(store, ring=RING).read(1)) > 1

    async def test_that_nothing_was_written_stays_certain_where_it_is(self, store: Store):
        async def hook(number: int, go: Commit) -> Committed:
            raise Unavailable("the server is down")

        with pytest.raises(Unavailable):
            await hooked(store, hook).apply(document(1))
        assert await everything_of(store) == {}

    @pytest.mark.parametrize("action", ["apply", "delete"])
    @pytest.mark.parametrize("tries", [1, 2])
    async def test_what_lands_after_it_was_looked_for_is_found_at_last(
        self, store: Store, publisher: Publisher, action: str, tries: int
    ):
        await publisher.apply(document(1))
        late: list[Commit] = []

        async def hook(number: int, go: Commit) -> Committed:
            if number <= tries:
                late.append(go)
                raise OutcomeUnknown("the answer was lost")
            if late:
                landing, *_ = late
                late.clear()
                await landing()
            return await go()

        slow = hooked(store, hook)
        if action == "delete":
            told = await slow.delete(1)
            assert len(told.changes) == 8
        else:
            told = await slow.put(1, "storage", {"uploadQuotaGb": 99})
            assert [change.path for change in told.changes] == ["storage"]
        assert (told.number, told.transactions) == (2, 1)
        assert len(await publisher.history(1)) == 2


class TestTogether:
    async def test_changes_of_different_parts_are_all_there(self, store: Store):
        publishers = [Publisher(store, ring=RING, by=f"p{n}") for n in range(6)]
        await publishers[0].apply(document(1))

        async def busy(number: int) -> None:
            for n in range(5):
                path = f"ftp/u{number}.{n}"
                await publishers[number].put(1, path, {"description": path})

        await asyncio.gather(*(busy(number) for number in range(6)))
        parts = await publishers[0].read(1)
        assert sum(path.startswith("ftp/u") for path in parts) == 30
        numbers = [entry.number for entry in await publishers[0].history(1)]
        assert numbers == list(range(1, 32))
        await whole(store)

    @pytest.mark.parametrize("last", [0, 3])
    async def test_who_looked_before_the_history_was_trimmed_looks_again(
        self, store: Store, last: int
    ):
        """The entry after the one it saw is free again, and yet others came in between."""
        others = Publisher(store, ring=RING, keep=1)
        for n in range(last):
            await others.put(1, "storage", {"uploadQuotaGb": n})
        asked = 0
        started, overtaken = asyncio.Event(), asyncio.Event()

        class Slow(Interrupted):
            async def commit(self, *writes, **options):
                nonlocal asked
                if writes and not asked:
                    asked += 1
                    started.set()
                    await overtaken.wait()
                return await self._store.commit(*writes, **options)

        slow = Publisher(cast(Store, Slow(store, 0, "")), ring=RING, keep=1)
        seen: list[object] = []

        def change(there):
            seen.append(there.get("storage"))
            return {**there, "ftp/bob": {}}

        task = asyncio.ensure_future(slow.change(1, change))
        await started.wait()
        for n in range(2):
            await others.put(1, "storage", {"uploadQuotaGb": 90 + n})
        overtaken.set()
        told = await task
        assert told.number == last + 3
        assert seen[-1] == {"tenantId": 1, "uploadQuotaGb": 91}


class TestHistory:
    async def test_it_says_who_changed_what_from_what_to_what(self, store: Store):
        alice = Publisher(store, ring=RING, by="alice")
        bob = Publisher(store, ring=RING, by="bob")
        await alice.put(1, "storage", {"uploadQuotaGb": 1})
        await bob.change(
            1, lambda there: {"storage": {"uploadQuotaGb": 2}}, action="migrate", note="why"
        )
        await alice.delete(1, note="gone")
        first, second, third = await alice.history(1)
        one: JSON = {"tenantId": 1, "uploadQuotaGb": 1}
        assert (first.number, first.by, first.action) == (1, "alice", "publish")
        assert [(s.path, s.before, s.after) for s in first.changes] == [("storage", None, one)]
        assert (second.by, second.action, second.note) == ("bob", "migrate", "why")
        assert second.changes[0].before == one
        assert (third.action, third.note, third.changes[0].after) == ("delete", "gone", None)
        assert first.at <= second.at <= third.at
        assert first.at.endswith("Z")

    async def test_it_is_trimmed_by_count(self, store: Store):
        publisher = Publisher(store, ring=RING, keep=3)
        for n in range(8):
            await publisher.put(1, "storage", {"uploadQuotaGb": n})
            await publisher.put(10, "storage", {"uploadQuotaGb": n})
        assert [entry.number for entry in await publisher.history(1)] == [6, 7, 8]
        with pytest.raises(NotConfigured, match=r"no version 4 .*there are 5 to 8"):
            await publisher.rollback(1, 4)
        await publisher.rollback(1, 5)
        assert (await publisher.read(1))["storage"] == {"tenantId": 1, "uploadQuotaGb": 4}

    async def test_it_is_trimmed_by_age(self, store: Store):
        publisher = Publisher(store, ring=RING)
        for n in range(5):
            await publisher.put(1, "storage", {"uploadQuotaGb": n})
        strict = Publisher(store, ring=RING, keep_for=-1)
        await strict.put(1, "storage", {"uploadQuotaGb": 9})
        assert [entry.number for entry in await publisher.history(1)] == [6]

    async def test_secrets_in_it_are_sealed(self, store: Store, publisher: Publisher):
        await publisher.apply(document(1, "one"))
        await publisher.put(
            1, "database/query", {"driver": "x", "database": "x", "password": "pw-another"}
        )
        await publisher.put(
            1,
            "ftp/one_ftp",
            {
                "passwordHash": "hash-2",
                "extra": {"smtp": {"token": "hash-3"}, "list": [{"pwd": "hash-4 of a list"}]},
            },
        )
        raw = b"".join((await everything_of(store)).values())
        history = b"".join(e.value for e in (await store.read(KEYS.histories)).entries)
        for secret in (b"pw-one", b"pw-another"):
            assert secret not in raw
        for secret in (b"hash-one", b"hash-2", b"hash-3", b"hash-4"):
            assert secret not in history
            assert secret.decode() not in repr(await publisher.history(1))
        before = dict(await publisher.read(1))
        await publisher.rollback(1, 1)
        assert (await publisher.read(1))["ftp/one_ftp"] == {
            "tenantId": 1,
            "username": "one_ftp",
            "passwordHash": "hash-one",
        }
        await publisher.rollback(1, 3)
        assert await publisher.read(1) == before

    async def test_without_a_key_they_are_left_out_and_a_rollback_keeps_what_is_there(
        self, store: Store
    ):
        publisher = Publisher(store, ring=NO_KEY)
        await publisher.apply(document(1, "one"))
        await publisher.put(1, "ftp/one_ftp", {"passwordHash": "hash-2", "description": "new"})
        history = b"".join(e.value for e in (await store.read(KEYS.histories)).entries)
        assert b"hash-" not in history
        assert b"pw-one" not in history
        await publisher.rollback(1, 1)
        assert (await publisher.read(1))["ftp/one_ftp"] == {
            "tenantId": 1,
            "username": "one_ftp",
            "passwordHash": "hash-2",
        }

    async def test_what_a_rollback_cannot_bring_back_is_said(self, store: Store, caplog):
        publisher = Publisher(store, ring=NO_KEY)
        await publisher.apply(document(1, "one"))
        await publisher.delete(1)
        told = await publisher.rollback(1, 1)
        assert (await publisher.read(1))["ftp/one_ftp"] == {"tenantId": 1, "username": "one_ftp"}
        assert told.lost == ("database/query.password", "ftp/one_ftp.passwordHash")
        note = (await publisher.history(1))[-1].note
        assert note == "to 1 (without database/query.password, ftp/one_ftp.passwordHash)"
        assert "ftp/one_ftp.passwordHash" in caplog.text
        again = await publisher.rollback(1, 1)
        assert (again.changes, again.lost) == ((), ())

    async def test_a_password_that_was_sealed_meanwhile_is_kept_too(self, store: Store):
        await Publisher(store, ring=NO_KEY).apply(document(1, "one"))
        sealed = RING.seal("pw-sealed")[0]
        foreign = {"driver": "mysql", "database": "x", "passwordEncrypted": sealed}
        publisher = Publisher(store, ring=NO_KEY)
        await publisher.put(1, "database/query", {"driver": "mysql", "database": "two"})
        await store.commit(Put(KEYS.part(1, "database/query"), msgspec.json.encode(foreign)))
        told = await Publisher(store, ring=RING).rollback(1, 1)
        found = cast(dict[str, JSON], (await publisher.read(1))["database/query"])
        assert found["database"] == "one"
        assert RING.unseal(str(found["passwordEncrypted"])) == "pw-sealed"
        assert "password" not in found
        assert told.lost == ()

    async def test_a_part_that_came_again_keeps_its_secret(self, store: Store):
        publisher = Publisher(store, ring=NO_KEY)
        await publisher.put(1, "ftp/bob", {"passwordHash": "hash-1", "description": "old"})
        await publisher.remove(1, "ftp/bob")
        await publisher.put(1, "ftp/bob", {"passwordHash": "hash-2"})
        told = await publisher.rollback(1, 1)
        found = cast(dict[str, JSON], (await publisher.read(1))["ftp/bob"])
        assert (found["passwordHash"], found["description"]) == ("hash-2", "old")
        assert told.lost == ()

    async def test_what_looks_like_its_own_marks_comes_back_as_it_was(
        self, store: Store, publisher: Publisher
    ):
        extra: JSON = {
            "a": {"$sealed": "x"},
            "b": [{"$omitted": 1, "c": 2}],
            "$raw": "y",
            "n": None,
        }
        raw = msgspec.json.encode(extra)
        await store.commit(Put(KEYS.part(1, "storage"), raw))
        await publisher.put(1, "storage", {"extra": {"$raw": None, "a": 1}})
        await publisher.rollback(1, 0)
        assert (await publisher.read(1))["storage"] == extra

    async def test_what_could_not_be_read_comes_back_as_it_was(
        self, store: Store, publisher: Publisher
    ):
        broken = b"\xff{ password: hunter2"
        await store.commit(Put(KEYS.part(1, "storage"), broken))
        await publisher.put(1, "storage", {"uploadQuotaGb": 1})
        history = b"".join(e.value for e in (await store.read(KEYS.histories)).entries)
        assert base64.b64encode(broken) not in history
        assert "hunter2" not in repr(await publisher.history(1))
        await publisher.rollback(1, 0)
        assert (await publisher.read(1))["storage"] == Unread(broken)

    async def test_without_a_key_what_could_not_be_read_stays_as_it_is(self, store: Store):
        publisher = Publisher(store, ring=NO_KEY)
        await store.commit(Put(KEYS.part(1, "storage"), b"{one"))
        await publisher.change(1, lambda there: {"storage": Unread(b"{two"), "ftp/bob": {}})
        await publisher.rollback(1, 0)
        assert await publisher.read(1) == {"storage": Unread(b"{two")}

    async def test_a_deleted_tenant_comes_back_with_all_that_leads_to_it(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        before = dict(await publisher.read(1))
        await publisher.delete(1)
        told = await publisher.rollback(1, 1)
        assert told.number == 3
        assert await publisher.read(1) == before
        await whole(store)
        assert [entry.action for entry in await publisher.history(1)] == [
            "publish",
            "delete",
            "rollback",
        ]
        await publisher.rollback(1, 0)
        assert await publisher.read(1) == {}
        await whole(store)

    async def test_going_back_does_not_take_what_is_anothers_by_now(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await publisher.delete(1)
        await publisher.put(2, "ftp/one_ftp", {})
        before = await everything_of(store)
        with pytest.raises(Taken, match="'one_ftp' belongs to tenant 2"):
            await publisher.rollback(1, 1)
        assert await everything_of(store) == before

    @pytest.mark.parametrize("number", [-1, 3, 99])
    async def test_a_version_that_is_not_kept_is_refused(
        self, store: Store, publisher: Publisher, number: int
    ):
        await publisher.put(1, "storage", {"uploadQuotaGb": 1})
        await publisher.put(1, "storage", {"uploadQuotaGb": 2})
        with pytest.raises(NotConfigured, match=f"no version {number} "):
            await publisher.rollback(1, number)
        with pytest.raises(NotConfigured, match="there are none"):
            await publisher.rollback(7, 1)

    async def test_a_torn_history_is_no_way_back(self, store: Store, publisher: Publisher):
        for n in range(4):
            await publisher.put(1, "storage", {"uploadQuotaGb": n})
        await store.commit(Put(KEYS.history(1, 3), b"{"))
        with pytest.raises(NotConfigured, match="missing or unreadable"):
            await publisher.rollback(1, 1)
        await store.commit(Delete(key(KEYS.history(1, 3))))
        with pytest.raises(NotConfigured, match="missing or unreadable"):
            await publisher.rollback(1, 1)
        await store.commit(Delete(key(KEYS.history(1, 4))))
        with pytest.raises(NotConfigured, match="missing or unreadable"):
            await publisher.rollback(1, 1)
        assert (await publisher.put(1, "storage", {"uploadQuotaGb": 9})).number == 5

    async def test_a_rollback_to_a_password_of_a_lost_key_is_refused(self, store: Store):
        await Publisher(store, ring=RING).apply(document(1, "one"))
        await Publisher(store, ring=RING).put(1, "ftp/one_ftp", {"passwordHash": "hash-2"})
        other = Publisher(store, ring=Keyring([b"o" * 32]))
        before = await everything_of(store)
        with pytest.raises(Undecipherable):
            await other.rollback(1, 1)
        assert await everything_of(store) == before


class TestKeys:
    OLD, NEW, LOST = b"o" * 32, b"n" * 32, b"l" * 32

    async def test_everything_is_sealed_anew(self, store: Store):
        old = Publisher(store, ring=Keyring([self.OLD]))
        for tenant in (1, 2, 10):
            await old.apply(document(tenant))
        await old.put(2, "ftp/t2_ftp", {"passwordHash": "hash-2"})
        await old.delete(10)
        both = Publisher(store, ring=Keyring([self.NEW, self.OLD]))
        steps: list[tuple[int, int]] = []
        done = await both.rekey(lambda at, of: steps.append((at, of)))
        assert (done.tenants, done.problems) == (2, ())
        assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]
        await whole(store)
        new = Publisher(store, ring=Keyring([self.NEW]))
        again = await new.rekey()
        assert (again.tenants, again.entries, again.problems) == (0, 0, ())
        await new.rollback(10, 1)
        await new.rollback(2, 1)
        ftp = cast(dict[str, JSON], (await new.read(2))["ftp/t2_ftp"])
        assert ftp["passwordHash"] == "hash-t2"
        database = cast(dict[str, JSON], (await new.read(10))["database/query"])
        sealed, of = str(database["passwordEncrypted"]), str(database["passwordKeyId"])
        assert Keyring([self.NEW]).unseal(sealed, of) == "pw-t10"

    async def test_what_cannot_be_opened_is_told_and_stays(self, store: Store):
        await Publisher(store, ring=Keyring([self.LOST])).apply(document(1))
        await Publisher(store, ring=Keyring([self.OLD])).apply(document(2))
        before = await Publisher(store).read(1)
        both = Publisher(store, ring=Keyring([self.NEW, self.OLD]))
        done = await both.rekey()
        assert done.tenants == 1
        assert any("tenant 1: database/query" in problem for problem in done.problems)
        assert any("tenant 1: entry 1 of its history" in problem for problem in done.problems)
        assert not any("tenant 2" in problem for problem in done.problems)
        assert await both.read(1) == before

    async def test_plain_passwords_and_those_without_a_key_id_are_sealed(self, store: Store):
        await Publisher(store, ring=NO_KEY).apply(document(1))
        sealed, _ = Keyring([self.OLD]).seal("pw")
        foreign = {"driver": "x", "database": "x", "passwordEncrypted": sealed}
        await store.commit(Put(KEYS.part(1, "database/go"), msgspec.json.encode(foreign)))
        done = await Publisher(store, ring=Keyring([self.NEW, self.OLD])).rekey()
        assert (done.tenants, done.problems) == (1, ())
        raw = b"".join((await everything_of(store)).values())
        assert b"pw-t1" not in raw
        assert sealed.encode() not in raw

    @pytest.mark.parametrize("how", ["stop", "before", "after"])
    async def test_it_can_be_interrupted_and_repeated(self, store: Store, how: str):
        old = Publisher(store, ring=Keyring([self.OLD]))
        for tenant in range(1, 6):
            await old.apply(document(tenant))
        ring = Keyring([self.NEW, self.OLD])
        for after in (0, 1, 2, 3):
            try:
                await with_faults(store, after, how, ring).rekey()
            except (Stopped, OutcomeUnknown):
                continue
        done = await Publisher(store, ring=ring).rekey()
        assert done.problems == ()
        again = await Publisher(store, ring=Keyring([self.NEW])).rekey()
        assert (again.tenants, again.entries, again.problems) == (0, 0, ())
        await whole(store)

    async def test_one_tenant_with_an_older_quarrel_does_not_hold_up_the_others(self, store: Store):
        old = Publisher(store, ring=Keyring([self.OLD]))
        for tenant in (1, 2, 3):
            await old.apply(document(tenant))
        await store.commit(Put(KEYS.part(1, "domain/primary"), b"t2.example.com"))
        done = await Publisher(store, ring=Keyring([self.NEW, self.OLD])).rekey()
        assert done.tenants == 2
        assert any("'t2.example.com' belongs to tenant 2" in problem for problem in done.problems)

    async def test_without_a_key_there_is_nothing_to_seal_with(self, store: Store):
        with pytest.raises(InvalidRequest, match="MOORING_ENCRYPTION_KEY"):
            await Publisher(store, ring=NO_KEY).rekey()

    async def test_a_sealed_password_does_not_become_plain(self, store: Store):
        await Publisher(store, ring=RING).apply(document(1))
        plain = Publisher(store, ring=NO_KEY)
        with pytest.raises(InvalidRequest, match=r"database/query\.password .*plain text"):
            await plain.put(1, "database/query", {"driver": "x", "database": "x", "password": "y"})
        await plain.put(1, "database/query", {"driver": "x", "database": "x"})
        kept = cast(dict[str, JSON], (await plain.read(1))["database/query"])
        assert RING.unseal(str(kept["passwordEncrypted"])) == "pw-t1"


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
        with pytest.raises(OutcomeUnknown, match="platform/configs/mail may have been written"):
            await away.put_common("platform/configs/mail", 1)

        async def hook(number: int, go: Commit) -> Committed:
            await go()
            await publisher.put_common("platform/configs/mail", "another's")
            raise OutcomeUnknown("the answer was lost")

        with pytest.raises(OutcomeUnknown):
            await hooked(store, hook).put_common("platform/configs/mail", 2)
        assert await value(store, b"jxt/platform/configs/mail") == "another's"

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
