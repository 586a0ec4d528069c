"""A command that runs while something lasts: a registration, a lock."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence

from mooring import durations
from mooring.cli.io.output import note

_LOOK_EACH = 0.02  # seconds between looks at a group that is to end
_DIE_WITHIN = 2.0  # seconds that the system has to bury in who was killed


def report_not_started(command: str, error: OSError) -> int:
    """Report why a command did not start, and return the exit code that a shell has for it."""
    is_missing = isinstance(error, FileNotFoundError) or (
        # The system reports this too if it may not search a folder of PATH.
        isinstance(error, PermissionError) and not shutil.which(command, os.F_OK)
    )
    note(f"{command}: {os.strerror(errno.ENOENT) if is_missing else error.strerror}")
    return 127 if is_missing else 126


def queue_signals(*numbers: signal.Signals) -> asyncio.Queue[signal.Signals]:
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


class Terminal:
    """It belongs to one process group at a time: who else reads from it is stopped."""

    def __init__(self) -> None:
        self.lent = False

    def lend(self, group: int) -> bool:
        """Whether it was ours to lend."""
        with contextlib.suppress(OSError), _opened() as terminal:
            if os.tcgetpgrp(terminal) == os.getpgrp():
                os.tcsetpgrp(terminal, group)
                self.lent = True
                return True
        return False

    def take_back(self) -> None:
        """Where it was lent: it is ours again, or gone."""
        if self.lent:
            self.lent = False
            with contextlib.suppress(OSError), _opened() as terminal, _undisturbed():
                os.tcsetpgrp(terminal, os.getpgrp())


@contextlib.contextmanager
def _opened() -> Iterator[int]:
    terminal = os.open("/dev/tty", os.O_RDWR)
    try:
        yield terminal
    finally:
        os.close(terminal)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the signal that stops who is in the background and touches the terminal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_FROM_TERMINAL = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
"""What stops a job: Ctrl-Z, and the wish of who is in the background for the terminal."""

_HEIR = """
read -r group || exit
read -r over && exit
kill -s TERM -- "-$group"
kill -s CONT -- "-$group"
sleep {grace}
kill -s KILL -- "-$group"
"""
"""Left alone by us without a word, it ends the command as we would have done."""


class Job(Child):
    """The command. `wanted` says whether it is to go on after it was stopped. Close it."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        grace: float,
        wanted: Callable[[], bool],
    ) -> None:
        self._wanted, self._terminal = wanted, Terminal()
        self._heir = _Heir(grace)
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTSTP, self.signal, signal.SIGTSTP)
        try:
            super().__init__(command, environment)
        except BaseException:
            self.close()
            raise
        self._heir.tell(self.group)

    def stopped(self, number: signal.Signals) -> None:
        """Who stopped it at the terminal means us too: our lock must not be renewed for a command
        that stands still, nor the command go on when nobody renews the lock. Only where it asks for
        the terminal, and that is ours, it is lent it and goes on."""
        if number not in _FROM_TERMINAL:
            return
        asks = number != signal.SIGTSTP
        if not (asks and self._terminal.lend(self.group)):
            if _may_stop():
                self._stop_with_it()
            elif asks:  # it will never have it: as the system does with those whose shell is gone
                self.signal(signal.SIGHUP)
        if self._wanted():
            self.signal(signal.SIGCONT)

    def _stop_with_it(self) -> None:
        """Returns once we are continued."""
        lent = self._terminal.lent
        self._terminal.take_back()
        self.signal(signal.SIGSTOP)  # also those of its group who do not listen
        # Ctrl-Z did not reach those who were started with us, where the terminal was lent.
        os.kill(0 if lent else os.getpid(), signal.SIGSTOP)
        if lent:
            self._terminal.lend(self.group)

    def close(self) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTSTP)
        self._terminal.take_back()
        self._heir.close()


class _Heir:
    """A process that outlives us where we are killed. It holds the other end of a pipe, and is in
    no group and on no terminal of ours."""

    def __init__(self, grace: float) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._told = False
        with contextlib.suppress(FileNotFoundError):  # without a shell the command does without
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _HEIR.format(grace=round(grace))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def tell(self, group: int) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(b"%d\n" % group)
                self._process.stdin.flush()
                self._told = True

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate(b"over\n" if self._told else b"")


def _may_stop() -> bool:
    """Whether somebody could continue us: who started our group is a shell with job control."""
    import psutil  # slow to load, and few commands are ever stopped

    with contextlib.suppress(psutil.Error, OSError):  # it ended while we looked
        parent = psutil.Process().parent()
        while parent is not None:
            if os.getpgid(parent.pid) != os.getpgrp():
                return os.getsid(parent.pid) == os.getsid(0)
            parent = parent.parent()
    return False
