"""What is said on stderr: notes, warnings, and what the library logs for people."""

from __future__ import annotations

import contextlib
import logging

import typer

from mooring.display import printable

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
