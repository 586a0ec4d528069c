"""Many publishers and readers of the same tenants at once, on etcd: no reader sees a partial
write."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from mooring.backends import open_store
from mooring.errors import MooringError, NotConfigured, Taken, Unavailable
from mooring.hub import Hub
from mooring.store import Entry, Put, Query, Store, prefix
from mooring.tenants.keys import TenantKeys
from mooring.tenants.model import Tenant
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.read.snapshot import TenantSnapshot
from mooring.tenants.secrets import Keyring
from mooring.testing.etcd import EtcdServer
from tests.faults.tenant_publishers import CROWD, stamped
from tests.features.tenant_files import assert_consistent, inconsistencies
from tests.waiting import eventually

KEYS = TenantKeys()
RING = Keyring([b"k" * 32])
PUBLISHERS = 3
READERS = 4


@pytest.fixture
def backend() -> str:
    return "etcd-3.5"


async def start(url: str, what: str, me: str, how: str) -> dict[str, int]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.tenant_publishers", url, what, me, how),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    counts: dict[str, int] = json.loads(out)
    return counts


def mixed(tenant: Tenant) -> str:
    """What mixes two versions in a tenant that a reader sees."""
    if tenant.meta is None:
        return f"tenant {tenant.id} without its meta"
    parts = [*tenant.databases.values(), *tenant.ftp.values(), tenant.storage]
    if len(parts) != 5 or None in parts or not tenant.domain.primary:
        return f"tenant {tenant.id} has only {len(parts)} parts"
    stamps = {str(part.extra.get("stamp")) for part in (tenant.meta, *parts) if part is not None}
    names = tenant.meta.code.rpartition("_")[2]
    if f"u{tenant.id}.{names}" not in tenant.ftp or f"-{names}." not in tenant.domain.primary:
        return f"tenant {tenant.id} has the names of two versions"
    return "" if len(stamps) == 1 else f"tenant {tenant.id} is of {sorted(stamps)}"


def wrong_in(snapshot: TenantSnapshot) -> list[str]:
    """What a snapshot of the provider must never contain."""
    problems = [problem for tenant in snapshot.tenants.values() if (problem := mixed(tenant))]
    problems += [
        f"{user} does not lead to tenant {tenant.id}"
        for tenant in snapshot.tenants.values()
        for user in tenant.ftp
        if snapshot.ftp_users.holders.get(user) != tenant.id
    ]
    return problems


def stamps_of(entries: tuple[Entry, ...]) -> list[str]:
    """Tenants whose parts in the store belong to several versions."""
    stamps: dict[int, set[str]] = {}
    for entry in entries:
        if (tenant := KEYS.tenant(entry.key)) and entry.value.startswith(b"{"):
            stamp = str(msgspec.json.decode(entry.value).get("stamp"))
            stamps.setdefault(tenant, set()).add(stamp)
    return [f"tenant {tenant}: {seen}" for tenant, seen in stamps.items() if len(seen) > 1]


async def reading(store: Store, problems: list[str], reads: Counter[str]) -> None:
    """Read everything in one transaction, again and again."""
    tenants = prefix(b"jxt/tenants/")
    while True:
        try:
            entries = (await store.commit(read=[Query(tenants)])).reads[0].entries
        except Unavailable:
            continue  # on a busy machine: it saw nothing, so nothing wrong
        problems += inconsistencies(KEYS, entries)
        problems += stamps_of(entries)
        reads["store"] += 1


async def following(hub: Hub, problems: list[str], reads: Counter[str]) -> None:
    """Check every snapshot that the provider shows."""
    async with hub.tenants() as tenants:
        seen = -1
        while True:
            snapshot = tenants.snapshot
            if snapshot.revision != seen:
                seen = snapshot.revision
                problems += wrong_in(snapshot)
                reads["provider"] += 1
            await asyncio.sleep(0.001)


async def test_no_reader_sees_a_partial_publish(store_url: str, store: Store):
    problems: list[str] = []
    reads: Counter[str] = Counter()
    async with Hub(store_url) as hub, open_store(store_url) as other:
        readers = [
            asyncio.ensure_future(
                following(hub, problems, reads)
                if n % 2
                else reading(store if n % 4 else other, problems, reads)
            )
            for n in range(READERS)
        ]
        try:
            async with asyncio.timeout(50):
                counts = await asyncio.gather(
                    *(start(store_url, "crowd", f"p{n}", "2") for n in range(PUBLISHERS))
                )
        finally:
            for reader in readers:
                reader.cancel()
            ended = await asyncio.gather(*readers, return_exceptions=True)
    assert [result for result in ended if not isinstance(result, asyncio.CancelledError)] == []
    assert problems[:5] == []
    done = Counter[str]()
    for published in counts:
        done.update(published)
    assert min(done["published"], done["deleted"], done["taken"]) > 0
    assert done["misled"] == 0
    assert min(reads["store"], reads["provider"]) > 0
    await assert_consistent(store)


async def test_deleting_a_tenant_does_not_affect_ids_with_the_same_prefix(
    store_url: str, store: Store
):
    """Others are written once, and must stay unchanged while tenant 1 is created and deleted."""
    mine = Publisher(store, ring=RING)
    for tenant in (10, 11, 100):
        await mine.apply(stamped(tenant, "once", tenant))
    before = [(await store.read(KEYS.parts(tenant))).entries for tenant in (10, 11, 100)]

    async def come_and_go(publisher: Publisher, name: str) -> None:
        for n in range(8):
            await publisher.apply(stamped(1, f"{name}.{n}", 1))
            try:
                await publisher.delete(1)
            except NotConfigured:
                continue

    async with open_store(store_url) as other:
        await asyncio.gather(come_and_go(mine, "a"), come_and_go(Publisher(other, ring=RING), "b"))
    after = [(await store.read(KEYS.parts(tenant))).entries for tenant in (10, 11, 100)]
    assert after == before
    await assert_consistent(store)


@pytest.fixture
async def rivals(store_url: str) -> AsyncIterator[list[Publisher]]:
    async with open_store(store_url) as one, open_store(store_url) as other:
        yield [Publisher(store, ring=RING) for store in (one, other)]


@pytest.mark.parametrize("what", ["FTP user", "code", "name", "host"])
async def test_of_two_claims_of_one_name_one_wins_and_the_other_gets_an_error(
    rivals: list[Publisher], store: Store, what: str
):
    async def attempt(publisher: Publisher, tenant: int, name: str) -> Taken | None:
        free = f"{name}_{tenant}"
        try:
            if what == "FTP user":
                await publisher.put(tenant, f"ftp/{name}", {})
            elif what == "host":
                await publisher.put(tenant, "domain/aliases", [f"{name}.example"])
            elif what == "code":
                await publisher.put(tenant, "meta", {"code": name, "name": free})
            else:
                await publisher.put(tenant, "meta", {"code": free, "name": name})
        except Taken as error:
            return error
        return None

    wins: Counter[int] = Counter()
    rounds = 10
    for n in range(rounds):
        first, second = await asyncio.gather(
            attempt(rivals[0], 1, f"n{n}"), attempt(rivals[1], 2, f"n{n}")
        )
        assert (first is None) != (second is None)
        winner, conflict = (1, second) if first is None else (2, first)
        assert conflict is not None
        assert conflict.holder == winner
        assert f"belongs to tenant {winner} already" in str(conflict)
        wins[winner] += 1
    assert sum(wins.values()) == rounds
    await assert_consistent(store)


async def test_taking_over_a_stale_index_does_not_race_its_owner(
    rivals: list[Publisher], store: Store
):
    """The tenant of a stale index claims it again in the moment when another takes it."""
    for n in range(8):
        name = f"n{n}"
        await rivals[0].put(1, f"ftp/{name}", {})
        raw = (await store.read(KEYS.indexes)).entries
        await rivals[0].remove(1, f"ftp/{name}")
        stale = next(e for e in raw if e.key == KEYS.index("ftp-user", name))
        await store.commit(Put(stale.key, stale.value))

        async def attempt(publisher: Publisher, tenant: int, name: str = name) -> bool:
            try:
                await publisher.put(tenant, f"ftp/{name}", {})
            except Taken:
                return False
            return True

        won = await asyncio.gather(attempt(rivals[0], 1), attempt(rivals[1], 2))
        assert sorted(won) == [False, True]
        await assert_consistent(store)


async def test_no_concurrent_change_of_one_tenant_is_lost(store_url: str, store: Store):
    count = 6
    async with asyncio.timeout(50):
        await asyncio.gather(
            *(start(store_url, "parts", f"p{n}", str(count)) for n in range(PUBLISHERS))
        )
    parts = await Publisher(store, ring=RING).read(1)
    users = {path for path in parts if path.startswith("ftp/")}
    assert users == {
        f"ftp/p{n}.{n_part}" for n in range(PUBLISHERS) for n_part in range(1, count + 1)
    }
    for n in range(PUBLISHERS):
        own = parts[f"database/own-p{n}"]
        assert isinstance(own, dict)
        assert own["database"] == str(count)
    numbers = [entry.number for entry in await Publisher(store, ring=RING).history(1)]
    assert numbers == list(range(numbers[0], 2 * PUBLISHERS * count + 1))
    await assert_consistent(store)


async def test_a_publish_survives_a_killed_etcd(
    fresh_etcd: Callable[..., EtcdServer],
):
    """Killed at random between commits: afterwards every tenant is complete, and acknowledged
    publishes are stored."""
    server = fresh_etcd(series="3.4")  # 3.5.0 to 3.5.2 can lose a write themselves when killed
    async with open_store(server.url) as store:
        publisher = Publisher(store, ring=RING)
        answered: dict[int, str] = {}

        async def busy(tenant: int) -> None:
            for n in range(1000):
                try:
                    await publisher.apply(stamped(tenant, f"{n}", tenant))
                except MooringError:
                    return
                answered[tenant] = f"{n}"

        tasks = [asyncio.ensure_future(busy(tenant)) for tenant in CROWD]
        await eventually(lambda: all(int(answered.get(tenant, -1)) >= 3 for tenant in CROWD))
        server.kill()
        server.start()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(20):
            await assert_consistent(store)
        for tenant, stamp in answered.items():
            storage = (await publisher.read(tenant))["storage"]
            assert isinstance(storage, dict)
            assert int(str(storage["stamp"])) >= int(stamp)
