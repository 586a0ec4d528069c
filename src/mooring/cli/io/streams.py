"""The standard streams of commands: closed descriptors, readers that end early, files, notes on
stderr, progress and confirmations."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

import typer

from mooring.errors import InvalidRequest, MooringError, misplaced
from mooring.formatting import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


T = TypeVar("T")

BROKEN_PIPE = 141
"""The exit code if the reader of the output ends early (`| head`), as after SIGPIPE in a shell."""

_PROGRESS_INTERVAL = 5.0  # seconds between two lines of progress


def fill_descriptors() -> None:
    """Open closed standard descriptors on /dev/null. Otherwise a socket of the event loop would get
    the number, and output or the input of a child process would go through it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - stays open


class _Output(io.FileIO):
    """Ends the command if a write fails, before asyncio, click or rich handles the error."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # for what is still buffered
            if error.errno == errno.EPIPE:
                raise typer.Exit(BROKEN_PIPE) from None
            raise MooringError(f"the output cannot be written: {error.strerror}") from error


def guarded(stream: TextIO) -> TextIO:
    """Standard output that ends the command if it cannot be written, and escapes the characters
    that its encoding lacks."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(stream.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
    )


@contextmanager
def open_output(file: Path | None, *, mode: int = 0o666) -> Iterator[TextIO]:
    """Standard output for None or `-`, else a file. The file is replaced when all is written, and
    is unchanged after an error. `mode` is that of a new file."""
    file = None if file == Path("-") else file
    try:
        if file is None:
            sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
            yield sys.stdout
            sys.stdout.flush()
        elif file.exists() and not file.is_file():  # a pipe, a terminal
            with file.open("w", encoding="utf-8") as output:
                yield output
        else:
            with _replacement(file.resolve(), mode) as output:
                yield output
    except BrokenPipeError:
        raise typer.Exit(BROKEN_PIPE) from None
    except OSError as error:
        name = file or "standard output"
        if file is not None and misplaced(error):
            raise InvalidRequest(f"{name} cannot be written: name a file in a folder") from error
        raise MooringError(f"{name} cannot be written: {error.strerror}") from error


@contextmanager
def _replacement(file: Path, mode: int) -> Iterator[TextIO]:
    unfinished = file.with_name(f"{file.name}.{os.getpid()}.unfinished")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "w", encoding="utf-8") as output:
            yield output
            output.flush()
            os.fsync(output.fileno())
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def print_stderr(line: str) -> None:
    """Print a line on stderr. A closed terminal does not interrupt the command."""
    with contextlib.suppress(OSError):
        typer.echo(line, err=True)


def note(text: str) -> None:
    print_stderr(f"mooring: {printable(text)}")


def warn(text: str) -> None:
    note(f"warning: {text}")


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())
        if record.exc_info:
            print_stderr(logging.Formatter().formatException(record.exc_info))


def log_crashes() -> None:
    """Print the library's log records from ERROR on. Commands report everything else themselves."""
    logger = logging.getLogger("mooring")
    if not logger.handlers:
        logger.addHandler(_StderrHandler(logging.ERROR))


def log_to_stderr(*names: str) -> None:
    """Print the log records of these loggers from INFO on."""
    for name in names:
        logger = logging.getLogger(name)
        if logger.handlers:
            continue
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(_StderrHandler())


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yields a function that reports how much is done, and the total if it is known."""
    from rich.console import Console  # slow to load

    console = Console(stderr=True)
    last = time.monotonic()

    def line(done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_INTERVAL:
            last = time.monotonic()
            print_stderr(f"{what} {done}" if total is None else f"{what} {done} of {total}")

    if not console.is_terminal:
        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation, and end the command with 1 if it is refused. Raises `InvalidRequest` if
    standard input is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest(f"{question} Confirm with --yes: standard input is not a terminal")
    if not typer.confirm(printable(question), err=True):
        note("nothing was changed")
        raise typer.Exit(1)
