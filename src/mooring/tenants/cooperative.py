"""Long work in slices: a generator that pauses now and then, and returns its outcome at the end.
Who runs it decides whether others have their turn in the pauses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from mooring.store.contract import Entry, Range, Store

T = TypeVar("T")

SlicedWork = Generator[None, None, T]

_AT_ONCE = 250  # values or tenants before a pause: a few milliseconds
_PAGE = 10_000  # entries that are read at a time: etcd counts the whole range for each page


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """The same in pieces that are worth a pause."""
    rest = iter(items)
    while piece := list(islice(rest, _AT_ONCE)):
        yield piece


async def read_in_slices(store: Store, range: Range) -> AsyncGenerator[list[Entry], None]:
    """What a range holds, in pieces with a pause after each. A page is as it was when it was read,
    so the pages may be of different revisions."""
    while True:
        page = await store.read(range, limit=_PAGE)
        for piece in slices(page.entries):
            yield piece
            await asyncio.sleep(0)
        if not page.more:
            return
        range = Range(page.entries[-1].key + b"\0", range.end)


def run_now(work: SlicedWork[T]) -> T:
    while True:
        try:
            next(work)
        except StopIteration as end:
            outcome: T = end.value
            return outcome


async def run_cooperatively(work: SlicedWork[T]) -> T:
    """Others have their turn in each pause."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        await asyncio.sleep(0)
