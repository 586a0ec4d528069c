"""The audit log of all servers: in the store, in order, bounded, and complete after outages."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.backends import open_store
from mooring.server.auth import audit_store
from mooring.server.auth.audit import Audit, AuditEntry
from mooring.server.auth.audit_store import AuditStore, surplus
from mooring.server.auth.data_dir import DataDir
from mooring.store import Put, Store, prefix
from tests.backends import USUAL, usual
from tests.waiting import eventually

ROOT = b"/mooring/audit/"


@pytest.fixture(params=usual(USUAL))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    async with open_store(store_url) as opened:
        yield opened


def audit_in(folder: Path) -> Audit:
    made = DataDir(folder)
    made.prepare()
    return Audit(made)


def entry(number: int, token: str = "t", **named: object) -> AuditEntry:
    fields = {"role": "operator", "status": 200, **named}
    id = f"{number:014x}0000"
    return AuditEntry(id=id, time="", actor=token, token=token, method="POST", path="/", **fields)  # type: ignore[arg-type]


async def read(
    store: AuditStore, limit: int = 1000, before: str = "", token: str = ""
) -> list[int]:
    entries = await store.read(
        limit=limit, before=before, matches=lambda candidate: not token or candidate.token == token
    )
    return [int(entry_.id[:14], 16) for entry_ in entries]


async def test_entries_of_all_servers_are_read_in_order_on_each(store: Store, tmp_path: Path):
    one, other = audit_in(tmp_path / "one"), audit_in(tmp_path / "other")
    async with AuditStore(store, one) as here, AuditStore(store, other) as other_store:
        for number in range(1, 301):
            role, status = "operator" if number % 3 else "viewer", 200 if number % 7 else 403
            made = entry(number, "ab"[number % 2], role=role, status=status)
            (one, other)[number % 2].append(made)
        await store.commit(Put(b"/mooring/audit/done/nonsense", b""))
        await store.commit(Put(b"/mooring/audit/done/0/t", b"nonsense"))
        for reader in (here, other_store):
            await _has(reader, list(range(300, 0, -1)))
        assert await read(here, limit=3) == [300, 299, 298]
        assert await read(here, limit=3, before=entry(298).id) == [297, 296, 295]
        assert await read(other_store, limit=3, token="a") == [300, 298, 296]


async def test_entries_written_during_an_outage_are_stored_later(store: Store, tmp_path: Path):
    audit = audit_in(tmp_path)
    for number in (1, 2, 3):
        audit.append(entry(number))
    async with AuditStore(store, audit) as here:
        await _has(here, [3, 2, 1])
        await eventually(lambda: not here._waiting and not here._incomplete)
        assert len((await store.read(prefix(b"/mooring/audit/"))).entries) == 3
    audit.append(entry(4))
    async with AuditStore(store, audit) as here:
        await _has(here, [4, 3, 2, 1])


async def test_a_flood_of_one_token_removes_no_entries_of_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(audit_store, "KEPT", 20)
    monkeypatch.setattr(audit_store, "_SLACK", 10)
    audit = audit_in(tmp_path)
    async with AuditStore(store, audit) as here:
        for number in range(1, 6):
            audit.append(entry(number, "careful"))
        for number in range(6, 500):
            audit.append(entry(number, "flood"))

        async def is_trimmed() -> bool:
            return not here._waiting and len(await read(here)) <= 30

        await eventually(is_trimmed)
        assert await read(here, token="careful") == [5, 4, 3, 2, 1]
        assert (await read(here))[0] == 499
    async with AuditStore(store, audit) as here:
        await eventually(lambda: not here._waiting and not here._incomplete)
        assert len(await read(here)) <= 30, "what was removed stays removed"
        assert await read(here, token="careful") == [5, 4, 3, 2, 1]


async def test_entries_that_the_store_dropped_are_not_written_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(audit_store, "KEPT", 10)
    monkeypatch.setattr(audit_store, "_SLACK", 1)
    audit, newer = audit_in(tmp_path / "one"), audit_in(tmp_path / "other")
    for number in range(1, 6):
        audit.append(entry(number))
    for number in range(101, 111):
        newer.append(entry(number))
    async with AuditStore(store, newer):
        await _holds(store, range(101, 111))
    before = (await store.read(prefix(ROOT))).revision
    async with AuditStore(store, audit):
        audit.append(entry(111))
        await _holds(store, range(102, 112))
    async with store.watch(prefix(ROOT), after=before) as watch:
        await store.commit(Put(b"/mooring/audit/end", b""))
        written: set[bytes] = set()
        async for batch in watch:
            written |= {event.key for event in batch.events if event.entry is not None}
            if b"/mooring/audit/end" in written:
                break
    assert {name.split(b"/")[-2] for name in written} == {entry(111).id.encode(), b"audit"}


async def test_entries_beyond_the_memory_limit_are_read_from_the_files(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(audit_store, "_MAX_WAITING", 10)
    audit = audit_in(tmp_path)
    async with AuditStore(store, audit) as here:
        await eventually(lambda: not here._incomplete and not here._waiting)
        for number in range(1, 51):
            audit.append(entry(number))
        assert len(here._waiting) == 10
        await _has(here, list(range(50, 0, -1)))


@given(st.lists(st.sampled_from("aaaaabbc"), max_size=60), st.integers(1, 30))
def test_the_tokens_with_the_most_entries_lose_their_oldest(tokens: list[str], most: int):
    names = [b"/mooring/audit/done/%06d/%s" % (i, t.encode()) for i, t in enumerate(tokens)]
    gone = surplus(names, most)
    kept = [name for name in names if name not in gone]
    assert len(set(gone)) == len(gone)
    assert len(kept) == min(most, len(names))
    before, after = Counter(tokens), Counter(name.rpartition(b"/")[2].decode() for name in kept)
    for token, number in before.items():
        if after[token] < number:
            assert after[token] >= max(after.values()) - 1, "only the largest are cut"
            own = [name for name in names if name.endswith(b"/" + token.encode())]
            assert [name for name in own if name in kept] == own[number - after[token] :]


async def _holds(store: Store, wanted: range) -> None:
    ids = {entry(number).id.encode() for number in wanted}

    async def holds() -> bool:
        names = [entry_.key for entry_ in (await store.read(prefix(ROOT), keys_only=True)).entries]
        return {name.split(b"/")[-2] for name in names} == ids

    await eventually(holds)


async def _has(reader: AuditStore, wanted: list[int]) -> None:
    async def has() -> bool:
        return await read(reader) == wanted

    await eventually(has)
