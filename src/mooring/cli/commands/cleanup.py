"""`mooring cleanup` and `mooring brake`: eviction of dead instances from a Redis registry."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import typer

from mooring import durations
from mooring.cli.io.connect import open_hub, require_service, run_command
from mooring.cli.io.options import JSONOption, RegistryOption, ServiceArgument, StoreOption, seconds
from mooring.cli.io.output import log_to_stderr, note, show, show_json
from mooring.hub import Hub
from mooring.model import JSON
from mooring.registry.contract import Brake, CleanupReport, Evictions
from mooring.settings.registry import RegistrySettings, load, parse
from mooring.tasks import Tasks

app = typer.Typer(
    help="List and release mass-expiry brakes of a Redis registry.",
    no_args_is_help=True,
)

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="YAML file with registry settings"),
]


def cleanup(
    once: Annotated[bool, typer.Option("--once", help="run one pass and print the result")] = False,
    interval: Annotated[
        str, typer.Option(metavar="DURATION", help="time between two passes (default: 30s)")
    ] = "",
    timeout: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="evict after this time without a heartbeat (default: 2m)"
        ),
    ] = "",
    config: ConfigOption = None,
    store: StoreOption = "",
    registry: RegistryOption = "",
    as_json: JSONOption = False,
) -> None:
    """Evict instances without heartbeats from a Redis registry.

    Every Redis registry needs at least one cleanup process; `mooring serve` is one too. Any
    number may run at once. SIGTERM or Ctrl-C stops it.

    With --once, exits with 1 if a service could not be checked.
    """
    settings = settings_of(config, interval, timeout)
    if not run_command(_cleanup(once, settings, store, registry, as_json)):
        raise typer.Exit(1)


def settings_of(config: Path | None, interval: str = "", timeout: str = "") -> RegistrySettings:
    """The settings: flags override the environment, which overrides the file."""
    flags = {"INTERVAL": interval, "GLOBAL_TIMEOUT": timeout}
    environment = dict(os.environ)
    for name, typed in flags.items():
        if typed:
            seconds("--interval" if name == "INTERVAL" else "--timeout", typed)
            environment[f"MOORING_REGISTRY_CLEANUP_{name}"] = typed
    return parse({}, environment) if config is None else load(config, environment)


async def _cleanup(
    once: bool, settings: RegistrySettings, store: str, registry: str, as_json: bool
) -> bool:
    """Whether every service could be checked."""
    async with open_hub(store, "tree", registry=registry, settings=settings) as hub:
        evictions = hub.registry.evictions
        if evictions is None:
            note(f"nothing to sweep: {hub.registry.guarantees.expires}")
            return True
        if not once:
            await _sweep(hub.registry.url, evictions, settings, as_json)
            return True
        swept = await evictions.sweep()
    if as_json:
        show_json(_record(swept))
    else:
        typer.echo(str(swept))
    return not swept.problems


async def _sweep(url: str, evictions: Evictions, settings: RegistrySettings, as_json: bool) -> None:
    """Run until a signal stops it. Each pass logs what it did."""
    passes: asyncio.Queue[CleanupReport | None] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, passes.put_nowait, None)
    log_to_stderr("mooring.registry.redis.cleanup")
    note(f"{url}: {in_words(settings)}; Ctrl-C stops it")
    tasks = Tasks()
    try:
        running = tasks.start(evictions.run(passes.put_nowait), name="cleanup")
        running.add_done_callback(lambda _: passes.put_nowait(None))
        while (swept := await passes.get()) is not None:
            if as_json:
                show_json(_record(swept))
        if running.done():
            running.result()  # it crashed: raise that
    finally:
        await tasks.aclose()
    note("stopped")


def in_words(settings: RegistrySettings) -> str:
    """One line that describes these settings."""
    cleanup_settings = settings.cleanup
    return (
        f"every {durations.show(cleanup_settings.interval)}, evicts instances without a heartbeat "
        f"for {durations.show(cleanup_settings.global_timeout)}"
    )


def _record(swept: CleanupReport) -> dict[str, JSON]:
    def places(ids: list[tuple[str, str]]) -> JSON:
        return [{"service": service, "id": id} for service, id in ids]

    return {
        "services": swept.services,
        "removed": places(swept.removed),
        "unhealthy": places(swept.unhealthy),
        "orphans": places(swept.orphans),
        "lowered": places(swept.lowered),
        "brakes": list(swept.brakes),
        "problems": list(swept.problems),
    }


@app.command(name="list")
def list_brakes(
    store: StoreOption = "", registry: RegistryOption = "", as_json: JSONOption = False
) -> None:
    """List services whose eviction is paused, and why."""
    run_command(_list(store, registry, as_json))


async def _list(store: str, registry: str, as_json: bool) -> None:
    async with _braked(store, registry) as (_, evictions):
        if evictions is None:
            return
        log_to_stderr("mooring.registry.redis.cleanup")
        brakes = await evictions.brakes()
        clock = 0
        for service in list(brakes)[:1]:
            clock = await evictions.clock(service)
    if not brakes:
        note("no brake is on")
    show(
        list(brakes.items()),
        {
            "service": lambda row: row[0],
            "silent": lambda row: f"{row[1].silent} of {row[1].total}",
            "since": lambda row: f"{_span(clock - row[1].since)} ago",
            "until": lambda row: f"in {_span(row[1].until - clock)} at the latest",
            "why": lambda row: str(row[1]),
        },
        lambda row: _brake_record(*row),
        as_json=as_json,
        spare=("why",),
    )


@app.command()
def release(
    service: ServiceArgument,
    config: ConfigOption = None,
    store: StoreOption = "",
    registry: RegistryOption = "",
    as_json: JSONOption = False,
) -> None:
    """Release the brake of a service.

    The next pass evicts its silent instances. Exits with 1 if the service does not exist.
    """
    run_command(_release(service, settings_of(config), store, registry, as_json))


async def _release(
    service: str, settings: RegistrySettings, store: str, registry: str, as_json: bool
) -> None:
    async with _braked(store, registry, settings) as (hub, evictions):
        if evictions is None:
            return
        released = await evictions.release(service)
        if not released:
            await require_service(hub, service)
    if as_json:
        show_json({"service": service, "released": released})
    elif released:
        note(f"released the brake of {service}: the next pass evicts its silent instances")
    else:
        note(f"the brake of {service} is not on")


@contextlib.asynccontextmanager
async def _braked(
    store: str, registry: str, settings: RegistrySettings | None = None
) -> AsyncIterator[tuple[Hub, Evictions | None]]:
    """The hub and its evictions; None on a store, after a note that it has no brakes."""
    async with open_hub(store, "tree", registry=registry, settings=settings) as hub:
        if hub.registry.evictions is None:
            note(f"no brakes on this registry: {hub.registry.guarantees.expires}")
        yield hub, hub.registry.evictions


def _brake_record(service: str, brake: Brake) -> dict[str, JSON]:
    return {
        "service": service,
        "silent": brake.silent,
        "total": brake.total,
        "since": _moment(brake.since),
        "until": _moment(brake.until),
        "why": str(brake),
    }


def _moment(ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _span(ms: int) -> str:
    """A time span on the server's clock."""
    return durations.show(max(round(ms / 1000), 1))
