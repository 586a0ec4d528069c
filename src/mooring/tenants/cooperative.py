"""Long computations in slices, so that they can share the event loop: generators that yield between
slices, and return their result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from mooring.store.contract import Entry, Range, Store

T = TypeVar("T")

SlicedWork = Generator[None, None, T]

_SLICE = 250  # values or tenants between two pauses: a few milliseconds
_PAGE = 10_000  # entries per read: etcd counts the whole range for each page


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """The items in lists that are large enough to be worth a pause."""
    remaining = iter(items)
    while piece := list(islice(remaining, _SLICE)):
        yield piece


async def read_in_slices(store: Store, range: Range) -> AsyncGenerator[list[Entry], None]:
    """The entries of a range, with a pause after each slice. Pages may have different
    revisions."""
    while True:
        page = await store.read(range, limit=_PAGE)
        for piece in slices(page.entries):
            yield piece
            await asyncio.sleep(0)
        if not page.more:
            return
        range = Range(page.entries[-1].key + b"\0", range.end)


def run_now(work: SlicedWork[T]) -> T:
    """The result of the work, without pauses."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


async def run_cooperatively(work: SlicedWork[T]) -> T:
    """The result of the work; other tasks run between its slices."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
