"""The terminal that we were started from, lent to a command in a process group of its own."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator


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
