"""The store in a file: kills, restarts, and exclusive ownership."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import pytest

from mooring.backends import open_store
from mooring.errors import InUse, StoreError
from mooring.mirror import Mirror, RangeFeed
from mooring.store import Delete, Entry, Put, Query, key, prefix
from mooring.store.embedded import durable
from mooring.store.embedded import sqlite_file as journal
from mooring.store.embedded.durable import durable_runner
from mooring.store.embedded.engine import FORGET, FORGET_BYTES, Engine
from tests.backends import usual
from tests.faults.conftest import SteppedClock
from tests.waiting import PATIENCE, eventually

WRITER = """
import asyncio, itertools, sys
from mooring.backends import open_store
from mooring.store import Delete, Put, key

async def main(path, start):
    async with open_store(f"sqlite://{path}") as store:
        lease = await store.grant(1000)
        print("lease", lease.id, flush=True)
        numbers = itertools.count(start)
        async def write():
            for number in numbers:
                value = b"%d" % number
                done = await store.commit(
                    Put(b"/a/%d" % number, value), Put(b"/b/%d" % number, value, lease.id),
                    Put(b"/last", value), Delete(key(b"/a/%d" % (number - 50))))
                print("ack", number, done.revision, flush=True)
        await asyncio.gather(*(write() for _ in range(8)))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def run_and_kill(path: Path, start: int, writes: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Kill a writer as soon as it has confirmed this number of writes. Returns the confirmed writes
    and the leases."""
    command = [sys.executable, "-c", WRITER, str(path), str(start)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(1 + writes)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout
    words = [line.split() for line in lines if line.endswith("\n")]
    acknowledged = [(int(w[1]), int(w[2])) for w in words if w[0] == "ack"]
    return acknowledged, [int(w[1]) for w in words if w[0] == "lease"]


async def kill_and_look(path: Path, rounds: int) -> None:
    chance = random.Random()
    written: dict[int, int] = {}
    leases: list[int] = []
    newest = 0
    for _ in range(rounds):
        start = max(written, default=0) + 1000
        acknowledged, granted = run_and_kill(path, start, chance.randint(1, 300))
        written.update(acknowledged)
        leases += granted
        assert journal.check(path) == []
        async with open_store(f"sqlite://{path}?history=1000000") as store:
            entries = {entry.key: entry for entry in (await store.read(prefix(b"/"))).entries}
            revision = (await store.read(key(b"/none"))).revision
            assert revision >= max([newest, *(r for _, r in acknowledged)])
            newest = revision
            for number, at in acknowledged:
                entry = entries[b"/b/%d" % number]
                assert (entry.value, entry.modified) == (b"%d" % number, at)
            for entry in entries.values():
                if entry.key.startswith(b"/b/"):
                    number = int(entry.value)
                    whole = await store.read(key(b"/a/%d" % number), at=entry.modified)
                    assert whole.first is not None, "half a transaction"
                    assert whole.first.modified == entry.modified
            for lease in leases:
                assert await store.renew(lease) == 1000


@pytest.mark.parametrize("kills", usual([3], [10], reason="the same, less often"))
async def test_kills_lose_no_acknowledged_write(tmp_path: Path, kills: int):
    await kill_and_look(tmp_path / "store", kills)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_five_hundred_kills(tmp_path: Path):
    for number in range(50):
        await kill_and_look(tmp_path / f"store{number}", 10)


async def test_leases_survive_a_restart_with_their_remaining_time(
    tmp_path: Path, clock: SteppedClock
):
    url = f"sqlite://{tmp_path}/store"
    async with open_store(url) as store:
        lease = await store.grant(100)
        await store.commit(Put(b"/a", b"", lease.id), Put(b"/b", b""))
        clock.step(40)
    clock.step(1000)
    async with open_store(url) as store:
        await store.commit(Put(b"/c", b""))
        assert (await store.read(key(b"/a"))).first is not None, "downtime does not count"
        async with store.watch(prefix(b"/")) as watch:
            clock.step(60)  # with the 60 s before the restart, all of its time
            async with asyncio.timeout(20):
                batch = await anext(watch)
        assert [event.key for event in batch.events] == [b"/a"]


async def test_a_restart_preserves_everything(tmp_path: Path):
    url = f"sqlite://{tmp_path}/store"
    async with open_store(url) as store:
        start = await store.commit(Put(b"/a", b"1"), Put(b"/b", b"1"))
        await store.commit(Put(b"/a", b"2"))
        last = await store.commit(Delete(key(b"/b")))
        before = await store.read(prefix(b"/"))
    async with open_store(url) as store:
        assert await store.read(prefix(b"/")) == before
        assert len((await store.read(prefix(b"/"), at=start.revision)).entries) == 2
        async with store.watch(prefix(b"/"), after=start.revision) as watch:
            batches = [await anext(watch), await anext(watch)]
        assert [batch.revision for batch in batches] == [start.revision + 1, last.revision]
        assert (await store.commit(Put(b"/c", b""))).revision == last.revision + 1


async def test_a_mirror_resumes_after_a_restart(tmp_path: Path):
    url = f"sqlite://{tmp_path}/store"
    async with open_store(url) as store:
        await store.commit(Put(b"/a", b"1"))
        async with Mirror(RangeFeed(store, prefix(b"/"))) as mirror:
            mark = mirror.mark
    async with open_store(url) as store, store.watch(prefix(b"/"), after=mark) as watch:
        await store.commit(Put(b"/a", b"2"))
        assert (await anext(watch)).revision == mark + 1


async def test_compaction_reaches_the_disk(tmp_path: Path):
    path = tmp_path / "store"
    async with open_store(f"sqlite://{path}?history=100") as store:
        for n in range(300):
            await store.commit(Put(b"/busy", b"%d" % n), Put(b"/%d" % n, b""))
            await store.commit(Delete(key(b"/%d" % n)))
        await eventually(lambda: rows(path) < 600)
    async with open_store(f"sqlite://{path}?history=100") as store:
        snapshot = await store.read(prefix(b"/"))
        assert [(e.key, e.value) for e in snapshot.entries] == [(b"/busy", b"299")]


async def test_concurrent_writes_share_a_commit(tmp_path: Path):
    async with open_store(f"sqlite://{tmp_path}/store") as store:
        done = await asyncio.gather(*(store.commit(Put(b"/%d" % n, b"")) for n in range(500)))
        assert sorted(d.revision for d in done) == list(range(2, 502))


async def test_two_hubs_of_one_process_share_the_file(tmp_path: Path):
    url = f"sqlite://{tmp_path}/store"
    async with open_store(url) as one, open_store(url) as two:
        await one.commit(Put(b"/a", b""))
        assert (await two.read(key(b"/a"))).first is not None
        await one.aclose()
        await two.commit(Put(b"/b", b""))


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def test_the_error_of_a_second_process_names_the_owner(tmp_path: Path):
    path = tmp_path / "store"
    script = f"""
import asyncio
from mooring.backends import open_store
async def main():
    open_store("sqlite://{path}")
asyncio.run(main())
"""
    async with open_store(f"sqlite://{path}"):
        run = await asyncio.to_thread(python, script)
    assert f"in use by process {os.getpid()}" in run.stderr
    assert InUse.__name__ in run.stderr


@pytest.mark.parametrize("child", ["pass", "kept.close()"])
def test_a_forked_child_neither_keeps_nor_frees_the_file(tmp_path: Path, child: str):
    script = f"""
import os, sys
from pathlib import Path
from mooring.store.embedded.sqlite_file import Journal

kept = Journal(Path(sys.argv[1]))
if not os.fork():
    {child}
    print("ready", flush=True)
sys.stdin.read()
"""
    path, pipe = tmp_path / "store", subprocess.PIPE
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        with pytest.raises(InUse, match=f"process {parent.pid}"):
            journal.Journal(path)
        parent.kill()
        parent.wait()
        journal.Journal(path).close()


def test_a_closed_file_is_free_although_another_process_has_its_descriptor(tmp_path: Path):
    """As in a process that a C library forked without our knowledge."""
    kept = journal.Journal(tmp_path / "store")
    elsewhere = os.dup(kept._owner)
    try:
        kept.close()
        journal.Journal(tmp_path / "store").close()
    finally:
        os.close(elsewhere)


async def test_an_operation_that_fails_half_way_changes_nothing(tmp_path: Path):
    host = durable_runner(tmp_path / "store")

    def stumble(engine: Engine, now: float) -> None:
        transaction = engine.begin()
        transaction.put(b"/half", b"")
        raise RuntimeError("stumbled")

    try:
        with pytest.raises(RuntimeError, match="stumbled"):
            await host.write(stumble)
        await host.write(lambda engine, now: engine.commit([Put(b"/a", b"")], [], [], now))
        snapshot = host.read(lambda engine: engine.read(Query(prefix(b"/"))))
        assert [entry.key for entry in snapshot.entries] == [b"/a"]
    finally:
        host.release()
    assert journal.check(tmp_path / "store") == []


async def test_a_key_can_change_more_than_once_in_a_commit(tmp_path: Path):
    path = tmp_path / "store"

    def change(engine: Engine, now: float) -> int:
        transaction = engine.begin()
        transaction.delete(prefix(b"/"))
        transaction.put(b"/a", b"1")
        transaction.put(b"/b", b"1")
        transaction.delete(key(b"/b"))
        transaction.put(b"/b", b"2")
        transaction.delete(key(b"/b"))
        engine.end(transaction, now)
        return engine.revision

    host = durable_runner(path)
    await host.write(lambda engine, now: engine.commit([Put(b"/a", b"0")], [], [], now))
    revision = await host.write(change)
    host.release()
    async with open_store(f"sqlite://{path}") as store:
        async with store.watch(prefix(b"/"), after=revision - 1) as watch:
            batch = await anext(watch)
        changes = [(event.key, event.entry and event.entry.value) for event in batch.events]
        b = b"/b"
        assert changes == [(b"/a", None), (b"/a", b"1"), (b, b"1"), (b, None), (b, b"2"), (b, None)]
        await store.compact(revision)
        await eventually(lambda: rows(path) == 1)
        await store.commit(Put(b"/b", b"3"))
    async with open_store(f"sqlite://{path}") as store:
        entries = (await store.read(prefix(b"/"))).entries
        assert [(e.key, e.value, e.version) for e in entries] == [(b"/a", b"1", 1), (b, b"3", 1)]
    assert journal.check(path) == []


def rows(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT count(*) FROM entries").fetchone()[0])


async def test_a_lease_that_is_granted_again_has_its_new_time(tmp_path: Path):
    url = f"sqlite://{tmp_path}/store"
    host = durable_runner(tmp_path / "store")

    def again(engine: Engine, now: float) -> None:
        engine.revoke(5, now)
        engine.grant(5000, now, 5)

    await host.write(lambda engine, now: engine.grant(60, now, 5))
    await host.write(again)
    host.release()
    async with open_store(url) as store:
        assert await store.renew(5) == 5000


async def test_a_long_history_is_compacted_without_a_pause(tmp_path: Path, monkeypatch):
    """In small pieces, of values that span many pages and of many small ones. Writes and renewals
    that arrive during a piece are executed before the next one."""
    path, forget = tmp_path / "store", journal.Journal.forget
    loop = asyncio.get_running_loop()
    pieces: list[list[Entry]] = []
    events: list[str] = []
    answers: list[asyncio.Future[None]] = []

    def put(value: bytes) -> Callable[[Engine, float], int]:
        return lambda engine, now: engine.commit([Put(b"/busy", value)], [], [], now).revision

    def write(engine: Engine, now: float) -> None:
        engine.commit([Put(b"/ping", b"")], [], [], now)
        events.append("write")

    def renew(engine: Engine, now: float) -> None:
        engine.renew(5, now)
        events.append("renewal")

    async def ask() -> None:
        answers.extend(asyncio.ensure_future(host.write(one)) for one in (write, renew))
        await asyncio.sleep(0)  # both are queued when this returns

    def record(self: journal.Journal, entries: list[Entry], *, compacted: int) -> None:
        forget(self, entries, compacted=compacted)
        events.append("piece")
        asyncio.run_coroutine_threadsafe(ask(), loop).result(PATIENCE)
        pieces.append(entries)

    host = durable_runner(path)
    await host.write(lambda engine, now: engine.grant(60, now, 5))
    values = [b"x" * 100_000] * 100 + [b""] * 1000
    revision = max(await asyncio.gather(*(host.write(put(value)) for value in values)))
    monkeypatch.setattr(journal.Journal, "forget", record)
    # Pieces are dropped for as long as the writes before them took. With a clock that stands still
    # this is no time at all: one piece.
    now = time.monotonic()
    monkeypatch.setattr(durable, "time", SimpleNamespace(monotonic=lambda: now))
    await host.write(lambda engine, _: engine.compact(revision))
    await eventually(lambda: sum(map(len, pieces)) == len(values) - 1)
    await asyncio.gather(*answers)
    host.release()
    assert max(map(len, pieces)) <= FORGET
    assert max(sum(len(e.value) for e in piece) for piece in pieces) < FORGET_BYTES + 100_000
    assert len(pieces) > 5
    assert events == ["piece", "write", "renewal"] * len(pieces)
    assert journal.check(path) == []


async def test_the_used_and_allocated_space_of_the_file_is_known(tmp_path: Path):
    path = tmp_path / "store"
    host = durable_runner(path)

    def put(engine: Engine, now: float) -> int:
        return engine.commit([Put(b"/a", b"x" * 100_000)], [], [], now).revision

    for _ in range(50):
        revision = await host.write(put)
    taken, in_use = host.space()
    assert taken == sum(p.stat().st_size for p in (path, path.with_name("store-wal")))
    assert in_use > 5_000_000
    await host.write(lambda engine, _: engine.compact(revision))
    await eventually(lambda: rows(path) == 1)
    taken, in_use = host.space()
    assert in_use < 300_000 < taken
    host.release()


async def test_a_file_of_the_first_schema_is_upgraded(tmp_path: Path):
    path = tmp_path / "store"
    script = (resources.files("mooring.store.embedded") / "sql" / "schema_1.sql").read_text()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(script)
        meta = [("schema", 1), ("revision", 4), ("compacted", 2), ("uptime", 10.0)]
        database.executemany("INSERT INTO meta VALUES (?, ?)", meta)
        database.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (2, b"/a", 0, b"1", 2, 1, 0),
                (3, b"/z", 0, b"z", 3, 1, 7),
                (3, b"/a", 1, b"2", 2, 2, 0),
                (4, b"/a", 0, b"", 0, 0, 0),
            ],
        )
        database.execute("INSERT INTO leases VALUES (7, 60, 50.0)")
        database.commit()
    assert journal.check(path) == []
    async with open_store(f"sqlite://{path}") as store:
        async with store.watch(prefix(b"/"), after=2) as watch:
            batches = [await anext(watch), await anext(watch)]
        assert [[event.key for event in batch.events] for batch in batches] == [
            [b"/z", b"/a"],
            [b"/a"],
        ]
        assert (await store.read(key(b"/a"), at=2)).first is not None
        assert await store.renew(7) == 60
        assert (await store.commit(Put(b"/new", b""))).revision == 5
    with contextlib.closing(sqlite3.connect(path)) as database:
        query = "SELECT value FROM meta WHERE name = 'schema'"
        assert database.execute(query).fetchone() == (journal.SCHEMA,)
        indices = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        assert indices == (3,), "nothing is left of the way there"
    assert journal.check(path) == []


async def test_a_file_of_another_program_is_refused(tmp_path: Path):
    (tmp_path / "text").write_text("this is no database, and long enough to be looked at\n" * 20)
    with pytest.raises(StoreError, match="text cannot be opened"):
        open_store(f"sqlite://{tmp_path}/text")
    with sqlite3.connect(tmp_path / "other") as database:
        database.execute("CREATE TABLE customers (name TEXT)")
    with pytest.raises(StoreError, match="not one of Mooring's"):
        open_store(f"sqlite://{tmp_path}/other")


async def test_a_file_of_a_newer_mooring_is_refused(tmp_path: Path):
    url = f"sqlite://{tmp_path}/store"
    async with open_store(url) as store:
        await store.commit(Put(b"/a", b""))
    with sqlite3.connect(tmp_path / "store") as database:
        database.execute("UPDATE meta SET value = 99 WHERE name = 'schema'")
    with pytest.raises(StoreError, match="newer Mooring"):
        open_store(url)


async def test_a_backup_can_be_made_while_the_store_is_in_use(tmp_path: Path):
    path, copy = tmp_path / "store", tmp_path / "copy"
    async with open_store(f"sqlite://{path}") as store:
        await store.commit(Put(b"/a", b"1"))
        journal.backup(path, copy)
        await store.commit(Put(b"/a", b"2"))
    assert journal.check(copy) == []
    async with open_store(f"sqlite://{copy}") as store:
        entry = (await store.read(key(b"/a"))).first
        assert entry is not None
        assert entry.value == b"1"


async def test_a_damaged_file_is_reported(tmp_path: Path):
    path = tmp_path / "store"
    async with open_store(f"sqlite://{path}") as store:
        for n in range(5):
            await store.commit(Put(b"/%d" % n, b""))
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM entries WHERE revision = 4")
    assert "the first is 4" in journal.check(path)[0]
    with pytest.raises(StoreError, match="mooring store check"):
        open_store(f"sqlite://{path}")


async def identity(path: Path) -> str:
    async with open_store(f"sqlite://{path}") as store:
        return store.identity


async def test_the_identity_survives_a_restart_and_is_not_in_a_backup(tmp_path: Path):
    path, saved = tmp_path / "store", tmp_path / "saved"
    first = await identity(path)
    assert first
    assert await identity(path) == first
    assert await identity(tmp_path / "other") != first
    journal.backup(path, saved)
    assert not journal.check(saved)
    (tmp_path / "again").write_bytes(saved.read_bytes())
    restored = {await identity(saved), await identity(tmp_path / "again")}
    assert len(restored - {first}) == 2, "each is another store, as with etcd"
    assert await identity(saved) in restored


async def test_a_file_without_an_identity_gets_one(tmp_path: Path):
    path = tmp_path / "store"
    first = await identity(path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("DELETE FROM meta WHERE name = 'cluster_id'")
        database.commit()
    second = await identity(path)
    assert second not in ("", first)
    assert await identity(path) == second
