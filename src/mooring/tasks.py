"""The only module that calls `create_task`: each background task has an owner, and a crash is
logged. `in_thread` runs a call in a thread that cannot delay the exit of the process, `in_parallel`
works on many items. Long computations run in slices, so that they can share the event loop, and
`Schedule` waits for what is due next."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import random
import threading
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from itertools import islice
from typing import Generic, Self, TypeAlias, TypeVar

from mooring.formatting import quoted

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")

_CANCEL_AGAIN_AFTER = 5.0
"""Seconds after which a cancelled task that still runs is cancelled again. A cancellation can be
lost: `asyncio.wait_for` of Python 3.11 loses some, and drivers use it. Work in `cleanup` is not
cancelled."""


class Tasks:
    """The background tasks of one owner. They end with it; one that crashes is logged at once."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[object]] = set()

    def start(self, work: Coroutine[object, object, T], *, name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task %s crashed", quoted(task.get_name()), exc_info=error)

    async def aclose(self) -> None:
        """Cancel all tasks and wait for their end. A task may close its own owner."""
        others = {task for task in self._running if task is not asyncio.current_task()}
        while others:
            for task in others:
                task.cancel()
            _, others = await asyncio.wait(others, timeout=_CANCEL_AGAIN_AFTER)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def cleanup(work: Coroutine[object, object, object], *, within: float) -> bool:
    """Run `work` to its end even if the caller is cancelled, for at most `within` seconds.

    Returns whether it ended in time. Its own error is raised; a cancellation of the caller is
    raised again afterwards.
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
            task.exception()  # marks it as retrieved: the cancellation takes precedence
        raise cancelled
    if task.cancelled():
        return False
    task.result()
    return True


async def wait_for(event: asyncio.Event, *, within: float | None) -> bool:
    """Wait until an event is set, for at most `within` seconds. Returns whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()
    return event.is_set()


def in_thread(call: Callable[[], T], *, name: str) -> asyncio.Future[T | BaseException]:
    """Run a function in a daemon thread of its own. The result is what it returned or raised.

    Unlike the threads of an executor, such a thread is never joined: one that hangs delays neither
    the end of the loop nor that of the interpreter. An exception is delivered as a result, so that
    asyncio does not report it if the caller stopped waiting.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T | BaseException] = loop.create_future()

    def deliver(outcome: T | BaseException) -> None:
        if not future.done():
            future.set_result(outcome)

    def run() -> None:
        outcome: T | BaseException
        try:
            outcome = call()
        except BaseException as error:  # noqa: BLE001 - delivered as the result
            outcome = error
        try:
            loop.call_soon_threadsafe(deliver, outcome)
        except RuntimeError:
            return  # the loop was closed

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished items and the total."""

_PARALLEL = 16


def no_progress(done: int, total: int) -> None:
    """Ignores the progress."""


async def in_parallel(
    items: Sequence[T], work: Callable[[T], Awaitable[R]], progress: Progress = no_progress
) -> AsyncIterator[R]:
    """Work on up to 16 items at a time, and yield the result for each item as it finishes."""
    waiting = list(reversed(items))
    results: asyncio.Queue[R | Exception] = asyncio.Queue()

    async def run() -> None:
        while waiting:
            try:
                results.put_nowait(await work(waiting.pop()))
            except Exception as error:  # noqa: BLE001 - raised below
                return results.put_nowait(error)

    async with Tasks() as tasks:
        for number in range(min(_PARALLEL, len(items))):
            tasks.start(run(), name=f"parallel work {number}")
        for done in range(1, len(items) + 1):
            result = await results.get()
            if isinstance(result, Exception):
                raise result
            progress(done, len(items))
            yield result


def settle(future: asyncio.Future[T], result: T | Exception) -> None:
    """Resolve a future with a result or an error, unless it is done. An error counts as retrieved:
    the task that waited for it may have been cancelled."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
        future.exception()
    else:
        future.set_result(result)


class Backoff:
    """Pauses between attempts: full jitter below a limit that doubles from `first` to `most`."""

    def __init__(self, first: float = 0.05, most: float = 1.0) -> None:
        self._first, self._most = first, most
        self._limit = first

    def reset(self) -> None:
        self._limit = self._first

    def next(self) -> float:
        pause = random.uniform(0, self._limit)
        self._limit = min(self._limit * 2, self._most)
        return pause


SlicedWork = Generator[None, None, T]
"""A computation that yields between slices, and returns its result."""

_SLICE = 250  # values or tenants between two pauses: a few milliseconds


def slices(items: Iterable[T], size: int = _SLICE) -> Iterator[list[T]]:
    """The items in lists of this size: by default one that is worth a pause."""
    remaining = iter(items)
    while piece := list(islice(remaining, size)):
        yield piece


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


class Schedule(Generic[K]):
    """Keys, each with the time at which it is due next, in seconds of `time.monotonic`."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, K]] = []
        """An entry that differs from `_due` is obsolete."""
        self._due: dict[K, float] = {}
        self._wake = asyncio.Event()

    def plan(self, key: K, due: float) -> None:
        """Plan a key, unless it is due earlier anyway."""
        if self._due.get(key, due + 1) > due:
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
            self._wake.set()

    async def next(self) -> K:
        """Wait until a key is due, and remove it."""
        while True:
            while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
                heapq.heappop(self._heap)
            left = self._heap[0][0] - time.monotonic() if self._heap else None
            if left is not None and left <= 0:
                _, key = heapq.heappop(self._heap)
                del self._due[key]
                return key
            self._wake.clear()
            await wait_for(self._wake, within=left)
