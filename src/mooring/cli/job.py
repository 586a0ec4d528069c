"""A command that must not go on without us: it is stopped and continued with us, and ends where we
are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from mooring.cli.child import Child
from mooring.cli.terminal import Terminal

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
