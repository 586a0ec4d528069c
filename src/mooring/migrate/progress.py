"""Works on many items in parallel and reports the progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from mooring.tasks import Tasks

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished items and the total."""

T = TypeVar("T")
R = TypeVar("R")

_PARALLEL = 16


def no_progress(done: int, total: int) -> None:
    """Ignores the progress."""


async def in_parallel(
    items: Sequence[T], work: Callable[[T], Awaitable[R]], progress: Progress = no_progress
) -> AsyncIterator[R]:
    """Yield the result for each item as it finishes."""
    tasks, waiting = Tasks(), list(reversed(items))
    results: asyncio.Queue[tuple[list[R], Exception | None]] = asyncio.Queue()

    async def run() -> None:
        while waiting:
            try:
                results.put_nowait(([await work(waiting.pop())], None))
            except Exception as error:  # noqa: BLE001 - raised below
                results.put_nowait(([], error))
                return

    try:
        for number in range(min(_PARALLEL, len(items))):
            tasks.start(run(), name=f"migration {number}")
        for done in range(1, len(items) + 1):
            result, error = await results.get()
            if error is not None:
                raise error
            progress(done, len(items))
            yield result[0]
    finally:
        await tasks.aclose()
