"""A live copy of a range."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest

from mooring.backends import open_store
from mooring.errors import Closed
from mooring.messages import verbatim
from mooring.mirror import Change, Mirror, RangeFeed, Step, Steps, Update, merge
from mooring.store import Delete, Entry, Put, Store, key, prefix
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time


def mirror_of(store: Store) -> Mirror[bytes, Entry]:
    return Mirror(RangeFeed(store, prefix(b"/m/")))


def values(mirror: Mirror[bytes, Entry]) -> Mapping[bytes, bytes]:
    return {name: entry.value for name, entry in mirror.items.items()}


async def test_a_mirror_starts_with_the_current_entries_and_follows(store: Store):
    await store.commit(Put(b"/m/a", b"1"), Put(b"/other", b""))
    async with mirror_of(store) as mirror:
        assert values(mirror) == {b"/m/a": b"1"}
        await store.commit(Put(b"/m/b", b"2"), Delete(key(b"/m/a")))
        await eventually(lambda: values(mirror) == {b"/m/b": b"2"})
        assert not mirror.stale
        assert mirror.age < 3
        assert mirror.resyncs == 0


async def test_an_update_is_a_complete_revision_with_before_and_after(store: Store):
    await store.commit(Put(b"/m/a", b"1"))
    async with mirror_of(store) as mirror, mirror.changes() as changes:
        done = await store.commit(Put(b"/m/a", b"2"), Put(b"/m/b", b"1"), Delete(key(b"/m/none")))
        async with asyncio.timeout(20):
            update = await anext(changes)
        assert update.mark == mirror.mark == done.revision
        assert not update.resync
        values_of = [
            (c.key, c.before and c.before.value, c.after and c.after.value) for c in update.changes
        ]
        assert values_of == [(b"/m/a", b"1", b"2"), (b"/m/b", None, b"1")]


async def test_a_failing_subscriber_does_not_stop_the_mirror(store: Store, caplog):
    seen: list[Update[bytes, Entry]] = []

    def broken(update: Update[bytes, Entry]) -> None:
        raise ValueError("a subscriber's mistake")

    async with mirror_of(store) as mirror:
        mirror.subscribe(broken)
        mirror.subscribe(seen.append)
        await store.commit(Put(b"/m/a", b"1"))
        await eventually(lambda: len(seen) == 1)
        await store.commit(Put(b"/m/a", b"2"))
        await eventually(lambda: len(seen) == 2)
    assert "a subscriber's mistake" in caplog.text


async def test_a_subscription_can_be_ended_twice_and_ends_no_other(store: Store):
    seen: list[Update[bytes, Entry]] = []
    async with mirror_of(store) as mirror:
        end = mirror.subscribe(seen.append)
        mirror.subscribe(seen.append)
        end()
        end()
        await store.commit(Put(b"/m/a", b"1"))
        await eventually(lambda: b"/m/a" in mirror.items)
        assert len(seen) == 1


async def test_a_slow_reader_gets_the_net_effect(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mooring.mirror._MAX_PENDING", 100)
    async with mirror_of(store) as mirror, mirror.changes() as changes:
        await store.commit(Put(b"/m/gone", b""))
        for n in range(150):
            last = await store.commit(Put(b"/m/a", b"%d" % n))
        last = await store.commit(Delete(key(b"/m/gone")))
        await eventually(lambda: mirror.mark == last.revision)
        state: dict[bytes, bytes] = {}
        count = 0
        while True:
            update = await anext(changes)
            count += 1
            for change in update.changes:
                if change.after is None:
                    state.pop(change.key, None)
                else:
                    state[change.key] = change.after.value
            if update.mark == last.revision:
                break
        assert state == {b"/m/a": b"149"}
        assert count < 150


async def test_pending_updates_of_a_reader_are_bounded_in_bytes(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mooring.mirror._MAX_PENDING_BYTES", 160_000)
    async with mirror_of(store) as mirror, mirror.changes() as changes:
        await eventually(lambda: mirror._steps is not None)
        for n in range(30):
            await store.commit(Put(b"/m/%d" % (n % 2), b"%d" % n + b"x" * 10_000))
        await eventually(lambda: values(mirror).get(b"/m/1", b"").startswith(b"29x"))
        updates: list[Update[bytes, Entry]] = []
        async with asyncio.timeout(20):
            while not updates or updates[-1].mark < mirror.mark:
                updates.append(await anext(changes))
    kept = [c.after for update in updates for c in update.changes if c.after is not None]
    assert sum(len(entry.value) for entry in kept) < 160_000 + 11_000
    assert {entry.key: entry for entry in kept} == dict(mirror.items), "the net effect is whole"


async def test_updates_that_were_read_do_not_count(store: Store, monkeypatch: pytest.MonkeyPatch):
    """A fast reader gets every update, however many came before."""
    monkeypatch.setattr("mooring.mirror._MAX_PENDING_BYTES", 10_000)
    async with mirror_of(store) as mirror, mirror.changes() as changes, asyncio.timeout(20):
        await eventually(lambda: mirror._steps is not None)
        written: list[int] = []
        for number in range(30):
            written.append((await store.commit(Put(b"/m/%d" % number, b"x" * 1000))).revision)
            if number % 3 == 2:
                await eventually(lambda: mirror.mark == written[-1])
                assert [(await anext(changes)).mark for _ in range(3)] == written[-3:]


async def test_the_items_are_read_only(store: Store):
    async with mirror_of(store) as mirror:
        with pytest.raises(TypeError):
            mirror.items[b"/m/a"] = None  # type: ignore[index]


async def test_a_mirror_agrees_after_concurrent_writers(store: Store):
    updates: list[Update[bytes, Entry]] = []
    async with mirror_of(store) as mirror:
        mirror.subscribe(updates.append)

        async def write(writer: int) -> None:
            for n in range(60):
                name = b"/m/%d" % ((writer * 7 + n) % 20)
                await store.commit(Delete(key(name)) if n % 5 == 4 else Put(name, b"%d" % n))
                await asyncio.sleep(0)

        await asyncio.gather(*(write(writer) for writer in range(4)))
        truth = await store.read(prefix(b"/m/"))
        await eventually(lambda: dict(mirror.items) == {e.key: e for e in truth.entries})
    marks = [update.mark for update in updates]
    assert marks == sorted(set(marks))


async def test_readers_end_with_the_mirror(store: Store):
    async with mirror_of(store) as mirror, mirror.changes() as changes:
        await mirror.aclose()
        assert [update async for update in changes] == []
    async with mirror_of(store) as mirror, mirror.changes() as changes:
        await store.aclose()
        async with asyncio.timeout(20):
            assert [update async for update in changes] == []


async def test_a_mirror_reports_that_it_follows_again(etcd: Callable[[str], EtcdServer]):
    returned: list[float] = []
    async with (
        FaultProxy(etcd("3.5").address) as proxy,
        open_store(f"etcd://{proxy.address}?timeout=1s") as store,
        Mirror(
            RangeFeed(store, prefix(b"/m/")), returned=lambda: returned.append(time.monotonic())
        ) as mirror,
    ):
        await store.commit(Put(b"/m/a", b"1"))
        await eventually(lambda: b"/m/a" in mirror.items)
        assert returned == []
        proxy.refuse()
        await eventually(lambda: mirror.error is not None)
        assert returned == []
        proxy.heal()
        await eventually(lambda: bool(returned))


async def test_a_closed_mirror_does_not_start_again(store: Store):
    async with mirror_of(store) as mirror:
        pass
    with pytest.raises(Closed, match="create a new one"):
        mirror.start()


@pytest.mark.parametrize("what", ["mirror", "store"])
async def test_waiting_for_the_first_snapshot_fails_when_the_mirror_is_closed(what: str):
    async with open_store("etcd://127.0.0.1:1?timeout=500ms") as store:
        mirror = Mirror(RangeFeed(store, prefix(b"/m/")), wait=False)
        async with mirror:
            waiting = asyncio.ensure_future(mirror.ready())
            await eventually(lambda: mirror.error is not None)
            await (mirror if what == "mirror" else store).aclose()
            async with asyncio.timeout(20):
                with pytest.raises(Closed):
                    await waiting


async def test_the_first_snapshot_reports_the_difference_to_the_stand_in(store: Store):
    async with mirror_of(store) as mirror:
        await store.commit(Put(b"/m/old", b"1"), Put(b"/m/same", b"1"))
        await eventually(lambda: len(mirror.items) == 2)
        known = dict(mirror.items)
    await store.commit(Delete(key(b"/m/old")), Put(b"/m/new", b"1"))
    mirror = mirror_of(store)
    mirror.stand_in(known)
    assert mirror.stale
    assert not mirror.loaded
    updates: list[Update[bytes, Entry]] = []
    mirror.subscribe(updates.append)
    async with mirror:
        assert [(c.key, c.after is None) for c in updates[0].changes] == [
            (b"/m/old", True),
            (b"/m/new", False),
        ]
        assert sorted(mirror.items) == [b"/m/new", b"/m/same"]


class Stumbling:
    """A feed of numbers that fails, against its contract, each time that it follows."""

    name = verbatim("numbers")

    def __init__(self) -> None:
        self.reads = 0

    async def snapshot(self) -> tuple[dict[str, int], int]:
        self.reads += 1
        return {"a": self.reads}, self.reads

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[str, int], *, known: float
    ) -> AsyncIterator[Steps[str, int]]:
        raise ZeroDivisionError("a feed's mistake")
        yield


async def test_an_error_of_a_feed_is_logged_once_and_the_mirror_reads_again(
    caplog: pytest.LogCaptureFixture,
):
    feed = Stumbling()
    async with Mirror(feed) as mirror:
        await eventually(lambda: mirror.items["a"] >= 4)
        assert "a feed's mistake" in str(mirror.error)
    assert caplog.text.count("Traceback") == 1


class Forgetful:
    """A feed that loses every change."""

    def __init__(self, store: Store) -> None:
        self._feed = RangeFeed(store, prefix(b"/m/"))
        self.name = self._feed.name

    async def snapshot(self) -> tuple[dict[bytes, Entry], int]:
        return await self._feed.snapshot()

    @asynccontextmanager
    async def follow(
        self, mark: int, held: Mapping[bytes, Entry], *, known: float
    ) -> AsyncIterator[Steps[bytes, Entry]]:
        async with self._feed.follow(mark, held, known=known) as steps:
            yield _Lost(steps)


class _Lost(AsyncIterator[Step[bytes, Entry]]):
    def __init__(self, steps: Steps[bytes, Entry]) -> None:
        self._steps = steps

    @property
    def heard(self) -> float:
        return self._steps.heard

    async def __anext__(self) -> Step[bytes, Entry]:
        return msgspec.structs.replace(await anext(aiter(self._steps)), changes=())


async def test_missed_changes_are_found_when_everything_is_read_again(store: Store):
    returned: list[None] = []
    await store.commit(Put(b"/m/a", b"1"))
    mirror = Mirror(Forgetful(store), afresh=0.5, returned=lambda: returned.append(None))
    async with mirror, mirror.changes() as changes:
        await store.commit(Put(b"/m/b", b"2"), Delete(key(b"/m/a")))
        async with asyncio.timeout(20):
            update = await anext(changes)
        assert [change.key for change in update.changes] == [b"/m/a", b"/m/b"]
        assert values(mirror) == {b"/m/b": b"2"}
        assert not returned, "nothing broke"
        assert mirror.error is None


async def test_everything_is_read_again_within_half_an_hour(monkeypatch: pytest.MonkeyPatch):
    """At a random moment of its last fifth, so that not all mirrors read at once."""
    loop, ahead = asyncio.get_running_loop(), 0.0
    elapsed = loop.time
    monkeypatch.setattr(loop, "time", lambda: elapsed() + ahead)
    async with open_store("memory://") as store, mirror_of(store) as mirror:
        await eventually(lambda: mirror._steps is not None)
        ahead = 0.8 * 1800 - 30
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert mirror.resyncs == 0
        ahead = 1800
        await eventually(lambda: mirror.resyncs == 1)


def test_merging_keeps_first_and_last_and_puts_removals_first():
    one = Update(1, (Change("a", None, 1), Change("b", 1, 2), Change("c", None, 1)))
    two = Update(2, (Change("a", 1, None), Change("b", 2, None), Change("c", 1, 3)))
    assert merge([one, two]) == Update(2, (Change("b", 1, None), Change("c", None, 3)))
