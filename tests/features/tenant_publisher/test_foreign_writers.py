"""Publishing beside programs that write without a history."""

from __future__ import annotations

import pytest

from mooring.store import Committed, Delete, Put, Store, key, prefix
from mooring.tenants.document import parse, to_document
from mooring.tenants.keys import TenantKeys
from mooring.tenants.model import Part, parse_part
from mooring.tenants.parts import UnreadablePart
from mooring.tenants.publish.publisher import Publisher
from tests.features.tenant_files import (
    KEYS,
    assert_consistent,
    document,
)
from tests.features.tenant_publisher.support import NO_KEY, USERS, Commit, hooked, huge, value


class TestWritersWithoutAHistory:
    """Other programs write the same keys, and know nothing of ours."""

    async def test_a_concurrent_rename_is_noticed(self, store: Store, publisher: Publisher):
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

    async def test_a_rename_between_two_transactions_is_noticed(
        self, store: Store, publisher: Publisher
    ):
        async def hook(number: int, go: Commit) -> Committed:
            if number == 3:
                await store.commit(Put(KEYS.part(1, "meta"), b'{"code":"b","name":"B"}'))
            return await go()

        document = huge()
        await hooked(store, hook).apply(parse(document))
        await assert_consistent(store)

    async def test_a_concurrent_deletion_is_noticed(self, store: Store, publisher: Publisher):
        await publisher.apply(document(1, "one"))
        seen: list[set[str]] = []

        async def hook(number: int, go: Commit) -> Committed:
            if number == 1:
                await store.commit(Delete(prefix(b"jxt/tenants/")))
            return await go()

        def change(parts):
            seen.append(set(parts))
            return {**parts, "storage": {}}

        await hooked(store, hook).change(1, change)
        assert seen[-1] == set()

    @pytest.mark.parametrize("users", [0, USERS])
    async def test_parts_written_during_a_deletion_are_deleted_with_their_indexes(
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

    async def test_unexplained_indexes_are_deleted_with_their_tenant(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await publisher.apply(document(10, "ten"))
        await store.commit(
            Put(KEYS.part(1, "meta"), b'{"code":"other","name":"x"}'),
            Delete(key(KEYS.part(1, "domain/primary"))),
        )
        await publisher.delete(1)
        await assert_consistent(store)
        assert len(await publisher.read(10)) == 8


async def test_foreign_records_mean_the_same_after_an_export_and_a_publish(store: Store):
    """Fields that Mooring always writes are added, and those without a value are dropped."""
    theirs = {
        "meta": b'{"id":99,"code":"a","name":"A","billingPlan":null,"region":"eu","vip":null}',
        "domain/primary": b'"a.example"',
        "domain/aliases": b'["b.example"]',
        "domain/internal": b"null",
        "database/query": b'{"driver":"mysql","database":"x","password":"pw","pool":{"size":null}}',
        "ftp/bob": b'{"passwordHash":"h","status":null}',
        "storage": b'{"quotaBytes":1073741824,"maxFileSizeMb":0.5}',
    }
    await store.commit(*(Put(KEYS.part(1, path), raw) for path, raw in theirs.items()))
    here, elsewhere = (
        Publisher(store, TenantKeys(name), ring=NO_KEY) for name in ("jxt", "elsewhere")
    )
    expected = await meaning(here)
    await elsewhere.apply(parse(to_document(1, await here.read(1), secrets=True)))
    assert await meaning(elsewhere) == expected
    changed = await here.apply(parse(to_document(1, await here.read(1), secrets=True)))
    assert await meaning(here) == expected
    assert {change.path for change in changed.changes} == {
        "meta",
        "domain/internal",
        "database/query",
        "ftp/bob",
        "storage",
    }
    for publisher in (here, elsewhere):
        again = await publisher.apply(parse(to_document(1, await publisher.read(1), secrets=True)))
        assert again.changes == ()


async def meaning(publisher: Publisher) -> dict[str, Part]:
    """The parts of tenant 1 as readers see them."""
    return {
        path: parse_part(1, path, value, NO_KEY)
        for path, value in (await publisher.read(1)).items()
        if value and not isinstance(value, UnreadablePart)
    }
