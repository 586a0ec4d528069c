"""Polling with a deadline instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

PATIENCE = 20.0
"""Seconds for a condition without a promised time: many tests run at once on a slow machine."""


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], *, within: float = PATIENCE, what: str = ""
) -> float:
    """Wait until the condition holds, and return how long it took. Fail after `within` seconds."""
    started = time.monotonic()
    while True:
        answer = condition()
        if answer if isinstance(answer, bool) else await answer:
            return time.monotonic() - started
        if time.monotonic() - started > within:
            raise AssertionError(f"not within {within} s: {what or condition}")
        await asyncio.sleep(0.01)


async def retried_at_once(call: Callable[[], Awaitable[object]], *errors: type[Exception]) -> None:
    """Repeat a call that fails, without a pause, until a timer of the same loop has fired. Fail if
    the calls starve the loop, and with it the timer."""
    rung = asyncio.Event()
    started, tries = time.monotonic(), 0
    asyncio.get_running_loop().call_later(0.05, rung.set)
    while tries < 2 or not rung.is_set():
        tries += 1
        try:
            await call()
        except errors:
            assert time.monotonic() - started < 5, f"the loop stood still for {tries} tries"


def until(condition: Callable[[], object], *, within: float = PATIENCE, what: str = "") -> float:
    """Like `eventually`, for code without an event loop."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > within:
            raise AssertionError(f"not within {within} s: {what or condition}")
        time.sleep(0.01)
    return time.monotonic() - started
