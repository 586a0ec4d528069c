"""The portal: an event loop in a daemon thread, and threads that wait for what runs there."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context, ContextVar, copy_context
from typing import Any, Generic, TypeVar

from mooring.errors import Closed, InvalidRequest
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

T = TypeVar("T")

EXIT_WITHIN = 5.0
"""Seconds that the end of the interpreter waits for what was not closed."""
_GIVE_UP = 5.0  # seconds that an interrupted caller waits for the end of what it cancelled
_END = 2.0  # seconds for what still runs to end when the loop does

_deadline: ContextVar[float | None] = ContextVar("deadline of blocking calls", default=None)


@contextlib.contextmanager
def timeout(seconds: float) -> Iterator[None]:
    """Bound every blocking call of this thread within: what is not done by then is cancelled and
    raises `TimeoutError`. May be nested; the earliest counts."""
    ends, outer = time.monotonic() + seconds, _deadline.get()
    with _until(ends if outer is None else min(ends, outer)):
        yield


def cleaning() -> contextlib.AbstractContextManager[None]:
    """Calls within are cleanup: they have their own bounds, and no deadline cuts them short."""
    return _until(None)


@contextlib.contextmanager
def _until(deadline: float | None) -> Iterator[None]:
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


class Portal:
    """Opens and closes one resource (a hub) together with the loop that it lives on.

    Where nobody calls `close`, the interpreter's end does, for a few seconds at most. In a forked
    child the portal is closed: its thread stayed with the parent.
    """

    def __init__(
        self,
        name: str,
        enter: Callable[[], Awaitable[object]],
        leave: Callable[[], Awaitable[object]],
    ) -> None:
        self.name = name
        self._enter, self._leave = enter, leave
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()
        self._calls: set[_Call[Any]] = set()
        self._process = os.getpid()
        _portals.add(self)

    @property
    def running(self) -> bool:
        """Whether it can be called from this process."""
        return self._loop is not None and self._process == os.getpid()

    def open(self) -> None:
        """Start the loop and enter the resource, where that was not done yet. Raises what entering
        raises."""
        with self._changing:
            if self.running:
                return
            if self._loop is not None:
                raise self._forked()
            self._start()
            try:
                self.call(self._enter, undo=self._leave)
            except BaseException:
                self._end()
                raise
            atexit.register(self._at_exit)

    def close(self, *, within: float | None = None) -> None:
        """Leave the resource and end the loop. Calls that are under way raise `Closed`.
        Idempotent. Raises `TimeoutError` where leaving is not done `within` so many seconds."""
        if not self._changing.acquire(timeout=-1 if within is None else within):
            raise TimeoutError("another thread is at it")
        try:
            if not self.running:
                return
            atexit.unregister(self._at_exit)
            try:
                with _until(None if within is None else time.monotonic() + within):
                    self.call(self._leave)
            finally:
                self._end()
        finally:
            self._changing.release()

    def _at_exit(self) -> None:
        """The interpreter ends, and nobody closed it."""
        try:
            self.close(within=EXIT_WITHIN)
        except Exception as error:  # noqa: BLE001 - an exit handler has nobody to raise it to
            log.warning("%s: not closed in order at the end of the process: %s", self.name, error)

    def _start(self) -> None:
        ready: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._process = os.getpid()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name=f"mooring {self.name}", daemon=True
        )
        self._thread.start()
        self._loop = ready.result()

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        assert self._thread is not None
        loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(2 * _END)
        self._refuse_the_rest()

    def _refuse_the_rest(self) -> None:
        """Nobody waits for a loop that has ended."""
        for call in self._calls.copy():
            call.refuse()

    def _run(self, ready: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        # Not `asyncio.run`: that waits without end for threads of the loop's executor.
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._serve(ready))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
            self._refuse_the_rest()

    async def _serve(self, ready: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        self._tasks, self._stop = Tasks(), asyncio.Event()
        ready.set_result(asyncio.get_running_loop())
        await self._stop.wait()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_END)

    def call(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        undo: Callable[[], Awaitable[object]] | None = None,
        caller: Caller | None = None,
    ) -> T:
        """Run a coroutine function on the loop, to its end; its result or error.

        A caller that is interrupted (Ctrl-C, a deadline) cancels the work, and waits a few seconds
        for it to end. Work that was done all the same is undone by `undo`, where that is given.
        """
        loop = self._reach()
        caller = caller or Caller()
        call = _Call(self.name, work, caller)
        self._calls.add(call)
        try:
            if not _post(loop, call.begin, self._tasks, context=copy_context()):
                call.refuse()
            caller.wait()
        except BaseException:
            _post(loop, call.cancel)
            concurrent.futures.wait([call.answer], timeout=_GIVE_UP)
            if undo is not None and call.succeeded:
                with cleaning():
                    self.call(undo)
            raise
        finally:
            self._calls.discard(call)
        return call.answer.result()

    def post(self, work: Callable[[], object]) -> None:
        """Run a plain function on the loop, and do not wait for it. Nothing where it is closed."""
        loop = self._loop
        if loop is not None and self._process == os.getpid():
            _post(loop, work)

    def _reach(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None:
            raise Closed(f"{self.name} is not open: use `with mooring.sync.connect(…) as hub`")
        if self._process != os.getpid():
            raise self._forked()
        if threading.current_thread() is self._thread:
            raise InvalidRequest(
                f"{self.name}: a blocking call on the portal's own thread would wait for itself "
                "for ever: callbacks hand such work to another thread"
            )
        return loop

    def _forked(self) -> Closed:
        return Closed(f"{self.name} was opened before a fork: connect again in this process")


def _post(
    loop: asyncio.AbstractEventLoop,
    work: Callable[..., object],
    *args: object,
    context: Context | None = None,
) -> bool:
    """Call something on a loop; whether that loop is not closed."""
    try:
        loop.call_soon_threadsafe(work, *args, context=context)
    except RuntimeError:
        return False
    return True


class Caller:
    """A thread that waits for an answer, and meanwhile does what is asked of it."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def wait(self) -> None:
        """Wait for the answer. Raises `TimeoutError` when this thread's time is over."""
        while True:
            try:
                asked = self._inbox.get(timeout=_left())
            except queue.Empty:
                raise TimeoutError("the time for this blocking call is over") from None
            if asked is None:
                return
            asked()

    def answered(self) -> None:
        self._inbox.put(None)

    async def do(self, function: Callable[..., T], *args: object) -> T:
        """On the loop: let the waiting thread call a function; its result or error."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def here() -> None:
            try:
                settle = functools.partial(done.set_result, function(*args))
            except Exception as error:  # noqa: BLE001 - handed on whole, to who asked for it
                settle = functools.partial(done.set_exception, error)
            _post(loop, lambda: done.done() or settle())

        self._inbox.put(here)
        return await done


class _Call(Generic[T]):
    """One function on its way through a portal."""

    def __init__(self, name: str, work: Callable[[], Awaitable[T]], caller: Caller) -> None:
        self.answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._name, self._work, self._caller = name, work, caller
        self._task: asyncio.Task[object] | None = None

    @property
    def succeeded(self) -> bool:
        return self.answer.done() and self.answer.exception() is None

    def refuse(self) -> None:
        """The loop ended before the work did. Nothing where there is an answer already."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.answer.set_exception(Closed(f"{self._name} was closed during the call"))
        self._caller.answered()

    # What follows runs on the loop.

    def begin(self, tasks: Tasks) -> None:
        self._task = tasks.start(self._run(), name=f"blocking call of {self._name}")

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            result = await self._work()
        except asyncio.CancelledError:
            self.refuse()
            raise
        except BaseException as error:  # noqa: BLE001 - handed on whole, to who waits for it
            self.answer.set_exception(error)
        else:
            self.answer.set_result(result)
        self._caller.answered()


def _left() -> float | None:
    """Seconds that this thread's calls have."""
    ends = _deadline.get()
    return None if ends is None else max(ends - time.monotonic(), 0.0)


_portals: weakref.WeakSet[Portal] = weakref.WeakSet()
_inherited: list[object] = []


def _keep_inherited() -> None:
    """In a child: what the parent's portals hold is never let go.

    Collecting a loop, its tasks and its connections would run their cleanup, on sockets that the
    parent goes on using.
    """
    for portal in tuple(_portals):
        portal._changing = threading.Lock()  # it may have been held by a thread that is not here
        portal._calls = set()
        if portal._loop is not None:
            _inherited.append((portal, portal._loop))


os.register_at_fork(after_in_child=_keep_inherited)
