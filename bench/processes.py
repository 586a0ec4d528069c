"""Processes beside this one: one that is run to its end, or one that tells something in lines."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


class ProcessFailed(Exception):
    """A process did not do its work; the message says why."""


async def output(*command: str, within: float) -> str:
    """What a command prints, or `ProcessFailed` with the last line of its complaint."""
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
        raise ProcessFailed(f"no end within {within:g} s") from None
    finally:
        await _end(process)
    if process.returncode:
        raise ProcessFailed(_last_line(complaint.decode(errors="replace").splitlines()))
    return printed.decode()


class Script:
    """A running script. It sends messages as lines of JSON, with `tell`."""

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
            raise ProcessFailed(f"{self._module} is silent for {within:g} s") from None
        if not line:
            raise ProcessFailed(f"{self._module} ended with {await self._process.wait()}")
        return json.loads(line)


@asynccontextmanager
async def script(module: str, *arguments: str) -> AsyncIterator[Script]:
    """`python -m module`, until this is left. Its complaints go where ours go."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Script(module, process)
    finally:
        await _end(process)


def tell(message: object) -> None:
    print(json.dumps(message), flush=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


def _last_line(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
