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
    document,
    whole,
)
from tests.features.tenant_publisher.support import NO_KEY, USERS, Commit, hooked, huge, value


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

    @pytest.mark.parametrize("users", [0, USERS])
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


async def test_a_record_of_theirs_means_the_same_after_an_export_and_a_publish(store: Store):
    """Fields that Mooring always writes are added, and those without a value go."""
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
    meant = await meaning(here)
    await elsewhere.apply(parse(to_document(1, await here.read(1), secrets=True)))
    assert await meaning(elsewhere) == meant
    changed = await here.apply(parse(to_document(1, await here.read(1), secrets=True)))
    assert await meaning(here) == meant
    assert {change.path for change in changed.changes} == {
        "meta",
        "domain/internal",
        "database/query",
        "ftp/bob",
        "storage",
    }
    for each in (here, elsewhere):
        again = await each.apply(parse(to_document(1, await each.read(1), secrets=True)))
        assert again.changes == ()


async def meaning(publisher: Publisher) -> dict[str, Part]:
    """What readers see of tenant 1."""
    return {
        path: parse_part(1, path, told, NO_KEY)
        for path, told in (await publisher.read(1)).items()
        if told and not isinstance(told, UnreadablePart)
    }
