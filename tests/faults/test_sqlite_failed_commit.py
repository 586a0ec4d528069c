"""A disk that fails during a commit of the store in a file: what callers, watchers and the file
see."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path

import grpc
import pytest

from mooring.backends import open_store
from mooring.errors import Conflict, OutcomeUnknown, OutOfSpace, StoreError, Unavailable
from mooring.etcd_server.server import EtcdAPIServer
from mooring.store import Committed, Delete, Put, Query, Store, absent, key, prefix
from mooring.store.embedded import sqlite_file as journal
from mooring.store.embedded.durable import durable_runner
from mooring.store.etcd import proto
from tests.backends import usual
from tests.contract.side_by_side import methods, outcome
from tests.faults.conftest import SteppedClock
from tests.faults.faulty_disk import FaultyDisk, faulty_disk
from tests.waiting import eventually


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with faulty_disk() as faulty:
        yield faulty


def times(count: int) -> Callable[[str], bool]:
    """A fault that happens this number of times."""
    left = iter(range(count))
    return lambda _: next(left, None) is not None


def always(_: str) -> bool:
    return True


def never(_: str) -> bool:
    return False


async def writes(store: Store) -> bool:
    """Whether the store accepts a write."""
    try:
        await store.commit(Put(b"/probe", b""))
    except Unavailable:
        return False
    return True


async def contents(store: Store) -> dict[bytes, bytes]:
    return {entry.key: entry.value for entry in (await store.read(prefix(b"/"))).entries}


async def contents_of(path: Path) -> dict[bytes, bytes]:
    async with open_store(f"sqlite://{path}") as store:
        return await contents(store)


def copy(path: Path, target: Path) -> Path:
    """The file as the next process would find it, if this process were killed now."""
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{target}{suffix}")
    return target


async def test_every_acknowledged_write_was_synced(tmp_path: Path, disk: FaultyDisk):
    """Even after the history was dropped from the file, which waits for no sync."""
    async with open_store(f"sqlite://{tmp_path}/store") as store:
        for number in range(10):
            disk.synced.clear()
            done = await store.commit(Put(b"/a", b"%d" % number))
            assert "store-wal" in disk.synced
        await store.compact(done.revision)
        disk.synced.clear()
        await store.grant(60)
        assert "store-wal" in disk.synced


async def test_a_failed_sync_of_a_commit_has_an_unknown_outcome(tmp_path: Path, disk: FaultyDisk):
    path = tmp_path / "store"
    async with open_store(f"sqlite://{path}") as store:
        before = await store.commit(Put(b"/a", b"1"))
        async with store.watch(prefix(b"/")) as watch:
            disk.cannot_sync = always
            with pytest.raises(OutcomeUnknown, match="I/O error") as caught:
                await store.commit(Put(b"/a", b"2"))
            assert "full" not in str(caught.value)
            killed = copy(path, tmp_path / "killed")
            with pytest.raises(Unavailable):
                await store.commit(Put(b"/b", b""))
            assert await contents(store) == {b"/a": b"1"}
            (alarm,) = (await store.status()).alarms
            assert "I/O error" in str(alarm)
            disk.cannot_sync = never
            await eventually(partial(writes, store))
            assert not (await store.status()).alarms
            now = await contents(store)
            seen: dict[bytes, bytes] = {}
            revision = before.revision
            while revision < (await store.read(key(b"/a"))).revision:
                batch = await asyncio.wait_for(anext(watch), 20)
                revision += 1
                assert batch.revision == revision
                seen.update((event.key, event.entry.value) for event in batch.events if event.entry)
        assert {b"/a": b"1", **seen} == now
    assert await contents_of(path) == now
    assert journal.check(path) == []
    # A process that was killed while the outcome was unknown finds the write.
    assert await contents_of(killed) == {b"/a": b"2"}


async def test_one_failed_sync_stops_writes_only_briefly(tmp_path: Path, disk: FaultyDisk):
    path = tmp_path / "store"
    async with open_store(f"sqlite://{path}") as store:
        start = await store.commit(Put(b"/a", b"1"))
        disk.cannot_sync = times(1)
        with pytest.raises(OutcomeUnknown):
            await store.commit(Put(b"/a", b"2"))
        await eventually(partial(writes, store))
        disk.synced.clear()
        await store.commit(Put(b"/later", b""))
        assert "store-wal" in disk.synced, "after a recovery, too, writes are synced"
        now = await contents(store)
        async with store.watch(prefix(b"/"), after=start.revision) as watch:
            batch = await asyncio.wait_for(anext(watch), 20)
        survived = now[b"/a"] == b"2"
        assert [event.key for event in batch.events] == [b"/a" if survived else b"/probe"]
    assert await contents_of(path) == now


async def test_a_write_that_survives_reaches_watchers(tmp_path: Path, disk: FaultyDisk):
    """The disk fails until the file is opened again, so that SQLite finds the write in its log."""
    async with open_store(f"sqlite://{tmp_path}/store") as store:
        start = await store.commit(Put(b"/a", b"1"))
        lease = await store.grant(60)
        failures = 0

        def fails(_: str) -> bool:
            nonlocal failures
            failures += 1
            return True

        async with store.watch(prefix(b"/")) as watch:
            disk.cannot_sync = fails
            with pytest.raises(OutcomeUnknown):
                await store.commit(Put(b"/b", b"2", lease.id), Delete(key(b"/a")))
            attempts = failures
            await eventually(lambda: failures >= attempts + 2)  # two attempts to recover fail
            assert await contents(store) == {b"/a": b"1"}
            disk.cannot_sync = never
            batch = await asyncio.wait_for(anext(watch), 20)
        assert batch.revision == start.revision + 1
        assert {(event.key, event.entry is None) for event in batch.events} == {
            (b"/b", False),
            (b"/a", True),
        }
        await eventually(partial(writes, store))
        await store.revoke(lease.id)
        assert set(await contents(store)) == {b"/probe"}, "the key hangs on its lease"


async def test_a_lease_whose_renewal_is_in_doubt_does_not_expire(
    tmp_path: Path, disk: FaultyDisk, clock: SteppedClock
):
    async with open_store(f"sqlite://{tmp_path}/store") as store:
        lease = await store.grant(60)
        await store.commit(Put(b"/a", b"", lease.id))
        disk.cannot_sync = always
        with pytest.raises(OutcomeUnknown):
            await store.renew(lease.id)
        with pytest.raises(Unavailable):
            await store.revoke(lease.id)
        clock.step(100)
        await asyncio.sleep(0.6)  # the thread checks the clock meanwhile
        assert await contents(store) == {b"/a": b""}, "no lease expires while none can be renewed"
        disk.cannot_sync = never
        await eventually(partial(writes, store))
        assert await store.renew(lease.id) == 60


async def test_dependent_calls_of_a_failed_commit(tmp_path: Path, disk: FaultyDisk):
    """They share a transaction. A result that may be on disk is never reported as failed."""
    host = durable_runner(tmp_path / "store")
    async with open_store(f"sqlite://{tmp_path}/store") as store:
        await store.commit(Put(b"/a", b""))
        disk.cannot_sync = always
        go = threading.Event()
        calls = (
            host.write(lambda engine, now: go.wait(20)),
            store.commit(Delete(key(b"/a"))),
            store.commit(Put(b"/b", b""), require=[absent(b"/a")]),
            store.commit(Put(b"/c", b""), require=[absent(b"/a"), absent(b"/b")]),
            store.commit(read=[Query(key(b"/a"))]),
        )
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)
        go.set()
        _, deletion, put, refused, read = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(deletion, OutcomeUnknown)
        assert isinstance(put, OutcomeUnknown)
        assert isinstance(refused, Conflict)
        assert isinstance(read, Committed)
        assert len(read.reads[0].entries) == 1, "what is in doubt is not seen"
        disk.cannot_sync = never
        await eventually(partial(writes, store))
    host.release()


async def test_a_full_disk_leaves_no_doubt(tmp_path: Path, disk: FaultyDisk):
    path = tmp_path / "store"
    async with open_store(f"sqlite://{path}") as store:
        await store.commit(Put(b"/a", b"1"))
        disk.room = 0
        with pytest.raises(OutOfSpace, match="nothing was written"):
            await store.commit(Put(b"/a", b"2"))
        killed = copy(path, tmp_path / "killed")
        disk.room = inf
        await store.commit(Put(b"/b", b"3"))
    assert await contents_of(path) == {b"/a": b"1", b"/b": b"3"}
    assert await contents_of(killed) == {b"/a": b"1"}


async def test_an_io_error_before_the_commit_is_not_taken_for_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
        raise error

    async with open_store(f"sqlite://{tmp_path}/store") as store:
        monkeypatch.setattr(journal.Journal, "write", fail)
        with pytest.raises(Unavailable, match="I/O error"):
            await store.commit(Put(b"/a", b""))
        monkeypatch.undo()
        await store.commit(Put(b"/a", b""))


@pytest.mark.parametrize("seed", usual(range(2), range(4), reason="two other seeds run by default"))
async def test_watchers_reads_and_the_file_agree(tmp_path: Path, disk: FaultyDisk, seed: int):
    """Random writes on a disk whose syncs fail at random: a watcher, a read and the next process
    agree, and see every acknowledged write."""
    path, choose = tmp_path / "store", random.Random(seed)
    sure: dict[bytes, int] = {}
    async with open_store(f"sqlite://{path}") as store:
        start = await store.commit(Put(b"/start", b""))
        async with store.watch(prefix(b"/"), after=start.revision) as watch:
            for number in range(60):
                fails = choose.random() < 0.3
                disk.cannot_sync = times(choose.choice((1, 2, 4, 8))) if fails else never
                name = b"/%d" % choose.randrange(5)
                try:
                    lease = (await store.grant(60)).id if choose.random() < 0.3 else 0
                    await store.commit(Put(name, b"%d" % number, lease))
                    sure[name] = number
                except OutcomeUnknown:
                    disk.cannot_sync = never
                    await eventually(partial(writes, store))
                except Unavailable:
                    pass
            disk.cannot_sync = never
            await eventually(partial(writes, store))
            now = await store.read(prefix(b"/"))
            seen = {b"/start": b""}
            revision = start.revision
            while revision < now.revision:
                batch = await asyncio.wait_for(anext(watch), 20)
                assert batch.revision == revision + 1
                revision = batch.revision
                for event in batch.events:
                    assert event.entry is not None
                    seen[event.key] = event.entry.value
        assert seen == {entry.key: entry.value for entry in now.entries}
        for name, number in sure.items():
            assert int(seen[name]) >= number
    assert await contents_of(path) == seen
    assert journal.check(path) == []


async def test_clients_of_the_etcd_api_get_the_errors_of_etcd(tmp_path: Path, disk: FaultyDisk):
    host = durable_runner(tmp_path / "store")
    async with (
        EtcdAPIServer(host, bind="127.0.0.1:0") as server,
        methods(server.address) as wire,
        open_store(f"etcd://{server.address}?timeout=1s") as client,
    ):
        await wire.put(proto.PutRequest(key=b"/a", value=b"1"))
        disk.cannot_sync = always
        assert await outcome(wire.put, proto.PutRequest(key=b"/a", value=b"2")) == (
            grpc.StatusCode.UNAVAILABLE,
            "etcdserver: request timed out",
        )
        assert await outcome(wire.put, proto.PutRequest(key=b"/b")) == (
            grpc.StatusCode.UNAVAILABLE,
            "etcdserver: no leader",
        )
        with pytest.raises(Unavailable):
            await client.commit(Put(b"/b", b""))
        answer = await wire.range(proto.RangeRequest(key=b"/a"))
        assert answer.kvs[0].value == b"1"
        disk.cannot_sync = never
        await eventually(partial(writes, client))
    host.release()


async def test_a_file_that_lost_acknowledged_writes_accepts_no_more(
    tmp_path: Path,
    disk: FaultyDisk,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    recover = journal.Journal.recover

    def forgetful(self: journal.Journal, after: int) -> journal.JournalState:
        kept = recover(self, after)
        kept.revision -= 1
        return kept

    async with open_store(f"sqlite://{tmp_path}/store") as store:
        done = await store.commit(Put(b"/a", b"1"))
        monkeypatch.setattr(journal.Journal, "recover", forgetful)
        disk.cannot_sync = times(1)
        with pytest.raises(OutcomeUnknown):
            await store.commit(Put(b"/a", b"2"))
        await eventually(lambda: "it has lost" in caplog.text)
        with pytest.raises(StoreError, match="it has lost"):
            await store.commit(Put(b"/a", b"3"))
        assert (await store.read(key(b"/a"))).revision == done.revision


async def test_a_backup_is_synced_to_its_folder_when_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Renaming a file reaches the disk only when its folder is synced."""
    path, steps = tmp_path / "store", []
    async with open_store(f"sqlite://{path}") as store:
        await store.commit(Put(b"/a", b"1"))
    replace, fsync = os.replace, os.fsync

    def replacing(*names: str) -> None:
        steps.append("rename")
        replace(*names)

    def syncing(file: int) -> None:
        steps.append("sync folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "sync file")
        fsync(file)

    monkeypatch.setattr(os, "replace", replacing)
    monkeypatch.setattr(os, "fsync", syncing)
    journal.backup(path, tmp_path / "copy")
    assert steps == ["sync file", "rename", "sync folder"]
