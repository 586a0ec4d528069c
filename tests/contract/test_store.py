"""The store contract of `mooring.store.contract`, on every backend."""

from __future__ import annotations

import asyncio
import time

import pytest

from mooring.backends import open_store
from mooring.errors import (
    Closed,
    Compacted,
    Conflict,
    FutureRevision,
    InvalidRequest,
    LeaseNotFound,
    TooLarge,
)
from mooring.store import (
    MAX_OPERATIONS,
    Batch,
    Check,
    Delete,
    Event,
    Put,
    Query,
    Store,
    Watch,
    absent,
    between,
    created_at,
    everything,
    exists,
    has_value,
    key,
    on_lease,
    prefix,
    unchanged,
)
from mooring.store.namespace import Namespaced
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time


async def keys(store: Store, start: bytes = b"/") -> list[bytes]:
    return [entry.key for entry in (await store.read(prefix(start))).entries]


async def take(watch: Watch, count: int, *, within: float = 20.0) -> list[Batch]:
    async with asyncio.timeout(within):
        return [await anext(watch) for _ in range(count)]


class TestReading:
    async def test_an_absent_key_is_empty_at_the_current_revision(self, store: Store):
        put = await store.commit(Put(b"/other", b""))
        snapshot = await store.read(key(b"/a"))
        assert snapshot.entries == ()
        assert snapshot.first is None
        assert snapshot.revision >= put.revision

    async def test_an_entry_has_its_history(self, store: Store):
        first = await store.commit(Put(b"/a", b"1"))
        second = await store.commit(Put(b"/a", b"2"))
        entry = (await store.read(key(b"/a"))).first
        assert entry is not None
        assert (entry.key, entry.value, entry.lease) == (b"/a", b"2", 0)
        assert (entry.created, entry.modified, entry.version) == (
            first.revision,
            second.revision,
            2,
        )

    async def test_a_key_created_again_starts_at_version_1(self, store: Store):
        await store.commit(Put(b"/a", b"1"))
        await store.commit(Delete(key(b"/a")))
        again = await store.commit(Put(b"/a", b"2"))
        entry = (await store.read(key(b"/a"))).first
        assert entry is not None
        assert (entry.created, entry.version) == (again.revision, 1)

    async def test_a_prefix_includes_only_keys_below_it(self, store: Store):
        for name in (b"/a/1", b"/a/2", b"/ab", b"/b/1", b"/a"):
            await store.commit(Put(name, b""))
        assert await keys(store, b"/a/") == [b"/a/1", b"/a/2"]
        assert await keys(store, b"/a") == [b"/a", b"/a/1", b"/a/2", b"/ab"]

    async def test_a_prefix_of_the_highest_bytes_has_no_end(self, store: Store):
        await store.commit(Put(b"\xff\xff\x01", b""), Put(b"\xfe", b""))
        assert await keys(store, b"\xff\xff") == [b"\xff\xff\x01"]

    async def test_a_range_excludes_its_end(self, store: Store):
        await store.commit(Put(b"a", b""), Put(b"b", b""), Put(b"c", b""))
        snapshot = await store.read(between(b"a", b"c"))
        assert [entry.key for entry in snapshot.entries] == [b"a", b"b"]

    async def test_everything_includes_every_key(self, store: Store):
        await store.commit(Put(b"\0", b""), Put(b"a", b""), Put(b"\xff", b""))
        snapshot = await store.read(everything())
        assert [entry.key for entry in snapshot.entries] == [b"\0", b"a", b"\xff"]

    async def test_keys_only_omits_the_values(self, store: Store):
        await store.commit(Put(b"/a", b"long"))
        with_value = (await store.read(prefix(b"/"))).first
        without = (await store.read(prefix(b"/"), keys_only=True)).first
        assert with_value is not None
        assert without is not None
        assert without.value == b""
        assert without.modified == with_value.modified

    async def test_a_limited_read_says_whether_there_is_more(self, store: Store):
        await store.commit(*(Put(b"/%d" % n, b"") for n in range(5)))
        some = await store.read(prefix(b"/"), limit=3)
        assert [entry.key for entry in some.entries] == [b"/0", b"/1", b"/2"]
        assert some.more
        assert not (await store.read(prefix(b"/"), limit=5)).more
        assert not (await store.read(prefix(b"/"))).more

    async def test_order_by_creation_is_oldest_first(self, store: Store):
        for name in (b"/c", b"/a", b"/b"):
            await store.commit(Put(name, b""))
        await store.commit(Put(b"/c", b"again"))
        snapshot = await store.read(prefix(b"/"), order="created")
        assert [entry.key for entry in snapshot.entries] == [b"/c", b"/a", b"/b"]
        oldest = await store.read(prefix(b"/"), order="created", limit=1)
        assert [entry.key for entry in oldest.entries] == [b"/c"]
        assert oldest.more

    async def test_created_before_excludes_later_keys(self, store: Store):
        await store.commit(Put(b"/c", b""))
        second = await store.commit(Put(b"/a", b""))
        await store.commit(Put(b"/b", b""))
        snapshot = await store.read(prefix(b"/"), created_before=second.revision)
        assert [entry.key for entry in snapshot.entries] == [b"/c"]

    async def test_the_past_can_be_read_until_it_is_compacted(self, store: Store):
        first = await store.commit(Put(b"/a", b"1"), Put(b"/b", b"1"))
        await store.commit(Put(b"/a", b"2"), Delete(key(b"/b")))
        last = await store.commit(Put(b"/c", b""))
        past = await store.read(prefix(b"/"), at=first.revision)
        assert [(e.key, e.value) for e in past.entries] == [(b"/a", b"1"), (b"/b", b"1")]
        assert past.revision == first.revision
        await store.compact(last.revision)
        with pytest.raises(Compacted):
            await store.read(prefix(b"/"), at=first.revision)
        assert len((await store.read(prefix(b"/"), at=last.revision)).entries) == 2

    async def test_the_future_cannot_be_read(self, store: Store):
        here = await store.commit(Put(b"/a", b""))
        with pytest.raises(FutureRevision, match=str(here.revision + 1000)):
            await store.read(key(b"/a"), at=here.revision + 1000)

    async def test_a_large_range_is_read_at_one_revision(self, store: Store):
        """More keys than fit on a page still belong to one revision, despite concurrent writes."""
        for start in range(0, 4000, 100):
            await store.commit(*(Put(b"/%05d" % n, b"x" * 100) for n in range(start, start + 100)))
        stop = asyncio.Event()

        async def write() -> None:
            count = 0
            while not stop.is_set():
                count += 1
                value = b"%d" % count
                await store.commit(Put(b"/00000", value), Put(b"/03999", value))
                await asyncio.sleep(0)

        writing = asyncio.get_running_loop().create_task(write())
        try:
            for _ in range(5):
                snapshot = await store.read(prefix(b"/"))
                assert len(snapshot.entries) == 4000
                assert snapshot.entries[0].value == snapshot.entries[-1].value
                assert max(entry.modified for entry in snapshot.entries) <= snapshot.revision
                await asyncio.sleep(0)
        finally:
            stop.set()
            await writing

    async def test_a_limit_larger_than_a_page_is_kept(self, store: Store):
        for start in range(0, 2500, 100):
            await store.commit(*(Put(b"/%05d" % n, b"") for n in range(start, start + 100)))
        snapshot = await store.read(prefix(b"/"), limit=2200)
        assert len(snapshot.entries) == 2200
        assert snapshot.more
        by_age = await store.read(prefix(b"/"), order="created")
        assert len(by_age.entries) == 2500


class TestIdentity:
    async def test_the_identity_belongs_to_the_keys_and_not_to_the_url(
        self, store: Store, store_url: str
    ):
        await store.read(key(b"a"))
        assert store.identity
        one = store_url + ("&" if "?" in store_url else "?")
        options = "timeout=3s" if one.startswith("etcd") else "history=1000"
        async with open_store(one + options) as same:
            await same.read(key(b"a"))
            assert same.identity == store.identity
            inner = Namespaced(same, b"/inner/")
            assert inner.identity.startswith(store.identity)
            assert inner.identity != store.identity

    async def test_other_namespaces_have_other_identities(self, store: Store):
        await store.read(key(b"a"))
        one, other = Namespaced(store, b"/a/"), Namespaced(store, b"/b/")
        assert one.identity != other.identity


class TestCommitting:
    async def test_a_commit_is_one_revision(self, store: Store):
        await store.commit(Put(b"/x", b""))
        done = await store.commit(Put(b"/a", b""), Put(b"/b", b""), Delete(key(b"/x")))
        snapshot = await store.read(prefix(b"/"))
        assert [(e.key, e.modified) for e in snapshot.entries] == [
            (b"/a", done.revision),
            (b"/b", done.revision),
        ]
        earlier = await store.read(prefix(b"/"), at=done.revision - 1)
        assert [e.key for e in earlier.entries] == [b"/x"]

    async def test_a_commit_without_changes_has_no_revision(self, store: Store):
        async def is_without_one() -> bool:
            before = await store.commit(Put(b"/a", b""))
            after = await store.commit(Delete(key(b"/none")), require=[exists(b"/a")])
            return after.revision == before.revision

        # A lease of another test may expire in between, but not each time.
        assert any([await is_without_one() for _ in range(3)])

    async def test_a_delete_removes_the_complete_range(self, store: Store):
        await store.commit(*(Put(b"/a/%d" % n, b"") for n in range(5)), Put(b"/ab", b""))
        await store.commit(Delete(prefix(b"/a/")))
        assert await keys(store) == [b"/ab"]

    async def test_every_kind_of_check_passes_and_fails(self, store: Store):
        lease = await store.grant(60)
        first = await store.commit(Put(b"/a", b"1", lease.id))
        second = await store.commit(Put(b"/a", b"2", lease.id))
        good = [
            exists(b"/a"),
            absent(b"/none"),
            created_at(b"/a", first.revision),
            unchanged(b"/a", second.revision),
            unchanged(b"/none", 0),
            has_value(b"/a", b"2"),
            on_lease(b"/a", lease.id),
            on_lease(b"/none", 0),
        ]
        bad = [
            absent(b"/a"),
            exists(b"/none"),
            created_at(b"/a", second.revision),
            unchanged(b"/a", first.revision),
            has_value(b"/a", b"1"),
            has_value(b"/none", b""),
            on_lease(b"/a", 0),
        ]
        await store.commit(Put(b"/ok", b""), require=good)
        for check in bad:
            with pytest.raises(Conflict):
                await store.commit(Put(b"/never", b""), require=[*good, check])
        assert await keys(store) == [b"/a", b"/ok"]
        await store.revoke(lease.id)

    async def test_a_conflict_returns_the_current_entry(self, store: Store):
        await store.commit(Put(b"/name", b"tenant 7"))
        with pytest.raises(Conflict, match="/name") as caught:
            await store.commit(
                Put(b"/name", b"tenant 8"), require=[absent(b"/name")], read=[Query(key(b"/name"))]
            )
        (read,) = caught.value.reads
        assert read.first is not None
        assert read.first.value == b"tenant 7"
        assert caught.value.revision == read.revision

    async def test_a_commit_reads_after_its_own_writes(self, store: Store):
        await store.commit(Put(b"/q/old", b""))
        done = await store.commit(
            Put(b"/q/new", b"x"),
            read=[
                Query(prefix(b"/q/")),
                Query(prefix(b"/q/"), order="created", limit=1, keys_only=True),
            ],
        )
        assert [e.key for e in done.reads[0].entries] == [b"/q/new", b"/q/old"]
        assert done.reads[0].revision == done.revision
        assert [e.key for e in done.reads[1].entries] == [b"/q/old"]

    async def test_concurrent_increments_are_all_counted(self, store: Store):
        await store.commit(Put(b"/n", b"0"))

        async def increment() -> None:
            while True:
                entry = (await store.read(key(b"/n"))).first
                assert entry is not None
                try:
                    await store.commit(
                        Put(b"/n", b"%d" % (int(entry.value) + 1)),
                        require=[unchanged(b"/n", entry.modified)],
                    )
                except Conflict:
                    continue
                return

        await asyncio.gather(*(increment() for _ in range(20)))
        entry = (await store.read(key(b"/n"))).first
        assert entry is not None
        assert entry.value == b"20"

    async def test_the_number_of_operations_is_limited(self, store: Store):
        await store.commit(*(Put(b"/%d" % n, b"") for n in range(MAX_OPERATIONS)))
        with pytest.raises(TooLarge):
            await store.commit(*(Put(b"/x%d" % n, b"") for n in range(MAX_OPERATIONS + 1)))
        assert await keys(store, b"/x") == []

    async def test_a_value_over_the_limit_is_refused(self, store: Store):
        await store.commit(Put(b"/fits", b"x" * 1_500_000))
        for size in (1_600_000, 4_000_000):
            with pytest.raises(TooLarge, match="accepts"):
                await store.commit(Put(b"/never", b"x" * size))
        assert await keys(store) == [b"/fits"]


class TestBadInput:
    @pytest.mark.parametrize(
        "bad",
        [
            lambda: [Put(b"", b"")],
            lambda: [Put("/a", b"")],  # type: ignore[arg-type]
            lambda: [Put(b"/a", "text")],  # type: ignore[arg-type]
            lambda: [Put(b"/a", b""), Put(b"/a", b"")],
            lambda: [Put(b"/a/b", b""), Delete(prefix(b"/a/"))],
            lambda: [Delete(key(b""))],
            lambda: [Delete(prefix(b""))],
            lambda: [Delete(between(b"b", b"a"))],
            lambda: ["put"],
        ],
    )
    async def test_an_invalid_commit_is_refused(self, store: Store, bad):
        with pytest.raises(InvalidRequest):
            await store.commit(*bad())
        assert (await store.read(everything(), limit=1)).entries == ()

    async def test_an_invalid_query_is_refused(self, store: Store):
        with pytest.raises(InvalidRequest, match="limit"):
            await store.read(prefix(b"/"), limit=-1)
        with pytest.raises(InvalidRequest, match="order"):
            await store.read(prefix(b"/"), order="size")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="created_before"):
            await store.read(prefix(b"/"), created_before=0)
        with pytest.raises(InvalidRequest, match="revision 0"):
            await store.read(prefix(b"/"), at=0)

    async def test_invalid_ranges_and_numbers_are_refused(self, store: Store):
        for call in (
            lambda: store.read(b"/x"),  # type: ignore[arg-type]
            lambda: store.commit(Delete(b"/x")),  # type: ignore[arg-type]
            lambda: store.commit(Put(b"/x", b"", 2**64)),
            lambda: store.commit(require=[unchanged(b"/x", -1)]),
            lambda: store.read(key(b"/x"), at=2**64),
            lambda: store.read(key(b"/x"), limit=2**64),
            lambda: store.read(key(b"/x"), at="x"),  # type: ignore[arg-type]
            lambda: store.commit(require=[b"/x"]),  # type: ignore[list-item]
            lambda: store.commit(read=[prefix(b"/x")]),  # type: ignore[list-item]
            lambda: store.commit(require=[has_value(b"/x", "text")]),  # type: ignore[arg-type]
            lambda: store.commit(require=[Check(b"/x", "size", 1)]),  # type: ignore[arg-type]
            lambda: store.renew(2**70),
            lambda: store.revoke(-1),
            lambda: store.compact(2**70),
        ):
            with pytest.raises(InvalidRequest):
                await call()
        with pytest.raises(InvalidRequest):
            store.watch(b"/x")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            store.watch(key(b"/x"), after=2**70)
        with pytest.raises(InvalidRequest):
            await store.grant("5")  # type: ignore[arg-type]

    @pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 10_000_000_000])
    async def test_an_invalid_ttl_is_refused(self, store: Store, ttl: float):
        with pytest.raises(InvalidRequest, match="TTL"):
            await store.grant(ttl)


class TestLeases:
    async def test_a_revoked_lease_deletes_its_keys_in_one_revision(self, store: Store):
        lease = await store.grant(60)
        await store.commit(Put(b"/a", b"", lease.id), Put(b"/b", b"", lease.id), Put(b"/c", b""))
        start = (await store.read(prefix(b"/"))).revision
        async with store.watch(prefix(b"/"), after=start) as watch:
            await store.revoke(lease.id)
            (batch,) = await take(watch, 1)
        assert batch.events == (Event(b"/a", None), Event(b"/b", None))
        assert await keys(store) == [b"/c"]

    async def test_an_expired_lease_deletes_its_keys(self, store: Store):
        asked = time.monotonic()
        lease = await store.grant(1)
        put = await store.commit(Put(b"/a", b"", lease.id))
        async with store.watch(prefix(b"/"), after=put.revision) as watch:
            (batch,) = await take(watch, 1, within=lease.ttl + 15)
        assert batch.events == (Event(b"/a", None),)
        assert time.monotonic() - asked >= lease.ttl - 0.1
        with pytest.raises(LeaseNotFound):
            await store.renew(lease.id)

    async def test_a_renewed_lease_does_not_expire(self, store: Store):
        lease = await store.grant(5)
        await store.commit(Put(b"/a", b"", lease.id))
        until = time.monotonic() + lease.ttl + 0.5
        while time.monotonic() < until:
            assert await store.renew(lease.id) == lease.ttl
            await asyncio.sleep(0.3)
        assert await keys(store) == [b"/a"]

    async def test_the_granted_ttl_is_at_least_the_requested_one(self, store: Store):
        assert (await store.grant(7.2)).ttl == 8

    async def test_a_key_written_without_its_lease_stays(self, store: Store):
        lease = await store.grant(60)
        other = await store.grant(60)
        await store.commit(Put(b"/a", b"", lease.id), Put(b"/b", b"", lease.id))
        await store.commit(Put(b"/a", b""))
        await store.commit(Put(b"/b", b"", other.id))
        await store.revoke(lease.id)
        assert await keys(store) == [b"/a", b"/b"]
        await store.revoke(other.id)
        assert await keys(store) == [b"/a"]

    async def test_a_recreated_key_does_not_belong_to_the_old_lease(self, store: Store):
        lease = await store.grant(60)
        await store.commit(Put(b"/a", b"", lease.id))
        await store.commit(Delete(key(b"/a")))
        await store.commit(Put(b"/a", b""))
        await store.revoke(lease.id)
        assert await keys(store) == [b"/a"]

    async def test_an_unknown_lease_is_an_error_and_nothing_is_written(self, store: Store):
        for call in (store.renew(12345), store.revoke(12345)):
            with pytest.raises(LeaseNotFound, match="3039"):
                await call
        with pytest.raises(LeaseNotFound, match="3039"):
            await store.commit(Put(b"/b", b""), Put(b"/a", b"", 12345))
        assert await keys(store) == []

    async def test_a_failed_check_is_reported_before_an_unknown_lease(self, store: Store):
        with pytest.raises(Conflict):
            await store.commit(Put(b"/a", b"", 12345), require=[exists(b"/none")])

    async def test_many_leases_are_renewed_concurrently(self, store: Store):
        leases = [await store.grant(30) for _ in range(50)]
        assert set(await asyncio.gather(*(store.renew(lease.id) for lease in leases))) == {30}


class TestWatching:
    async def test_a_batch_contains_one_revision(self, store: Store):
        start = (await store.read(prefix(b"/"))).revision
        async with store.watch(prefix(b"/"), after=start) as watch:
            one = await store.commit(Put(b"/a", b"1"), Put(b"/b", b"1"), Put(b"other", b""))
            two = await store.commit(Put(b"/b", b"2"), Delete(key(b"/a")))
            first, second = await take(watch, 2)
        assert (first.revision, second.revision) == (one.revision, two.revision)
        assert [(e.key, e.entry and e.entry.value) for e in first.events] == [
            (b"/a", b"1"),
            (b"/b", b"1"),
        ]
        assert [(e.key, e.entry and e.entry.value) for e in second.events] == [
            (b"/b", b"2"),
            (b"/a", None),
        ]

    async def test_the_past_is_replayed_from_any_revision(self, store: Store):
        start = (await store.read(prefix(b"/"))).revision
        revisions = [(await store.commit(Put(b"/%d" % n, b""))).revision for n in range(10)]
        for cut in (0, 3, 9):
            after = start if cut == 0 else revisions[cut - 1]
            async with store.watch(prefix(b"/"), after=after) as watch:
                batches = await take(watch, 10 - cut)
            assert [batch.revision for batch in batches] == revisions[cut:]

    async def test_a_long_past_reaches_slow_and_late_readers(self, store: Store):
        """More revisions than a watch buffers and than a server sends at once (1,000 each), with
        concurrent writes."""

        async def write(count: int) -> list[int]:
            commits = (store.commit(Put(b"/a", b"%d" % n)) for n in range(count))
            return sorted(done.revision for done in await asyncio.gather(*commits))

        start = (await store.read(prefix(b"/"))).revision
        async with store.watch(prefix(b"/")) as asleep:
            done = [revision for _ in range(11) for revision in await write(100)]
            writing = asyncio.get_running_loop().create_task(write(100))
            async with store.watch(prefix(b"/"), after=start) as late:
                for watch in (late, asleep):
                    batches = await take(watch, 1200, within=40)
                    assert [batch.revision for batch in batches] == done + await writing

    async def test_a_watch_without_a_revision_starts_when_it_is_established(self, store: Store):
        await store.commit(Put(b"/before", b""))
        async with store.watch(prefix(b"/")) as watch:
            await store.commit(Put(b"/after", b""))
            (batch,) = await take(watch, 1)
        assert [event.key for event in batch.events] == [b"/after"]

    async def test_a_watch_delivers_only_its_range(self, store: Store):
        async with (
            store.watch(key(b"/a")) as one,
            store.watch(prefix(b"/a/")) as below,
            store.watch(between(b"/a", b"/b")) as both,
        ):
            for name in (b"/a", b"/a/1", b"/ab", b"/b"):
                await store.commit(Put(name, b""))
            assert [b.events[0].key for b in await take(one, 1)] == [b"/a"]
            assert [b.events[0].key for b in await take(below, 1)] == [b"/a/1"]
            assert [b.events[0].key for b in await take(both, 3)] == [b"/a", b"/a/1", b"/ab"]
            await store.commit(Put(b"/a", b"again"))
            assert [b.events[0].key for b in await take(one, 1)] == [b"/a"]

    async def test_a_watch_waits_for_a_future_revision(self, store: Store):
        here = (await store.read(prefix(b"/"))).revision
        async with store.watch(prefix(b"/"), after=here + 2) as watch:
            revisions = [(await store.commit(Put(b"/%d" % n, b""))).revision for n in range(3)]
            (batch,) = await take(watch, 1)
        assert batch.revision == next(revision for revision in revisions if revision > here + 2)

    async def test_a_compacted_revision_is_an_error(self, store: Store):
        first = await store.commit(Put(b"/a", b"1"))
        for n in range(5):
            last = await store.commit(Put(b"/a", b"%d" % n))
        await store.compact(last.revision)
        with pytest.raises(Compacted) as caught:
            async with store.watch(prefix(b"/"), after=first.revision) as watch:
                await take(watch, 1)
        assert caught.value.revision == last.revision

    async def test_a_deletion_at_the_compacted_revision_is_never_lost_silently(self, store: Store):
        seen = await store.commit(Put(b"/a", b"1"))
        gone = await store.commit(Delete(key(b"/a")))
        await store.commit(Put(b"/b", b""))
        await store.compact(gone.revision)
        with pytest.raises(Compacted):
            async with store.watch(prefix(b"/"), after=seen.revision) as watch:
                await take(watch, 1)
        async with store.watch(prefix(b"/"), after=gone.revision) as watch:
            (batch,) = await take(watch, 1)
        assert [event.key for event in batch.events] == [b"/b"]

    async def test_a_watch_survives_a_compaction(self, store: Store):
        start = (await store.read(prefix(b"/"))).revision
        async with store.watch(prefix(b"/"), after=start) as watch:
            first = await store.commit(Put(b"/a", b"1"))
            await take(watch, 1)
            last = await store.commit(Put(b"other", b"1"))
            await store.compact(last.revision)
            after = await store.commit(Put(b"/a", b"2"))
            (batch,) = await take(watch, 1)
        assert (first.revision, batch.revision) < (last.revision, after.revision + 1)
        assert batch.revision == after.revision

    async def test_many_watches_are_independent(self, store: Store):
        watches = [store.watch(prefix(b"/%d/" % n)) for n in range(50)]
        for watch in watches:
            await watch.__aenter__()
        for n in range(50):
            await store.commit(Put(b"/%d/x" % n, b""))
        for n, watch in enumerate(watches):
            (batch,) = await take(watch, 1)
            assert [event.key for event in batch.events] == [b"/%d/x" % n]
            await watch.__aexit__(None, None, None)

    async def test_a_cancelled_reader_does_not_harm_the_others(self, store: Store):
        async with store.watch(prefix(b"/")) as one, store.watch(prefix(b"/")) as two:
            waiting = asyncio.get_running_loop().create_task(one.__anext__())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await store.commit(Put(b"/a", b""))
            assert len(await take(two, 1)) == 1
            assert len(await take(one, 1)) == 1

    async def test_a_watch_reports_the_revision_to_resume_after(self, store: Store):
        before = await store.commit(Put(b"/a", b""))
        async with store.watch(prefix(b"/")) as watch:
            seen = watch.seen
            done = await store.commit(Put(b"/a", b""))
            assert before.revision <= seen < done.revision
            await take(watch, 1)
            assert watch.seen >= done.revision

    async def test_reading_a_watch_that_was_left_or_never_entered_is_an_error(self, store: Store):
        watch = store.watch(prefix(b"/"))
        with pytest.raises(RuntimeError, match="async with"):
            await anext(watch)
        async with watch:
            pass
        with pytest.raises(Closed):
            await take(watch, 1)

    async def test_two_readers_of_one_watch_are_both_woken(self, store: Store):
        async with store.watch(prefix(b"/")) as watch:
            readers = [asyncio.get_running_loop().create_task(watch.__anext__()) for _ in range(2)]
            await asyncio.sleep(0)
            await store.commit(Put(b"/a", b""))
            await store.commit(Put(b"/a", b""))
            async with asyncio.timeout(20):
                revisions = {(await reader).revision for reader in readers}
            assert len(revisions) == 2

    async def test_a_burst_of_watches_does_not_harm_another_watch(self, store_url: str):
        patient = store_url + ("&timeout=60s" if store_url.startswith("etcd") else "")
        async with open_store(patient) as store, store.watch(key(b"/standing")) as standing:
            burst = [store.watch(key(b"/%d" % n)) for n in range(400)]
            await asyncio.gather(*(watch.__aenter__() for watch in burst))
            await store.commit(Put(b"/standing", b""))
            await take(standing, 1)
            for watch in burst:
                await watch.__aexit__(None, None, None)

    @pytest.mark.deadline
    async def test_a_live_watch_is_confirmed_without_changes(self, store: Store):
        async with store.watch(prefix(b"/")) as watch:
            before = watch.heard
            await eventually(lambda: watch.heard > before, within=2.5)


class TestLifetime:
    async def test_two_stores_of_one_url_share_their_data(self, store: Store, store_url: str):
        async with open_store(store_url) as other, other.watch(prefix(b"/")) as watch:
            await store.commit(Put(b"/a", b"1"))
            assert len(await take(watch, 1)) == 1
            assert await keys(other) == [b"/a"]

    async def test_a_closed_store_raises_closed(self, store_url: str):
        store = open_store(store_url)
        await store.commit(Put(b"/a", b""))
        async with store.watch(prefix(b"/")) as watch:
            waiting = asyncio.get_running_loop().create_task(watch.__anext__())
            await asyncio.sleep(0)
            await store.aclose()
            await store.aclose()
            with pytest.raises(Closed):
                await waiting
        for call in (store.read(key(b"/a")), store.commit(Put(b"/a", b"")), store.grant(5)):
            with pytest.raises(Closed):
                await call
        with pytest.raises(Closed):
            await store.renew(1)
        with pytest.raises(Closed):
            async with store.watch(key(b"/a")):
                pass

    async def test_the_status_of_the_store(self, store: Store):
        done = await store.commit(Put(b"/a", b""))
        status = await store.status()
        assert status.revision >= done.revision
        assert not status.alarms
        (member,) = status.members
        assert member.latency is not None
        assert member.problem is None
        assert member.clock_ahead is not None
        assert member.clock_ahead[0] <= 0 <= member.clock_ahead[1]
