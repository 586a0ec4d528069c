"""Commands as users type them, and their results."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import tempfile
import textwrap
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from tests.acceptance.forking import Forked


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


def mooring_command(
    *arguments: str, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a separate process, to its end."""
    return _run_to_end(*arguments, stdin=stdin, **environment)


def python_program(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a separate process, to its end. Warnings are errors."""
    return _run_to_end(*arguments, program=_strict(text))


def start_program(text: str, *arguments: str, stdout: IO[Any]) -> Forked:
    """Start Python in a separate process, without waiting for its end."""
    return Forked(
        *arguments,
        environment=os.environ,
        stdin=None,
        stdout=stdout,
        stderr=2,
        program=_strict(text),
    )


def _strict(text: str) -> str:
    return f"import warnings\nwarnings.simplefilter('error')\n{textwrap.dedent(text)}"


def _run_to_end(
    *arguments: str, stdin: str = "", program: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as given,
        tempfile.TemporaryFile("r+", encoding="utf-8") as out,
        tempfile.TemporaryFile("r+", encoding="utf-8") as err,
    ):
        given.write(stdin)
        given.seek(0)
        process = Forked(
            *arguments,
            environment={**os.environ, "COLUMNS": "200", **environment},
            stdin=given,
            stdout=out,
            stderr=err,
            program=program,
        )
        try:
            code = process.wait(timeout=40)  # less than the time limit of the test itself
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler prints where its threads are
            process.wait(timeout=10)
            err.seek(0)
            raise AssertionError(f"{arguments} goes on after 40 s: {err.read()}") from None
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["mooring", *arguments], code, out.read(), err.read())


class Running(NamedTuple):
    """A running command in a separate process, and the files of its output."""

    process: Forked
    out: Path
    err: Path

    def lines(self) -> list[str]:
        """The standard output so far, without an incomplete last line."""
        return self.out.read_text().split("\n")[:-1]


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Running]:
    """Start a command with its output in files of a folder, and kill it in the end."""
    name = uuid.uuid4().hex
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    with out.open("w") as stdout, err.open("w") as stderr:
        process = Forked(*arguments, environment=os.environ, stdout=stdout, stderr=stderr)
    try:
        yield Running(process, out, err)
    finally:
        process.kill()
        process.wait()


def in_terminal(*arguments: str, typed: str = "", **environment: str) -> tuple[int, str]:
    """Run a command in a terminal with this input: its exit code, and the screen."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm", **environment}
    try:
        process = Forked(
            *arguments, environment=environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        os.write(ours, typed.encode())
        screen = b""
        with suppress(OSError):  # the terminal ends with its last user
            while piece := os.read(ours, 4096):
                screen += piece
    finally:
        os.close(ours)
    return process.wait(60), screen.decode()
