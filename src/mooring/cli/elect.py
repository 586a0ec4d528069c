"""`mooring elect`: a command that runs while this process leads, or a look at who does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from mooring.cli.lock import NameArgument, TimeoutOption, TTLOption, run_while_held, times
from mooring.cli.options import JSONOption, StoreOption
from mooring.cli.printing import show_json
from mooring.cli.reaching import reach, run_command
from mooring.cli.telling import printable
from mooring.display import quoted
from mooring.locks.election import Leader

VALUE = "MOORING_ELECTION_VALUE"
"""The variable in which a command finds what is said of it."""


def elect(
    context: typer.Context,
    name: NameArgument,
    value: Annotated[
        str, typer.Option("--value", metavar="TEXT", help="what others are told of the leader")
    ] = "",
    listen: Annotated[
        bool, typer.Option("--listen", help="print who leads, and each change, until stopped")
    ] = False,
    ttl: TTLOption = "10s",
    timeout: TimeoutOption = "",
    store: StoreOption = "",
    as_json: JSONOption = False,
) -> None:
    """Run a command while leading an election.

    Waits until it is elected. The command finds its fencing token in $MOORING_FENCING_TOKEN, and is
    stopped where the leadership is lost. Exits with the command's code.
    """
    lasting, waiting = times(name, ttl, timeout)
    command: list[str] = context.obj
    if listen and command:
        raise typer.BadParameter("it takes no command", param_hint="--listen")
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
    async with reach(store, "tree") as hub:
        campaign = hub.election(name, ttl=ttl, timeout=timeout).campaign(value)
        given = {VALUE: value}
        return await run_while_held(campaign, command, f"the election {quoted(name)}", given)


async def _listen(name: str, store: str, as_json: bool) -> None:
    async with reach(store, "tree") as hub:
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
