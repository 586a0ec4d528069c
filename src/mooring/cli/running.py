"""The event loop that commands run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from mooring.cli.telling import hear_crashes

T = TypeVar("T")


def run(work: Coroutine[object, object, T]) -> T:
    """Run a command's coroutine, on uvloop where it is installed."""
    hear_crashes()
    with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
        return runner.run(work)


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop
