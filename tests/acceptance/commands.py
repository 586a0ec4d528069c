"""Commands as a user types them, and their outcome."""

from __future__ import annotations

import os
import subprocess
import tempfile
import textwrap
from collections.abc import Callable
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
    """Run a command in a process of its own, to its end."""
    return _run_to_end(*arguments, stdin=stdin, **environment)


def python_program(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, to its end. Warnings are errors."""
    return _run_to_end(*arguments, program=_strict(text))


def start_program(text: str, *arguments: str, stdout: IO[Any]) -> Forked:
    """The same without waiting for its end."""
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
            code = process.wait(timeout=60)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["mooring", *arguments], code, out.read(), err.read())
