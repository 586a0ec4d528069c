"""A command that runs while something lasts: a registration, a lock."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence

from mooring import durations
from mooring.cli.telling import note

_LOOK_EACH = 0.02  # seconds between looks at a group that is to end
_DIE_WITHIN = 2.0  # seconds that the system has to bury in who was killed


def not_started(command: str, error: OSError) -> int:
    """Report why a command did not start, and return the exit code that a shell has for it."""
    is_missing = isinstance(error, FileNotFoundError) or (
        # The system reports this too if it may not search a folder of PATH.
        isinstance(error, PermissionError) and not shutil.which(command, os.F_OK)
    )
    note(f"{command}: {os.strerror(errno.ENOENT) if is_missing else error.strerror}")
    return 127 if is_missing else 126


def asking(*numbers: signal.Signals) -> asyncio.Queue[signal.Signals]:
    """These signals, in the order in which they arrive; not those that who started us ignores, as
    nohup does."""
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    return signals


class Child:
    """The command. It has a process group of its own, so that it gets a signal when we say so:
    Ctrl-C in a terminal reaches everything in the terminal's group at once."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, stdin: int | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=stdin, process_group=0
        )
        self.group = self._process.pid
        self._end = self._loop.run_in_executor(None, self._wait)

    def _wait(self) -> int:
        while os.WIFSTOPPED(status := os.waitpid(self.group, os.WUNTRACED)[1]):
            number = signal.Signals(os.WSTOPSIG(status))
            self._loop.call_soon_threadsafe(self.stopped, number)
        self._process.returncode = code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def stopped(self, number: signal.Signals) -> None:
        """A signal has stopped it, until another one continues it."""

    @property
    def ended(self) -> bool:
        return self._end.done()

    async def end(self) -> int:
        """Wait for it; its exit code as shells give it."""
        return await asyncio.shield(self._end)

    def signal(self, number: signal.Signals) -> None:
        """To everybody in its group whom we may send one."""
        # The last of them ended just now, or all have become another user's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    async def stop(self, *, within: float) -> None:
        """End everybody in its group, also who is stopped: with SIGTERM, and after so long with
        SIGKILL."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        if not await self._empty(within):
            note(f"the command goes on after {durations.show(within)}: it is killed")
            self.signal(signal.SIGKILL)
            if not await self._empty(_DIE_WITHIN):
                note(f"some of the command may be left, in the process group {self.group}")

    async def _empty(self, within: float) -> bool:
        """Whether nobody is left in its group, within a time."""
        deadline = self._loop.time() + within
        while not (gone := self._gone()) and self._loop.time() < deadline:  # noqa: ASYNC110 - no event
            await asyncio.sleep(_LOOK_EACH)
        return gone

    def _gone(self) -> bool:
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # there are some, of another user
            return False
        return False
