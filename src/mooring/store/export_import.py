"""A prefix as JSON lines, out of one store and into another.

    {"key": "/a", "value": "1"}
    {"key_base64": "/w==", "value_base64": "AAE="}

Text is written as it is, anything else as base64. Keys that hang on a lease belong to a living
process and are left out, unless they are asked for; they come back without a lease.
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
    """The entries of a range at one revision, some at a time."""
    revision: int | None = None
    while True:
        found = await store.read(range, limit=_PAGE, at=revision)
        revision = found.revision
        if found.entries:
            yield found.entries
        if not found.more:
            return
        range = Range(found.entries[-1].key + b"\0", range.end)


def line_of(entry: Entry) -> str:
    fields = {**_field("key", entry.key), **_field("value", entry.value)}
    return json.dumps(fields, ensure_ascii=False)


def puts_of(text: str) -> Iterator[Put]:
    """The writes that lines stand for; one that cannot be read is named by its number."""
    # Not `splitlines`: it finds line ends within values, which JSON does not.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                fields = json.loads(line)
                name, value = _bytes(fields, "key"), _bytes(fields, "value")
                if not name:
                    raise ValueError("its key is empty")
            except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
                raise InvalidRequest(
                    f"line {number} is no exported key, {describe(error)}: it should be like "
                    '{"key": "/a", "value": "1"}'
                ) from error
            yield Put(name, value)


def batches_of(puts: Iterable[Put]) -> Iterator[list[Put]]:
    """Commits that no store finds too large."""
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
