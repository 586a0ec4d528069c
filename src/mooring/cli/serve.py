"""`mooring serve`: open the store and stay until told to stop."""

from __future__ import annotations

import asyncio
import signal

import typer

from mooring.cli.running import StoreOption, run
from mooring.hub import connect


def serve(store: StoreOption = "memory://") -> None:
    """Open the store and keep it open until Ctrl-C or SIGTERM."""
    run(_serve(store))


async def _serve(url: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with connect(url) as hub:
        status = await hub.store.status()
        problems = [member.problem for member in status.members if member.problem]
        for problem in problems:
            typer.echo(f"mooring: {problem}", err=True)
        kept = "kept" if hub.store.guarantees.durable else "gone when this process ends"
        typer.echo(f"{hub.store.url} is open ({status.kind}, revision {status.revision}; {kept}).")
        typer.echo("Ctrl-C stops it.")
        await stop.wait()
    typer.echo("stopped.")
