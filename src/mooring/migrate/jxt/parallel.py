"""Work on many things at once, and how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from mooring.tasks import Tasks

Progress: TypeAlias = Callable[[int, int], None]
T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 16
"""Items that are worked on at once."""


def silent(done: int, total: int) -> None:
    """Nobody wants to know."""


async def each(
    items: Sequence[T], work: Callable[[T], Awaitable[R]], progress: Progress
) -> AsyncIterator[R]:
    """What work on each item gives, some at once, as it is done."""
    tasks, waiting = Tasks(), list(reversed(items))
    ready: asyncio.Queue[tuple[list[R], Exception | None]] = asyncio.Queue()

    async def go() -> None:
        while waiting:
            try:
                ready.put_nowait(([await work(waiting.pop())], None))
            except Exception as error:  # noqa: BLE001 - it is raised below
                ready.put_nowait(([], error))
                return

    try:
        for number in range(min(_AT_ONCE, len(items))):
            tasks.start(go(), name=f"migration {number}")
        for done in range(1, len(items) + 1):
            results, error = await ready.get()
            if error is not None:
                raise error
            progress(done, len(items))
            yield results[0]
    finally:
        await tasks.aclose()
