"""Signals to `mooring lock` and its command: neither is stopped without the other."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shlex
import signal
import termios
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import mooring.sync
from tests.acceptance.forking import Forked
from tests.acceptance.test_lock_commands import MOORING
from tests.waiting import until

NAME = "nightly"

Start = Callable[..., Forked]


@pytest.fixture
def url(served: Callable[[], str]) -> str:
    return f"{served()}?namespace=/{uuid.uuid4().hex}"


@pytest.fixture
def hub(url: str) -> Iterator[mooring.sync.Hub]:
    with mooring.sync.connect(url) as opened:
        yield opened


@pytest.fixture
def stderr_file(tmp_path: Path) -> Path:
    """The file with the standard error of `mooring lock`."""
    return tmp_path / "stderr"


@pytest.fixture
def start(url: str, stderr_file: Path) -> Iterator[Start]:
    """`mooring lock` with a shell script, started like by a shell with job control."""
    started: list[Forked] = []

    def lock(script: str, *options: str) -> Forked:
        with stderr_file.open("w") as stderr, open(os.devnull, "r+") as nothing:
            started.append(
                Forked(
                    *("lock", NAME, *options, "--", "sh", "-c", script),
                    environment={**os.environ, "MOORING_STORE": url},
                    stdin=nothing,
                    stdout=nothing,
                    stderr=stderr,
                    process_group=True,
                )
            )
        return started[-1]

    yield lock
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The file to which a script writes its process id."""
    return tmp_path / "here"


def number(here: Path) -> int:
    until(lambda: here.exists() and here.read_text().endswith("\n"), within=40, what="the command")
    return int(here.read_text())


def state(process: int) -> str:
    """The state of a process; empty if it does not exist."""
    try:
        status: str = psutil.Process(process).status()
    except psutil.NoSuchProcess:
        return ""
    return "" if status == psutil.STATUS_ZOMBIE else status


def gone(process: int) -> None:
    until(lambda: not state(process), what=f"the end of process {process}")


def stopped(*processes: int) -> None:
    until(
        lambda: all(state(process) == psutil.STATUS_STOPPED for process in processes),
        what=f"{processes} are stopped",
    )


FORWARDED = [
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
]


@pytest.mark.parametrize("sent", FORWARDED, ids=lambda sent: sent.name)
def test_the_command_gets_the_signal_and_determines_the_exit_code(
    start: Start, hub: mooring.sync.Hub, here: Path, sent: signal.Signals
):
    name = sent.name.removeprefix("SIG")
    ours = start(f"trap 'exit 5' {name}; echo $$ > {here}; while :; do sleep 0.05; done")
    command = number(here)
    ours.send_signal(sent)
    assert ours.wait(30) == 5
    assert not state(command)
    assert hub.locks(NAME) == []


def test_a_command_that_a_signal_kills_is_not_outlived(start: Start, here: Path):
    ours = start(f"echo $$ > {here}; exec sleep 60")
    command = number(here)
    ours.send_signal(signal.SIGQUIT)
    assert ours.wait(30) == 128 + signal.SIGQUIT
    assert not state(command)


def test_a_signal_ends_a_waiter(start: Start, hub: mooring.sync.Hub):
    with hub.lock(NAME):
        ours = start("true", "--ttl", "600s")
        until(lambda: len(hub.locks(NAME)[0].waiting) == 1, within=40)
        ours.send_signal(signal.SIGQUIT)
        assert ours.wait(30) == 128 + signal.SIGQUIT
        assert len(hub.locks(NAME)[0].waiting) == 0


def test_lock_and_command_are_stopped_and_continued_together(
    start: Start, hub: mooring.sync.Hub, here: Path, tmp_path: Path
):
    """Also the children of the command that ignore the signal."""
    deaf = tmp_path / "deaf"
    ours = start(
        f"sh -c 'trap \"\" TSTP; echo $$ > {deaf}; exec sleep 60' & "
        f"trap 'kill $!; exit 5' TERM; echo $$ > {here}; {WAITS}"
    )
    command, other = number(here), number(deaf)
    ours.send_signal(signal.SIGTSTP)
    stopped(ours.pid, command, other)
    ours.send_signal(signal.SIGCONT)
    until(lambda: psutil.STATUS_STOPPED not in (state(ours.pid), state(command), state(other)))
    assert len(hub.locks(NAME)) == 1
    ours.send_signal(signal.SIGTERM)
    assert ours.wait(30) == 5


def test_a_command_continued_without_its_lock_does_nothing_more(
    start: Start, hub: mooring.sync.Hub, here: Path, tmp_path: Path
):
    lines = tmp_path / "lines"
    ours = start(f"echo $$ > {here}; while :; do echo >> {lines}; done", "--ttl", "5s")
    command = number(here)
    ours.send_signal(signal.SIGTSTP)
    stopped(ours.pid, command)
    before = lines.read_text()
    with hub.lock(NAME, timeout=30):
        ours.send_signal(signal.SIGCONT)
        assert ours.wait(30) == 1
    assert not state(command)
    assert lines.read_text() == before


def test_killing_the_lock_kills_the_command(start: Start, here: Path, tmp_path: Path):
    """And the children of the command."""
    child, signalled = tmp_path / "child", tmp_path / "heard"
    ours = start(
        f"sh -c 'echo $$ > {child}; exec sleep 60' & "
        f"trap 'echo $$ > {signalled}' USR1; echo $$ > {here}; while :; do sleep 0.05; done"
    )
    command, other = number(here), number(child)
    ours.send_signal(signal.SIGUSR1)  # once it is passed on, the command has long been known
    number(signalled)
    ours.kill()
    gone(command)
    gone(other)


def test_no_process_of_the_command_survives_the_loss_of_the_lock(
    start: Start, hub: mooring.sync.Hub, here: Path, stderr_file: Path
):
    """Not even one that ignores the signal, although the command itself ends at once."""
    ours = start(f"sh -c 'trap \"\" TERM; echo $$ > {here}; exec sleep 60' & wait")
    deaf = number(here)
    hub.store.revoke(hub.locks(NAME)[0].holders[0].lease)
    assert ours.wait(40) == 1
    assert not state(deaf)
    assert "it is killed" in stderr_file.read_text()


WAITS = "while :; do wait $!; done"
"""For processes that are stopped. A shell that starts one program after another may be stopped
between `vfork` and `exec`: the child stops, and the shell hangs in the kernel until it
continues."""


class Screen:
    """A terminal with a program in it, its input and its output."""

    def __init__(self, program: list[str], **environment: str) -> None:
        self.shown = ""
        self.process, self._terminal = pty.fork()
        if not self.process:
            os.execvpe(program[0], program, {**os.environ, **environment})

        modes = termios.tcgetattr(self._terminal)
        modes[3] &= ~termios.ECHO  # input is not shown as output
        termios.tcsetattr(self._terminal, termios.TCSANOW, modes)

    def belongs_to(self, group: int) -> None:
        until(lambda: os.tcgetpgrp(self._terminal) == group, what="a terminal")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def shows(self, text: str, *, within: float = 40.0) -> None:
        """Wait for this text in the output from now on."""

        def so() -> bool:
            if select.select([self._terminal], [], [], 0)[0]:
                with contextlib.suppress(OSError):  # Linux reports this at the end of a terminal
                    self.shown += os.read(self._terminal, 65536).decode()
            return text in self.shown

        until(so, within=within, what=f"{text!r} in {self.shown!r}")
        self.shown = self.shown.partition(text)[2]

    def close(self) -> None:
        for child in psutil.Process(self.process).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self._terminal)


@pytest.fixture
def screen(url: str) -> Iterator[Screen]:
    """A shell with job control, in a terminal."""
    opened = Screen(["sh", "-i"], MOORING_STORE=url, PS1="ready> ", ENV="")
    opened.shows("ready> ")
    opened.type(f'lock() {{ {shlex.join([*MOORING, "lock", NAME])} -- "$@"; }}\n')
    opened.shows("ready> ")
    yield opened
    opened.close()


@pytest.mark.parametrize("source", ["", "< /dev/tty"])
def test_a_command_can_read_from_the_terminal(screen: Screen, source: str):
    """And so can the next command."""
    screen.type(f"lock sh -c 'echo name\\?; read name {source}; echo hello $name'; read x\n")
    screen.shows("name?")
    screen.type("world\n")
    screen.shows("hello world")
    screen.type("and then\n")
    screen.type("echo it was $x\n")
    screen.shows("it was and then")


def test_a_command_that_does_not_read_leaves_the_terminal_to_others(screen: Screen):
    """Such as a pager at the end of a pipe, which reads its keys from there."""
    screen.type(
        "lock sh -c 'echo from it; sleep 60' | sh -c 'read a; read b < /dev/tty; echo $a and $b'\n"
    )
    screen.type("keys\n")
    screen.shows("from it and keys")


@pytest.mark.parametrize("asks", [True, False])
def test_at_the_terminal_the_command_is_an_ordinary_job(screen: Screen, here: Path, asks: bool):
    wait = "read x" if asks else WAITS
    script = f"sleep 60 & trap 'echo int; kill $!; exit 7' INT; echo $$ > {here}; {wait}"
    screen.type(f"lock sh -c {shlex.quote(script)}\n")
    command = number(here)
    foreground = command if asks else psutil.Process(command).ppid()
    screen.belongs_to(foreground)
    screen.type("\x1a")
    screen.shows("Stopped")
    screen.type("echo at the prompt\n")
    screen.shows("at the prompt")
    screen.type("fg\n")
    screen.belongs_to(foreground)
    screen.type("\x03")
    screen.shows("int")
    screen.type("echo it was $?\n")
    screen.shows("it was 7")


def test_in_the_background_the_command_stops_until_it_gets_the_terminal(screen: Screen, here: Path):
    script = f"echo $$ > {here}; read name < /dev/tty; echo hello $name"
    screen.type(f"lock sh -c {shlex.quote(script)} &\n")
    command = number(here)
    stopped(command, psutil.Process(command).ppid())
    screen.type("fg\n")
    screen.belongs_to(command)
    screen.type("world\n")
    screen.shows("hello world")


def test_quit_at_the_terminal_ends_the_command(screen: Screen, here: Path):
    screen.type(f"lock sh -c 'echo $$ > {here}; echo here; exec sleep 60'\n")
    screen.shows("here")
    screen.type("\x1c")
    gone(number(here))
    screen.type("echo it was $?\n")
    screen.shows("it was 131")
