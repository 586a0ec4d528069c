"""What is said on stderr: notes, warnings, and what the library logs for people."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from mooring.formatting import printable

__all__ = ["hear", "hear_crashes", "note", "printable", "say", "warn"]


def say(line: str) -> None:
    """One line. Where the terminal is gone nobody hears it, and what was under way goes on."""
    with contextlib.suppress(OSError):
        typer.echo(line, err=True)


def note(text: str) -> None:
    say(f"mooring: {printable(text)}")


def warn(text: str) -> None:
    note(f"warning: {text}")


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())
        if record.exc_info:
            say(logging.Formatter().formatException(record.exc_info))


def hear_crashes() -> None:
    """Of the library's log only what is a bug; commands tell the rest in their own words."""
    logger = logging.getLogger("mooring")
    if not logger.handlers:
        logger.addHandler(_Notes(logging.ERROR))


def hear(*names: str) -> None:
    """Everything that these loggers tell people."""
    for name in names:
        logger = logging.getLogger(name)
        if logger.handlers:
            continue
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(_Notes())


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
