"""`mooring lock`, `mooring elect` and `mooring locks`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import typer

from mooring.cli.io.child_process import Job, queue_signals, report_not_started
from mooring.cli.io.connect import open_hub, run_command
from mooring.cli.io.options import JSONOption, StoreOption, seconds
from mooring.cli.io.output import note, printable, show, show_json
from mooring.errors import LockLost, LockTimeout
from mooring.formatting import quoted
from mooring.locks.election import Leader
from mooring.locks.held import Held
from mooring.locks.inspect import Contender, LockInfo
from mooring.locks.lock import Lock, check_name, check_times
from mooring.model import JSON
from mooring.tasks import Tasks

TOKEN = "MOORING_FENCING_TOKEN"
"""Environment variable with the fencing token."""
KEY = "MOORING_LOCK_KEY"
"""Environment variable with the key of the holder, created at the token's revision."""

_END_WITHIN = 5.0  # seconds that the command has to end in once the lock is lost
_FOR_THE_COMMAND = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="name of the lock or election, as with etcdctl")
]
TTLOption = Annotated[
    str,
    typer.Option(metavar="DURATION", help="expire after this time without a heartbeat"),
]
TimeoutOption = Annotated[
    str, typer.Option(metavar="DURATION", help="give up waiting after this time; 0s does not wait")
]


def lock(
    context: typer.Context,
    name: NameArgument,
    ttl: TTLOption = "10s",
    timeout: TimeoutOption = "",
    store: StoreOption = "",
) -> None:
    """Run a command while holding a lock.

    The command finds its fencing token in $MOORING_FENCING_TOKEN. Where the lock is lost, the
    command is stopped. Exits with the command's code; 1 where the lock was not to be had in time,
    or was lost.

    Without a command it prints the token and holds the lock until this is stopped.
    """
    lasting, waiting = times(name, ttl, timeout)
    command: list[str] = context.obj
    raise typer.Exit(run_command(_lock(name, lasting, waiting, command, store)))


def times(name: str, ttl: str, timeout: str) -> tuple[float, float | None]:
    """The parsed durations, checked before the store is contacted."""
    check_name(name)
    lasting = seconds("--ttl", ttl)
    waiting = seconds("--timeout", timeout) if timeout else None
    check_times(lasting, waiting)
    return lasting, waiting


async def _lock(
    name: str, ttl: float, timeout: float | None, command: Sequence[str], store: str
) -> int:
    async with open_hub(store, "tree") as hub:
        lock = hub.lock(name, ttl=ttl, timeout=timeout)
        return await run_while_held(lock, command, f"the lock {quoted(name)}")


async def run_while_held(
    lock: Lock, command: Sequence[str], what: str, environment: Mapping[str, str] | None = None
) -> int:
    """Wait for a lock and run a command while it is held. Returns the exit code."""
    signals = queue_signals(*_FOR_THE_COMMAND)
    tasks = Tasks()
    waiting = tasks.start(_acquired(lock), name="waiting for a lock")
    asked = tasks.start(signals.get(), name="signals")
    try:
        await asyncio.wait([waiting, asked], return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            number = asked.result()
            assert isinstance(number, signal.Signals)
            return 128 + number
        held = waiting.result()
        if isinstance(held, LockTimeout):
            note(str(held))
            return 1
        if isinstance(held, BaseException):
            raise held
        assert isinstance(held, Held)
        try:
            return await _run(held, command, what, asked, signals, environment or {})
        finally:
            await held.aclose()
    finally:
        await tasks.aclose()


async def _acquired(lock: Lock) -> Held | Exception:
    try:
        return await lock.acquire()
    except Exception as error:  # noqa: BLE001 - handed on whole, to who waits for it
        return error


async def _run(
    held: Held,
    command: Sequence[str],
    what: str,
    asked: asyncio.Task[object],
    signals: asyncio.Queue[signal.Signals],
    environment: Mapping[str, str],
) -> int:
    tasks = Tasks()
    lost = tasks.start(held.lost.wait(), name="loss of a lock")
    given = {TOKEN: str(held.token), KEY: os.fsdecode(held.key), **environment}
    job = None
    try:
        if command:
            job = Job(command, given, grace=_END_WITHIN, wanted=lambda: held.state != "lost")
            ended = tasks.start(job.end(), name="end of the command")
        else:
            typer.echo(held.token)
            ended = tasks.start(asyncio.Event().wait(), name="until it is stopped")
        while True:
            await asyncio.wait([ended, lost, asked], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                code = ended.result()
                assert isinstance(code, int)
                return await _released(held, what, code)
            if lost.done():
                note(f"{what} is lost: stopping the command" if job else f"{what} is lost")
                return 1
            number = asked.result()
            assert isinstance(number, signal.Signals)
            if job is None:
                return 0
            job.signal(number)
            asked = tasks.start(signals.get(), name="signals")
    except OSError as error:
        return report_not_started(command[0], error)
    finally:
        if job is not None:
            if not job.ended:
                await job.stop(within=_END_WITHIN)
            job.close()
        await tasks.aclose()


async def _released(held: Held, what: str, code: int) -> int:
    try:
        await held.release()
    except LockLost:
        note(f"{what} was lost before the command ended")
        return code or 1
    return code


VALUE = "MOORING_ELECTION_VALUE"
"""Environment variable with the value that the leader publishes."""


def elect(
    context: typer.Context,
    name: NameArgument,
    value: Annotated[
        str, typer.Option("--value", metavar="TEXT", help="value that the leader publishes")
    ] = "",
    listen: Annotated[
        bool, typer.Option("--listen", help="print the leader and every change until stopped")
    ] = False,
    ttl: TTLOption = "10s",
    timeout: TimeoutOption = "",
    store: StoreOption = "",
    as_json: JSONOption = False,
) -> None:
    """Run a command while this process is the elected leader.

    Waits until it is elected. The command finds its fencing token in $MOORING_FENCING_TOKEN, and is
    stopped where the leadership is lost. Exits with the command's code.
    """
    lasting, waiting = times(name, ttl, timeout)
    command: list[str] = context.obj
    if listen and command:
        raise typer.BadParameter("cannot be combined with a command", param_hint="--listen")
    if listen:
        run_command(_listen(name, store, as_json))
        return
    raise typer.Exit(run_command(_elect(name, value, lasting, waiting, command, store)))


async def _elect(
    name: str,
    value: str,
    ttl: float,
    timeout: float | None,
    command: Sequence[str],
    store: str,
) -> int:
    async with open_hub(store, "tree") as hub:
        campaign = hub.election(name, ttl=ttl, timeout=timeout).campaign(value)
        given = {VALUE: value}
        return await run_while_held(campaign, command, f"the election {quoted(name)}", given)


async def _listen(name: str, store: str, as_json: bool) -> None:
    async with open_hub(store, "tree") as hub:
        await hub.election(name).leader()  # a store that is away is told at once
        async with hub.election(name).observe() as leaders:
            async for leader in leaders:
                _print(leader, as_json)


def _print(leader: Leader | None, as_json: bool) -> None:
    if as_json:
        show_json(
            {
                "leader": leader.text if leader else None,
                "token": leader.token if leader else None,
                "key": leader.key.decode(errors="replace") if leader else None,
            }
        )
    else:
        typer.echo(f"{leader.token}\t{printable(leader.text)}" if leader else "-")


class Row(NamedTuple):
    name: str
    holds: bool
    contender: Contender


def locks(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="only names with this prefix")
    ] = "",
    store: StoreOption = "",
    as_json: JSONOption = False,
) -> None:
    """List locks and elections with their holders and waiters."""
    run_command(_locks(prefix, store, as_json))


async def _locks(prefix: str, store: str, as_json: bool) -> None:
    async with open_hub(store, "tree") as hub:
        found = await hub.locks(prefix)
    columns = {
        "lock": lambda row: row.name,
        "state": lambda row: "held" if row.holds else "waits",
        "kind": lambda row: row.contender.kind,
        "by": lambda row: row.contender.by or _text(row.contender.value),
        "token": lambda row: str(row.contender.token),
        "lease": lambda row: f"{row.contender.lease:x}",
    }
    rows = [row for info in found for row in _rows(info)]
    show(rows, columns, _record, as_json=as_json, spare=("lease", "kind"))


def _rows(info: LockInfo) -> list[Row]:
    return [
        *(Row(info.name, True, each) for each in info.holders),
        *(Row(info.name, False, each) for each in info.waiting),
    ]


def _record(row: Row) -> Mapping[str, JSON]:
    contender = row.contender
    return {
        "lock": row.name,
        "state": "held" if row.holds else "waits",
        "kind": contender.kind or None,
        "by": contender.by or None,
        "value": _text(contender.value) or None,
        "token": contender.token,
        "lease": f"{contender.lease:x}",
        "key": _text(contender.key),
    }


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
