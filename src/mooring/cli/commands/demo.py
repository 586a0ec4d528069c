"""`mooring demo`: a small fleet to look at in the console."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

import typer

from mooring.cli.io.child_process import queue_signals
from mooring.cli.io.connect import url_or_local
from mooring.cli.io.options import RegistryOption, StoreOption, seconds
from mooring.demo import SETTINGS, DemoFleet
from mooring.formatting import printable
from mooring.hub import connect
from mooring.settings import parse
from mooring.tasks import Tasks


async def demo(
    once: Annotated[
        bool, typer.Option("--once", help="stop after one round, which takes a minute")
    ] = False,
    duration: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="stop after this time")
    ] = "",
    store: StoreOption = "",
    registry: RegistryOption = "",
) -> None:
    """Run a small demo fleet that registers, fails, drains and recovers.

    The fleet has a dozen instances of five services, a lock with waiters and two tenants.
    Ctrl-C stops it and removes everything it created.
    """
    limit = seconds("--for", duration) if duration else None
    signals = queue_signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with url_or_local(store or registry) as url:
        elsewhere = registry if store else ""
        async with connect(url, registry=elsewhere, settings=parse(SETTINGS)) as hub:
            await hub.registry.groups()  # fails early if the store does not answer
            async with DemoFleet(hub, _report) as fleet:
                _report(
                    "open the console with the link that `mooring login` prints; Ctrl-C stops the "
                    "demo"
                )
                await _run(fleet, 1 if once else None, limit, signals)


async def _run(
    fleet: DemoFleet,
    rounds: int | None,
    limit: float | None,
    signals: asyncio.Queue[signal.Signals],
) -> None:
    """Wait for the last round, the time limit or a signal."""
    async with Tasks() as tasks:
        playing = tasks.start(fleet.play(rounds), name="play")
        stop = tasks.start(signals.get(), name="signals")
        await asyncio.wait([playing, stop], timeout=limit, return_when=asyncio.FIRST_COMPLETED)


def _report(line: str) -> None:
    typer.echo(printable(line))
