"""The event loop in a daemon thread that runs the async API for blocking callers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import os
import queue
import signal
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any, Generic, Protocol, TypeVar

from mooring.errors import Closed, InvalidRequest
from mooring.locks.held import CALLING_THREAD
from mooring.registry.shutdown import LINGER, SIGNAL_CHECK, close_on_sigterm, listening
from mooring.sync.loop_thread import END_TIMEOUT, LoopThread, loop_thread
from mooring.tasks import Tasks

log = logging.getLogger(__name__)


class BlockingRegistration(Protocol):
    def drain(self, *, grace: float, linger: float) -> object: ...


def until_stopped(
    *registrations: BlockingRegistration,
    grace: float = 10.0,
    linger: float = LINGER,
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
) -> signal.Signals:
    """Wait for a signal, then drain the registrations, as `mooring.until_stopped` does: mark them
    as draining, wait `linger` seconds, and deregister them. Stop the server afterwards. Draining
    takes at most two thirds of `grace` seconds. A second signal has its previous effect.

    Only for the main thread, since Python handles signals there.
    """
    if threading.current_thread() is not threading.main_thread():
        raise InvalidRequest("signals reach only the main thread: call until_stopped there")
    received: queue.SimpleQueue[signal.Signals] = queue.SimpleQueue()
    with listening(signals, received.put):  # `put` may interrupt `get`
        first = next_item(received)
    log.info("%s: leaving the registry, then stopping", first.name)
    if registrations:
        within = grace * 2 / 3
        with ThreadPoolExecutor(len(registrations), "mooring drain") as pool:
            for draining in [
                pool.submit(registration.drain, grace=within, linger=linger)
                for registration in registrations
            ]:
                draining.result()
    return first


T = TypeVar("T")

_CANCEL_TIMEOUT = 5.0  # seconds that an interrupted caller waits for the cancelled work

_deadline: ContextVar[float | None] = ContextVar("deadline of blocking calls", default=None)


@contextlib.contextmanager
def timeout(seconds: float) -> Iterator[None]:
    """Limit the blocking calls of this thread in the block: a call that is not done in time is
    cancelled and raises `TimeoutError`. May be nested; the earliest deadline applies."""
    ends, outer = time.monotonic() + seconds, _deadline.get()
    with until(ends if outer is None else min(ends, outer)):
        yield


@contextlib.contextmanager
def until(deadline: float | None) -> Iterator[None]:
    """Set the deadline; None for cleanup calls, which have their own limits."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


class Portal:
    """Opens and closes one resource (a hub) on the loop, and runs calls to it there. It is closed
    when the interpreter exits, within a few seconds. In a forked child it is closed: the thread of
    the loop stays in the parent."""

    def __init__(
        self,
        name: str,
        enter: Callable[[], Awaitable[object]],
        leave: Callable[[], Awaitable[object]],
    ) -> None:
        self.name = name
        self._enter, self._leave = enter, leave
        self._calls: _CallTasks | None = None
        self._outliving: _CallTasks | None = None
        self._change_lock = threading.RLock()
        self._changing = self._close_requested = False
        _portals.add(self)

    @property
    def running(self) -> bool:
        """Whether this process can call it."""
        return self._calls is not None and self._calls.process == os.getpid()

    @property
    def was_running(self) -> bool:
        """Whether it was opened in this process, so that calls with `outlives` work."""
        calls = self._outliving
        return calls is not None and calls.process == os.getpid() and not calls.thread.ended

    def open(self) -> None:
        """Enter the resource, unless it is entered already. Raises what entering raises, and
        `Closed` if a signal handler closes it meanwhile."""
        with self._change() as allowed:
            if not allowed:
                raise Closed(f"{self.name}: this signal handler interrupted its opening or closing")
            if self.running:
                return
            if self._calls is not None:
                raise self._forked()
            self._calls, self._outliving = _CallTasks(loop_thread()), _CallTasks(loop_thread())
            try:
                self.call(self._enter, undo=self._leave)
            except BaseException:
                self._end()
                raise
            _open.add(self)
            close_on_sigterm(self, self._calls.thread.loop)
            if self._close_requested:
                self._leave_resource()
                raise Closed(f"{self.name} was closed while it was opened")

    def close(self) -> None:
        """Leave the resource. Running calls raise `Closed`. Idempotent.

        In a signal handler that interrupted `open` or `close`, it returns at once, and the
        interrupted call closes the resource.
        """
        with self._change() as allowed:
            if not allowed:
                self._close_requested = True
            elif self.running:
                self._leave_resource()

    @contextlib.contextmanager
    def _change(self) -> Iterator[bool]:
        """One thread at a time. Yields False in a signal handler that interrupted a change."""
        with self._change_lock:
            if self._changing:
                yield False
                return
            try:
                self._changing, self._close_requested = True, False
                yield True
            finally:
                self._changing = False

    def _leave_resource(self) -> None:
        try:
            with until(None):
                self.call(self._leave)
        finally:
            self._end()

    async def aclose(self) -> None:
        """Leave the resource, on the loop, regardless of other threads."""
        await self._leave()

    def _end(self) -> None:
        _open.discard(self)
        calls, self._calls = self._calls, None
        assert calls is not None
        ended = asyncio.run_coroutine_threadsafe(calls.aclose(), calls.thread.loop)
        concurrent.futures.wait([ended], timeout=END_TIMEOUT)

    def call(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        undo: Callable[[], Awaitable[object]] | None = None,
        caller: Caller | None = None,
        outlives: bool = False,
    ) -> T:
        """Run a coroutine function on the loop, and return its result or raise its error.

        An interrupted caller (Ctrl-C, a deadline) cancels the work. If the work completes
        nevertheless, `undo` is called. The caller waits a few seconds for that; it continues in
        the background.

        Closing cancels running calls, and later calls raise `Closed`. Calls with `outlives` are
        exempt: they are short, or have their own limits.
        """
        calls = self._require(self._outliving if outlives else self._calls)
        caller = caller or Caller()
        call = _Call(self.name, work, caller, undo)
        context = copy_context()
        context.run(CALLING_THREAD.set, threading.current_thread())
        try:
            calls.thread.post(calls.begin, call, context=context)
            caller.wait()
            return call.result.result()
        except BaseException:
            if not call.failed:
                calls.thread.post(call.abandon, context=context)
                concurrent.futures.wait([call.abandoned], timeout=_CANCEL_TIMEOUT)
            raise

    def post(self, work: Callable[[], object]) -> None:
        """Run a plain function on the loop without waiting for it. Does nothing if closed."""
        calls = self._calls
        if calls is not None and calls.process == os.getpid():
            calls.thread.post(work)

    def _require(self, calls: _CallTasks | None) -> _CallTasks:
        if calls is None or calls.thread.ended:
            raise Closed(f"{self.name} is not open: use `with mooring.sync.connect(…) as hub`")
        if calls.process != os.getpid():
            raise self._forked()
        if calls.thread.is_current:
            raise InvalidRequest(
                f"{self.name}: a blocking call in a callback would wait for itself forever: "
                "make it in another thread"
            )
        return calls

    def _forked(self) -> Closed:
        return Closed(f"{self.name} was opened before a fork: connect again in this process")


class _CallTasks:
    """The calls of one open portal. Its methods run on the loop."""

    def __init__(self, thread: LoopThread) -> None:
        self.thread, self.process = thread, thread.process
        self._tasks = Tasks()
        self._closed = False

    def begin(self, call: _Call[Any]) -> None:
        if self._closed:
            call.refuse()
        else:
            call.begin(self._tasks)

    async def aclose(self) -> None:
        self._closed = True
        await self._tasks.aclose()


class Caller:
    """A thread that waits for the result of a call, and runs functions for the loop meanwhile."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def wait(self) -> None:
        """Wait for the result. Raises `TimeoutError` at the deadline of this thread."""
        while (function := next_item(self._inbox)) is not None:
            function()

    def notify(self) -> None:
        self._inbox.put(None)

    async def do(self, function: Callable[..., T], *args: object) -> T:
        """Call a function in the waiting thread. Returns its result or raises its error."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def here() -> None:
            try:
                settle = functools.partial(done.set_result, function(*args))
            except Exception as error:  # noqa: BLE001 - raised on the loop
                settle = functools.partial(done.set_exception, error)
            loop.call_soon_threadsafe(lambda: done.done() or settle())

        self._inbox.put(here)
        return await done


class _Call(Generic[T]):
    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[T]],
        caller: Caller,
        undo: Callable[[], Awaitable[object]] | None,
    ) -> None:
        self.result: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.abandoned: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done when an abandoned call has ended and is undone."""
        self._name, self._work, self._caller, self._undo = name, work, caller, undo
        self._tasks: Tasks
        self._task: asyncio.Task[object] | None = None

    @property
    def failed(self) -> bool:
        return self.result.done() and self.result.exception() is not None

    # The methods below run on the loop.

    def refuse(self) -> None:
        """The portal is closed."""
        self.result.set_exception(Closed(f"{self._name} was closed during the call"))
        self._caller.notify()

    def begin(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._task = tasks.start(self._run(), name=f"blocking call of {self._name}")
        self._task.add_done_callback(self._ended)

    def abandon(self) -> None:
        """Cancel the call, since its caller has gone, and undo it if it completes nevertheless."""
        if self._task is None:
            self.abandoned.set_result(None)
        else:
            self._task.cancel()
            self._task.add_done_callback(self._undo_result)

    async def _run(self) -> None:
        try:
            result = await self._work()
        except asyncio.CancelledError:
            self.refuse()
            raise
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            self.result.set_exception(error)
        else:
            self.result.set_result(result)
        self._caller.notify()

    def _ended(self, _: object) -> None:
        if not self.result.done():  # cancelled before its first step
            self.refuse()

    def _undo_result(self, _: object) -> None:
        if self._undo is None or self.failed:
            self.abandoned.set_result(None)
            return
        undoing = self._tasks.start(
            self._run_undo(self._undo), name=f"undoing a call of {self._name}"
        )
        undoing.add_done_callback(lambda _: self.abandoned.set_result(None))

    async def _run_undo(self, undo: Callable[[], Awaitable[object]]) -> None:
        try:
            await undo()
        except Exception as error:  # noqa: BLE001 - the caller gets its interruption only
            log.warning(
                "%s: a call that completed too late could not be undone: %s", self._name, error
            )


def next_item(items: queue.SimpleQueue[T]) -> T:
    """Wait for an item. Raises `TimeoutError` at the deadline of this thread.

    Signal handlers run meanwhile, even for signals that do not wake the main thread.
    """
    in_main = threading.current_thread() is threading.main_thread()
    ends = _deadline.get()
    while True:
        left = None if ends is None else max(ends - time.monotonic(), 0.0)
        if in_main:
            left = SIGNAL_CHECK if left is None else min(left, SIGNAL_CHECK)
        with contextlib.suppress(queue.Empty):
            return items.get(timeout=left)
        if ends is not None and time.monotonic() >= ends:
            raise TimeoutError("the deadline of this blocking call has passed")


_portals: weakref.WeakSet[Portal] = weakref.WeakSet()
_open: set[Portal] = set()
"""Strong references, so that open portals are closed when the process ends."""
_inherited: list[Portal] = []


def _reset_after_fork() -> None:
    """Close all portals in a forked child, but keep references to them, as to the loop."""
    _inherited.extend(_portals)
    _open.clear()
    for portal in tuple(_portals):
        # A thread of the parent may hold the lock.
        portal._change_lock, portal._changing = threading.RLock(), False


os.register_at_fork(after_in_child=_reset_after_fork)
