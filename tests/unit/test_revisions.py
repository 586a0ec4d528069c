"""The current revision of the store: concurrent callers share one read, and no error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mooring.backends import open_store
from mooring.errors import AccessDenied, Unavailable
from mooring.registry.kv.shared_lease import Revisions
from mooring.store import Put, Range, Snapshot, Store
from tests.waiting import eventually


class Reads:
    """Counts the reads of a store, and fails those that the test selects."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[bytes] = []
        self.errors: dict[bytes, Exception] = {}
        self.unanswered = b""
        self._read = store.read
        monkeypatch.setattr(store, "read", self.read)

    async def read(self, range: Range, **options: Any) -> Snapshot:
        self.asked.append(range.start)
        await asyncio.sleep(0)
        if range.start == self.unanswered:
            await asyncio.Event().wait()
        if range.start in self.errors:
            raise self.errors[range.start]
        return await self._read(range, **options)


async def test_concurrent_callers_share_one_read(monkeypatch: pytest.MonkeyPatch):
    async with open_store("memory://") as store:
        here = (await store.commit(Put(b"/a", b""))).revision
        reads, revisions = Reads(store, monkeypatch), Revisions(store)
        names = [b"/%d" % number for number in range(10)]
        assert await asyncio.gather(*map(revisions.current, names)) == [here] * 10
        assert reads.asked == [b"/0"]
        await store.commit(Put(b"/a", b""))
        assert await revisions.current(b"/0") == here + 1


async def test_an_unavailable_store_is_read_once(monkeypatch: pytest.MonkeyPatch):
    async with open_store("memory://") as store:
        reads, revisions = Reads(store, monkeypatch), Revisions(store)
        reads.errors[b"/0"] = Unavailable("away")
        names = [b"/0", b"/1", b"/2"]
        errors = await asyncio.gather(*map(revisions.current, names), return_exceptions=True)
        assert [type(error) for error in errors] == [Unavailable] * 3
        assert reads.asked == [b"/0"]


async def test_a_read_that_is_denied_or_cancelled_is_repeated_by_the_next_caller(
    monkeypatch: pytest.MonkeyPatch,
):
    async with open_store("memory://") as store:
        reads, revisions = Reads(store, monkeypatch), Revisions(store)
        reads.errors[b"/0"] = AccessDenied("not yours")
        reads.unanswered = b"/1"
        first, second, third = (
            asyncio.ensure_future(revisions.current(name)) for name in (b"/0", b"/1", b"/2")
        )
        with pytest.raises(AccessDenied):
            await first
        await eventually(lambda: len(reads.asked) == 2)
        second.cancel()
        assert await third == 1
        assert reads.asked == [b"/0", b"/1", b"/2"]
