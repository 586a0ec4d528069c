"""Commands as a user types them, and their outcome."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from typing import NamedTuple

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
        )
        try:
            code = process.wait(timeout=60)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["mooring", *arguments], code, out.read(), err.read())
