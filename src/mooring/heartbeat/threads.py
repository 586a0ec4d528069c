"""Calls in threads that nobody is forced to wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_thread(call: Callable[[], T], *, name: str) -> asyncio.Future[T | BaseException]:
    """Run the call in a daemon thread of its own; what it returned or raised, as a result.

    Unlike an executor's, such a thread is joined by nobody: one that hangs forever holds up
    neither the loop's end nor the interpreter's. An error is a result, so that one that comes
    when nobody looks any more is no error of the loop.
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
        except BaseException as error:  # noqa: BLE001 - handed on whole
            outcome = error
        try:
            loop.call_soon_threadsafe(deliver, outcome)
        except RuntimeError:
            return  # the loop was closed meanwhile: nobody waits

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
