"""SIGTERM in a program without a handler of its own: deregister, then end as before.

By default SIGTERM ends a process at once, and its instances stay in the registry until their TTL.
So a handler is installed if there is none, when a hub is made in the main thread. It closes what is
open, on every event loop at the same time, within five seconds, and then ends the process by the
same signal. Handlers of the application or of its server (gunicorn, uvicorn) are never replaced.
If one of them calls this one, the process ends once it has returned.

The handler waits for the event loops of other threads. One of them may need a lock that the
interrupted code holds, such as the lock of a logging handler. So if a loop does not run, the
handler lets the interrupted code continue, and a thread ends the process.
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
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future, wait
from types import FrameType
from typing import Protocol

log = logging.getLogger(__name__)

WITHIN = 5.0
"""Seconds that leaving the registry may take."""
_BLOCKED = 1.0
"""Seconds without a turn after which an event loop counts as blocked."""


class Closable(Protocol):
    def aclose(self) -> Coroutine[object, object, None]: ...


_opened: weakref.WeakKeyDictionary[Closable, asyncio.AbstractEventLoop]
_opened = weakref.WeakKeyDictionary()
_warned = False


def handle_sigterm() -> None:
    """Install the handler, unless there is one or this is not the main thread: Python lets no
    other thread do it."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, _on_sigterm)


def close_on_sigterm(opened: Closable, loop: asyncio.AbstractEventLoop) -> None:
    """Close it on this loop, if that runs then. Closing it twice must do no harm."""
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
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # another one ends the process at once
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
    """Close what is open, on every event loop at the same time."""
    _wait(_begin(), time.monotonic() + WITHIN, why)


def _begin() -> dict[Future[None], asyncio.AbstractEventLoop]:
    closing = {}
    for reference in _opened.keyrefs():  # a copy: other threads go on
        opened = reference()
        loop = None if opened is None else _opened.get(opened)
        if opened is not None and loop is not None and loop.is_running():
            with contextlib.suppress(RuntimeError):  # it ends just now
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
        turns = {closing[each]: threading.Event() for each in late}
        for loop, turn in turns.items():
            with contextlib.suppress(RuntimeError):  # it ends just now
                loop.call_soon_threadsafe(turn.set)
        late = wait(late, timeout=min(left, _BLOCKED)).not_done
        if not all(turns[closing[each]].is_set() for each in late):
            return False
    return True


def _wait(closing: Iterable[Future[None]], deadline: float, why: str) -> None:
    closed, late = wait(closing, timeout=max(deadline - time.monotonic(), 0.0))
    for each in closed:
        if not each.cancelled() and (error := each.exception()) is not None:
            log.warning("%s: not closed in order: %s", why, error)
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
    """Whether the main thread has not left it yet."""
    current = sys._current_frames().get(threading.main_thread().ident or 0)
    while current is not None and current is not frame:
        current = current.f_back
    return current is not None


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(128 + signal.SIGTERM)  # the kernel ignores the signal for PID 1, as in a container


def _in_child() -> None:
    """A forked child leaves the parent's registrations alone."""
    _opened.clear()


os.register_at_fork(after_in_child=_in_child)
