"""The only place that creates tasks: each has an owner, and a crash is never silent."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine

from mooring.formatting import quoted

log = logging.getLogger(__name__)

_AGAIN_AFTER = 5.0
"""Seconds after which what was cancelled and still runs is cancelled again. A cancellation can be
lost: in Python 3.11 `asyncio.wait_for` does it, in drivers. What runs in `cleanup` outlives it."""


class Tasks:
    """The background tasks of one owner. They end with it; one that crashes is logged at once."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[object]] = set()

    def start(self, work: Coroutine[object, object, object], *, name: str) -> asyncio.Task[object]:
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task %s crashed", quoted(task.get_name()), exc_info=error)

    async def aclose(self) -> None:
        """Cancel what still runs and wait for its end. A task may close its own owner."""
        mine = {task for task in self._running if task is not asyncio.current_task()}
        while mine:
            for task in mine:
                task.cancel()
            _, mine = await asyncio.wait(mine, timeout=_AGAIN_AFTER)


async def cleanup(work: Coroutine[object, object, object], *, within: float) -> bool:
    """Run `work` to its end, though the caller is cancelled meanwhile, for at most `within`.

    Returns whether it ended in time. Its own error is raised; a cancellation that arrived
    meanwhile is raised again afterwards.
    """
    task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
    deadline = asyncio.get_running_loop().time() + within
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            task.cancel()
        try:
            await asyncio.wait([task], timeout=max(left, 0.1))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # mark it as seen: the cancellation is what the caller must hear of
        raise cancelled
    if task.cancelled():
        return False
    task.result()
    return True


class Backoff:
    """Pauses between tries: full jitter below a bound that doubles from `first` up to `most`."""

    def __init__(self, first: float = 0.05, most: float = 1.0) -> None:
        self._first, self._most = first, most
        self._bound = first

    def reset(self) -> None:
        self._bound = self._first

    def next(self) -> float:
        pause = random.uniform(0, self._bound)
        self._bound = min(self._bound * 2, self._most)
        return pause
