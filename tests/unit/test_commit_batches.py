"""Commits in batches: atomic, in order, within the limits, and separate if one of them fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mooring.backends import open_store
from mooring.errors import (
    AccessDenied,
    Closed,
    Conflict,
    LeaseNotFound,
    OutcomeUnknown,
    OutOfSpace,
    TooLarge,
    Unavailable,
)
from mooring.registry.kv.commit_batches import CommitBatches
from mooring.store import Put, absent, everything, key
from tests.waiting import eventually


async def test_concurrent_commits_share_a_revision(tmp_path: Path):
    async with open_store(f"sqlite://{tmp_path}/store") as store:
        batches = CommitBatches(store)
        revisions = await asyncio.gather(
            *(batches.commit(Put(b"/%d" % n, b""), Put(b"/x%d" % n, b"")) for n in range(100))
        )
        assert len(set(revisions)) == 3  # one alone, 64 and 35: at most 128 operations each
        assert len((await store.read(everything())).entries) == 200


async def test_a_conflicting_commit_does_not_delay_others():
    async with open_store("memory://") as store:
        await store.commit(Put(b"/3", b"there"))
        batches = CommitBatches(store)
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


async def test_large_values_are_split_into_batches_and_oversized_ones_sent_alone():
    async with open_store("memory://") as store:
        batches = CommitBatches(store)
        sizes = [300_000] * 5 + [2_000_000]
        results = await asyncio.gather(
            *(batches.commit(Put(b"/%d" % n, bytes(size))) for n, size in enumerate(sizes)),
            return_exceptions=True,
        )
        assert isinstance(results[-1], TooLarge)
        assert len((await store.read(everything())).entries) == 5


@pytest.mark.parametrize("error", [AccessDenied("not this one"), ZeroDivisionError("a mistake")])
async def test_a_forbidden_commit_does_not_delay_others(
    error: Exception, monkeypatch: pytest.MonkeyPatch
):
    async with open_store("memory://") as store:
        whole = store.commit

        async def commit(*writes: Put, **rest: object) -> object:
            await asyncio.sleep(0)  # the others arrive meanwhile
            if any(write.key == b"/3" for write in writes):
                raise error
            return await whole(*writes, **rest)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "commit", commit)
        batches = CommitBatches(store)
        results = await asyncio.gather(
            *(batches.commit(Put(b"/%d" % n, b"")) for n in range(10)), return_exceptions=True
        )
        assert [n for n, result in enumerate(results) if result is error] == [3]
        assert len((await store.read(everything())).entries) == 9


@pytest.mark.parametrize("error", [Unavailable("away"), OutcomeUnknown("lost"), OutOfSpace("full")])
async def test_a_failure_of_the_store_is_not_retried_for_every_commit(
    error: Exception, monkeypatch: pytest.MonkeyPatch
):
    async with open_store("memory://") as store:
        calls = 0

        async def commit(*writes: Put, **rest: object) -> object:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0)  # the others arrive meanwhile
            raise error

        monkeypatch.setattr(store, "commit", commit)
        batches = CommitBatches(store)
        results = await asyncio.gather(
            *(batches.commit(Put(b"/%d" % n, b"")) for n in range(10)), return_exceptions=True
        )
        assert results == [error] * 10
        assert calls == 2


async def test_closing_fails_the_waiting_commits_without_cancelling_them(
    monkeypatch: pytest.MonkeyPatch,
):
    async with open_store("memory://") as store:
        never = asyncio.Event()
        sent: list[int] = []

        async def commit(*writes: Put, **rest: object) -> object:
            sent.append(len(writes))
            await never.wait()
            raise AssertionError

        monkeypatch.setattr(store, "commit", commit)
        batches = CommitBatches(store)
        waiting = [asyncio.ensure_future(batches.commit(Put(b"/%d" % n, b""))) for n in range(3)]
        await eventually(lambda: sent == [1, 2])
        await batches.aclose()
        results = await asyncio.wait_for(asyncio.gather(*waiting[1:], return_exceptions=True), 5)
        assert all(isinstance(result, Closed) for result in results)
        waiting[0].cancel()


async def test_a_failure_of_the_store_fails_every_commit():
    async with open_store("memory://") as store:
        batches = CommitBatches(store)
        results = await asyncio.gather(
            *(batches.commit(Put(b"/%d" % n, b"", 77)) for n in range(3)), return_exceptions=True
        )
        assert all(isinstance(result, LeaseNotFound) for result in results)
        with pytest.raises(LeaseNotFound):
            await batches.commit(Put(b"/a", b"", 77))


async def test_more_commits_than_fit_in_a_batch_are_all_written():
    async with open_store("memory://") as store:
        batches = CommitBatches(store)
        await asyncio.gather(*(batches.commit(Put(b"/%d" % n, b"")) for n in range(5000)))
        assert len((await store.read(everything())).entries) == 5000
