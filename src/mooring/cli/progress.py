"""How far long work is: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mooring.cli.telling import say

_EVERY = 5.0  # seconds between two lines


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yields a function that reports how much is done, and the total if it is known."""
    from rich.console import Console  # slow to load, and only a terminal needs the rest

    console = Console(stderr=True)
    last = time.monotonic()

    def line(done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            say(f"{what} {done}" if total is None else f"{what} {done} of {total}")

    if not console.is_terminal:
        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
