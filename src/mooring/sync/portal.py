"""The event loop in a daemon thread that runs the async API for blocking callers."""

from __future__ import annotations

import asyncio
import atexit
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
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mooring.errors import Closed, InvalidRequest
from mooring.locks.held import CALLING_THREAD
from mooring.registry.shutdown import LINGER, SIGNAL_CHECK, close_all, close_on_sigterm, listening
from mooring.tasks import Tasks

if TYPE_CHECKING:
    import mooring.sync


log = logging.getLogger(__name__)


def until_stopped(
    *registrations: mooring.sync.Registration,
    grace: float = 10.0,
    linger: float = LINGER,
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
) -> signal.Signals:
    """Wait for a signal, then drain, as `mooring.until_stopped` does: mark the registrations
    draining, keep them so for `linger` seconds, and deregister them. Then stop the server. It
    takes two thirds of `grace` seconds at most. Another signal has the effect that it had before.

    Only in the main thread, since Python handles signals in no other.
    """
    if threading.current_thread() is not threading.main_thread():
        raise InvalidRequest("signals reach the main thread only: call until_stopped there")
    received: queue.SimpleQueue[signal.Signals] = queue.SimpleQueue()
    with listening(signals, received.put):  # a handler may interrupt its `get`
        first = next_item(received)
    log.info("%s: leaving the registry, then stopping", first.name)
    if registrations:
        within = grace * 2 / 3
        with ThreadPoolExecutor(len(registrations), "mooring drain") as pool:
            for draining in [
                pool.submit(each.drain, grace=within, linger=linger) for each in registrations
            ]:
                draining.result()
    return first


T = TypeVar("T")

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
    """Opens and closes one resource (a hub) on the loop, and runs calls to it there.

    Where nobody calls `close`, the interpreter's end does, for a few seconds at most. In a forked
    child the portal is closed: the loop's thread stayed with the parent.
    """

    def __init__(
        self,
        name: str,
        enter: Callable[[], Awaitable[object]],
        leave: Callable[[], Awaitable[object]],
    ) -> None:
        self.name = name
        self._enter, self._leave = enter, leave
        self._calls: _Calls | None = None
        self._outliving: _Calls | None = None
        self._changing = threading.RLock()
        self._under_way = self._unwanted = False
        _portals.add(self)

    @property
    def running(self) -> bool:
        """Whether it can be called from this process."""
        return self._calls is not None and self._calls.process == os.getpid()

    @property
    def was_running(self) -> bool:
        """Whether it was opened in this process, and what `outlives` it can be called."""
        calls = self._outliving
        return calls is not None and calls.process == os.getpid() and not calls.thread.ended

    def open(self) -> None:
        """Enter the resource, where that was not done yet. Raises what entering raises, and
        `Closed` where a signal handler closed it meanwhile."""
        with self._change() as mine:
            if not mine:
                raise Closed(f"{self.name} is being opened or closed by what this interrupted")
            if self.running:
                return
            if self._calls is not None:
                raise self._forked()
            self._calls, self._outliving = _Calls(loop_thread()), _Calls(loop_thread())
            try:
                self.call(self._enter, undo=self._leave)
            except BaseException:
                self._end()
                raise
            _open.add(self)
            close_on_sigterm(self, self._calls.thread.loop)
            if self._unwanted:
                self._leave_it()
                raise Closed(f"{self.name} was closed while it was opened")

    def close(self, *, within: float | None = None) -> None:
        """Leave the resource. Calls that are under way raise `Closed`. Idempotent. Raises
        `TimeoutError` where leaving is not done `within` so many seconds.

        In a signal handler that interrupted `open` or `close` it returns at once: they see to it.
        """
        with self._change(within) as mine:
            if not mine:
                self._unwanted = True
            elif self.running:
                self._leave_it(within)

    @contextlib.contextmanager
    def _change(self, within: float | None = None) -> Iterator[bool]:
        """One thread at a time opens or closes. Whether it is not at that already: a signal handler
        may come in between, and must not wait for what it interrupted."""
        if not self._changing.acquire(timeout=-1 if within is None else within):
            raise TimeoutError("another thread is at it")
        try:
            if self._under_way:
                yield False
                return
            try:
                self._under_way, self._unwanted = True, False
                yield True
            finally:
                self._under_way = False
        finally:
            self._changing.release()

    def _leave_it(self, within: float | None = None) -> None:
        try:
            with _until(None if within is None else time.monotonic() + within):
                self.call(self._leave)
        finally:
            self._end()

    async def aclose(self) -> None:
        """On the loop: leave the resource, whatever a thread does with it."""
        await self._leave()

    def _end(self) -> None:
        _open.discard(self)
        calls, self._calls = self._calls, None
        assert calls is not None
        ended = asyncio.run_coroutine_threadsafe(calls.aclose(), calls.thread.loop)
        concurrent.futures.wait([ended], timeout=_END)

    def call(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        undo: Callable[[], Awaitable[object]] | None = None,
        caller: Caller | None = None,
        outlives: bool = False,
    ) -> T:
        """Run a coroutine function on the loop, to its end; its result or error.

        A caller that is interrupted (Ctrl-C, a deadline) cancels the work. Work that was done all
        the same is undone by `undo`, where that is given. The caller waits a few seconds for the
        end of that, and it goes on without the caller.

        Closing cancels what is under way, and nothing is begun afterwards. What `outlives` that is
        neither: for what is over at once, or has bounds of its own.
        """
        calls = self._reach(self._outliving if outlives else self._calls)
        caller = caller or Caller()
        call = _Call(self.name, work, caller, undo)
        context = copy_context()
        context.run(CALLING_THREAD.set, threading.current_thread())
        try:
            calls.thread.post(calls.begin, call, context=context)
            caller.wait()
            return call.answer.result()
        except BaseException:
            if not call.failed:
                calls.thread.post(call.abandon, context=context)
                concurrent.futures.wait([call.over], timeout=_GIVE_UP)
            raise

    def post(self, work: Callable[[], object]) -> None:
        """Run a plain function on the loop, and do not wait for it. Nothing where it is closed."""
        calls = self._calls
        if calls is not None and calls.process == os.getpid():
            calls.thread.post(work)

    def _reach(self, calls: _Calls | None) -> _Calls:
        if calls is None or calls.thread.ended:
            raise Closed(f"{self.name} is not open: use `with mooring.sync.connect(…) as hub`")
        if calls.process != os.getpid():
            raise self._forked()
        if calls.thread.is_current:
            raise InvalidRequest(
                f"{self.name}: a blocking call on the loop's own thread would wait for itself "
                "for ever: callbacks hand such work to another thread"
            )
        return calls

    def _forked(self) -> Closed:
        return Closed(f"{self.name} was opened before a fork: connect again in this process")


class LoopThread:
    """An event loop in a daemon thread, from its first use until the interpreter ends.

    There is one in a process, and it is not closed before: gRPC tells a loop of its calls' ends
    after they are over, and that loop being closed would be an error in another one.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self.ended = False
        """Whether the interpreter ends, and nothing is run here any more."""
        ready: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="mooring", daemon=True
        )
        self._thread.start()
        self.loop = ready.result()
        atexit.register(self._at_exit)

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def post(
        self, work: Callable[..., object], *args: object, context: Context | None = None
    ) -> None:
        """Call something on the loop. Nothing where the interpreter ends."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(work, *args, context=context)

    def _run(self, ready: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        loop = asyncio.new_event_loop()
        loop.call_soon(ready.set_result, loop)
        loop.run_forever()
        # Not as `asyncio.run` does, which waits without end for threads of the loop's executor.
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        if rest:
            loop.run_until_complete(asyncio.wait(rest, timeout=_END))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _at_exit(self) -> None:
        if self.process == os.getpid():
            close_all("the end of the process")
            self.ended = True
            self.post(self.loop.stop)
            self._thread.join(2 * _END)


_current: LoopThread | None = None
_starting = threading.Lock()


def loop_thread() -> LoopThread:
    """The one of this process, started where it does not run."""
    global _current
    with _starting:
        if _current is None:
            _current = LoopThread()
        return _current


class _Calls:
    """The calls of one portal while it is open. Its methods run on the loop."""

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
    """A thread that waits for an answer, and meanwhile does what is asked of it."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def wait(self) -> None:
        """Wait for the answer. Raises `TimeoutError` when this thread's time is over."""
        while (asked := next_item(self._inbox)) is not None:
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
            loop.call_soon_threadsafe(lambda: done.done() or settle())

        self._inbox.put(here)
        return await done


class _Call(Generic[T]):
    """One function on its way through a portal."""

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[T]],
        caller: Caller,
        undo: Callable[[], Awaitable[object]] | None,
    ) -> None:
        self.answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.over: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done when nothing of it is left, after `abandon`."""
        self._name, self._work, self._caller, self._undo = name, work, caller, undo
        self._tasks: Tasks
        self._task: asyncio.Task[object] | None = None

    @property
    def failed(self) -> bool:
        return self.answer.done() and self.answer.exception() is not None

    # What follows runs on the loop.

    def refuse(self) -> None:
        """It is closed."""
        self.answer.set_exception(Closed(f"{self._name} was closed during the call"))
        self._caller.answered()

    def begin(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._task = tasks.start(self._run(), name=f"blocking call of {self._name}")
        self._task.add_done_callback(self._ended)

    def abandon(self) -> None:
        """Nobody waits for it any more: it ends, and what it did nevertheless is undone."""
        if self._task is None:
            self.over.set_result(None)
        else:
            self._task.cancel()
            self._task.add_done_callback(self._clear_up)

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

    def _ended(self, _: object) -> None:
        if not self.answer.done():  # cancelled before its first step
            self.refuse()

    def _clear_up(self, _: object) -> None:
        if self._undo is None or self.failed:
            self.over.set_result(None)
            return
        undoing = self._tasks.start(self._undone(self._undo), name=f"undoing of {self._name}")
        undoing.add_done_callback(lambda _: self.over.set_result(None))

    async def _undone(self, undo: Callable[[], Awaitable[object]]) -> None:
        try:
            await undo()
        except Exception as error:  # noqa: BLE001 - who is interrupted hears of that alone
            log.warning("%s: what was done too late is not undone: %s", self._name, error)


def next_item(items: queue.SimpleQueue[T]) -> T:
    """Wait for an item. Raises `TimeoutError` when this thread's time is over.

    Handles signals meanwhile, including those that do not wake the main thread.
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
            raise TimeoutError("the time for this blocking call is over")


_portals: weakref.WeakSet[Portal] = weakref.WeakSet()
_open: set[Portal] = set()
"""Also if nothing else refers to them: they are closed when the process ends."""
_inherited: list[object] = []


def _begin_anew() -> None:
    """In a forked child: there is no loop, and what the parent's holds is never let go.

    To collect its tasks and connections would run their cleanup, on sockets that the parent goes
    on using.
    """
    global _current, _starting
    _inherited.append(_current)
    _inherited.extend(_portals)
    _open.clear()
    _current, _starting = None, threading.Lock()
    for portal in tuple(_portals):
        # It may have been held by a thread that is not here.
        portal._changing, portal._under_way = threading.RLock(), False


os.register_at_fork(after_in_child=_begin_anew)
