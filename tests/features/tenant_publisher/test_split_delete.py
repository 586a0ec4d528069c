"""Deleting a tenant that exceeds one commit: a name is free only when no data claims it."""

from __future__ import annotations

from typing import cast

import pytest

from mooring.errors import NotConfigured, Taken
from mooring.model import JSON
from mooring.store import Committed, Put, Store
from mooring.tenants.document import parse
from mooring.tenants.parts import claims
from mooring.tenants.publish.publisher import Publisher
from tests.backends import in_memory
from tests.features.tenant_files import KEYS, Stopped, assert_consistent, everything_of
from tests.features.tenant_publisher.support import (
    RING,
    USERS,
    Commit,
    hooked,
    huge,
    with_faults,
)

HOSTS = 130


def large() -> dict[str, JSON]:
    """More FTP users and more hosts than fit in one commit."""
    aliases: list[JSON] = [f"h{n}.example" for n in range(HOSTS)]
    domain: JSON = {"primary": "shop.example", "aliases": aliases, "internal": "shop.internal"}
    return {**huge(), "domain": domain, "storage": {"uploadQuotaGb": 5}}


WANTED: dict[str, JSON] = {
    "meta": {"code": "huge", "name": "huge"},
    "domain/primary": "shop.example",
    "domain/aliases": ["h0.example"],
    "domain/internal": f"h{HOSTS - 1}.example",
    "ftp/user0": {},
    f"ftp/user{USERS - 1}": {},
}
"""The names of the tenant that another one tries to take."""


async def take(publisher: Publisher) -> None:
    """Let tenant 2 take all free names. A name is free exactly if no data of tenant 1 claims it."""
    for path, value in WANTED.items():
        claimed = claims(KEYS, 1, await publisher.read(1))
        wanted = claims(KEYS, 2, {path: value})
        try:
            await publisher.put(2, path, value)
        except Taken:
            assert wanted.keys() & claimed.keys(), f"{path} is refused though nothing claims it"
        else:
            assert not wanted.keys() & claimed.keys(), f"{path} was given to two tenants"


async def commits_of_a_delete(store: Store, publisher: Publisher) -> int:
    count = 0

    async def hook(number: int, go: Commit) -> Committed:
        nonlocal count
        count = number
        await assert_consistent(store)
        if number > 1:
            assert "meta" in await publisher.read(1)
        return await go()

    await hooked(store, hook).delete(1)
    return count


@in_memory
async def test_no_prefix_of_its_commits_leaves_a_name_to_two_tenants(
    store: Store, publisher: Publisher
):
    await publisher.apply(parse(large()))
    count = await commits_of_a_delete(store, publisher)
    assert count >= 4
    for after in range(count):
        await publisher.apply(parse(large()))
        with pytest.raises(Stopped):
            await with_faults(store, after, "stop").delete(1)
        await assert_consistent(store)
        assert "meta" in await publisher.read(1)
        await take(publisher)
        await assert_consistent(store)
        kept = await publisher.read(2)
        await publisher.delete(1)
        assert await publisher.read(1) == {}
        assert await publisher.read(2) == kept
        await assert_consistent(store)
        if kept:
            await publisher.delete(2)


async def test_another_tenant_takes_names_between_two_of_its_commits(
    store: Store, publisher: Publisher
):
    await publisher.apply(parse(large()))

    async def hook(number: int, go: Commit) -> Committed:
        await take(publisher)
        done = await go()
        await assert_consistent(store)
        return done

    await hooked(store, hook).delete(1)
    kept = await publisher.read(2)
    assert kept.keys() >= {"ftp/user0"}
    assert await publisher.read(1) == {}
    await assert_consistent(store)
    with pytest.raises(NotConfigured):
        await publisher.delete(1)
    assert await publisher.read(2) == kept


@in_memory
@pytest.mark.parametrize("after", range(3))
async def test_a_spelling_of_another_publisher_is_deleted_with_its_data(
    store: Store, publisher: Publisher, after: int
):
    """Only another spelling of the code leads to the tenant, and it has no index of ours."""
    await publisher.apply(parse({**large(), "meta": {"code": "other", "name": "other"}}))
    names = KEYS.as_written("by-code", "ACME"), KEYS.as_written("by-name", "Ac me")
    meta = b'{"id":1,"code":"ACME","name":"Ac me"}'
    await store.commit(Put(KEYS.part(1, "meta"), meta), *(Put(name, meta) for name in names))
    with pytest.raises(Stopped):
        await with_faults(store, after, "stop").delete(1)
    for meta_ in ({"code": "acme", "name": "b"}, {"code": "b", "name": "Ac me"}):
        with pytest.raises(Taken, match="belongs to tenant 1"):
            await publisher.put(2, "meta", cast(JSON, meta_))
    await publisher.delete(1)
    assert (await store.read(KEYS.indexes)).entries == ()


@in_memory
async def test_aliases_that_fit_in_no_history_can_be_deleted(store: Store, publisher: Publisher):
    """Another program wrote more than a publisher would."""
    await publisher.apply(parse({**huge(2), "domain": {"primary": "shop.example"}}))
    long = ".".join(letter * 50 for letter in "abcd")
    hosts = [f"h{n}.{long}" for n in range(4500)]
    raw = ("[" + ",".join(f'"{host}"' for host in hosts) + "]").encode()
    await store.commit(Put(KEYS.part(1, "domain/aliases"), raw))
    for first in range(0, 300, 100):
        some = hosts[first : first + 100]
        await store.commit(*(Put(KEYS.index("host", alias), b'{"tenantId":1}') for alias in some))
    await publisher.delete(1)
    left = await everything_of(store)
    assert [name for name in left if name in KEYS.indexes or name in KEYS.parts(1)] == []


@in_memory
async def test_a_tenant_without_meta_is_deleted_in_pages_too(store: Store):
    publisher = Publisher(store, ring=RING)
    for after in range(3):
        sections = {name: value for name, value in large().items() if name != "meta"}
        await publisher.apply(parse(sections))
        with pytest.raises(Stopped):
            await with_faults(store, after, "stop").delete(1)
        await assert_consistent(store)
        await publisher.delete(1)
        assert await publisher.read(1) == {}
        await assert_consistent(store)
