"""The event loop of the blocking API, in a daemon thread."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable
from contextvars import Context

from mooring.registry.shutdown import close_all

END_TIMEOUT = 2.0
"""Seconds for running tasks when the loop ends."""


class LoopThread:
    """The event loop of this process, in a daemon thread from its first use until the interpreter
    exits. gRPC notifies a loop after its calls have ended: closed earlier, it would raise errors in
    other loops."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.ended = False
        """Whether the interpreter is exiting, so that nothing runs here any more."""
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
        """Call a function on the loop. Does nothing when the interpreter is exiting."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(work, *args, context=context)

    def _run(self, ready: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        loop = asyncio.new_event_loop()
        loop.call_soon(ready.set_result, loop)
        loop.run_forever()
        # `asyncio.run` would wait without limit for the threads of the executor.
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        if rest:
            loop.run_until_complete(asyncio.wait(rest, timeout=END_TIMEOUT))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _at_exit(self) -> None:
        if self.process == os.getpid():
            close_all("the end of the process")
            self.ended = True
            self.post(self.loop.stop)
            self._thread.join(2 * END_TIMEOUT)


_current: LoopThread | None = None
_starting = threading.Lock()


def loop_thread() -> LoopThread:
    """The loop thread of this process. Starts it if necessary."""
    global _current
    with _starting:
        if _current is None:
            _current = LoopThread()
        return _current


_inherited: list[LoopThread | None] = []


def _reset_after_fork() -> None:
    """Forget the loop in a forked child, but keep a reference to it: the cleanup of its tasks and
    connections would use sockets of the parent."""
    global _current, _starting
    _inherited.append(_current)
    _current, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)
