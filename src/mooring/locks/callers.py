"""Who asks: the present task, or the thread of blocking code that waits for it."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

BEHIND: ContextVar[threading.Thread | None] = ContextVar("thread behind a task", default=None)
"""Set by the portal of the blocking API, whose calls are tasks of their own."""


def caller() -> object:
    return BEHIND.get() or asyncio.current_task()


def has_ended(who: object) -> bool:
    """Whether a caller of before can do nothing any more."""
    if isinstance(who, threading.Thread):
        return not who.is_alive()
    return not isinstance(who, asyncio.Task) or who.done()
