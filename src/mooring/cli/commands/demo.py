"""`mooring demo`: a small fleet to look at in the console."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from mooring.cli.io.child_process import queue_signals
from mooring.cli.io.connect import LOCAL, START_ONE, run_command
from mooring.cli.io.options import RegistryOption, StoreOption, seconds
from mooring.demo.fleet import SETTINGS, Stage
from mooring.errors import Unavailable
from mooring.formatting import printable
from mooring.hub import Hub, connect
from mooring.settings.registry import parse
from mooring.tasks import Tasks


def demo(
    store: StoreOption = "",
    registry: RegistryOption = "",
    once: Annotated[bool, typer.Option("--once", help="stop after one round of a minute")] = False,
    lasting: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="stop after this time")
    ] = "",
) -> None:
    """Run a small demo fleet that registers, fails, drains and recovers.

    The fleet has a dozen instances of five services, a lock with waiters and two tenants.
    Ctrl-C stops it and removes everything it created.
    """
    limit = seconds("--for", lasting) if lasting else None
    run_command(_demo(store, registry, 1 if once else None, limit))


async def _demo(store: str, registry: str, rounds: int | None, limit: float | None) -> None:
    stops = queue_signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    async with _reached(store, registry) as hub, Stage(hub, _say) as stage:
        _say("open the console with the link that `mooring login` prints; Ctrl-C stops the demo")
        await _watch(stage, rounds, limit, stops)


async def _watch(
    stage: Stage, rounds: int | None, limit: float | None, stops: asyncio.Queue[signal.Signals]
) -> None:
    """Wait for the last round, the time limit or a signal."""
    tasks = Tasks()
    try:
        playing = tasks.start(stage.play(rounds), name="play")
        asked = tasks.start(stops.get(), name="signals")
        await asyncio.wait([playing, asked], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await tasks.aclose()


@contextlib.asynccontextmanager
async def _reached(store: str, registry: str) -> AsyncIterator[Hub]:
    """A hub on the given store and registry, by default on the local server. If that does not
    answer, the error says how to start it."""
    url = store or registry or f"etcd://{LOCAL}?timeout=2s"
    try:
        beside = registry if store else ""
        async with connect(url, registry=beside, settings=parse(SETTINGS)) as hub:
            await hub.registry.groups()  # fails early if the store does not answer
            yield hub
    except Unavailable as error:
        if store or registry:
            raise
        raise Unavailable(f"no store answers at {LOCAL}: {START_ONE}") from error


def _say(line: str) -> None:
    typer.echo(printable(line))
