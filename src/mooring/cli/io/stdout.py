"""Where commands write: standard output, or a file in its place; and how a command ends if that is
not read or cannot be written. Standard descriptors that are closed."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from mooring.errors import InvalidRequest, MooringError, misplaced

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

UNREAD = 141
"""The exit code of a command whose reader had enough (`| head`): a shell's word for SIGPIPE."""


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


class _Output(io.FileIO):
    """All that is printed comes by here: asyncio, click and rich have no say in how it ends."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # for what is still buffered
            if error.errno == errno.EPIPE:
                raise typer.Exit(UNREAD) from None
            raise MooringError(f"the output cannot be written: {error.strerror}") from error


def guarded(stream: TextIO) -> TextIO:
    """Standard output that ends a command in its own way. Names are any language's: what the
    encoding has no letters for is escaped."""
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
    """Standard output, or a file that is there once all is in it, and otherwise as it was. `mode`
    is that of a new file."""
    try:
        if file is None:
            sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
            yield sys.stdout
            sys.stdout.flush()
        elif file.exists() and not file.is_file():  # a pipe, a terminal
            with file.open("w", encoding="utf-8") as output:
                yield output
        else:
            with _replacing(file.resolve(), mode) as output:
                yield output
    except BrokenPipeError:
        raise typer.Exit(UNREAD) from None
    except OSError as error:
        name = file or "standard output"
        if file is not None and misplaced(error):
            raise InvalidRequest(f"{name} cannot be written: name a file in a folder") from error
        raise MooringError(f"{name} cannot be written: {error.strerror}") from error


@contextmanager
def _replacing(file: Path, mode: int) -> Iterator[TextIO]:
    unfinished = file.with_name(f"{file.name}.{os.getpid()}.unfinished")
    try:
        made = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(made, "w", encoding="utf-8") as output:
            yield output
            output.flush()
            os.fsync(output.fileno())
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
