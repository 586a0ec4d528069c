"""Tenants followed through faults on a real etcd: at the end they equal those in the store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from mooring.backends import open_store
from mooring.errors import StoreError
from mooring.store import Delete, Put, Store
from mooring.tasks import SlicedWork
from mooring.tenants.keys import TenantKeys
from mooring.tenants.read.parser import Changed, KeyChange, SnapshotParser, SnapshotUpdate
from mooring.tenants.read.provider import Provider
from mooring.tenants.read.snapshot import TenantSnapshot
from mooring.tenants.read.tenants import Tenants
from mooring.tenants.secrets import Keyring
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.faults.test_etcd_cluster import restore
from tests.waiting import eventually

KEYS = TenantKeys()
RANGES = (KEYS.all, KEYS.common, KEYS.platform, KEYS.health)


def provider(store: Store, file: Path | None = None, wait: float = 5.0) -> Provider:
    return Provider(store, KEYS, Keyring(), file=file, wait=wait)


def published(tenant: int, text: str) -> tuple[Put, ...]:
    """The writes of a tenant with the same text in all of its parts."""
    values: dict[str, object] = {
        "meta": {"code": f"c{tenant}", "name": f"{tenant} {text}"},
        "domain/aliases": [f"{text}.t{tenant}.example", "contested.example"],
        f"database/{text}": {"database": text},
        "ftp/bob": {"description": text},
    }
    return tuple(
        Put(KEYS.part(tenant, path), json.dumps(value).encode()) for path, value in values.items()
    )


@contextlib.asynccontextmanager
async def publishing(store: Store, *, pause: float = 0.01) -> AsyncIterator[list[int]]:
    """Publish and delete continuously, as far as the store accepts it."""
    revisions: list[int] = []
    chance = random.Random(7)

    async def publish() -> None:
        while True:
            tenant, text = chance.randint(1, 12), f"v{chance.randint(0, 3)}"
            with contextlib.suppress(StoreError):
                if chance.random() < 0.2:
                    done = await store.commit(Delete(KEYS.parts(tenant)))
                else:
                    beat = Put(KEYS.common_part("platform/configs/last"), json.dumps(text).encode())
                    done = await store.commit(*published(tenant, text), beat)
                revisions.append(done.revision)
            await asyncio.sleep(pause)

    task = asyncio.get_running_loop().create_task(publish())
    try:
        yield revisions
    finally:
        task.cancel()
        await asyncio.wait([task])


class Subscriber:
    """The changes that a subscriber received, and whether they are consistent: each one begins
    where the one before it ended, and no reader ever saw two publishes mixed."""

    def __init__(self, tenants: Tenants) -> None:
        self.known = dict(tenants.snapshot.tenants)
        self.tenants = tenants
        self.wrong: list[object] = []
        tenants.subscribe(self.apply)

    def apply(self, change: Changed) -> None:
        if self.known.get(change.tenant) != change.before:
            self.wrong.append(("missed", change))
        if change.after is None:
            self.known.pop(change.tenant, None)
        else:
            self.known[change.tenant] = change.after
            bob, meta = change.after.ftp.get("bob"), change.after.meta
            if bob is None or meta is None or not meta.name.endswith(bob.description):
                self.wrong.append(("mixed", change))

    async def agrees(self, store: Store) -> None:
        """Wait until the tenants and the state of the subscriber equal the store."""

        async def equal() -> bool:
            truth = await look(store)
            seen = self.tenants.snapshot
            return (seen.tenants, seen.hosts, seen.names, seen.codes, seen.ftp_users) == (
                truth.tenants,
                truth.hosts,
                truth.names,
                truth.codes,
                truth.ftp_users,
            ) and (seen.platform, seen.resolver) == (truth.platform, truth.resolver)

        await eventually(equal, what="the tenants equal those in the store")
        truth = await look(store)
        for id in {*truth.tenants, *self.tenants.ids()}:
            assert self.tenants.get(id) == truth.tenants.get(id)
        assert self.known == dict(truth.tenants)
        assert self.wrong == []


async def look(store: Store) -> TenantSnapshot:
    entries = [entry for range in RANGES for entry in (await store.read(range)).entries]
    changes = [(entry.key, entry) for entry in entries]
    return SnapshotParser(KEYS, Keyring()).apply(TenantSnapshot(), changes).snapshot


async def more_than(revisions: list[int], count: int) -> None:
    await eventually(lambda: len(revisions) > count)


@dataclass
class Wire:
    """A store reached through the proxy, and directly."""

    server: EtcdServer
    proxy: FaultProxy
    through: Store
    direct: Store


@contextlib.asynccontextmanager
async def wired(server: EtcdServer) -> AsyncIterator[Wire]:
    namespace = f"namespace=/{uuid.uuid4().hex}"
    async with (
        FaultProxy(server.address) as proxy,
        open_store(f"{server.url}?{namespace}") as direct,
        open_store(f"etcd://{proxy.address}?{namespace}&timeout=2s") as through,
    ):
        yield Wire(server, proxy, through, direct)


@pytest.fixture
async def wire(etcd: Callable[[str], EtcdServer]) -> AsyncIterator[Wire]:
    """A connection to the shared server."""
    async with wired(etcd("3.5")) as opened:
        yield opened


@pytest.fixture
async def own_wire(fresh_etcd: Callable[..., EtcdServer]) -> AsyncIterator[Wire]:
    """A connection to a server that may be broken."""
    async with wired(fresh_etcd(series="3.4")) as opened:
        yield opened


@pytest.mark.timeout(120)
async def test_a_killed_and_restarted_server(own_wire: Wire):
    async with provider(own_wire.through) as tenants:
        subscriber = Subscriber(tenants)
        async with publishing(own_wire.direct) as revisions:
            for _ in range(2):
                await more_than(revisions, len(revisions) + 20)
                own_wire.server.kill()
                await asyncio.sleep(0.3)
                await asyncio.to_thread(own_wire.server.start)
            await more_than(revisions, len(revisions) + 20)
        await subscriber.agrees(own_wire.direct)
        await eventually(lambda: not tenants.stale)


async def test_updates_that_sometimes_cannot_be_applied(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
):
    chance = random.Random(3)
    applying, mistakes = SnapshotParser.apply_in_slices, 0

    def stumbling(
        reading: SnapshotParser, snapshot: TenantSnapshot, changes: Iterable[Iterable[KeyChange]]
    ) -> SlicedWork[SnapshotUpdate]:
        nonlocal mistakes
        if chance.random() < 0.3:
            mistakes += 1
            raise RuntimeError(f"mistake {mistakes}")
        return (yield from applying(reading, snapshot, changes))

    def enough_mistakes(count: int) -> bool:
        return mistakes >= count

    async with provider(wire.through) as tenants:
        subscriber = Subscriber(tenants)
        monkeypatch.setattr(SnapshotParser, "apply_in_slices", stumbling)
        async with publishing(wire.direct) as revisions:
            for enough in (4, 8, 12):
                await more_than(revisions, len(revisions) + 30)
                await eventually(partial(enough_mistakes, enough))
                wire.proxy.reset()
        monkeypatch.undo()
        await subscriber.agrees(wire.direct)
        await eventually(lambda: not tenants.stale)


async def test_connections_cut_while_following(wire: Wire):
    async with provider(wire.through) as tenants:
        subscriber = Subscriber(tenants)
        async with publishing(wire.direct) as revisions:
            for cut in (wire.proxy.reset, wire.proxy.half_open, wire.proxy.reset):
                await more_than(revisions, len(revisions) + 10)
                cut()
        await subscriber.agrees(wire.direct)


async def test_a_partition_keeps_the_known_tenants_and_flags_them_as_stale(wire: Wire):
    await wire.direct.commit(*published(1, "before"))
    async with provider(wire.through) as tenants:
        subscriber = Subscriber(tenants)
        wire.proxy.blackhole()
        await wire.direct.commit(*published(1, "after"), *published(2, "after"))
        await eventually(lambda: tenants.stale)
        assert tenants.database(1, "before") is not None
        assert tenants.get(2) is None
        wire.proxy.heal()
        await eventually(lambda: not tenants.stale)
        await subscriber.agrees(wire.direct)
        assert tenants.database(2, "after") is not None


QUIET = "a partition in silence is tested above, and compaction here after a refusal"


@pytest.mark.parametrize(
    "fault", ["refuse", pytest.param("blackhole", marks=pytest.mark.extended(QUIET))]
)
async def test_compaction_during_a_partition_means_reading_again(wire: Wire, fault: str):
    await wire.direct.commit(*published(1, "before"), *published(2, "before"))
    async with provider(wire.through) as tenants:
        subscriber = Subscriber(tenants)
        getattr(wire.proxy, fault)()
        await eventually(lambda: tenants.stale)
        await wire.direct.commit(Delete(KEYS.parts(1)))
        for n in range(20):
            last = await wire.direct.commit(*published(3 + n % 3, f"v{n}"))
        await wire.direct.compact(last.revision)
        assert {*tenants.ids()} == {1, 2}
        wire.proxy.heal()
        await subscriber.agrees(wire.direct)
        assert {*tenants.ids()} == {2, 3, 4, 5}


@pytest.mark.parametrize("overtaken", [False, True], ids=["revision runs back", "overtaken"])
async def test_a_store_restored_from_a_backup(own_wire: Wire, tmp_path: Path, overtaken: bool):
    await own_wire.direct.commit(*published(1, "kept"), *published(2, "kept"))
    own_wire.server.ctl("snapshot", "save", str(tmp_path / "backup"))
    for n in range(10):
        await own_wire.direct.commit(Delete(KEYS.parts(1)), *published(3, f"lost{n}"))
    async with provider(own_wire.through) as tenants:
        subscriber = Subscriber(tenants)
        assert {*tenants.ids()} == {2, 3}
        own_wire.proxy.refuse()
        own_wire.server.kill()
        await asyncio.to_thread(restore, own_wire.server, tmp_path / "backup")
        await asyncio.to_thread(own_wire.server.start)
        for n in range(30 if overtaken else 1):
            await own_wire.direct.commit(*published(4, f"new{n}"))
        own_wire.proxy.heal()
        await subscriber.agrees(own_wire.direct)
        assert {*tenants.ids()} == {1, 2, 4}


async def test_a_start_from_the_file_during_an_outage_converges_to_the_store(
    own_wire: Wire, tmp_path: Path
):
    """The store was restored from a backup meanwhile, and continued: the file contains revisions
    that no longer exist."""
    file = tmp_path / "tenants.copy"
    await own_wire.direct.commit(*published(1, "kept"))
    own_wire.server.ctl("snapshot", "save", str(tmp_path / "backup"))
    await own_wire.direct.commit(*published(1, "lost"), *published(2, "lost"))
    async with provider(own_wire.through, file):
        pass
    own_wire.server.kill()
    async with provider(own_wire.through, file, wait=20) as tenants:
        subscriber = Subscriber(tenants)
        assert {*tenants.ids()} == {1, 2}
        assert tenants.stale
        await asyncio.to_thread(restore, own_wire.server, tmp_path / "backup")
        await asyncio.to_thread(own_wire.server.start)
        async with publishing(own_wire.direct) as revisions:
            await more_than(revisions, 20)
        await subscriber.agrees(own_wire.direct)
        await eventually(lambda: not tenants.stale)
    own_wire.server.kill()
    async with provider(own_wire.through, file) as again:
        assert dict(again.snapshot.tenants) == dict(tenants.snapshot.tenants)
