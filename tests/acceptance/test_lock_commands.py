"""`mooring lock`, `elect` and `locks` as users type them, beside the real `etcdctl`."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

import mooring.sync
from mooring.cli.io.child_process import Job, report_not_started
from mooring.testing.etcd import EtcdServer, find_etcdctl
from tests.acceptance.commands import Command
from tests.acceptance.forking import Forked
from tests.waiting import until

MOORING = [sys.executable, "-m", "mooring.cli"]


OLDER = pytest.param("etcd-3.4", marks=pytest.mark.extended("etcd 3.5 is run by default"))


@pytest.fixture(params=["etcd-3.5", OLDER, "served"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(backend: str, etcd: Callable[[str], EtcdServer], served: Callable[[], str]) -> str:
    """Without a namespace, which etcdctl does not know."""
    return served() if backend == "served" else etcd(backend.removeprefix("etcd-")).url


@pytest.fixture
def hub(url: str) -> Iterator[mooring.sync.Hub]:
    with mooring.sync.connect(url) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    return f"/lock-{uuid.uuid4().hex}"


class Running:
    """A running command, and its output so far."""

    def __init__(
        self, folder: Path, start: Callable[[IO[bytes]], subprocess.Popen[bytes] | Forked]
    ) -> None:
        self._file = folder / uuid.uuid4().hex
        with self._file.open("wb") as output:
            self.process = start(output)

    @property
    def output(self) -> str:
        return self._file.read_text()

    def prints(self, text: str, within: float = 40.0) -> None:
        until(lambda: text in self.output, within=within, what=f"{text!r} in {self.output!r}")

    def ends(self, within: float = 40.0) -> int:
        return self.process.wait(within)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def run(url: str, backend: str, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start `mooring …` or `etcdctl …` on the store of the test."""
    started: list[Running] = []

    def etcdctl(*arguments: str) -> Callable[[IO[bytes]], subprocess.Popen[bytes]]:
        series = "3.4" if backend == "etcd-3.4" else "3.5"
        endpoint = f"--endpoints={url.removeprefix('etcd://')}"
        return lambda output: subprocess.Popen(
            [find_etcdctl(series), endpoint, *arguments],
            env={**os.environ, "ETCDCTL_API": "3"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )

    def ours(*arguments: str) -> Callable[[IO[bytes]], Forked]:
        environment = {**os.environ, "MOORING_STORE": url}
        return lambda output: Forked(
            *arguments, environment=environment, stdout=output, stderr=output
        )

    def start(program: str, *arguments: str) -> Running:
        command = etcdctl(*arguments) if program == "etcdctl" else ours(*arguments)
        started.append(Running(tmp_path, command))
        return started[-1]

    yield start
    for process in started:
        process.close()


def waits(hub: mooring.sync.Hub, name: str, count: int) -> None:
    """Wait until this number of contenders waits for a lock that is held."""

    def so() -> bool:
        queues = hub.locks(name)
        return bool(queues) and len(queues[0].holders) == 1 and len(queues[0].waiting) == count

    until(so, within=40, what=f"{count} wait for {name}")


@pytest.mark.parametrize(
    ("backend", "end"),
    [
        ("etcd-3.5", signal.SIGINT),
        ("served", signal.SIGINT),
        ("served", signal.SIGKILL),
        *(
            pytest.param(backend, end, marks=pytest.mark.extended("killed on one server"))
            for backend, end in (
                ("etcd-3.4", signal.SIGINT),
                ("etcd-3.4", signal.SIGKILL),
                ("etcd-3.5", signal.SIGKILL),
            )
        ),
    ],
)
def test_etcdctl_holds_the_lock_and_mooring_waits(
    hub: mooring.sync.Hub, run: Callable[..., Running], name: str, end: signal.Signals
):
    theirs = run("etcdctl", "lock", "--ttl=6", name)
    theirs.prints(f"{name}/")
    (info,) = hub.locks(name)
    assert theirs.output.strip() == info.holders[0].key.decode()
    assert hub.lock(name).try_acquire() is None
    ours = run("mooring", "lock", name, "--", "sh", "-c", "echo token $MOORING_FENCING_TOKEN")
    waits(hub, name, 1)
    theirs.process.send_signal(end)
    ours.prints("token ")
    assert ours.ends() == 0
    assert int(ours.output.split()[-1]) > info.holders[0].token
    assert hub.locks(name) == []


@pytest.mark.parametrize(
    ("backend", "end"),
    [
        ("etcd-3.5", "killed"),
        ("etcd-3.5", "released"),
        ("served", "released"),
        *(
            pytest.param(backend, end, marks=pytest.mark.extended("killed on one server"))
            for backend, end in (
                ("etcd-3.4", "released"),
                ("etcd-3.4", "killed"),
                ("served", "killed"),
            )
        ),
    ],
)
def test_mooring_holds_the_lock_and_etcdctl_waits(
    hub: mooring.sync.Hub, run: Callable[..., Running], name: str, end: str
):
    ours = run("mooring", "lock", "--ttl", "6s", name, "--", "sh", "-c", "echo here; sleep 60")
    ours.prints("here")
    theirs = run("etcdctl", "lock", name, "echo", "their", "turn")
    waits(hub, name, 1)
    assert theirs.output == ""
    if end == "killed":
        ours.process.kill()
    else:
        ours.process.send_signal(signal.SIGTERM)
        assert ours.ends() == 128 + signal.SIGTERM
    theirs.prints("their turn")
    assert theirs.ends() == 0
    until(lambda: hub.locks(name) == [])


def test_etcdctl_and_mooring_take_turns(
    hub: mooring.sync.Hub, run: Callable[..., Running], name: str, tmp_path: Path
):
    log = tmp_path / "turns"
    body = f"echo in >> {log}; sleep 0.2; echo out >> {log}"
    (tmp_path / "turn").write_text(f"#!/bin/sh\n{body}\n")
    (tmp_path / "turn").chmod(0o755)
    script = str(tmp_path / "turn")
    started = [
        run("etcdctl", "lock", name, script)
        if number % 2
        else run("mooring", "lock", name, "--", script)
        for number in range(6)
    ]
    assert [process.ends() for process in started] == [0] * 6
    assert log.read_text().split() == ["in", "out"] * 6
    assert hub.locks(name) == []


def test_etcdctl_and_mooring_take_part_in_one_election(
    hub: mooring.sync.Hub, run: Callable[..., Running], name: str
):
    listening = run("etcdctl", "elect", "--listen", name)
    ours_listening = run("mooring", "elect", "--listen", name)
    theirs = run("etcdctl", "elect", name, "from etcdctl")
    theirs.prints("from etcdctl")
    ours_listening.prints("from etcdctl")
    ours = run(
        "mooring", "elect", name, "--value", "from ours", "--", "sh", "-c", "echo I lead; sleep 60"
    )
    waits(hub, name, 1)
    leader = hub.election(name).leader()
    assert leader is not None
    assert leader.text == "from etcdctl"
    theirs.process.send_signal(signal.SIGINT)
    ours.prints("I lead")
    listening.prints("from ours")
    ours_listening.prints("from ours")
    again = run("etcdctl", "elect", name, "back again")
    waits(hub, name, 1)
    ours.process.send_signal(signal.SIGTERM)
    ours.ends()
    again.prints("back again")
    listening.prints("back again")


def test_the_command_is_stopped_when_the_lock_is_lost(
    hub: mooring.sync.Hub, run: Callable[..., Running], name: str
):
    trap = "trap 'echo stopped; exit 3' TERM; echo here; while :; do sleep 0.1; done"
    ours = run("mooring", "lock", "--ttl", "15s", name, "--", "sh", "-c", trap)
    ours.prints("here")
    (info,) = hub.locks(name)
    hub.store.revoke(info.holders[0].lease)
    assert ours.ends() == 1
    assert "is lost: stopping the command" in ours.output
    assert "stopped\n" in ours.output


@pytest.mark.parametrize("backend", ["served"])
def test_the_exit_code_of_the_command_is_passed_on(
    url: str, name: str, hub: mooring.sync.Hub, command: Command
):
    done = command("lock", name, "--", "sh", "-c", "exit 7", MOORING_STORE=url)
    assert done.code == 7
    done = command("lock", name, "--", "no-such-program", MOORING_STORE=url)
    assert done.code == 127
    assert "no-such-program" in done.stderr
    assert hub.locks(name) == []


@pytest.mark.parametrize(("file", "code"), [("there", 126), ("elsewhere", 127)])
def test_an_unreadable_folder_in_the_path_is_skipped(
    file: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The system reports both in the same way. As in a shell, only an existing file is an error."""
    (tmp_path / file).touch(mode=0o600)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert report_not_started("there", PermissionError(errno.EACCES, "Permission denied")) == code


@pytest.mark.timeout(30)  # shorter than the grace
async def test_a_missing_program_is_reported_without_the_grace(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        Job([str(tmp_path / "no-such-program")], {}, grace=600, wanted=lambda: True)


def test_a_timeout_names_the_holder(url: str, name: str, hub: mooring.sync.Hub, command: Command):
    with hub.lock(name) as held:
        # 5 s suffice on a busy machine to read the queue, which names the holder.
        for timeout in ("0s", "5s"):
            done = command("lock", name, "--timeout", timeout, "--", "true", MOORING_STORE=url)
            assert done.code == 1
            assert name in done.stderr
        assert f"token {held.token}" in done.stderr
        assert len(hub.locks(name)[0].waiting) == 0


def test_without_a_command_the_lock_is_held_until_it_is_stopped(
    hub: mooring.sync.Hub, run: Callable[..., Running], name: str
):
    ours = run("mooring", "lock", name)
    waits(hub, name, 0)
    ours.prints(str(hub.locks(name)[0].holders[0].token))
    ours.process.send_signal(signal.SIGTERM)
    assert ours.ends() == 0
    assert hub.locks(name) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["lock", "", "--", "true"], "is empty"),
        (["lock", "a/", "--", "true"], "ends with a slash"),
        (["lock", "a", "--ttl", "0s", "--", "true"], "TTL of 0"),
        (["lock", "a", "--ttl", "500ms", "--", "true"], "at least 1s"),
        (["elect", "a/", "--", "true"], "ends with a slash"),
    ],
)
def test_invalid_arguments_are_explained(command: Command, arguments: list[str], complaint: str):
    done = command(*arguments, MOORING_STORE="memory://")
    assert done.code == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_locks_are_listed(
    url: str, hub: mooring.sync.Hub, run: Callable[..., Running], name: str, command: Command
):
    theirs = run("etcdctl", "lock", f"{name}/theirs")
    theirs.prints(name)
    with hub.lock(f"{name}/ours") as held, hub.semaphore(f"{name}/places", 2):
        waiting = run("mooring", "lock", f"{name}/ours")
        waits(hub, f"{name}/ours", 1)
        done = command("locks", name, "--json", MOORING_STORE=url)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(row["lock"].rpartition("/")[2], row["state"], row["kind"]) for row in rows] == [
            ("ours", "held", "lock"),
            ("ours", "waiting", "lock"),
            ("places", "held", "place"),
            ("theirs", "held", None),
        ]
        assert rows[0]["token"] == held.token
        lines = command("locks", name, MOORING_STORE=url).stdout.splitlines()
        assert len(lines) == 4
        assert lines[0].split("\t")[:3] == [f"{name}/ours", "held", "lock"]
        waiting.process.send_signal(signal.SIGTERM)
        assert waiting.ends() == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        ("lock", "<&- >&- 2>&-"),
        ("lock", "<&-"),
        ("elect", "2>&-"),
        ("register", ">&-"),
        *(
            pytest.param(command, closed, marks=pytest.mark.extended("each closed by one command"))
            for command, closed in (
                *(("lock", ">&-"), ("lock", "2>&-")),
                *(("elect", "<&-"), ("elect", ">&-"), ("elect", "<&- >&- 2>&-")),
                *(("register", "<&-"), ("register", "2>&-"), ("register", "<&- >&- 2>&-")),
            )
        ),
    ],
)
def test_a_command_runs_with_closed_standard_descriptors(tmp_path: Path, command: str, closed: str):
    """As some supervisors start processes. Files opened later must not take their place."""
    ran = tmp_path / "ran"
    body = f"cat; echo out; echo err >&2; echo ran > {ran}"
    ours = [*MOORING, command, "it", "--store", "memory://", "--", "sh", "-c", body]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *ours],
        input="in\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ran.read_text() == "ran\n"
    given = "" if "<" in closed else "in\n"
    assert done.stdout == ("" if closed.count(">") - closed.count("2>") else f"{given}out\n")
