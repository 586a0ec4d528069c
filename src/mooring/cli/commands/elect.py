"""`mooring elect`: a command that runs while this process is the leader."""

from __future__ import annotations

from typing import Annotated

import typer

from mooring.cli.commands.lock import (
    NameArgument,
    TimeoutOption,
    TTLOption,
    parse_times,
    run_while_held,
)
from mooring.cli.io.connect import open_hub
from mooring.cli.io.options import JSONOption, StoreOption
from mooring.cli.io.tables import show_json
from mooring.formatting import printable, quoted
from mooring.locks.election import Leader

VALUE = "MOORING_ELECTION_VALUE"
"""Environment variable with the value that the leader publishes."""


async def elect(
    context: typer.Context,
    name: NameArgument,
    value: Annotated[
        str, typer.Option("--value", metavar="TEXT", help="value that the leader publishes")
    ] = "",
    listen: Annotated[
        bool,
        typer.Option(
            "--listen", help="print the leader and every change until stopped; do not compete"
        ),
    ] = False,
    ttl: TTLOption = "10s",
    timeout: TimeoutOption = "",
    as_json: JSONOption = False,
    store: StoreOption = "",
) -> None:
    """Run a command while this process is the elected leader.

    Waits until it is elected. The command gets its fencing token in $MOORING_FENCING_TOKEN, and is
    stopped if the leadership is lost. Exits with the exit code of the command, or with 1 if the
    leadership was lost or not won in time.

    Without a command, prints the token and leads until this process is stopped.
    """
    lifetime, patience = parse_times(name, ttl, timeout)
    if listen and context.obj:
        raise typer.BadParameter("cannot be combined with a command", param_hint="--listen")
    async with open_hub(store) as hub:
        if listen:
            election = hub.election(name)
            await election.leader()  # fails early if the store does not answer
            async with election.observe() as leaders:
                async for leader in leaders:
                    _print_leader(leader, as_json)
            return
        campaign = hub.election(name, ttl=lifetime, timeout=patience).campaign(value)
        code = await run_while_held(
            campaign, context.obj, f"the election {quoted(name)}", {VALUE: value}
        )
    raise typer.Exit(code)


def _print_leader(leader: Leader | None, as_json: bool) -> None:
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
