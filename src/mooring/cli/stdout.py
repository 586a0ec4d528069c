"""Standard output, and how a command ends where it is not read or cannot be written."""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING, TextIO

import typer

from mooring.errors import MooringError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

UNREAD = 141
"""The exit code of a command whose reader had enough (`| head`): a shell's word for SIGPIPE."""


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
