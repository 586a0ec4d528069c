"""A mirror and a session over a faulty connection to a real etcd."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from mooring.backends import open_store
from mooring.errors import Closed, OutcomeUnknown, Unavailable
from mooring.mirror import Mirror, RangeFeed
from mooring.session import Session
from mooring.store import Delete, Entry, Put, Store, Watch, key, prefix
from mooring.store.etcd import watches
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.faults.mirror_recorder import PREFIX, Recorder, writing
from tests.waiting import eventually

STALE_WITHIN = 5.0


@dataclass
class Wire:
    """A store behind the proxy, and the same store reached directly."""

    proxy: FaultProxy
    through: Store
    direct: Store

    def mirror(self) -> Mirror[bytes, Entry]:
        return Mirror(RangeFeed(self.through, prefix(PREFIX)))


OLDER = "the server's series matters for compacted revisions only, which run on both"


@pytest.fixture(params=["etcd-3.5", pytest.param("etcd-3.4", marks=pytest.mark.extended(OLDER))])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def wire(
    backend: str, store_url: str, etcd: Callable[[str], EtcdServer]
) -> AsyncIterator[Wire]:
    async with wired(etcd(backend.removeprefix("etcd-")), store_url) as opened:
        yield opened


@contextlib.asynccontextmanager
async def wired(server: EtcdServer, url: str) -> AsyncIterator[Wire]:
    async with FaultProxy(server.address) as proxy, open_store(url) as direct:
        through = url.replace(server.address, proxy.address) + "&timeout=2s"
        async with open_store(through) as behind:
            yield Wire(proxy, behind, direct)


async def test_resets_lose_and_repeat_nothing(wire: Wire):
    async with wire.mirror() as mirror:
        recorder = Recorder(mirror)
        async with writing(wire.direct) as revisions:
            for _ in range(5):
                before = len(recorder.updates)
                await eventually(lambda: len(recorder.updates) > before + 5)  # noqa: B023
                wire.proxy.reset()
            await eventually(lambda: len(revisions) > 50)
        await recorder.saw_every_revision(wire.direct)
        assert mirror.resyncs == 0


@pytest.mark.deadline
async def test_a_blackhole_makes_a_mirror_stale_in_time_and_it_catches_up(wire: Wire):
    async with wire.mirror() as mirror:
        recorder = Recorder(mirror)
        await wire.direct.commit(Put(PREFIX + b"kept", b""))
        await eventually(lambda: len(mirror.items) == 1)
        wire.proxy.blackhole()
        async with writing(wire.direct):
            await eventually(lambda: mirror.stale, within=STALE_WITHIN)
            assert len(mirror.items) == 1, "the last state is kept"
        wire.proxy.heal()
        await eventually(lambda: not mirror.stale, within=2.5)
        await recorder.saw_every_revision(wire.direct)


async def test_a_half_open_connection_is_noticed_and_replaced(wire: Wire):
    """The server disappeared silently: gRPC alone would wait for minutes."""
    async with wire.mirror() as mirror:
        recorder = Recorder(mirror)
        wire.proxy.half_open()
        async with writing(wire.direct):
            await eventually(lambda: bool(mirror.items))
        await recorder.saw_every_revision(wire.direct)


@pytest.mark.deadline
async def test_a_slow_connection_is_not_taken_for_a_broken_one(wire: Wire):
    async with wire.mirror() as mirror:
        recorder = Recorder(mirror)
        wire.proxy.delay(0.3)
        async with writing(wire.direct):
            while len(recorder.updates) < 30:
                await asyncio.sleep(0.1)
                assert not mirror.stale
        await recorder.saw_every_revision(wire.direct)


@pytest.mark.deadline
async def test_a_slow_member_is_neither_left_nor_stale(wire: Wire):
    async with wire.mirror() as mirror:
        await wire.direct.commit(Put(PREFIX + b"a", b""))
        await eventually(lambda: len(mirror.items) == 1)  # its watch is established
        wire.proxy.delay(0.85)  # a round trip of 1.7 s
        opened = wire.proxy.accepted
        end = time.monotonic() + 6
        while time.monotonic() < end:
            assert not mirror.stale
            await asyncio.sleep(0.05)
        assert wire.proxy.accepted == opened


@pytest.mark.parametrize("backend", ["etcd-3.5", "etcd-3.4"])
async def test_compaction_during_an_outage_means_reading_again(wire: Wire):
    await wire.direct.commit(Put(PREFIX + b"old", b""), Put(PREFIX + b"kept", b""))
    async with wire.mirror() as mirror:
        recorder = Recorder(mirror)
        view = mirror.items
        wire.proxy.refuse()
        await wire.direct.commit(Delete(key(PREFIX + b"old")))
        last = await wire.direct.commit(Put(PREFIX + b"new", b""))
        await wire.direct.compact(last.revision)
        wire.proxy.heal()
        await recorder.agrees(wire.direct)
        assert mirror.resyncs == 1
        (update,) = recorder.updates
        assert update.resync
        assert [c.key for c in update.changes] == [PREFIX + b"old", PREFIX + b"new"]
        assert set(view) == {PREFIX + b"kept", PREFIX + b"new"}, "a view that is held stays live"


@pytest.mark.parametrize("backend", ["etcd-3.5", "etcd-3.4"])
async def test_a_deletion_compacted_at_exactly_the_resume_revision(
    backend: str, fresh_etcd: Callable[..., EtcdServer]
):
    server = fresh_etcd(series=backend.removeprefix("etcd-"))
    async with wired(server, f"{server.url}?namespace=/alone") as wire:
        await wire.direct.commit(Put(PREFIX + b"gone", b""))
        async with wire.mirror() as mirror:
            recorder = Recorder(mirror)
            resume = mirror.mark + 1
            wire.proxy.refuse()
            done = await wire.direct.commit(Delete(key(PREFIX + b"gone")))
            assert done.revision == resume
            await wire.direct.commit(Put(b"/elsewhere", b""))
            await wire.direct.compact(resume)
            wire.proxy.heal()
            await recorder.agrees(wire.direct)
            assert mirror.items == {}


async def test_a_lost_reply_is_an_unknown_outcome(wire: Wire):
    await wire.through.commit(Put(b"/a", b"1"))
    wire.proxy.mute()
    with pytest.raises(OutcomeUnknown, match="/a"):
        await wire.through.commit(Put(b"/a", b"2"))
    entry = (await wire.direct.read(key(b"/a"))).first
    assert entry is not None
    assert entry.value == b"2", "it took effect, although the reply was lost"
    wire.proxy.heal()
    wire.proxy.reset()
    assert (await wire.through.read(key(b"/a"))).entries == (entry,)


async def test_a_write_that_was_never_sent_is_unavailable_not_unknown(wire: Wire):
    wire.proxy.refuse()
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await wire.through.commit(Put(b"/a", b"1"))  # the cut itself may affect it
    with pytest.raises(Unavailable):
        await wire.through.commit(Put(b"/a", b"2"))
    assert (await wire.direct.read(key(b"/a"))).first is None


@pytest.mark.deadline
async def test_a_read_survives_a_short_interruption(wire: Wire):
    await wire.through.commit(Put(b"/a", b"1"))
    wire.proxy.refuse()
    reading = asyncio.get_running_loop().create_task(wire.through.read(key(b"/a")))
    await asyncio.sleep(0.5)
    wire.proxy.heal()
    assert len((await reading).entries) == 1


@pytest.mark.deadline
async def test_no_call_waits_beyond_its_deadline(wire: Wire):
    await wire.through.commit(Put(b"/a", b"1"))
    wire.proxy.blackhole()
    started = time.monotonic()
    results = await asyncio.gather(
        wire.through.read(key(b"/a")),
        wire.through.commit(Put(b"/a", b"")),
        wire.through.grant(5),
        wire.through.renew(5),
        wire.through.watch(key(b"/a")).__aenter__(),
        return_exceptions=True,
    )
    # The deadline is 2 s, then the endpoint is checked for a second at most.
    assert time.monotonic() - started < 3.5
    assert all(isinstance(result, (Unavailable, OutcomeUnknown)) for result in results), results


@pytest.mark.deadline
async def test_a_session_in_doubt_recovers(wire: Wire):
    async with Session(wire.through, ttl=6) as session:
        wire.proxy.blackhole()
        await eventually(lambda: session.state == "suspended", within=5)
        assert session.remaining > 0
        session.check()
        wire.proxy.heal()
        await eventually(lambda: session.state == "alive", within=2.5)


@pytest.mark.deadline
async def test_a_session_outlives_a_half_open_connection(wire: Wire):
    """Its patience is shorter than the deadline of the store, and nothing else uses the
    connection."""
    async with Session(wire.through, ttl=5) as session:
        await wire.through.commit(Put(b"/mine", b"", session.lease))
        wire.proxy.half_open()
        before = session._deadline
        await eventually(lambda: session._deadline > before or session.lost.is_set())
        assert session.state == "alive"
        assert (await wire.direct.read(key(b"/mine"))).first is not None


async def test_closing_a_store_ends_calls_in_progress_with_closed(wire: Wire):
    await wire.through.commit(Put(b"/a", b""))
    wire.proxy.blackhole()
    calls = [
        asyncio.get_running_loop().create_task(call)
        for call in (
            wire.through.read(key(b"/a")),
            wire.through.commit(Put(b"/a", b"")),
            wire.through.renew(5),
        )
    ]
    await asyncio.sleep(0.2)
    await wire.through.aclose()
    read, commit, renew = calls
    for call in (read, renew):
        with pytest.raises(Closed):
            await call
    with pytest.raises(OutcomeUnknown):
        await commit


@pytest.mark.deadline
async def test_a_renewal_finds_a_new_connection_within_its_deadline(wire: Wire):
    lease = await wire.through.grant(30)
    await wire.through.renew(lease.id)
    wire.proxy.half_open()
    async with asyncio.timeout(5):  # of which the store takes 2 at most
        assert await wire.through.renew(lease.id) == 30


async def test_large_responses_over_a_slow_connection_do_not_break_the_watches(wire: Wire):
    for n in range(10):
        await wire.direct.commit(Put(b"/big/%d" % n, b"x" * 1_000_000))
    async with wire.mirror() as mirror:
        recorder = Recorder(mirror)
        wire.proxy.delay(0.2)
        async with writing(wire.direct, pause=0.05):
            with contextlib.suppress(Unavailable):
                await wire.through.read(prefix(b"/big/"))
            await eventually(lambda: len(recorder.updates) > 20)
        wire.proxy.delay(0)
        await recorder.saw_every_revision(wire.direct)


async def test_a_session_knows_its_end_before_the_store_does(wire: Wire):
    async with Session(wire.through, ttl=2) as session:
        await wire.through.commit(Put(b"/mine", b"", session.lease))
        async with wire.direct.watch(key(b"/mine")) as watch:
            wire.proxy.blackhole()
            async with asyncio.timeout(20):
                await anext(watch)
        assert session.state == "lost"


@pytest.mark.deadline
async def test_closing_a_session_is_bounded(wire: Wire):
    session = Session(wire.through, ttl=30)
    await session.__aenter__()
    wire.proxy.blackhole()
    started = time.monotonic()
    await session.aclose()
    assert time.monotonic() - started < 4


@pytest.mark.deadline
async def test_cancelling_the_entry_of_a_session_is_bounded(wire: Wire):
    await wire.through.read(key(b"/a"))
    wire.proxy.blackhole()
    entering = asyncio.get_running_loop().create_task(Session(wire.through).__aenter__())
    name = "grant of a session's lease"
    await eventually(lambda: name in {task.get_name() for task in asyncio.all_tasks()})
    started = time.monotonic()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert time.monotonic() - started < 4


@pytest.mark.parametrize("late", [False, True], ids=["as it is written", "from the history"])
async def test_an_unread_watch_is_bounded_in_bytes_and_loses_nothing(
    store: Store, late: bool, monkeypatch: pytest.MonkeyPatch
):
    most, size = 3_000_000, 500_000
    monkeypatch.setattr(watches, "PENDING_BYTES", most, raising=False)
    start = (await store.commit(Put(b"/big", b""))).revision
    writes = [b"%d" % n + b"x" * size for n in range(16)]
    received: list[bytes] = []
    resumed = held = 0
    receive = watches.EtcdWatch.receive

    def measured(watch: watches.EtcdWatch, *message: Any) -> None:
        nonlocal held
        receive(watch, *message)
        fragments = sum(len(event.kv.value) for event in watch._fragments)
        held = max(held, watch._pending_bytes + fragments)

    monkeypatch.setattr(watches.EtcdWatch, "receive", measured)
    if late:
        for value in writes:
            await store.commit(Put(b"/big", value))
    async with asyncio.timeout(60):
        while len(received) < len(writes):
            async with store.watch(key(b"/big"), after=start) as watch:
                if not late and not resumed:
                    for value in writes:
                        await store.commit(Put(b"/big", value))
                await until_silent(watch)
                unread = 0
                with contextlib.suppress(Unavailable):
                    while len(received) < len(writes):
                        batch = await anext(watch)
                        (event,) = batch.events
                        assert event.entry is not None
                        received.append(event.entry.value)
                        unread += len(event.entry.value)
                        start = batch.revision
                assert unread < most + 2 * size
                resumed += 1
    assert received == writes
    assert resumed > 1
    assert held < most + 2 * size, "also of fragments"


async def test_a_watch_that_is_read_is_not_stopped(store: Store, monkeypatch: pytest.MonkeyPatch):
    """Only waiting batches count, not all that ever arrived."""
    monkeypatch.setattr(watches, "PENDING_BYTES", 100_000)
    async with store.watch(key(b"/read")) as watch, asyncio.timeout(20):
        for number in range(20):
            done = await store.commit(Put(b"/read", b"%d" % number + b"x" * 30_000))
            assert (await anext(watch)).revision == done.revision


async def until_silent(watch: Watch) -> None:
    """Wait until nothing more arrives for a while, although the watch is not read."""
    seen, since = watch.seen, time.monotonic()
    while time.monotonic() - since < 1:
        await asyncio.sleep(0.05)
        if watch.seen != seen:
            seen, since = watch.seen, time.monotonic()


async def test_a_mirror_can_be_opened_before_the_store_is_up(wire: Wire):
    await wire.direct.commit(Put(PREFIX + b"a", b""))
    wire.proxy.refuse()
    mirror = Mirror(RangeFeed(wire.through, prefix(PREFIX)), wait=False)
    async with mirror:
        assert mirror.stale
        assert not mirror.loaded
        await eventually(lambda: mirror.error is not None)
        wire.proxy.heal()
        await eventually(lambda: len(mirror.items) == 1 and not mirror.stale)
