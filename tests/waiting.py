"""Polling with a deadline, in place of sleeping and hoping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

PATIENCE = 20.0
"""Seconds for what nobody promised a time: many tests run at once on a slow machine."""


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], *, within: float = PATIENCE, what: str = ""
) -> float:
    """Wait until the condition holds; how long it took. Fails after `within` seconds."""
    started = time.monotonic()
    while True:
        answer = condition()
        if answer if isinstance(answer, bool) else await answer:
            return time.monotonic() - started
        if time.monotonic() - started > within:
            raise AssertionError(f"not within {within} s: {what or condition}")
        await asyncio.sleep(0.01)


def until(condition: Callable[[], object], *, within: float = PATIENCE, what: str = "") -> float:
    """The same for code without an event loop."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > within:
            raise AssertionError(f"not within {within} s: {what or condition}")
        time.sleep(0.01)
    return time.monotonic() - started
