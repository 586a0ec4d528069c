"""Tenants that exceed one commit."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from mooring.errors import NotConfigured, OutcomeUnknown, Taken, TooLarge, Unavailable
from mooring.model import JSON
from mooring.store import Committed, Put, Store
from mooring.tasks import Tasks
from mooring.tenants.document import parse
from mooring.tenants.publish.publisher import Publisher
from tests.backends import in_memory
from tests.features.tenant_files import (
    KEYS,
    Stopped,
    assert_consistent,
    document,
    everything_of,
)
from tests.features.tenant_publisher.support import (
    RING,
    USERS,
    Commit,
    hooked,
    huge,
    with_faults,
)


class TestSeveralTransactions:
    async def test_a_large_publish_is_split_by_object_and_reported(
        self, store: Store, publisher: Publisher, caplog
    ):
        done = await publisher.apply(parse(huge()))
        assert done.transactions > 1
        assert done.number == 1
        assert len(done.changes) == USERS + 1
        assert f"written in {done.transactions}" in caplog.text
        await assert_consistent(store)
        renamed = await publisher.apply(parse(huge(code="other")))
        assert renamed.transactions > 1
        await assert_consistent(store)

    @in_memory
    @pytest.mark.parametrize("after", range(4))
    async def test_every_transaction_leaves_a_consistent_store(
        self, store: Store, publisher: Publisher, after: int
    ):
        with pytest.raises(Stopped):
            await with_faults(store, after, "stop").apply(parse(huge(200)))
        await assert_consistent(store)
        await publisher.apply(parse(huge(200)))
        assert len(await publisher.read(1)) == 201
        await assert_consistent(store)

    @pytest.mark.parametrize("size", [0, 12_000])
    async def test_an_interrupted_deletion_is_resumed(
        self, store: Store, publisher: Publisher, size: int
    ):
        await publisher.apply(document(10))
        await publisher.apply(parse(huge(size=size)))
        before = dict(await publisher.read(1))
        stopped = 0
        while True:
            try:
                await with_faults(store, 1, "stop").delete(1)
            except Stopped:
                stopped += 1
                assert "meta" in await publisher.read(1)
                await assert_consistent(store)
                continue
            except NotConfigured:
                pass
            break
        assert stopped >= 2
        assert await publisher.read(1) == {}
        await assert_consistent(store)
        assert len(await publisher.read(10)) == 8
        newest = (await publisher.history(1))[-1].number
        undone = [entry for entry in await publisher.history(1) if entry.action == "delete"]
        assert sum(len(entry.changes) for entry in undone) == USERS + 1
        assert newest == undone[-1].number
        await publisher.rollback(1, undone[0].number - 1)
        assert await publisher.read(1) == before
        await assert_consistent(store)

    async def test_a_long_history_of_large_entries_does_not_prevent_a_publish(
        self, store: Store, publisher: Publisher
    ):
        for n in range(10):
            await publisher.put(1, "storage", {"extra": {"x": f"{n}" * 300_000}})
        await publisher.delete(1)
        assert len(await publisher.history(1)) == 11

    async def test_a_tenant_can_have_more_hosts_than_fit_in_a_commit(
        self, store: Store, publisher: Publisher
    ):
        def hosts(*numbers: int) -> dict[str, JSON]:
            aliases: list[JSON] = [f"h{n}.example" for n in numbers]
            return {
                "id": 1,
                "meta": {"code": "many", "name": "Many"},
                "domain": {"aliases": aliases},
            }

        for numbers in (range(130), range(100, 250), range(0), range(150), range(140, 290)):
            document = hosts(*numbers)
            assert await publisher.diff(parse(document))
            done = await publisher.apply(parse(document))
            assert done.number == (await publisher.history(1))[-1].number
            assert (await publisher.read(1)).get("domain/aliases", []) == [
                f"h{n}.example" for n in numbers
            ]
            await assert_consistent(store)
        await publisher.rollback(1, 1)
        assert len(cast(list[JSON], (await publisher.read(1))["domain/aliases"])) == 130
        await assert_consistent(store)

    @in_memory
    @pytest.mark.parametrize("how", ["stop", "before", "after"])
    @pytest.mark.parametrize("after", range(3))
    async def test_every_step_leaves_a_consistent_store(
        self, store: Store, publisher: Publisher, how: str, after: int
    ):
        aliases: list[JSON] = [f"h{n}.example" for n in range(250)]
        document = parse(
            {"id": 1, "meta": {"code": "x", "name": "x"}, "domain": {"aliases": aliases}}
        )
        interrupted = with_faults(store, after, how)
        if how == "stop":
            with pytest.raises(Stopped):
                await interrupted.apply(document)
            await assert_consistent(store)
            await publisher.apply(document)
        else:
            assert (await interrupted.apply(document)).transactions == 3
        assert (await publisher.read(1))["domain/aliases"] == aliases
        assert len(await publisher.history(1)) == (2 if how == "stop" and after else 1)
        await assert_consistent(store)

    @in_memory
    async def test_a_taken_host_stops_all_steps(self, store: Store, publisher: Publisher):
        await publisher.put(2, "domain/primary", "h249.example")
        before = await everything_of(store)
        aliases: list[JSON] = [f"h{n}.example" for n in range(250)]
        with pytest.raises(Taken, match="belongs to tenant 2"):
            await publisher.put(1, "domain/aliases", aliases)
        with pytest.raises(TooLarge, match="storage"):
            await publisher.apply(
                parse(
                    {
                        "id": 1,
                        "domain": {"aliases": aliases[:200]},
                        "storage": {"extra": {"x": "a" * 1_600_000}},
                    }
                )
            )
        assert await everything_of(store) == before

    @in_memory
    async def test_too_many_hosts_at_the_end_are_refused_at_the_start(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        before = await everything_of(store)
        long = ".".join(letter * 58 for letter in "abcd")
        oversized = parse(
            {
                "id": 1,
                "meta": {"code": "new", "name": "New"},
                "domain": {"aliases": [f"{long}.h{n}" for n in range(2500)]},
            }
        )
        for call in (publisher.diff, publisher.apply):
            with pytest.raises(TooLarge, match="domain"):
                await call(oversized)
        assert await everything_of(store) == before

    @in_memory
    @pytest.mark.parametrize("action", ["apply", "delete"])
    async def test_an_error_between_two_transactions_mentions_the_first(
        self, store: Store, publisher: Publisher, action: str
    ):
        await publisher.apply(parse(huge()))

        async def hook(number: int, go: Commit) -> Committed:
            if number == 2:
                raise Unavailable("the server is down")
            return await go()

        interrupted = hooked(store, hook)
        renamed = parse(huge(code="other"))
        with pytest.raises(OutcomeUnknown, match=r"tenant 1: only partly written.*server is down"):
            await (interrupted.delete(1) if action == "delete" else interrupted.apply(renamed))
        await (publisher.delete(1) if action == "delete" else publisher.apply(parse(huge())))
        await assert_consistent(store)

    @in_memory
    async def test_a_name_taken_between_two_transactions_is_reported(self, store: Store, caplog):
        other = Publisher(store, ring=RING)

        async def hook(number: int, go: Commit) -> Committed:
            if number == 2:
                await other.put(2, "ftp/user61", {})
            return await go()

        with pytest.raises(Taken, match="'user61' belongs to tenant 2") as error:
            await hooked(store, hook).apply(parse(huge()))
        assert "only partly written" in error.value.__notes__[0]
        assert "only partly written" in caplog.text

    @in_memory
    async def test_a_deletion_reports_the_number_of_transactions(
        self, store: Store, publisher: Publisher, caplog
    ):
        await publisher.apply(parse(huge()))
        newest = (await publisher.history(1))[-1].number
        count = 0

        async def hook(number: int, go: Commit) -> Committed:
            nonlocal count
            count = number
            return await go()

        done = await hooked(store, hook).delete(1)
        assert done.transactions == count > 2
        assert done.number - 1 == newest
        assert f"written in {count}" in caplog.text

    async def test_a_value_too_large_for_any_store_is_refused(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1))
        before = await everything_of(store)
        oversized = huge()
        oversized["storage"] = {"extra": {"x": "a" * 1_600_000}}
        with pytest.raises(TooLarge, match="tenant 1: storage is larger"):
            await publisher.apply(parse(oversized))
        with pytest.raises(TooLarge):
            await publisher.diff(parse(oversized))
        assert await everything_of(store) == before

    @pytest.mark.parametrize("raw", [b'{"token":"%s"}', b'{"x":"%s"}', b"{%s"])
    async def test_oversized_values_of_other_programs_can_be_replaced_and_deleted(
        self, store: Store, publisher: Publisher, raw: bytes
    ):
        for tenant in (1, 2):
            await store.commit(Put(KEYS.part(tenant, "storage"), raw % (b"x" * 1_400_000)))
        await publisher.put(1, "storage", {"uploadQuotaGb": 1, "extra": {"x": None, "token": None}})
        assert (await publisher.read(1))["storage"] == {"tenantId": 1, "uploadQuotaGb": 1}
        await publisher.delete(2)
        assert await publisher.read(2) == {}
        await publisher.rollback(2, 0)
        assert await publisher.read(2) == {}

    async def test_a_value_that_fits_in_a_commit_fits_with_its_history(
        self, store: Store, publisher: Publisher
    ):
        """Every value that passes the estimate fits the store, including secrets."""
        for n, extra in enumerate(
            (
                {"x": "a" * 690_000},
                {f"token{n}": "x" for n in range(2000)},
                {"token": "x" * 300_000},
                {"x": "\x00" * 80_000},
                {"x": "默" * 80_000},
            )
        ):
            await publisher.put(100 + n, "storage", {"extra": cast(JSON, extra)})
            await publisher.delete(100 + n)

    async def test_an_overtaken_split_publish_continues(self, store: Store):
        """Another publisher writes between its transactions: both results are stored at the end."""
        one, other = Publisher(store, ring=RING), Publisher(store, ring=RING)

        async def small() -> None:
            for n in range(10):
                await other.put(1, "storage", {"uploadQuotaGb": n})

        done, _ = await asyncio.gather(one.apply(parse(huge(200))), small())
        assert len({change.path for change in done.changes}) == 201
        assert (await other.read(1))["storage"] == {"tenantId": 1, "uploadQuotaGb": 9}
        await assert_consistent(store)


@in_memory
async def test_deleting_one_of_many_tenants_does_not_block_the_event_loop(
    store: Store, publisher: Publisher
):
    for some in range(100):
        numbers = range(some * 100 + 1, some * 100 + 101)
        await store.commit(
            *(Put(KEYS.index("by-code", f"c{number}"), b'{"id":%d}' % number) for number in numbers)
        )
    await publisher.put(50_000, "meta", {"code": "one", "name": "One"})
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with Tasks() as tasks:
        tasks.start(count(), name="turns")
        await publisher.delete(50_000)
    assert turns >= 40, "one for each 250 indexes"
