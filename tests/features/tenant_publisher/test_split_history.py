"""A publish that took several transactions is one entry of the history."""

from __future__ import annotations

import pytest

from mooring.errors import NotConfigured
from mooring.store import Committed, Delete, Put, Store, key
from mooring.tenants.document import parse
from mooring.tenants.history import versions
from mooring.tenants.publish.publisher import Publisher
from tests.backends import in_memory
from tests.features.tenant_files import KEYS, Stopped, assert_consistent, document
from tests.features.tenant_publisher.support import (
    RING,
    USERS,
    Commit,
    hooked,
    huge,
    with_faults,
)


async def test_a_split_publish_is_one_entry_with_all_its_changes(
    store: Store, publisher: Publisher
):
    first = await publisher.apply(parse(huge()))
    second = await publisher.put(1, "storage", {"uploadQuotaGb": 5})
    third = await publisher.delete(1)
    assert first.transactions > 1
    assert third.transactions > 1
    assert (first.number, second.number, third.number) == (1, 2, 3)
    entries = await publisher.history(1)
    assert [entry.number for entry in entries] == [1, 2, 3]
    assert [len(entry.changes) for entry in entries] == [USERS + 1, 1, USERS + 2]
    assert not any(entry.more for entry in entries)
    assert versions(entries) == [0, 1, 2, 3]
    await publisher.rollback(1, 1)
    assert len(await publisher.read(1)) == USERS + 1
    await publisher.rollback(1, 0)
    assert await publisher.read(1) == {}
    await assert_consistent(store)


@in_memory
async def test_steps_of_one_part_are_one_change(store: Store, publisher: Publisher):
    """Aliases are written in steps: the entry shows their values before and after all of them."""
    aliases = [f"h{n}.example" for n in range(250)]
    done = await publisher.put(1, "domain/aliases", list(aliases))
    assert done.transactions > 2
    (entry,) = await publisher.history(1)
    (change,) = entry.changes
    assert (change.path, change.before, change.after) == ("domain/aliases", None, aliases)
    await publisher.rollback(1, 0)
    assert await publisher.read(1) == {}


@in_memory
@pytest.mark.parametrize("action", ["publish", "delete"])
async def test_a_rollback_never_stops_at_an_interrupted_step(
    store: Store, publisher: Publisher, action: str
):
    before = dict(await _there(publisher, action))
    base = len(await publisher.history(1))
    total = (await _go(publisher, action)).transactions
    await publisher.rollback(1, base)
    for after in range(1, total):
        base = (await publisher.history(1))[-1].number
        with pytest.raises(Stopped):
            await _go(with_faults(store, after, "stop"), action)
        entries = await publisher.history(1)
        assert (entries[-1].number, entries[-1].more) == (base + 1, True)
        with pytest.raises(NotConfigured, match=f"in the middle of a publish.*near it: {base}\\)"):
            await publisher.rollback(1, base + 1)
        with pytest.raises(NotConfigured, match="in the middle of a publish"):
            await publisher.diff_rollback(1, base + 1)
        if after % 2:  # do it again, then undo both
            await _go(publisher, action)
            message = f"in the middle.*near it: {base}, {base + 2}"
            with pytest.raises(NotConfigured, match=message):
                await publisher.rollback(1, base + 1)
        await publisher.rollback(1, base)
        assert await publisher.read(1) == before
        await assert_consistent(store)


async def _there(publisher: Publisher, action: str) -> dict[str, object]:
    if action == "delete":
        await publisher.apply(parse(huge()))
    else:
        await publisher.apply(document(1, "huge"))
    return dict(await publisher.read(1))


async def _go(publisher: Publisher, action: str):
    if action == "delete":
        return await publisher.delete(1)
    return await publisher.apply(parse(huge()))


async def test_a_rollback_does_not_stop_at_a_publish_in_between(store: Store):
    one, other = Publisher(store, ring=RING), Publisher(store, ring=RING)
    await one.put(1, "storage", {"uploadQuotaGb": 1})

    async def hook(number: int, go: Commit) -> Committed:
        if number == 2:
            await other.put(1, "storage", {"uploadQuotaGb": 2})
        return await go()

    done = await hooked(store, hook).apply(parse(huge()))
    assert done.number == 4
    assert [entry.number for entry in await one.history(1)] == [1, 2, 3, 4]
    for number in (2, 3):
        with pytest.raises(NotConfigured, match=r"in the middle.*near it: 1, 4"):
            await one.rollback(1, number)
    await one.rollback(1, 1)
    assert await one.read(1) == {"storage": {"tenantId": 1, "uploadQuotaGb": 1}}
    await one.rollback(1, 4)
    assert len(await one.read(1)) == USERS + 2
    await assert_consistent(store)


@in_memory
async def test_a_split_publish_is_trimmed_as_a_whole_and_counts_once(store: Store):
    publisher = Publisher(store, ring=RING, keep=3)
    await publisher.apply(parse(huge()))
    for n in range(2):
        await publisher.put(1, "storage", {"uploadQuotaGb": n})
    assert [entry.number for entry in await publisher.history(1)] == [1, 2, 3]
    await publisher.put(1, "storage", {"uploadQuotaGb": 3})
    snapshot = await store.read(KEYS.history_of(1), keys_only=True)
    assert {KEYS.history_number(entry.key) for entry in snapshot.entries} == {0, 2, 3, 4}
    assert versions(await publisher.history(1)) == [1, 2, 3, 4]


@in_memory
async def test_an_interruption_is_still_known_after_trimming(store: Store, publisher: Publisher):
    with pytest.raises(Stopped):
        await with_faults(store, 1, "stop").apply(parse(huge()))
    strict = Publisher(store, ring=RING, keep=1)
    await strict.put(1, "storage", {"uploadQuotaGb": 1})
    assert [entry.number for entry in await publisher.history(1)] == [2]
    with pytest.raises(NotConfigured, match=r"in the middle of a publish.*near it: 2"):
        await publisher.rollback(1, 1)


@in_memory
@pytest.mark.parametrize("how", ["missing", "damaged"])
async def test_a_missing_page_makes_the_history_incomplete(
    store: Store, publisher: Publisher, how: str
):
    await publisher.apply(parse(huge()))
    await publisher.put(1, "storage", {"uploadQuotaGb": 1})
    page = KEYS.history(1, 1, 2)
    await store.commit(Delete(key(page)) if how == "missing" else Put(page, b"{broken"))
    assert [entry.number for entry in await publisher.history(1)] == [1, 2]
    with pytest.raises(NotConfigured, match="missing or unreadable"):
        await publisher.rollback(1, 0)
    await publisher.rollback(1, 1)
