"""Exports a prefix as JSON lines, and imports them into a store.

    {"key": "/a", "value": "1"}
    {"key_base64": "/w==", "value_base64": "AAE="}

Text is written as it is, anything else as base64. Keys with a lease belong to a running process:
they are exported only on request, and imported without a lease.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator, Iterable, Iterator

from mooring.errors import InvalidRequest
from mooring.formatting import describe
from mooring.store.contract import MAX_OPERATIONS, MAX_REQUEST_BYTES, Entry, Put, Range, Store

_PAGE = 1000


async def pages(store: Store, range: Range) -> AsyncIterator[tuple[Entry, ...]]:
    """The entries of a range at one revision, in pages."""
    revision: int | None = None
    while True:
        page = await store.read(range, limit=_PAGE, at=revision)
        revision = page.revision
        if page.entries:
            yield page.entries
        if not page.more:
            return
        range = Range(page.entries[-1].key + b"\0", range.end)


def line_of(entry: Entry) -> str:
    fields = {**_field("key", entry.key), **_field("value", entry.value)}
    return json.dumps(fields, ensure_ascii=False)


def puts_of(text: str) -> Iterator[Put]:
    """Parse lines into writes. An error names the number of the invalid line."""
    # Not `splitlines`: it also splits at characters that JSON allows within strings.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                fields = json.loads(line)
                name, value = _bytes(fields, "key"), _bytes(fields, "value")
                if not name:
                    raise ValueError("its key is empty")
            except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
                raise InvalidRequest(
                    f"line {number} is not an exported key, {describe(error)}: it should be like "
                    '{"key": "/a", "value": "1"}'
                ) from error
            yield Put(name, value)


def batches_of(puts: Iterable[Put]) -> Iterator[list[Put]]:
    """Group writes into commits within the limits of every store."""
    batch: dict[bytes, Put] = {}
    size = 0
    for put in puts:
        more = len(put.key) + len(put.value)
        full = len(batch) == MAX_OPERATIONS or size + more > MAX_REQUEST_BYTES // 2
        if batch and (full or put.key in batch):
            yield list(batch.values())
            batch, size = {}, 0
        batch[put.key] = put
        size += more
    if batch:
        yield list(batch.values())


def _field(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _bytes(fields: dict[str, str], name: str) -> bytes:
    if name in fields:
        return fields[name].encode()
    return base64.b64decode(fields[f"{name}_base64"], validate=True)
