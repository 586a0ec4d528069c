"""`mooring lock` and its command: nobody stops one of them and leaves the other at work."""

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
def told(tmp_path: Path) -> Path:
    """The file with the standard error of `mooring lock`."""
    return tmp_path / "told"


@pytest.fixture
def start(url: str, told: Path) -> Iterator[Start]:
    """`mooring lock` on a shell's script, as a shell with job control starts it."""
    started: list[Forked] = []

    def lock(script: str, *options: str) -> Forked:
        with told.open("w") as stderr, open(os.devnull, "r+") as nothing:
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
    """The file in which a script says its process."""
    return tmp_path / "here"


def number(here: Path) -> int:
    until(lambda: here.exists() and here.read_text().endswith("\n"), within=40, what="the command")
    return int(here.read_text())


def state(process: int) -> str:
    """As the system sees it; empty where there is none."""
    try:
        found: str = psutil.Process(process).status()
    except psutil.NoSuchProcess:
        return ""
    return "" if found == psutil.STATUS_ZOMBIE else found


def gone(process: int) -> None:
    until(lambda: not state(process), what=f"the end of process {process}")


def stopped(*processes: int) -> None:
    until(
        lambda: all(state(each) == psutil.STATUS_STOPPED for each in processes),
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
def test_the_command_gets_the_signal_and_says_how_it_ends(
    start: Start, hub: mooring.sync.Hub, here: Path, sent: signal.Signals
):
    name = sent.name.removeprefix("SIG")
    ours = start(f"trap 'exit 5' {name}; echo $$ > {here}; while :; do sleep 0.05; done")
    command = number(here)
    ours.send_signal(sent)
    assert ours.wait(30) == 5
    assert not state(command)
    assert hub.locks(NAME) == []


def test_a_command_that_a_signal_ends_is_not_outlived(start: Start, here: Path):
    ours = start(f"echo $$ > {here}; exec sleep 60")
    command = number(here)
    ours.send_signal(signal.SIGQUIT)
    assert ours.wait(30) == 128 + signal.SIGQUIT
    assert not state(command)


def test_who_waits_leaves_the_line(start: Start, hub: mooring.sync.Hub):
    with hub.lock(NAME):
        ours = start("true", "--ttl", "600s")
        until(lambda: len(hub.locks(NAME)[0].waiting) == 1, within=40)
        ours.send_signal(signal.SIGQUIT)
        assert ours.wait(30) == 128 + signal.SIGQUIT
        assert len(hub.locks(NAME)[0].waiting) == 0


def test_they_are_stopped_and_continued_together(
    start: Start, hub: mooring.sync.Hub, here: Path, tmp_path: Path
):
    """Also those whom the command has started, and who do not listen."""
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


def test_continued_without_the_lock_the_command_does_nothing_more(
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


def test_killed_it_takes_the_command_with_it(start: Start, here: Path, tmp_path: Path):
    """And those whom the command has started."""
    child, heard = tmp_path / "child", tmp_path / "heard"
    ours = start(
        f"sh -c 'echo $$ > {child}; exec sleep 60' & "
        f"trap 'echo $$ > {heard}' USR1; echo $$ > {here}; while :; do sleep 0.05; done"
    )
    command, other = number(here), number(child)
    ours.send_signal(signal.SIGUSR1)  # once it is passed on, the command has long been known
    number(heard)
    ours.kill()
    gone(command)
    gone(other)


def test_when_the_lock_is_lost_nobody_of_the_command_stays(
    start: Start, hub: mooring.sync.Hub, here: Path, told: Path
):
    """Also who does not listen, though the command itself ends at once."""
    ours = start(f"sh -c 'trap \"\" TERM; echo $$ > {here}; exec sleep 60' & wait")
    deaf = number(here)
    hub.store.revoke(hub.locks(NAME)[0].holders[0].lease)
    assert ours.wait(40) == 1
    assert not state(deaf)
    assert "it is killed" in told.read_text()


WAITS = "while :; do wait $!; done"
"""For who is to be stopped. A shell that starts one program after another may be caught between
`vfork` and `exec`: the child stops, and the shell hangs in the kernel until it goes on."""


class Screen:
    """A terminal, what was typed into it and what it shows, with a program in it."""

    def __init__(self, program: list[str], **environment: str) -> None:
        self.shown = ""
        self.process, self._terminal = pty.fork()
        if not self.process:
            os.execvpe(program[0], program, {**os.environ, **environment})

        modes = termios.tcgetattr(self._terminal)
        modes[3] &= ~termios.ECHO  # what is shown was not typed
        termios.tcsetattr(self._terminal, termios.TCSANOW, modes)

    def belongs_to(self, group: int) -> None:
        until(lambda: os.tcgetpgrp(self._terminal) == group, what="a terminal")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def shows(self, text: str, *, within: float = 40.0) -> None:
        """What comes from now on, up to this text."""

        def so() -> bool:
            if select.select([self._terminal], [], [], 0)[0]:
                with contextlib.suppress(OSError):  # Linux says so at the end of a terminal
                    self.shown += os.read(self._terminal, 65536).decode()
            return text in self.shown

        until(so, within=within, what=f"{text!r} in {self.shown!r}")
        self.shown = self.shown.partition(text)[2]

    def close(self) -> None:
        for each in psutil.Process(self.process).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
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
def test_a_command_may_ask_at_the_terminal(screen: Screen, source: str):
    """And who comes after it may, too."""
    screen.type(f"lock sh -c 'echo name\\?; read name {source}; echo hello $name'; read x\n")
    screen.shows("name?")
    screen.type("world\n")
    screen.shows("hello world")
    screen.type("and then\n")
    screen.type("echo it was $x\n")
    screen.shows("it was and then")


def test_a_command_that_does_not_ask_leaves_the_terminal_to_others(screen: Screen):
    """As a pager at the end of a pipe, which reads its keys from there."""
    screen.type(
        "lock sh -c 'echo from it; sleep 60' | sh -c 'read a; read b < /dev/tty; echo $a and $b'\n"
    )
    screen.type("keys\n")
    screen.shows("from it and keys")


@pytest.mark.parametrize("asks", [True, False])
def test_at_the_terminal_it_is_a_job_like_any_other(screen: Screen, here: Path, asks: bool):
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


def test_in_the_background_it_stops_until_it_is_given_the_terminal(screen: Screen, here: Path):
    script = f"echo $$ > {here}; read name < /dev/tty; echo hello $name"
    screen.type(f"lock sh -c {shlex.quote(script)} &\n")
    command = number(here)
    stopped(command, psutil.Process(command).ppid())
    screen.type("fg\n")
    screen.belongs_to(command)
    screen.type("world\n")
    screen.shows("hello world")


def test_quit_at_the_terminal_ends_the_command_too(screen: Screen, here: Path):
    screen.type(f"lock sh -c 'echo $$ > {here}; echo here; exec sleep 60'\n")
    screen.shows("here")
    screen.type("\x1c")
    gone(number(here))
    screen.type("echo it was $?\n")
    screen.shows("it was 131")
