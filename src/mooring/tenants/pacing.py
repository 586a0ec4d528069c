"""Long work in slices: a generator that pauses now and then, and returns its outcome at the end.
Who runs it decides whether others have their turn in the pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

Paced = Generator[None, None, T]

_AT_ONCE = 250  # values or tenants before a pause: a few milliseconds


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """The same in pieces that are worth a pause."""
    rest = iter(items)
    while piece := list(islice(rest, _AT_ONCE)):
        yield piece


def at_once(work: Paced[T]) -> T:
    while True:
        try:
            next(work)
        except StopIteration as end:
            outcome: T = end.value
            return outcome


async def in_turns(work: Paced[T]) -> T:
    """Others have their turn in each pause."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        await asyncio.sleep(0)
