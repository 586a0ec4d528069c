"""The store in a file that cannot be written: full, read-only, slow, or one refused write."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import threading
from functools import partial
from math import inf
from pathlib import Path

import pytest

from mooring.backends import open_store
from mooring.errors import Conflict, OutOfSpace, StoreError
from mooring.store import Committed, Put, Query, Store, absent, exists, key, prefix
from mooring.store.embedded import sqlite_file as journal
from tests.faults.conftest import SteppedClock
from tests.faults.faulty_disk import faulty_disk
from tests.faults.test_sqlite_store import python
from tests.waiting import eventually


def fail(*_: object) -> None:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error


async def all_keys(store: Store) -> list[bytes]:
    return [entry.key for entry in (await store.read(prefix(b"/"))).entries]


async def test_a_full_disk_refuses_writes_and_heals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, clock: SteppedClock
):
    path = tmp_path / "store"
    with faulty_disk() as disk:
        async with open_store(f"sqlite://{path}") as store:
            lease = await store.grant(60)
            await store.commit(Put(b"/kept", b"1"), Put(b"/leased", b"", lease.id))
            disk.room = 300_000
            errors = []
            for n in range(100):
                try:
                    await store.commit(
                        Put(b"/big/%d" % n, b"x" * 10_000), Put(b"/pair/%d" % n, b"")
                    )
                except OutOfSpace as error:
                    errors.append(str(error))
            assert len(errors) > 10
            assert all(str(path) in text for text in errors)
            for half in (b"/big/", b"/pair/"):
                assert len((await store.read(prefix(half))).entries) == 100 - len(errors)
            entry = (await store.read(key(b"/kept"))).first
            assert entry is not None
            assert entry.value == b"1"
            clock.step(lease.ttl)  # does not count while the disk is full
            disk.room = inf
            await store.commit(Put(b"/after", b""))
            async with store.watch(key(b"/leased")) as watch, asyncio.timeout(20):
                assert (await store.read(key(b"/leased"))).first is not None
                clock.step(lease.ttl)
                await anext(watch)
    assert caplog.text.count("writes are refused") == 1
    assert journal.check(path) == []
    async with open_store(f"sqlite://{path}") as store:
        assert (await store.read(key(b"/after"))).first is not None


READ_ONLY = """
import asyncio, os, stat, sys
from mooring.errors import OutOfSpace
from mooring.backends import open_store
from mooring.store import Put, key

async def main(path, *locked):
    os.umask(0)
    async with open_store(f"sqlite://{path}") as store:
        await store.commit(Put(b"/kept", b"1"))
    if os.geteuid() == 0:  # to whom everything is allowed
        for each in (path, path + ".owner", os.path.dirname(path)):
            os.chown(each, 65534, 65534)
        os.seteuid(65534)
    before = {each: stat.S_IMODE(os.stat(each).st_mode) for each in locked}
    for each in locked:
        os.chmod(each, before[each] & ~0o222)
    async with open_store(f"sqlite://{path}") as store:
        assert (await store.read(key(b"/kept"))).first.value == b"1"
        assert "read-only" in str((await store.status()).alarms[0])
        for _ in range(2):
            try:
                await store.commit(Put(b"/refused", b""))
            except OutOfSpace as error:
                assert "read-only" in str(error), error
            else:
                raise AssertionError("written to a file that is read-only")
        for each in reversed(locked):
            os.chmod(each, before[each])
        await store.commit(Put(b"/after", b""))
        assert (await store.status()).alarms == ()
        assert (await store.read(key(b"/refused"))).first is None

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_a_file_that_is_read_only_at_start_is_read_and_owned_later(what: str):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = f"{folder}/store"
        run = await asyncio.to_thread(python, READ_ONLY, path, path if what == "file" else folder)
        assert run.returncode == 0, run.stderr
        assert run.stderr.count("writes are refused") == 1
        assert journal.check(Path(path)) == []


async def test_a_store_that_fails_to_write_rolls_everything_back(tmp_path: Path, monkeypatch):
    """The batch fails as a whole, its writers get the error, and the next batch works."""
    async with open_store(f"sqlite://{tmp_path}/store") as store:
        await store.commit(Put(b"/a", b"old"))
        async with store.watch(prefix(b"/")) as watch:
            with monkeypatch.context() as broken:
                broken.setattr(journal.Journal, "write", fail)
                results = await asyncio.gather(
                    *(store.commit(Put(b"/%d" % n, b"")) for n in range(5)), return_exceptions=True
                )
            assert all(isinstance(result, OutOfSpace) for result in results)
            assert await all_keys(store) == [b"/a"]
            done = await store.commit(Put(b"/b", b""))
            async with asyncio.timeout(20):
                batch = await anext(watch)
        assert batch.revision == done.revision
        assert [event.key for event in batch.events] == [b"/b"]


async def test_reads_and_leases_survive_while_nothing_can_be_written(
    tmp_path: Path, monkeypatch, clock: SteppedClock
):
    """No lease can be renewed meanwhile, so none expires; calls that change nothing are
    answered."""
    async with open_store(f"sqlite://{tmp_path}/store") as store:
        lease = await store.grant(60)
        start = await store.commit(Put(b"/a", b"", lease.id))
        with monkeypatch.context() as broken:
            broken.setattr(journal.Journal, "write", fail)
            with pytest.raises(OutOfSpace):
                await store.renew(lease.id)
            for _ in range(10):
                clock.step(20)
                await asyncio.sleep(0.1)
                done = await store.commit(require=[exists(b"/a")], read=[Query(key(b"/a"))])
                assert (done.revision, len(done.reads[0].entries)) == (start.revision, 1)
                with pytest.raises(Conflict):
                    await store.commit(Put(b"/a", b""), require=[absent(b"/a")])
                with pytest.raises(OutOfSpace):
                    await store.compact(start.revision)
            assert (await store.status()).alarms
        await eventually(partial(has_no_alarm, store))
        assert await store.renew(lease.id) == 60
        async with store.watch(key(b"/a")) as watch, asyncio.timeout(20):
            clock.step(60)
            assert (await anext(watch)).events[0].entry is None, "time passes again"


async def has_no_alarm(store: Store) -> bool:
    return not (await store.status()).alarms


async def test_reads_are_not_refused_with_the_writes_of_their_batch(tmp_path: Path, monkeypatch):
    """They share a batch: each read sees what is stored, not what was rolled back."""
    async with open_store(f"sqlite://{tmp_path}/store") as store:
        start = await store.commit(Put(b"/a", b"old"))
        monkeypatch.setattr(journal.Journal, "write", fail)
        calls = []
        for _ in range(5):
            calls.append(store.commit(Put(b"/a", b"new")))
            calls.append(store.commit(read=[Query(key(b"/a"))]))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, OutOfSpace) for result in results[::2])
        for result in results[1::2]:
            assert isinstance(result, Committed)
            assert result.revision == start.revision
            assert [entry.value for entry in result.reads[0].entries] == [b"old"]
        monkeypatch.undo()


async def test_a_waiting_renewal_keeps_its_lease(tmp_path: Path, monkeypatch, clock: SteppedClock):
    """No matter how long the disk takes, and how many calls wait before it."""
    async with open_store(f"sqlite://{tmp_path}/store") as store:
        lease = await store.grant(60)
        write, held, free = journal.Journal.write, threading.Event(), threading.Event()

        def slow(self: journal.Journal, changes: journal.JournalWrite) -> None:
            held.set()
            free.wait(30)
            write(self, changes)

        monkeypatch.setattr(journal.Journal, "write", slow)
        loop = asyncio.get_running_loop()
        waiting = [loop.create_task(store.commit(Put(b"/first", b"")))]
        assert await asyncio.to_thread(held.wait, 20)
        waiting += [loop.create_task(store.commit(Put(b"/%d" % n, b""))) for n in range(2500)]
        renewal = loop.create_task(store.renew(lease.id))
        await asyncio.sleep(0)  # all of them wait now
        clock.step(100)
        free.set()
        assert await renewal == 60
        await asyncio.gather(*waiting)


async def test_a_write_that_cannot_be_stored_is_refused_alone(
    tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture
):
    """An internal error is not taken for a full disk: no other call is refused or told so."""
    write = journal.Journal.write

    def choosy(self: journal.Journal, changes: journal.JournalWrite) -> None:
        for batch in changes.batches:
            if any(event.key == b"/bad" for event in batch.events):
                raise sqlite3.IntegrityError("UNIQUE constraint failed")
        write(self, changes)

    async with open_store(f"sqlite://{tmp_path}/store") as store:
        lease = await store.grant(60)
        monkeypatch.setattr(journal.Journal, "write", choosy)
        good = [store.commit(Put(b"/good/%d" % n, b"", lease.id)) for n in range(20)]
        bad = [store.commit(Put(b"/bad", b"", lease.id), Put(b"/worse", b"")) for _ in range(3)]
        results = await asyncio.gather(*good[:10], *bad, *good[10:], return_exceptions=True)
        refused = [result for result in results if isinstance(result, StoreError)]
        assert len(refused) == 3
        assert not any(isinstance(error, OutOfSpace) for error in refused)
        assert "bug in Mooring" in str(refused[0])
        assert (await store.status()).alarms == ()
        assert len(await all_keys(store)) == 20
        monkeypatch.undo()
        await store.commit(Put(b"/bad", b""))
    assert sum("bug in Mooring" in record.getMessage() for record in caplog.records) == 1
    assert journal.check(tmp_path / "store") == []
