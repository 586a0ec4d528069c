"""`etcdctl` prints the same for the embedded engine's server as for a real etcd, except
identifiers.

Both start empty and get the same commands, one after the other, so that even revisions are
compared. A command can get a text as input, or be ended after a number of lines of its output.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mooring.etcd_server.server import EtcdAPIServer
from mooring.store.embedded.durable import durable_runner
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.store import memory_runner
from mooring.testing.etcd import EtcdServer, find_etcdctl

_PATIENCE = 30.0  # seconds for one command
_HUNG = "<nothing more in time>"


class Command(NamedTuple):
    line: str
    """The arguments. `{lease}` stands for the last lease that was granted, `{number}` for the
    same as a decimal number."""
    text: str = ""
    lines: int = 0
    """Interrupt it after so many lines; 0: let it end by itself."""


def commands(script: str, *, whole: bool) -> Iterator[Command]:
    """One per line; `N| …` is interrupted after N lines, `+ …` is part of the complete script
    only."""
    for written in filter(None, map(str.strip, script.splitlines())):
        line = written.removeprefix("+ ")
        if line != written and not whole:
            continue
        count, bar, rest = line.partition("| ")
        yield Command(rest, lines=int(count)) if bar and count.isdigit() else Command(line)


def txn(compares: str, success: str, failure: str, *flags: str) -> Command:
    return Command(" ".join(["txn", *flags]), text=f"{compares}\n\n{success}\n\n{failure}\n\n")


WRITING = """
    put a 1
    put b 2 --prev-kv
    + put a 3 --prev-kv
    put a 4 --prev-kv -w json
    put a 5 --prev-kv -w fields
    put a --ignore-value
    put none --ignore-value
    put none --ignore-lease x
    put '' x
    put dir/1 one
    put dir/2 two
    put dir/3 three
    put dir/2 again
    put dirt x
    + put spaces 'a value with spaces'
    + put binary 'a\tb'
    + put empty ''
    + put -w json c 7
    + put -w fields c 8
    put -- -dash -value
    + del -- -dash
    del none
    + del empty
    + del dirt --prev-kv
    del dirt --prev-kv -w json
    put del/1 x
    put del/2 y
    + put del/3 z
    + del del/1 del/3 --prev-kv
    del del/ --prefix -w fields --prev-kv
    put z1 1
    + put z2 2
    del z1 --from-key
    + del '' --prefix -w json --prev-kv=false nothing
"""

READING = """
    + get a
    get none
    get a -w json
    + get a -w fields
    + get a --hex
    + get a -w json --hex
    + get spaces --print-value-only
    + get binary --hex
    get '' --prefix
    get '' --prefix --keys-only
    + get '' --prefix --count-only
    + get '' --prefix --count-only -w fields
    get '' --prefix --count-only -w json
    + get dir --prefix
    + get dir/ --prefix -w json
    + get dir/ --prefix -w fields
    + get dir/ --prefix --limit 2
    get dir/ --prefix --limit 2 -w json
    + get dir/ --prefix --limit 2 -w fields
    + get dir/ --prefix --limit 3
    + get dir/ --prefix --limit=2 --keys-only -w json
    + get dir/1 dir/3
    get dir/1 dir/3 -w json
    get dir/3 dir/1
    + get b c
    get b --from-key
    + get b --from-key --limit 2
    + get '' --from-key --keys-only
    + get dir/ --prefix --order=ASCEND
    + get dir/ --prefix --order=DESCEND
    get dir/ --prefix --order=DESCEND --limit=1
    get dir/ --prefix --sort-by=KEY --order=DESCEND
    + get dir/ --prefix --sort-by=VERSION --order=ASCEND
    get dir/ --prefix --sort-by=VERSION --order=DESCEND
    + get dir/ --prefix --sort-by=CREATE --order=ASCEND
    get dir/ --prefix --sort-by=CREATE --order=DESCEND
    + get dir/ --prefix --sort-by=MODIFY --order=ASCEND
    get dir/ --prefix --sort-by=MODIFY --order=DESCEND --limit=2
    get dir/ --prefix --sort-by=VALUE --order=ASCEND
    + get dir/ --prefix --sort-by=VALUE --order=DESCEND
    + get dir/ --prefix --sort-by=MODIFY
    + get dir/ --prefix --sort-by=NONSENSE
    + get dir/ --prefix --order=NONSENSE
    + get a --rev=2
    get a --rev=4 -w json
    get a --rev=1
    get a --rev=1000
    get dir/ --prefix --rev=11
    get a --consistency=s
    + get a --consistency=l
    + get a --consistency=x
    + get dir/ --prefix --print-value-only --hex
    + get dir/ --prefix --print-value-only --limit 1
    + get a b c
    + get dir/ --prefix --from-key
"""

TRANSACTIONS = [
    txn('value("a") = "5"', "put a 6\nget a", "get a"),
    txn('mod("a") > "0"', "get a\nget b", "put a none", "-w json"),
    txn('create("none") = "0"', 'put made "by txn"\nget made', "get made"),
    txn('create("a") < "3"', "get dir/ --prefix", "get b"),
    txn('value("none") = ""', "get a", "get b"),
    txn('mod("a") > "0"', "put d 1\nput d 2", ""),
    txn('mod("a") > "0"', "put d 1\ndel d", ""),
    txn("", "put d 1\nput e 2\ndel b\nget dir/ --prefix --keys-only", ""),
    txn("", "put d 1 --prev-kv\ndel e --prev-kv", ""),
    txn("", "", ""),
    txn("", "get a --rev=100000", ""),
    txn('version("a") < "3"', "put a few", "put a many"),
    txn('value("a") > "4"\nmod("b") = "3"', "get a", "get b", "-w json"),
]

MORE_TRANSACTIONS = [
    txn('value("a") = "5"', "put a 7\nget a", "get a"),
    txn('create("made") = "0"', "put made again", "del made\nget made", "-w fields"),
    txn('version("a") != "3"', "get a --rev=2", "get b"),
    txn('nonsense("a") > "0"', "get a", ""),
    txn('mod("a") > "0"', "nonsense", ""),
    txn("", 'put f "quoted value"\nget f', "", "-w fields"),
]

LEASES = """
    + lease grant 60
    lease grant 60 -w json
    + lease grant 60 -w fields
    + lease grant 1
    lease revoke {lease}
    lease grant 0
    lease revoke {lease}
    lease grant 9000000001
    + lease grant nonsense
    lease grant 600
    put leased 1 --lease={lease}
    get leased -w json
    + get leased -w fields
    put leased 2 --ignore-lease
    get leased -w json
    put leased --ignore-value --lease={lease}
    + put leased --ignore-value --ignore-lease
    put leased x --lease=1234abc
    + put leased x --lease=nonsense
    + lease timetolive {lease}
    + lease timetolive {lease} --keys
    lease timetolive {lease} --keys -w json
    + lease timetolive {lease} --keys -w fields
    + put leased/2 2 --lease={lease}
    + lease timetolive 1234abc
    lease timetolive 1234abc -w json
    lease keep-alive {lease} --once
    + lease keep-alive {lease} --once -w json
    lease keep-alive 1234abc --once
    + 1| lease keep-alive {lease}
    lease revoke {lease}
    lease revoke {lease}
    + lease revoke 1234abc -w json
    get leased --prefix
    + lease list -w fields
    lease list -w json
"""

WATCHES = """
    put w/1 1
    put w/1 2
    put w/2 1
    del w/1
    + 9| watch w/1 --rev=2
    + 3| watch w/2 --rev=2
    12| watch w/ --prefix --rev=2
    15| watch w/ --prefix --rev=2 --prev-kv
    1| watch w/ --prefix --rev=2 -w json
    + 24| watch w/ --prefix --rev=2 -w fields
    + 6| watch w/1 w/3 --rev=2
    + watch w/1 --from-key --rev=2
    + 3| watch a --rev=2 --hex
    + 4| watch a --rev=2 --progress-notify
    + 3| watch a --rev=2 -- env
    compaction 10
    compaction 10
    compaction 5
    compaction 100000
    + compaction nonsense
    + compaction 12 --physical
    get a --rev=9
    + get a --rev=12
    watch w/ --prefix --rev=5
    + watch w/ --prefix --rev=5 -w json
    + 6| watch w/ --prefix --rev=30
"""

LOCKS = """
    lock mutex echo held
    + lock mutex --ttl=5 -- sh -c 'echo key $ETCD_LOCK_KEY rev $ETCD_LOCK_REV'
    + lock mutex -- sh -c 'exit 3'
    1| lock mutex
    get mutex --prefix --keys-only
    2| elect leader me
    get leader --prefix
    + elect leader --listen nonsense extra
"""

CLUSTER = """
    + member list
    member list -w json
    + member list -w fields
    + endpoint status
    endpoint status -w json
    + endpoint status -w fields
    endpoint health
    + endpoint health --cluster
    + endpoint health -w json
    + endpoint status --cluster
    endpoint hashkv
    alarm list
    + alarm disarm
    auth status
    + auth status -w json
    get '' --prefix -w json
"""


def script(*, whole: bool) -> list[Command]:
    """The complete script, or only the commands whose behaviour no other command shows: etcdctl
    itself formats its output, and checks its arguments."""
    return [
        *commands(WRITING, whole=whole),
        *commands(READING, whole=whole),
        *TRANSACTIONS,
        *(MORE_TRANSACTIONS if whole else []),
        *(
            command
            for part in (LEASES, WATCHES, LOCKS, CLUSTER)
            for command in commands(part, whole=whole)
        ),
    ]


class Terminal:
    """Runs etcdctl with one server, and removes what is specific to that server."""

    def __init__(self, program: Path, address: str) -> None:
        self._program, self._address = program, address
        self._leases: list[int] = []

    async def run(self, command: Command) -> tuple[int | None, list[str]]:
        lease = self._leases[-1] if self._leases else 0
        line = command.line.replace("{lease}", f"{lease:x}").replace("{number}", str(lease))
        process = await asyncio.create_subprocess_exec(
            self._program,
            f"--endpoints=http://{self._address}",
            "--command-timeout=20s",
            *shlex.split(line),
            env={**_environment(), "ETCDCTL_API": "3"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=2**24,
        )
        output = await (
            self._first_lines(process, command.lines)
            if command.lines
            else self._whole(process, command.text)
        )
        granted = re.search(r"lease (\w+) granted|\"ID\" ?: ?(\d+)", output)
        if granted and line.startswith("lease grant"):
            self._leases.append(int(granted[1], 16) if granted[1] else int(granted[2]))
        code = process.returncode if not command.lines else None
        return code, self._plain(output)

    async def _whole(self, process: asyncio.subprocess.Process, text: str) -> str:
        try:
            async with asyncio.timeout(_PATIENCE):
                output, _ = await process.communicate(text.encode())
                return output.decode()
        except TimeoutError:
            process.kill()
            await process.wait()
            return _HUNG

    async def _first_lines(self, process: asyncio.subprocess.Process, count: int) -> str:
        assert process.stdout is not None
        output = ""
        try:
            async with asyncio.timeout(_PATIENCE):
                for _ in range(count):
                    output += (await process.stdout.readline()).decode()
        except TimeoutError:
            output += _HUNG
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await process.communicate()
        return output

    def _plain(self, output: str) -> list[str]:
        for number, lease in enumerate(self._leases):
            for form in (f"{lease:016x}", f"{lease:x}", str(lease)):
                output = output.replace(form, f"<lease {number}>")
        for pattern, replacement in _ALIKE:
            output = re.sub(pattern, replacement, output)
        return output.splitlines()


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


_ALIKE = [
    (r"(?i)(cluster_?id\"?|member_?id\"?|raft_?term\"?|leader\"?) ?: ?\d+", r"\1: <n>"),
    (r"(?i)(raft_?(applied_?)?index\"?|db_?size(_?in_?use)?\"?) ?: ?\d+", r"\1: <n>"),
    (r"(?i)(\"hash\"?|hash\"?) ?: ?\d+", r"\1: <n>"),
    (r"(\"version\" ?: ?\"|\"Version\" : \")3\.5\.\d+", r"\1<version>"),
    (r"\b5\d\d(?=s?\b)", "600"),  # the remainder of ten minutes
    (r"https?://127\.0\.0\.1:\d+|127\.0\.0\.1:\d+", "<address>"),
    (r"took(\" ?: ?\"| = )[\d.]+[mµn]?s", "took <time>"),
    (r"(?<=\"ID\":)\d{12,}|(?<=\"ID\" : )\d{12,}", "<n>"),
    (r"\b[0-9a-f]{11,16}\b", "<id>"),
    (r"<id>, 3\.5\.\d+, [\d.]+ k?B, (\w+), (\w+), \d+, \d+, \d+", r"<status>, \1, \2"),
    (r"(?<=<address>, )\d+$", "<hash>"),
    (r"\{\"level\":\"warn\".*", "<log>"),
    (r"\b(solo|mooring)\b", "<name>"),
    (r"(?<=<name>, )(?:<address>)?(?=, <address>)", "<peer>"),
    (r"\"peerURLs\":\[[^\]]*\],", ""),
    (r"\"PeerURL\" : .*\n", ""),
]


@pytest.fixture
def real(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path / "etcd", flags=["--unsafe-no-fsync"]) as server:
        server.start()
        yield server


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    host = durable_runner(tmp_path / "store")
    async with EtcdAPIServer(host, bind="127.0.0.1:0") as server:
        yield server.address
    host.release()


@pytest.mark.parametrize(
    "whole",
    [False, pytest.param(True, marks=pytest.mark.extended("what it adds is etcdctl's formatting"))],
)
async def test_etcdctl_prints_the_same(real: EtcdServer, address: str, whole: bool):
    program = find_etcdctl("3.5")
    theirs, ours = Terminal(program, real.address), Terminal(program, address)
    differences = []
    for command in script(whole=whole):
        expected, printed = await asyncio.gather(theirs.run(command), ours.run(command))
        if printed != expected or any(_HUNG in line for line in printed[1]):
            differences.append(difference(command, expected, printed))
    assert not differences, "\n".join(differences)


def difference(
    command: Command, expected: tuple[int | None, list[str]], printed: tuple[int | None, list[str]]
) -> str:
    def shown(of: Iterable[str]) -> str:
        return "\n".join(f"    {line}" for line in of)

    return (
        f"etcdctl {command.line}\n  etcd ({expected[0]}):\n{shown(expected[1])}\n"
        f"  mooring ({printed[0]}):\n{shown(printed[1])}"
    )


async def test_etcdctl_lists_and_disarms_the_alarm_of_the_quota():
    host = memory_runner("", lambda: Engine(quota=2_000))
    async with EtcdAPIServer(host, bind="127.0.0.1:0") as server:
        terminal = Terminal(find_etcdctl("3.5"), server.address)

        async def run(line: str) -> str:
            _, lines = await terminal.run(Command(line))
            return "\n".join(lines)

        assert "database space exceeded" in await run(f"put big {'x' * 3_000}")
        assert "alarm:NOSPACE" in await run("alarm list")
        assert "alarm:NOSPACE" in await run("endpoint status")
        assert "database space exceeded" in await run("put small x")
        assert "alarm:NOSPACE" in await run("alarm disarm")
        assert "NOSPACE" not in await run("alarm list")
        assert "OK" in await run("put small x")
    host.release()
