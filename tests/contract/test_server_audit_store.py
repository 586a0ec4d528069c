"""The audit of all servers: in the store, in order, bounded, and nothing lost while it is away."""

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
    found = await store.read(
        limit=limit, before=before, matches=lambda each: not token or each.token == token
    )
    return [int(each.id[:14], 16) for each in found]


async def test_what_servers_write_is_read_on_each_in_order(store: Store, tmp_path: Path):
    one, other = audit_in(tmp_path / "one"), audit_in(tmp_path / "other")
    async with AuditStore(store, one) as here, AuditStore(store, other) as there:
        for number in range(1, 301):
            role, status = "operator" if number % 3 else "viewer", 200 if number % 7 else 403
            made = entry(number, "ab"[number % 2], role=role, status=status)
            (one, other)[number % 2].append(made)
        await store.commit(Put(b"/mooring/audit/done/nonsense", b""))
        await store.commit(Put(b"/mooring/audit/done/0/t", b"nonsense"))
        for reader in (here, there):
            await _has(reader, list(range(300, 0, -1)))
        assert await read(here, limit=3) == [300, 299, 298]
        assert await read(here, limit=3, before=entry(298).id) == [297, 296, 295]
        assert await read(there, limit=3, token="a") == [300, 298, 296]


async def test_what_was_written_while_the_store_was_away_comes_later(store: Store, tmp_path: Path):
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


async def test_a_flood_of_one_token_removes_nothing_of_others(
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


async def test_what_the_store_no_longer_keeps_is_not_put_back(
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


async def test_more_than_memory_holds_is_read_from_the_files(
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
        names = [found.key for found in (await store.read(prefix(ROOT), keys_only=True)).entries]
        return {name.split(b"/")[-2] for name in names} == ids

    await eventually(holds)


async def _has(reader: AuditStore, wanted: list[int]) -> None:
    async def has() -> bool:
        return await read(reader) == wanted

    await eventually(has)
