"""`mooring lock`: a command that runs while a lock is held."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from mooring.cli.io.child_process import Job, queue_signals, report_not_started
from mooring.cli.io.connect import open_hub
from mooring.cli.io.options import StoreOption, seconds
from mooring.cli.io.streams import note
from mooring.errors import LockLost
from mooring.formatting import quoted
from mooring.locks.held import Held
from mooring.locks.lock import Lock, check_name, check_times
from mooring.tasks import Tasks

TOKEN = "MOORING_FENCING_TOKEN"
"""Environment variable with the fencing token."""
KEY = "MOORING_LOCK_KEY"
"""Environment variable with the key of the holder, created at the token's revision."""

_STOP_TIMEOUT = 5.0  # seconds until the command is killed once the lock is lost
_FORWARDED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="name of the lock or election, as in etcdctl")
]
TTLOption = Annotated[
    str, typer.Option(metavar="DURATION", help="expire after this time without a lease renewal")
]
TimeoutOption = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="give up waiting after this time; 0s does not wait (default: wait without limit)",
    ),
]


async def lock(
    context: typer.Context,
    name: NameArgument,
    ttl: TTLOption = "10s",
    timeout: TimeoutOption = "",
    store: StoreOption = "",
) -> None:
    """Run a command while holding a lock.

    The command gets its fencing token in $MOORING_FENCING_TOKEN, and is stopped if the lock is
    lost. Exits with the exit code of the command, or with 1 if the lock was lost or not acquired
    in time.

    Without a command, prints the token and holds the lock until this process is stopped.
    """
    lifetime, patience = parse_times(name, ttl, timeout)
    async with open_hub(store) as hub:
        lock = hub.lock(name, ttl=lifetime, timeout=patience)
        code = await run_while_held(lock, context.obj, f"the lock {quoted(name)}")
    raise typer.Exit(code)


def parse_times(name: str, ttl: str, timeout: str) -> tuple[float, float | None]:
    """The lifetime and the wait time, checked before the store is contacted."""
    check_name(name)
    lifetime = seconds("--ttl", ttl)
    patience = seconds("--timeout", timeout) if timeout else None
    check_times(lifetime, patience)
    return lifetime, patience


async def run_while_held(
    lock: Lock, command: Sequence[str], what: str, environment: Mapping[str, str] | None = None
) -> int:
    """Wait for a lock and run a command while it is held. Returns the exit code."""
    signals = queue_signals(*_FORWARDED_SIGNALS)
    async with Tasks() as tasks:
        acquiring = tasks.start(_acquire(lock), name="waiting for a lock")
        arrival = tasks.start(signals.get(), name="signals")
        await asyncio.wait([acquiring, arrival], return_when=asyncio.FIRST_COMPLETED)
        if arrival.done():
            return 128 + arrival.result()
        held = acquiring.result()
        if isinstance(held, Exception):
            raise held
        try:
            return await _run(held, command, what, arrival, signals, environment or {})
        finally:
            await held.aclose()


async def _acquire(lock: Lock) -> Held | Exception:
    try:
        return await lock.acquire()
    except Exception as error:  # noqa: BLE001 - raised by the caller
        return error


async def _run(
    held: Held,
    command: Sequence[str],
    what: str,
    arrival: asyncio.Task[signal.Signals],
    signals: asyncio.Queue[signal.Signals],
    environment: Mapping[str, str],
) -> int:
    tasks = Tasks()
    lost = tasks.start(held.lost.wait(), name="loss of a lock")
    environment = {TOKEN: str(held.token), KEY: os.fsdecode(held.key), **environment}
    job = None
    try:
        if command:
            job = Job(
                command, environment, grace=_STOP_TIMEOUT, wanted=lambda: held.state != "lost"
            )
            ended = tasks.start(job.end(), name="end of the command")
        else:
            typer.echo(held.token)
            ended = tasks.start(asyncio.Event().wait(), name="until it is stopped")
        while True:
            await asyncio.wait([ended, lost, arrival], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return await _release(held, what, ended.result())
            if lost.done():
                note(f"{what} is lost: stopping the command" if job else f"{what} is lost")
                return 1
            if job is None:
                return 0
            job.signal(arrival.result())
            arrival = tasks.start(signals.get(), name="signals")
    except OSError as error:
        return report_not_started(command[0], error)
    finally:
        if job is not None:
            if not job.ended:
                await job.stop(within=_STOP_TIMEOUT)
            job.close()
        await tasks.aclose()


async def _release(held: Held, what: str, code: int) -> int:
    try:
        await held.release()
    except LockLost:
        note(f"{what} was lost before the command ended")
        return code or 1
    return code
