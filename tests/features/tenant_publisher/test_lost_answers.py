"""Lost replies, with concurrent publishes of others."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from mooring.errors import OutcomeUnknown, Unavailable
from mooring.store import Committed, Store
from mooring.tenants.document import parse
from mooring.tenants.publish.publisher import Publisher
from tests.backends import in_memory
from tests.features.tenant_files import (
    Interrupted,
    assert_consistent,
    document,
    everything_of,
)
from tests.features.tenant_publisher.support import (
    RING,
    USERS,
    Commit,
    Leaving,
    hooked,
    huge,
    with_faults,
)


class TestLostAnswers:
    @in_memory
    @pytest.mark.parametrize("how", ["before", "after"])
    @pytest.mark.parametrize("after", [0, 1, 2])
    async def test_a_publish_happens_once_and_is_reported_correctly(
        self, store: Store, publisher: Publisher, how: str, after: int
    ):
        done = await with_faults(store, after, how).apply(parse(huge()))
        entries = await publisher.history(1)
        assert [(entry.number, entry.more) for entry in entries] == [(done.number, False)]
        assert done.transactions == entries[0].page > 1
        changed = [step.path for entry in entries for step in entry.changes]
        assert sorted(changed) == sorted(change.path for change in done.changes)
        assert len(changed) == len(set(changed)) == USERS + 1
        await assert_consistent(store)

    @pytest.mark.parametrize("how", ["before", "after"])
    async def test_a_small_publish_happens_once(self, store: Store, publisher: Publisher, how: str):
        done = await with_faults(store, 0, how).apply(document(1))
        assert (done.number, done.transactions, len(done.changes)) == (1, 1, 8)
        assert len(await publisher.history(1)) == 1

    async def test_a_retry_does_not_overwrite_a_later_publish(self, store: Store):
        """The first attempt took effect, but its reply was lost: what another then wrote stays."""
        other = Publisher(store, ring=RING)

        class Overtaken(Interrupted):
            async def commit(self, *writes, **options):
                try:
                    return await super().commit(*writes, **options)
                except OutcomeUnknown:
                    await other.put(1, "storage", {"uploadQuotaGb": 2})
                    raise

        one = Publisher(cast(Store, Overtaken(store, 0, "after")), ring=RING)
        done = await one.put(1, "storage", {"uploadQuotaGb": 1})
        assert done.number == 1
        assert (await other.read(1))["storage"] == {"tenantId": 1, "uploadQuotaGb": 2}
        assert [entry.number for entry in await other.history(1)] == [1, 2]

    async def test_an_outcome_that_is_no_longer_known_is_reported(self, store: Store):
        other = Publisher(store, ring=RING, keep=1)

        class Overtaken(Interrupted):
            async def commit(self, *writes, **options):
                try:
                    return await super().commit(*writes, **options)
                except OutcomeUnknown:
                    await other.put(1, "storage", {"uploadQuotaGb": 2})
                    await other.put(1, "storage", {"uploadQuotaGb": 3})
                    raise

        one = Publisher(cast(Store, Overtaken(store, 0, "after")), ring=RING)
        with pytest.raises(OutcomeUnknown, match="trimmed"):
            await one.put(1, "storage", {"uploadQuotaGb": 1})
        assert (await other.read(1))["storage"] == {"tenantId": 1, "uploadQuotaGb": 3}

    @in_memory
    @pytest.mark.parametrize("how", ["before", "after"])
    @pytest.mark.parametrize("users", [2, USERS])
    @pytest.mark.parametrize("after", [0, 1])
    async def test_a_deletion_happens_once(
        self, store: Store, publisher: Publisher, how: str, users: int, after: int
    ):
        await publisher.apply(parse(huge(users)))
        done = await with_faults(store, after, how).delete(1)
        assert len(done.changes) == users + 1
        deleted = [entry for entry in await publisher.history(1) if entry.action == "delete"]
        assert [len(entry.changes) for entry in deleted] == [users + 1]
        assert await publisher.read(1) == {}
        await assert_consistent(store)

    async def test_a_repeated_deletion_does_not_delete_a_later_publish(self, store: Store):
        other = Publisher(store, ring=RING)
        await other.apply(document(1))

        class Overtaken(Interrupted):
            async def commit(self, *writes, **options):
                try:
                    return await super().commit(*writes, **options)
                except OutcomeUnknown:
                    await other.apply(document(1))
                    raise

        await Publisher(cast(Store, Overtaken(store, 0, "after")), ring=RING).delete(1)
        assert len(await other.read(1)) == 8

    @in_memory
    @pytest.mark.parametrize("how", ["before", "after"])
    @pytest.mark.parametrize("after", [0, 1])
    async def test_a_rollback_happens_once(
        self, store: Store, publisher: Publisher, how: str, after: int
    ):
        current = await publisher.apply(parse(huge()))
        await publisher.apply(parse({"id": 1, "ftp": {}}))
        done = await with_faults(store, after, how).rollback(1, current.number)
        assert len(done.changes) == USERS
        (entry,) = [listed for listed in await publisher.history(1) if listed.action == "rollback"]
        assert done.transactions == entry.page > 1
        await assert_consistent(store)

    @in_memory
    @pytest.mark.parametrize("users", [1, USERS])
    async def test_an_outcome_that_cannot_be_looked_up_is_unknown(self, store: Store, users: int):
        away = Publisher(cast(Store, Leaving(store, 2 if users > 1 else 0, "after")), ring=RING)
        with pytest.raises(OutcomeUnknown, match=r"tenant 1: .*written.*nothing listens"):
            await away.apply(parse(huge(users)))
        assert len(await Publisher(store, ring=RING).read(1)) > 1

    async def test_a_publish_that_certainly_wrote_nothing_says_so(self, store: Store):
        async def hook(number: int, go: Commit) -> Committed:
            raise Unavailable("the server is down")

        with pytest.raises(Unavailable):
            await hooked(store, hook).apply(document(1))
        assert await everything_of(store) == {}

    @pytest.mark.parametrize("action", ["apply", "delete"])
    @pytest.mark.parametrize("tries", [1, 2])
    async def test_a_late_commit_is_found_after_it_was_searched_for(
        self, store: Store, publisher: Publisher, action: str, tries: int
    ):
        await publisher.apply(document(1))
        late: list[Commit] = []

        async def hook(number: int, go: Commit) -> Committed:
            if number <= tries:
                late.append(go)
                raise OutcomeUnknown("the answer was lost")
            if late:
                landing, *_ = late
                late.clear()
                await landing()
            return await go()

        slow = hooked(store, hook)
        if action == "delete":
            done = await slow.delete(1)
            assert len(done.changes) == 8
        else:
            done = await slow.put(1, "storage", {"uploadQuotaGb": 99})
            assert [change.path for change in done.changes] == ["storage"]
        assert (done.number, done.transactions) == (2, 1)
        assert len(await publisher.history(1)) == 2


class TestConcurrentPublishers:
    async def test_concurrent_changes_of_different_parts_are_all_stored(self, store: Store):
        publishers = [Publisher(store, ring=RING, by=f"p{n}") for n in range(6)]
        await publishers[0].apply(document(1))

        async def busy(number: int) -> None:
            for n in range(5):
                path = f"ftp/u{number}.{n}"
                await publishers[number].put(1, path, {"description": path})

        await asyncio.gather(*(busy(number) for number in range(6)))
        parts = await publishers[0].read(1)
        assert sum(path.startswith("ftp/u") for path in parts) == 30
        numbers = [entry.number for entry in await publishers[0].history(1)]
        assert numbers == list(range(1, 32))
        await assert_consistent(store)

    @pytest.mark.parametrize("last", [0, 3])
    async def test_a_publisher_retries_after_the_history_was_trimmed(self, store: Store, last: int):
        """The number of the next entry is free again, although other entries came in between."""
        others = Publisher(store, ring=RING, keep=1)
        for n in range(last):
            await others.put(1, "storage", {"uploadQuotaGb": n})
        asked = 0
        started, overtaken = asyncio.Event(), asyncio.Event()

        class Slow(Interrupted):
            async def commit(self, *writes, **options):
                nonlocal asked
                if writes and not asked:
                    asked += 1
                    started.set()
                    await overtaken.wait()
                return await self._store.commit(*writes, **options)

        slow = Publisher(cast(Store, Slow(store, 0, "")), ring=RING, keep=1)
        seen: list[object] = []

        def change(parts):
            seen.append(parts.get("storage"))
            return {**parts, "ftp/bob": {}}

        task = asyncio.ensure_future(slow.change(1, change))
        await started.wait()
        for n in range(2):
            await others.put(1, "storage", {"uploadQuotaGb": 90 + n})
        overtaken.set()
        done = await task
        assert done.number == last + 3
        assert seen[-1] == {"tenantId": 1, "uploadQuotaGb": 91}
