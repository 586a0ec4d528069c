"""SIGTERM in a program without a handler of its own: deregister, then end as before.

By default SIGTERM ends a process at once, and its instances stay in the registry until their TTL.
So a handler is installed if there is none, in the main thread, when something is registered. It
leaves the registry, within five seconds, and then ends the process by the same signal. Handlers of
the application or of its server (gunicorn, uvicorn) are never replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from mooring.tasks import Tasks

log = logging.getLogger(__name__)

WITHIN = 5.0
"""Seconds that leaving the registry may take."""


class Closable(Protocol):
    async def aclose(self) -> None: ...


_closers: dict[object, Callable[[], None]] = {}
"""What blocking code has open."""
_entered: weakref.WeakSet[Closable] = weakref.WeakSet()
"""What was entered on an event loop of the main thread."""
_tasks = Tasks()


def handle_sigterm() -> None:
    """Install the handler, unless there is one or this is not the main thread: Python lets no
    other thread do it."""
    if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)


def close_on_sigterm(owner: object, close: Callable[[], None]) -> None:
    """Call a function in the signal handler; until `forget`."""
    handle_sigterm()
    _closers[owner] = close


def forget(owner: object) -> None:
    _closers.pop(owner, None)


def aclose_on_sigterm(entered: Closable) -> None:
    """Close it on the running loop, if that is the main thread's."""
    if _in_main_thread():
        handle_sigterm()
        _entered.add(entered)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _on_sigterm(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # another one ends the process at once
    for close in tuple(_closers.values()):
        try:
            close()
        except Exception as error:  # noqa: BLE001 - the others are closed all the same
            log.warning("SIGTERM: not closed in order: %s", error)
    loop = None
    with contextlib.suppress(RuntimeError):
        loop = asyncio.get_running_loop()
    if loop is None or not _entered:
        _end()
    else:
        loop.call_soon_threadsafe(lambda: _tasks.start(_leave(), name="SIGTERM"))


async def _leave() -> None:
    try:
        closing = [_tasks.start(each.aclose(), name="closing on SIGTERM") for each in _entered]
        if closing:
            await asyncio.wait(closing, timeout=WITHIN)
    finally:
        _end()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(128 + signal.SIGTERM)  # the kernel ignores the signal for PID 1, as in a container


def _in_child() -> None:
    """A forked child leaves the parent's registrations alone."""
    _closers.clear()
    _entered.clear()


os.register_at_fork(after_in_child=_in_child)
