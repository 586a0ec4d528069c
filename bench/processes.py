"""Child processes: run to completion, or exchanging messages line by line."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


class ProcessFailed(Exception):
    """A process failed; the message gives the reason."""


async def output(*command: str, within: float) -> str:
    """What a command prints, or `ProcessFailed` with the last line of its error output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(within):
            printed, complaint = await process.communicate()
    except TimeoutError:
        raise ProcessFailed(f"did not exit within {within:g} s") from None
    finally:
        await _end(process)
    if process.returncode:
        raise ProcessFailed(_last_line(complaint.decode(errors="replace").splitlines()))
    return printed.decode()


class Script:
    """A running script. It sends messages as lines of JSON, with `emit`."""

    def __init__(self, module: str, process: asyncio.subprocess.Process) -> None:
        self._module, self._process = module, process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def receive(self, *, within: float) -> object:
        """The next message. Raises `ProcessFailed` if the process ended or the wait timed out."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(within):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise ProcessFailed(f"{self._module} sent nothing for {within:g} s") from None
        if not line:
            raise ProcessFailed(f"{self._module} ended with {await self._process.wait()}")
        return json.loads(line)


@asynccontextmanager
async def script(module: str, *arguments: str) -> AsyncIterator[Script]:
    """Runs `python -m module` for the duration of the block. It inherits stderr."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Script(module, process)
    finally:
        await _end(process)


def emit(message: object) -> None:
    """Send a message to the process that runs this script."""
    print(json.dumps(message), flush=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


def _last_line(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
