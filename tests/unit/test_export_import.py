"""Keys as JSON lines: an export can be imported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.backends import open_store
from mooring.errors import InvalidRequest
from mooring.store import Entry, Put, everything, prefix
from mooring.store.contract import MAX_OPERATIONS, MAX_REQUEST_BYTES
from mooring.store.export_import import batches_of, line_of, pages, puts_of

data = st.binary(max_size=50) | st.text(max_size=50).map(lambda text: text.encode())


@given(st.lists(st.tuples(data.filter(len), data)))
def test_keys_survive_export_and_import(pairs: list[tuple[bytes, bytes]]):
    lines = [line_of(Entry(key, value, 1, 1, 1)) for key, value in pairs]
    assert not any("\n" in line for line in lines)
    puts = [Put(key, value) for key, value in pairs]
    for end in ("\n", "\r\n"):
        assert list(puts_of(end.join([*lines, ""]))) == puts


def test_a_line_break_in_a_value_does_not_end_the_line():
    value = "a\x0b\x0c\x1c\x85\u2028\u2029b".encode()
    assert list(puts_of(line_of(Entry(b"/a", value, 1, 1, 1)))) == [Put(b"/a", value)]


def test_text_is_exported_readably():
    assert line_of(Entry("/服务".encode(), b"1", 1, 1, 1)) == '{"key": "/服务", "value": "1"}'


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        "1",
        '{"key": "a"}',
        '{"key": 1, "value": "x"}',
        '{"key_base64": "?"}',
        '{"key": "", "value": ""}',
        r'{"key": "\ud800", "value": ""}',
    ],
)
def test_an_invalid_line_is_named(line: str):
    with pytest.raises(InvalidRequest, match="line 2"):
        list(puts_of(f'{{"key": "/a", "value": ""}}\n{line}\n'))


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
        values = []
        async for entries in pages(store, prefix(b"/")):
            values += [entry.value for entry in entries]
            await store.commit(Put(b"/2499", b"new"))
        assert values == [b"old"] * 2500
        assert [e async for e in pages(store, everything())] != []
