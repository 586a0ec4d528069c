"""Child processes: a command that runs during a registration or while a lock is held."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from mooring.cli.io.streams import note
from mooring.durations import format_duration

_POLL_INTERVAL = 0.02  # seconds between two checks whether a process group has ended
_KILL_TIMEOUT = 2.0  # seconds until a killed process group has ended


def report_not_started(command: str, error: OSError) -> int:
    """Report why a command did not start, and return a shell's exit code for that."""
    is_missing = isinstance(error, FileNotFoundError) or (
        # The system also reports this if it may not search a folder of PATH.
        isinstance(error, PermissionError) and not shutil.which(command, os.F_OK)
    )
    note(f"{command}: {os.strerror(errno.ENOENT) if is_missing else error.strerror}")
    return 127 if is_missing else 126


def queue_signals(*numbers: signal.Signals) -> asyncio.Queue[signal.Signals]:
    """A queue of these signals as they arrive. Signals that this process inherited as ignored, as
    under nohup, stay ignored."""
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    return signals


class Child:
    """A command in its own process group: Ctrl-C in a terminal reaches this process only, which
    decides when the command gets the signal."""

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
        """Called when a signal has stopped the command; another one may continue it."""

    @property
    def ended(self) -> bool:
        return self._end.done()

    async def end(self) -> int:
        """Wait for the command. Returns its exit code, as a shell does."""
        return await asyncio.shield(self._end)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group."""
        # The last process may just have ended, or all may have changed their user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    async def stop(self, *, within: float) -> None:
        """End the process group, even if it is stopped: with SIGTERM, and with SIGKILL after
        `within` seconds."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        if not await self._ends_within(within):
            note(f"the command still runs after {format_duration(within)}: it is killed")
            self.signal(signal.SIGKILL)
            if not await self._ends_within(_KILL_TIMEOUT):
                note(f"processes may be left in the process group {self.group}")

    async def _ends_within(self, seconds: float) -> bool:
        """Whether the process group is empty within a time."""
        deadline = self._loop.time() + seconds
        while not (empty := self._is_empty()) and self._loop.time() < deadline:  # noqa: ASYNC110 - no event
            await asyncio.sleep(_POLL_INTERVAL)
        return empty

    def _is_empty(self) -> bool:
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # processes of another user are left
            return False
        return False


class Terminal:
    """The controlling terminal. It belongs to one process group at a time: the system stops every
    other process that reads from it."""

    def __init__(self) -> None:
        self.lent = False

    def lend(self, group: int) -> bool:
        """Give the terminal to a process group. Returns whether it was ours."""
        with contextlib.suppress(OSError), _opened() as terminal:
            if os.tcgetpgrp(terminal.fileno()) == os.getpgrp():
                os.tcsetpgrp(terminal.fileno(), group)
                self.lent = True
                return True
        return False

    def take_back(self) -> None:
        """Take a lent terminal back, unless it is gone."""
        if self.lent:
            self.lent = False
            # SIGTTOU stops a background process that changes the terminal.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
            try:
                with contextlib.suppress(OSError), _opened() as terminal:
                    os.tcsetpgrp(terminal.fileno(), os.getpgrp())
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _opened() -> BinaryIO:
    return open("/dev/tty", "r+b", buffering=0)


_FROM_TERMINAL = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
"""Signals of job control: Ctrl-Z, and access to the terminal from the background."""

_WATCHDOG = """
read -r group || exit
read -r ended && exit
kill -s TERM -- "-$group"
kill -s CONT -- "-$group"
sleep {grace}
kill -s KILL -- "-$group"
"""
"""Ends the process group as `Child.stop` does, if the pipe closes before its second line."""


class Job(Child):
    """A command that does not run without this process, nor this process without it.

    `wanted` says whether a stopped command may continue. Must be closed.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        grace: float,
        wanted: Callable[[], bool],
    ) -> None:
        self._wanted, self._terminal = wanted, Terminal()
        self._watchdog = _Watchdog(grace)
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTSTP, self.signal, signal.SIGTSTP)
        try:
            super().__init__(command, environment)
        except BaseException:
            self.close()
            raise
        self._watchdog.watch(self.group)

    def stopped(self, number: signal.Signals) -> None:
        """Stop this process too if the terminal stopped the command: the lock must not be renewed
        for a stopped command, and the command must not run while the lock is not renewed. If the
        command was stopped because it wants the terminal, and the terminal is ours, lend it."""
        if number not in _FROM_TERMINAL:
            return
        asks = number != signal.SIGTSTP
        if not (asks and self._terminal.lend(self.group)):
            if _may_stop():
                self._stop_with_it()
            elif asks:  # it can never get it; the system sends SIGHUP to orphaned groups too
                self.signal(signal.SIGHUP)
        if self._wanted():
            self.signal(signal.SIGCONT)

    def _stop_with_it(self) -> None:
        """Stop the command and this process. Returns when this process is continued."""
        lent = self._terminal.lent
        self._terminal.take_back()
        self.signal(signal.SIGSTOP)  # also processes that ignore SIGTSTP
        # With a lent terminal, Ctrl-Z did not reach the other processes of our own group.
        os.kill(0 if lent else os.getpid(), signal.SIGSTOP)
        if lent:
            self._terminal.lend(self.group)

    def close(self) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTSTP)
        self._terminal.take_back()
        self._watchdog.close()


class _Watchdog:
    """A process that ends the command if this process is killed. It reads from a pipe, and has a
    session of its own."""

    def __init__(self, grace: float) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._watching = False
        with contextlib.suppress(FileNotFoundError):  # without a shell there is no watchdog
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHDOG.format(grace=round(grace))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def watch(self, group: int) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(b"%d\n" % group)
                self._process.stdin.flush()
                self._watching = True

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate(b"ended\n" if self._watching else b"")


def _may_stop() -> bool:
    """Whether a shell with job control started our process group, so that it can continue us."""
    import psutil  # slow to load, and few commands are ever stopped

    with contextlib.suppress(psutil.Error, OSError):  # the parent ended meanwhile
        parent = psutil.Process().parent()
        while parent is not None:
            if os.getpgid(parent.pid) != os.getpgrp():
                return os.getsid(parent.pid) == os.getsid(0)
            parent = parent.parent()
    return False
