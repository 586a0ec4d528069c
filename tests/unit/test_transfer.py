"""Keys as JSON lines: what goes out comes back in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest
from mooring.hub import open_store
from mooring.store import Entry, Put, everything, prefix
from mooring.store.contract import MAX_OPERATIONS, MAX_REQUEST_BYTES
from mooring.store.transfer import batches_of, line_of, pages, puts_of


@given(st.binary(min_size=1, max_size=50), st.binary(max_size=50))
def test_a_line_gives_its_key_back(key: bytes, value: bytes):
    line = line_of(Entry(key, value, 1, 1, 1))
    assert "\n" not in line
    assert list(puts_of([line])) == [Put(key, value)]


def test_text_is_readable_in_it():
    assert line_of(Entry("/服务".encode(), b"1", 1, 1, 1)) == '{"key": "/服务", "value": "1"}'


@pytest.mark.parametrize(
    "line", ["nonsense", "[]", '{"key": "a"}', '{"key": 1, "value": "x"}', '{"key_base64": "?"}']
)
def test_a_line_that_is_none_is_named(line: str):
    with pytest.raises(InvalidRequest, match="line 2"):
        list(puts_of(['{"key": "/a", "value": ""}', line]))


def test_batches_are_never_too_large_and_never_touch_a_key_twice():
    puts = [Put(b"/%d" % (n % 300), b"x" * 20_000) for n in range(1000)]
    batches = list(batches_of(puts))
    assert [put for batch in batches for put in batch] == puts
    for batch in batches:
        assert len(batch) <= MAX_OPERATIONS
        assert len({put.key for put in batch}) == len(batch)
        assert sum(len(put.value) for put in batch) < MAX_REQUEST_BYTES


async def test_pages_are_of_one_revision():
    async with open_store("memory://") as store:
        for start in range(0, 2500, 100):
            await store.commit(*(Put(b"/%04d" % n, b"old") for n in range(start, start + 100)))
        found = []
        async for entries in pages(store, prefix(b"/")):
            found += [entry.value for entry in entries]
            await store.commit(Put(b"/2499", b"new"))
        assert found == [b"old"] * 2500
        assert [e async for e in pages(store, everything())] != []
