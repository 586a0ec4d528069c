"""Commits that go together: whole, apart where one of them fails, in order, within the limits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mooring.errors import Conflict, LeaseNotFound, TooLarge
from mooring.hub import open_store
from mooring.registry.batches import Batches
from mooring.store import Put, absent, everything, key


async def test_those_that_come_together_share_a_revision(tmp_path: Path):
    async with open_store(f"sqlite://{tmp_path}/store") as store:
        batches = Batches(store)
        revisions = await asyncio.gather(
            *(batches.commit(Put(b"/%d" % n, b""), Put(b"/x%d" % n, b"")) for n in range(100))
        )
        assert len(set(revisions)) == 3  # one alone, 64 and 35: at most 128 operations each
        assert len((await store.read(everything())).entries) == 200


async def test_one_that_conflicts_holds_up_nobody():
    async with open_store("memory://") as store:
        await store.commit(Put(b"/3", b"there"))
        batches = Batches(store)
        results = await asyncio.gather(
            *(
                batches.commit(Put(b"/%d" % n, b"new"), require=[absent(b"/%d" % n)])
                for n in range(10)
            ),
            return_exceptions=True,
        )
        assert [n for n, result in enumerate(results) if isinstance(result, Conflict)] == [3]
        assert len((await store.read(everything())).entries) == 10
        kept = (await store.read(key(b"/3"))).first
        assert kept is not None
        assert kept.value == b"there"


async def test_large_values_go_in_several_and_too_large_ones_alone():
    async with open_store("memory://") as store:
        batches = Batches(store)
        sizes = [300_000] * 5 + [2_000_000]
        results = await asyncio.gather(
            *(batches.commit(Put(b"/%d" % n, bytes(size))) for n, size in enumerate(sizes)),
            return_exceptions=True,
        )
        assert isinstance(results[-1], TooLarge)
        assert len((await store.read(everything())).entries) == 5


async def test_a_failure_of_the_store_is_everybody_s():
    async with open_store("memory://") as store:
        batches = Batches(store)
        results = await asyncio.gather(
            *(batches.commit(Put(b"/%d" % n, b"", 77)) for n in range(3)), return_exceptions=True
        )
        assert all(isinstance(result, LeaseNotFound) for result in results)
        with pytest.raises(LeaseNotFound):
            await batches.commit(Put(b"/a", b"", 77))


async def test_many_more_than_fit_are_all_written():
    async with open_store("memory://") as store:
        batches = Batches(store)
        await asyncio.gather(*(batches.commit(Put(b"/%d" % n, b"")) for n in range(5000)))
        assert len((await store.read(everything())).entries) == 5000
