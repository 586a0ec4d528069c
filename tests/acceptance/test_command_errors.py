"""Wrong calls of every command: the exit code is 2, the error says what to do, and no text contains
Python notation, whatever was typed."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mooring.backends import open_store
from mooring.cli import app
from mooring.store import Put
from tests.acceptance.commands import mooring_command
from tests.wording import PYTHONS

STORE = "--store=memory://calls"
SERVER = "--server=https://127.0.0.1:1"

WRONG = """
store check {f}/none                                  name the file of a store
store check {f}                                       name the file of a store
store backup {f}/none                                 name the file of a store
store backup {f}                                      name the file of a store
store backup {f}/store {f}/none/copy                  name a file in a folder
store export --store=sqlite://{f}/none                name the file of a store
store export {s} {f}/none/file                        name a file in a folder
store export {s} {f}                                  name a file in a folder
store export --store=sqlite://{f}                     name a file in it
store export --store=foo://x                          unknown URL scheme 'foo'
store import {s} {f}/none                             cannot be read
store import {s} {f}                                  cannot be read
store import {s} {f}/binary                           is not UTF-8 text
store import --store=sqlite://{f}/text/x {f}/empty    name a file in a folder
tenant export {s} {f}/none/file                       name a file in a folder
tenant export {s} {f}                                 name a file in a folder
tenant export {s} --tenant x                          Invalid value for '--tenant'
tenant publish {s} {f}/none.yaml                      cannot be read
tenant publish {s} {f}/folder                         has no file that ends with
tenant publish {s} {f}/binary                         the text is not UTF-8
tenant diff {s} {f}/none.yaml                         cannot be read
tenant show {s} 0                                     Invalid value for 'ID'
tenant list {s} --status nix                          unknown status 'nix'
tenant list {s} --namespace=/                         the namespace of the tenants is empty
tenant resolve {s}                                    give one of
tenant resolve {s} --url http://[                     is not a URL
tenant resolve {s} a..b                               is not a host name
tenant common set {s} nix 1                           unknown setting common/nix: use
tenant rollback {s} 5 x --yes                         Invalid value for 'NUMBER'
config get {s} a/b/c                                  write it as group/name
config set {s} a b                                    is not KEY=VALUE
config set {s} a weight=heavy                         value for weight: 'heavy' must be a number
config set {s} a enabled=true --layout nix            unknown layout 'nix'
info get {s}                                          give either SERVICE or --group
info set {s} a nix=1                                  unknown description field 'nix'
register {s} a 127.0.0.1:99999 -- true                between 1 and 65535
register {s} a 127.0.0.1:1 --weight -1 -- true        at least 0
register {s} a 127.0.0.1:1 --ttl x -- true            write it like 10s
register {s} a 127.0.0.1:1 --ttl 0s -- true           TTL
groups --store nix                                    write it like
groups --store etcd://127.0.0.1:99999                 write it like HOST:2379
groups --store etcd://127.0.0.1:1?timeout=x           write it like 10s
groups --store etcds://127.0.0.1:1?ca={f}/none        ca=
groups --store sqlite://{f}                           name a file in it
groups --registry redis://127.0.0.1:1/x               must be a number
resolve {s} a --policy nix                            unknown balancing policy
wait {s} a --timeout -1s                              write it like 10s
watch {s} a/b/c                                       write it as group/name
lock {s} a --ttl x -- true                            write it like 10s
elect {s} a --timeout x -- true                       write it like 10s
cleanup {s} --once --config {f}/none                  cannot be read
cleanup {s} --once --config {f}/text                  is not valid YAML
brake release {s} a --config {f}                      cannot be read
serve --config {f}/none                               cannot be read
serve --config {f}/text                               is not valid YAML
serve --data {f}/text                                 name another folder with --data
serve --data {f}/data --http 127.0.0.1:0 --store sqlite://{f}/text/x    name a file in a folder
serve --data {f}/data --http 127.0.0.1:99999          expected an address like
demo --for x                                          write it like 10s
doctor nix                                            write it like
doctor sqlite://{f}                                   name a file in it
login --server nix                                    write it like https://HOST:7480
login {v} --ca {f}/none                               --ca
login {v} --cert {f}/none                             --cert
login {v} --key {f}/none                              name that with --cert
token create a --role nix                             unknown role 'nix'
token create a --role admin --expires x               write it like 10s
token create a --role viewer --tenant 0               Invalid value for '--tenant'
xds bootstrap                                         give either --grpc or --envoy
xds bootstrap --envoy --listen nix                    use the form 127.0.0.1:10000
migrate jxt verify {s} --verified {f}/text/x          cannot be
migrate jxt verify {s} --verified {f}/folder          cannot be
migrate jxt delete {s} --verified {f}/folder          cannot be read
migrate jxt delete {s} --verified {f}/text            was not written by `verify`
migrate redis-v1 bridge --interval x                  write it like 10s
"""

FAILED = """
store check {f}/text                                  cannot be read as a store
store export --store=sqlite://{f}/text                cannot be opened as a store
tenant show {s} 5                                     tenant 5 not found
tenant resolve {s} unknown.example                    no tenant has the host
config get {s} nix                                    service 'nix' not found
info get {s} --group nix                              group 'nix' not found
services {s} nix                                      group 'nix' not found
instances {s} nix                                     service 'nix' not found
resolve {s} nix                                       service 'nix' not found
wait {s} nix --timeout 0                              service 'nix' not found
deregister {s} nix 1                                  service 'nix' not found
groups --store etcd://127.0.0.1:1?timeout=1s          nothing listens at 127.0.0.1:1
groups --registry redis://127.0.0.1:1?timeout=1s      nothing listens at 127.0.0.1:1
doctor redis://127.0.0.1:1                            nothing listens at 127.0.0.1:1
login --data {f}/none                                 start `mooring serve`
migrate jxt delete {s} --verified {f}/none            nothing is deleted
"""


class Done(NamedTuple):
    call: str
    code: int
    output: str


def run_all(calls: list[list[str]], home: Path) -> Iterator[Done]:
    for call in calls:
        done = mooring_command(*call, HOME=str(home), TERM="dumb")
        output = " ".join((done.stdout + done.stderr).split())
        yield Done(" ".join(call).replace(str(home), "."), done.returncode, output)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # commands may write files with names from their arguments
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no: text: " * 50)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    (tmp_path / "empty").touch()
    asyncio.run(_make_store(tmp_path / "store"))
    return tmp_path


async def _make_store(path: Path) -> None:
    async with open_store(f"sqlite://{path}") as store:
        await store.commit(Put(b"/a", b"1"))


@pytest.mark.parametrize(("calls", "code"), [(WRONG, 2), (FAILED, 1)], ids=["wrong", "failed"])
def test_a_wrong_call_exits_with_2_and_a_failure_with_1(calls: str, code: int, files: Path):
    lines = [re.split(r" {2,}", line) for line in calls.strip().split("\n")]
    typed = [shlex.split(call.format(f=files, s=STORE, v=SERVER)) for call, _ in lines]
    wrong = [
        done
        for done, (_, words) in zip(run_all(typed, files), lines, strict=True)
        if done.code != code or words.lower() not in done.output.lower()
    ]
    assert not wrong, "\n".join(map(str, wrong))


GARBAGE = "x\x1b[31m\udcff\u202e'\""
ENDLESS = {"serve", "demo", "watch", "bridge", "cleanup", "register", "elect", "lock", "wait"}
"""Commands that may run forever if they are called with what looks like garbage."""


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    inside = command.load() if command is app else getattr(command, "commands", {})
    for name, inner in inside.items():
        yield from _commands(inner, (*path, name))
    if not inside:
        yield path, command


def garbage_calls() -> Iterator[list[str]]:
    """Every command with garbage for its arguments, and every option with garbage for its value, in
    the first two commands that have it."""
    seen: dict[str, int] = {}
    for path, command in _commands(app):
        arguments = [
            parameter for parameter in command.params if parameter.param_type_name == "argument"
        ]
        options = {
            parameter.opts[0]: parameter
            for parameter in command.params
            if parameter not in arguments
        }
        store = [STORE] if "--store" in options and "--registry" not in path else []
        typed = [GARBAGE for argument in arguments if argument.required]
        if typed and path[-1] not in ENDLESS - {"register", "lock", "elect", "watch"}:
            yield [*path, *store, *[GARBAGE for _ in arguments]]
        for name, option in options.items():
            if option.is_flag or seen.get(name, 0) >= 2 or path[-1] in ENDLESS:
                continue
            seen[name] = seen.get(name, 0) + 1
            yield [*path, *([] if name == "--store" else store), f"{name}={GARBAGE}", *typed]
    for name in ("store", "registry", "http", "etcd", "xds", "quota", "config"):
        yield ["serve", f"--{name}={GARBAGE}"]
    for name in ("weight", "ttl", "port", "meta", "layout"):
        yield ["register", STORE, "a", "127.0.0.1:1", f"--{name}={GARBAGE}", "--", "true"]


def test_garbage_never_causes_python_notation(files: Path):
    calls = [*garbage_calls()]
    assert len(calls) > 80
    ugly = [
        done
        for done in run_all(calls, files)
        if PYTHONS.search(done.output) or "\x1b[31m" in done.output or done.code < 0
    ]
    assert not ugly, "\n".join(map(str, ugly))


@pytest.mark.parametrize(
    "text",
    [
        "id: [1",
        "id: !!python/object:os.system x",
        "id: \t\x07",
        "id: x\nmeta: 5",
        "id: 1\nmeta: {code: [1], name: 2024-01-01}",
        "id: 1\ndatabase: {? [1] : x}",
        "id: 1\nftp: {a: {password: {b: c}}}",
        'id: 1\n"\\x1b[31m": 1',
        "id: 1\nmeta: {code: !!binary aGk=, name: !!set {a}}",
    ],
)
def test_garbage_in_a_file_never_causes_python_notation(text: str, files: Path):
    (files / "garbage.yaml").write_text(text)
    for done in run_all(
        [
            ["tenant", "publish", STORE, str(files / "garbage.yaml")],
            ["serve", f"--config={files}/garbage.yaml"],
            ["cleanup", STORE, "--once", f"--config={files}/garbage.yaml"],
            ["store", "import", STORE, str(files / "garbage.yaml")],
        ],
        files,
    ):
        assert not PYTHONS.search(done.output), done
        assert done.code in (1, 2), done
