"""Leaving the registry when a signal ends the process.

`until_stopped` waits for a signal and drains registrations before the server stops. A program
without a SIGTERM handler gets a default one when it creates a hub in the main thread. By default
SIGTERM ends a process at once, and its instances stay registered until their TTL expires. The
default handler closes everything that is open, on all event loops at the same time, within five
seconds, and then ends the process with the same signal. It never replaces the handler of an
application or of its server (gunicorn, uvicorn). If such a handler calls this one, the process ends
after that handler returns.

The default handler waits for the event loops of other threads. One of them may need a lock that the
interrupted code holds, such as the lock of a logging handler. So if a loop is blocked, the handler
lets the interrupted code continue, and a thread ends the process.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any, Protocol

from mooring.errors import InvalidRequest
from mooring.messages import message
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

LINGER = 2.0
"""Seconds within which every connected consumer learns that an instance is draining."""

SIGNAL_CHECK = 0.5
"""Seconds between two checks for a signal. The system may deliver a signal to any thread, or just
before the main thread begins to wait. Neither wakes that thread, which runs Python's handlers."""


class Drainable(Protocol):
    def drain(self, *, grace: float, linger: float) -> Coroutine[object, object, None]: ...


async def until_stopped(
    *registrations: Drainable,
    grace: float = 10.0,
    linger: float = LINGER,
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
) -> signal.Signals:
    """Wait for a signal, then drain: mark the registrations as draining, keep them registered for
    `linger` seconds, and deregister them. No new calls are expected after this returns: stop the
    server. Draining takes at most two thirds of `grace` seconds, even if the store is unavailable,
    and leaves the rest for stopping. A second signal makes this return at once. After it has
    returned or was cancelled, signals have their previous effect.

    Works only in the event loop of the main thread, because Python delivers signals to no other.
    """
    if threading.current_thread() is not threading.main_thread():
        raise InvalidRequest(message("signals_in_main_thread"))
    loop = asyncio.get_running_loop()
    tasks = Tasks()
    arrived: asyncio.Queue[signal.Signals] = asyncio.Queue()

    def received(number: signal.Signals) -> None:
        loop.call_soon_threadsafe(arrived.put_nowait, number)

    with listening(signals, received):
        first = await _next(arrived)
        grace *= 2 / 3
        log.info("%s: leaving the registry, then stopping", first.name)
        draining = [
            tasks.start(registration.drain(grace=grace, linger=linger), name="draining")
            for registration in registrations
        ]
        again = tasks.start(arrived.get(), name="a second signal")
        drained: asyncio.Future[Any] = asyncio.gather(*draining, return_exceptions=True)
        await asyncio.wait([drained, again], timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        for task in (again, *draining):
            task.cancel()  # after a second signal or the time limit, do not wait for the rest
        return first


async def _next(arrived: asyncio.Queue[signal.Signals]) -> signal.Signals:
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SIGNAL_CHECK):
                return await arrived.get()


SignalListener = Callable[[signal.Signals], None]
_listeners: defaultdict[signal.Signals, set[SignalListener]] = defaultdict(set)
_replaced: dict[signal.Signals, Any] = {}
"""The handlers that the first listeners replaced."""


@contextlib.contextmanager
def listening(signals: Sequence[signal.Signals], listener: SignalListener) -> Iterator[None]:
    """Deliver signals to this listener, and to others that listen at the same time. The last one
    restores the earlier handler, unless that was replaced meanwhile. In the main thread only."""
    try:
        for number in signals:
            _listeners[number].add(listener)
            if signal.getsignal(number) is not _deliver:
                _replaced[number] = signal.signal(number, _deliver)
        yield
    finally:
        for number in signals:
            if _listeners[number] == {listener} and signal.getsignal(number) is _deliver:
                # None: Python did not install the earlier handler.
                signal.signal(number, _replaced[number] or signal.SIG_DFL)
            _listeners[number].discard(listener)


def _deliver(number: int, _: FrameType | None) -> None:
    for listener in tuple(_listeners[signal.Signals(number)]):
        listener(signal.Signals(number))


WITHIN = 5.0
"""Seconds that leaving the registry may take."""
_BLOCKED = 1.0
"""Seconds without an iteration after which an event loop counts as blocked."""


class Closable(Protocol):
    def aclose(self) -> Coroutine[object, object, None]: ...


_opened: weakref.WeakKeyDictionary[Closable, asyncio.AbstractEventLoop]
_opened = weakref.WeakKeyDictionary()
_warned = False
_ending = False
"""SIGTERM is closing everything, and ends the process afterwards."""


async def leave_to_sigterm() -> None:
    """Return at once, unless SIGTERM is ending the process: then wait, so that what fails because
    it was closed does not end the program with an error before the signal does."""
    if _ending:
        await asyncio.sleep(2 * WITHIN)


def handle_sigterm() -> None:
    """Install the default handler, unless there is a handler or this is not the main thread: Python
    lets no other thread do it."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, _on_sigterm)


def close_on_sigterm(opened: Closable, loop: asyncio.AbstractEventLoop) -> None:
    """Close `opened` on this loop, if the loop runs then. Closing twice must be harmless."""
    global _warned
    handle_sigterm()
    _opened[opened] = loop
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not _warned:
        _warned = True
        log.warning(
            "SIGTERM will end this process without deregistering its instances: call "
            "mooring.connect in the main thread"
        )


def _on_sigterm(_: int, interrupted: FrameType | None) -> None:
    global _ending
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # another one ends the process at once
    _ending = True
    deadline = time.monotonic() + WITHIN
    closing = _begin()
    caller = sys._getframe().f_back
    handler = caller if caller is not interrupted else None
    if not _in_event_loop() and _closed_or_late(closing, deadline):
        _wait(closing, deadline, "SIGTERM")
        if handler is None:
            _end()
    # Not `threading.Thread`: the signal may have interrupted this thread while it starts one.
    _thread.start_new_thread(_end_after, (closing, deadline, handler))


def close_all(why: str) -> None:
    """Close everything that is open, on all event loops at the same time."""
    _wait(_begin(), time.monotonic() + WITHIN, why)


def _begin() -> dict[Future[None], asyncio.AbstractEventLoop]:
    closing = {}
    for reference in _opened.keyrefs():  # a copy: other threads may add more
        opened = reference()
        loop = None if opened is None else _opened.get(opened)
        if opened is not None and loop is not None and loop.is_running():
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                closing[asyncio.run_coroutine_threadsafe(opened.aclose(), loop)] = loop
    return closing


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _closed_or_late(
    closing: Mapping[Future[None], asyncio.AbstractEventLoop], deadline: float
) -> bool:
    """Wait until everything is closed or it is too late; False if an event loop is blocked."""
    late = set(closing)
    while late and (left := deadline - time.monotonic()) > 0:
        turns = {closing[future]: threading.Event() for future in late}
        for loop, turn in turns.items():
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(turn.set)
        late = wait(late, timeout=min(left, _BLOCKED)).not_done
        if not all(turns[closing[future]].is_set() for future in late):
            return False
    return True


def _wait(closing: Iterable[Future[None]], deadline: float, why: str) -> None:
    closed, late = wait(closing, timeout=max(deadline - time.monotonic(), 0.0))
    for future in closed:
        if not future.cancelled() and (error := future.exception()) is not None:
            log.warning("%s: closing failed: %s", why, error)
    if late:
        log.warning("%s: not closed within %.0f s", why, WITHIN)


def _end_after(closing: Iterable[Future[None]], deadline: float, handler: FrameType | None) -> None:
    try:
        _wait(closing, deadline, "SIGTERM")
        while handler is not None and _runs(handler):
            time.sleep(0.01)
    finally:
        _end()


def _runs(frame: FrameType) -> bool:
    """Whether the main thread still executes a frame."""
    current = sys._current_frames().get(threading.main_thread().ident or 0)
    while current is not None and current is not frame:
        current = current.f_back
    return current is not None


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(128 + signal.SIGTERM)  # the kernel ignores the signal for PID 1, as in a container


# A forked child leaves the registrations of its parent alone.
os.register_at_fork(after_in_child=_opened.clear)
