"""Histories are not kept forever, no matter which tenants are published."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any, cast

import msgspec
import pytest

from mooring.errors import NotConfigured, Unavailable
from mooring.store import Committed, Put, Range, Snapshot, Store
from mooring.store.contract import Write
from mooring.tasks import Tasks
from mooring.tenants.document import parse
from mooring.tenants.publish import retention
from mooring.tenants.publish.publisher import Publisher
from tests.backends import in_memory
from tests.features.tenant_files import KEYS, document
from tests.features.tenant_publisher.support import RING, huge
from tests.waiting import eventually


async def age(store: Store, tenant: int, *, but: int = 0) -> None:
    """Make a history a hundred days older, except for the newest entries."""
    entries = (await store.read(KEYS.history_of(tenant))).entries
    numbers = sorted({KEYS.history_number(entry.key) for entry in entries} - {0})
    old = numbers[: len(numbers) - but]
    for entry in entries:
        if KEYS.history_number(entry.key) in old:
            aged = msgspec.json.decode(entry.value) | {"at": "2020-01-01T00:00:00.000Z"}
            await store.commit(Put(entry.key, msgspec.json.encode(aged)))


async def kept(store: Store, tenant: int) -> list[int]:
    return [entry.number for entry in await Publisher(store, ring=RING).history(tenant)]


async def test_a_sweep_deletes_old_entries(store: Store, publisher: Publisher):
    await publisher.apply(parse(huge(150)))
    await publisher.delete(1)
    for n in range(12):
        await publisher.put(2, "storage", {"uploadQuotaGb": n})
    for n in range(3):
        await publisher.put(3, "storage", {"uploadQuotaGb": n})
    await age(store, 1)
    await age(store, 2)
    await age(store, 3, but=2)
    await publisher.sweeper.everything()
    assert (await store.read(KEYS.history_of(1))).entries == ()
    assert await kept(store, 2) == [12]
    assert await kept(store, 3) == [2, 3]
    assert (await publisher.read(2))["storage"] == {"tenantId": 2, "uploadQuotaGb": 11}
    await publisher.put(1, "storage", {"uploadQuotaGb": 1})
    assert await kept(store, 1) == [1]


GONE = (1, 2, 7)


async def long_gone(store: Store, publisher: Publisher) -> None:
    """Tenants that were deleted long ago."""
    for tenant in GONE:
        await publisher.apply(document(tenant))
        await publisher.delete(tenant)
        await age(store, tenant)


async def left(store: Store) -> list[int]:
    return [tenant for tenant in GONE if await kept(store, tenant)]


async def test_publishing_another_tenant_sweeps_one_history(store: Store, publisher: Publisher):
    await long_gone(store, publisher)
    counts = [len(await left(store))]
    assert counts[0] > 0, "nothing sweeps the last history before this loop"
    while counts[-1] and len(counts) < 100:  # each publisher starts at a random history
        await Publisher(store, ring=RING).put(4, "storage", {"uploadQuotaGb": len(counts)})
        counts.append(len(await left(store)))
        assert counts[-2] - counts[-1] in (0, 1)
    assert counts[-1] == 0


async def test_a_sweeper_goes_from_one_history_to_the_next(store: Store, publisher: Publisher):
    await long_gone(store, publisher)
    await publisher.apply(document(11))
    sweeper = Publisher(store, ring=RING).sweeper
    for _ in range(len(GONE) + 2):  # it may start in the middle of a round
        await sweeper.step()
    assert await left(store) == []


async def test_a_round_that_started_in_the_middle_is_followed_by_the_rest(
    store: Store, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
):
    await long_gone(store, publisher)
    monkeypatch.setattr(retention, "_PAUSE", 0.01)
    monkeypatch.setattr(random, "randrange", lambda *_: 15)

    async def swept() -> bool:
        return await left(store) == []

    async with Tasks() as tasks:
        tasks.start(Publisher(store, ring=RING).sweeper.run(), name="retention")
        await eventually(swept)


class Shaky:
    """A store that is unavailable for some of its calls: the first, fourth, ninth…"""

    def __init__(self, store: Store) -> None:
        self._store, self.calls = store, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def _call(self) -> None:
        self.calls += 1
        if math.isqrt(self.calls) ** 2 == self.calls:
            raise Unavailable("the store was not reached")

    async def read(self, range: Range, **options: Any) -> Snapshot:
        self._call()
        return await self._store.read(range, **options)

    async def commit(self, *writes: Write, **options: Any) -> Committed:
        self._call()
        return await self._store.commit(*writes, **options)


async def test_a_round_resumes_after_an_outage_of_the_store(
    store: Store, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
):
    await long_gone(store, publisher)
    monkeypatch.setattr(retention, "_PAUSE", 0.01)
    monkeypatch.setattr(random, "randrange", lambda *_: 0)
    shaky = Shaky(store)

    async def swept() -> bool:
        return await left(store) == []

    async with Tasks() as tasks:
        sweeper = Publisher(cast(Store, shaky), ring=RING).sweeper
        tasks.start(sweeper.run(), name="retention")
        await eventually(swept)
    assert shaky.calls > 4, "it failed in the middle, too"


async def test_an_outage_of_the_store_skips_no_history(
    store: Store, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
):
    await long_gone(store, publisher)
    monkeypatch.setattr(random, "randrange", lambda *_: 0)
    shaky = Shaky(store)
    sweeper = Publisher(cast(Store, shaky), ring=RING).sweeper
    more = True
    while more:
        with contextlib.suppress(Unavailable):
            more = await sweeper.step()
    assert await left(store) == []


async def test_a_deleted_tenant_can_be_restored_until_its_history_is_swept(
    store: Store, publisher: Publisher
):
    await publisher.apply(document(1))
    await publisher.delete(1)
    assert await publisher.sweeper.everything() == 0
    await publisher.rollback(1, 1)
    assert len(await publisher.read(1)) == 8


@in_memory
async def test_the_sweep_keeps_the_longer_history_of_another_publisher(store: Store):
    """The publishers of a tenant determine how many entries it keeps."""
    generous = Publisher(store, ring=RING, keep=1000)
    for n in range(103):
        await generous.put(1, "storage", {"uploadQuotaGb": n})
    strict = Publisher(store, ring=RING, keep=3, keep_for=-1)
    await strict.put(2, "storage", {"uploadQuotaGb": 1})
    assert await strict.sweeper.everything() == 0
    assert await Publisher(store, ring=RING).sweeper.everything() == 0
    assert await kept(store, 1) == list(range(1, 104))


async def test_a_history_can_be_purged(store: Store, publisher: Publisher):
    for tenant in (1, 10):
        await publisher.apply(document(tenant))
        await publisher.put(tenant, "storage", {"uploadQuotaGb": 9})
    assert await publisher.purge(10) == 1
    assert await kept(store, 10) == [2]
    await publisher.delete(1)
    assert await publisher.purge(1) == 3
    assert (await store.read(KEYS.history_of(1))).entries == ()
    with pytest.raises(NotConfigured, match=r"no version 1 in its history$"):
        await publisher.rollback(1, 1)
    assert await kept(store, 10) == [2]
