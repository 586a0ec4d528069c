"""How commands run: their standard descriptors and the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import TypeVar

from mooring.cli.telling import hear_crashes

T = TypeVar("T")


def fill_descriptors() -> None:
    """Open standard descriptors that were closed by who started this, on nothing: a socket of the
    event loop would take their place, and be a command's input or be written to."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - as long as this


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
