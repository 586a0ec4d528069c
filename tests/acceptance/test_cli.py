"""The command as users type it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mooring
from mooring.cli import app
from mooring.cli.typer_extensions import LazyCommand
from mooring.testing.etcd import EtcdServer
from tests.acceptance.commands import Command, mooring_command


@pytest.mark.parametrize("how", [["-m", "mooring.cli"], [f"{Path(sys.executable).parent}/mooring"]])
def test_version(how: list[str]):
    """In a new interpreter, unlike the other commands of these tests."""
    done = subprocess.run(
        [sys.executable, *how, "version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == (f"{mooring.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["-h"], ["register", "-h"], ["token", "create", "-h"]])
def test_h_is_help(arguments: list[str]):
    short = mooring_command(*arguments)
    assert short.returncode == 0
    assert short.stdout == mooring_command(*arguments[:-1], "--help").stdout


def _commands(group: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """The command line of a group and of every command in it."""
    yield path
    for name, command in getattr(group, "commands", {}).items():
        loaded = command.load() if isinstance(command, LazyCommand) else command
        yield from _commands(loaded, *path, name)


def test_no_help_shows_types_of_python(command: Command):
    commands = [*_commands(app)]
    assert {(), ("version",), ("tenant",), ("tenant", "history"), ("wait",)} < {*commands}
    for path in commands:
        text = command(*path, "--help", COLUMNS="80").stdout
        assert " --help " in text
        shown = re.findall(r"<\w+|list\[|<=|>=|\{", text)
        assert shown == [], f"mooring {' '.join(path)}"


def test_help_lists_the_options_of_the_connection_last(command: Command):
    connection = ["--store", "--registry", "--layout", "--namespace", "--v1-prefix", "--help"]
    for path in _commands(app):
        if path == ("serve",):
            continue  # its store and registry are its own settings
        text = command(*path, "--help").stdout
        options = re.findall(r"^│[ *]+(--[\w-]+)", text, re.MULTILINE)
        at = next(i for i, option in enumerate(options) if option in connection)
        assert {*options[at:]} <= {*connection}, f"mooring {' '.join(path)}"


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("mooring to", "token"),
        ("mooring token cr", "create"),
        ("mooring register --we", "--weight"),
    ],
)
def test_the_shell_completes_commands_and_options(typed: str, completed: str):
    done = subprocess.run(
        [f"{Path(sys.executable).parent}/mooring"],
        env={
            "_MOORING_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - 1),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [completed]


def test_doctor_on_a_healthy_etcd(etcd: Callable[[str], EtcdServer]):
    done = mooring_command("doctor", f"{etcd('3.4').url}?namespace=/doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("version 3.4.23, leader", "clock agrees", "alarms: none", "write: allowed"):
        assert words in done.stdout
    left = etcd("3.4").ctl("get", "--prefix", "--keys-only", "/doctor")
    assert left.strip() == "", "its scratch key is removed"


def test_doctor_takes_the_store_from_the_environment_and_prints_json(
    etcd: Callable[[str], EtcdServer],
):
    done = mooring_command("doctor", "--json", MOORING_STORE=etcd("3.5").url)
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert {finding["about"] for finding in findings} >= {"read", "write", "watch", "lease"}


def test_doctor_reports_an_unavailable_store_and_fails():
    done = mooring_command("doctor", "etcd://app:hunter2@127.0.0.1:1")
    assert done.returncode == 1
    assert "nothing listens at 127.0.0.1:1" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


@pytest.mark.parametrize("url", ["foo://x", "etcd://h?tmeout=1s", "nonsense"])
def test_a_bad_url_is_one_line_and_exit_code_2(url: str):
    done = mooring_command("doctor", url)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("mooring: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "call",
    [
        "register a 10.0.0.1:80 --weight -1",
        "register a 10.0.0.1:99999",
        "register a 0.0.0.0:80",
        "register a/b/c 10.0.0.1:80",
        "register a 10.0.0.1:80 --ttl 0s",
        "register a 10.0.0.1:80 --port http=99999",
        "services --layout nonsense",
        "services --store nonsense://x",
        "services --registry redis://h?nonsense=1",
        "token create me --role nonsense",
        "token list --server nonsense",
        "lock /bad/ --ttl 10s",
        "lock name --ttl nonsense",
        "wait a --timeout nonsense",
        "store export --store sqlite:///nowhere/at/all",
        "serve --http nonsense",
        "nonsense",
    ],
)
def test_a_wrong_call_exits_with_2(call: str, command: Command):
    assert command(*call.split()).code == 2


@pytest.mark.parametrize("call", ["lock name --timeout {} -- true", "wait a --timeout {}"])
@pytest.mark.parametrize("zero", ["0", "0s"])
def test_a_timeout_of_zero_is_accepted(
    call: str, zero: str, command: Command, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MOORING_STORE", "etcd://127.0.0.1:1?timeout=100ms")
    done = command(*call.format(zero).split())
    assert done.code == 1, done.stderr
    assert "duration" not in done.stderr
