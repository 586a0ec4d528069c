"""`mooring cleanup` and `mooring brake`: eviction of dead instances from a Redis registry."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Annotated

import typer

from mooring.cli.io.connect import open_hub, require_service, run_until_stopped
from mooring.cli.io.options import JSONOption, RegistryOption, ServiceArgument, StoreOption, seconds
from mooring.cli.io.output import log_to_stderr, note, show, show_json
from mooring.cli.typer_extensions import CommandGroup
from mooring.formatting import format_duration
from mooring.hub import Hub
from mooring.model import JSON
from mooring.registry.evictions import Brake, CleanupReport, Evictions
from mooring.settings.registry import RegistrySettings, load, parse

app = CommandGroup()

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="YAML file with registry settings"),
]


async def cleanup(
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
    settings = _load_settings(config, interval, timeout)
    async with open_hub(store, registry=registry, settings=settings) as hub:
        evictions = hub.registry.evictions
        if evictions is None:
            note(f"nothing to sweep: {hub.registry.guarantees.expires}")
            return
        if not once:
            await _run_cleanup(hub.registry.url, evictions, settings, as_json)
            return
        report = await evictions.sweep()
    if as_json:
        show_json(_report_record(report))
    else:
        typer.echo(str(report))
    if report.problems:
        raise typer.Exit(1)


def _load_settings(config: Path | None, interval: str = "", timeout: str = "") -> RegistrySettings:
    """The settings. Flags override the environment, which overrides the file."""
    flags = {"INTERVAL": interval, "GLOBAL_TIMEOUT": timeout}
    environment = dict(os.environ)
    for name, duration in flags.items():
        if duration:
            seconds("--interval" if name == "INTERVAL" else "--timeout", duration)
            environment[f"MOORING_REGISTRY_CLEANUP_{name}"] = duration
    return parse({}, environment) if config is None else load(config, environment)


async def _run_cleanup(
    url: str, evictions: Evictions, settings: RegistrySettings, as_json: bool
) -> None:
    """Run until a signal arrives. Each pass logs what it did."""
    log_to_stderr("mooring.registry.redis.cleanup")
    interval, timeout = settings.cleanup.interval, settings.cleanup.global_timeout
    await run_until_stopped(
        evictions.run,
        _report_record,
        f"{url}: every {format_duration(interval)}, evicts instances without a heartbeat for "
        f"{format_duration(timeout)}; Ctrl-C stops it",
        as_json=as_json,
    )


def _report_record(report: CleanupReport) -> dict[str, JSON]:
    def instances(ids: list[tuple[str, str]]) -> JSON:
        return [{"service": service, "id": id} for service, id in ids]

    return {
        "services": report.services,
        "removed": instances(report.removed),
        "unhealthy": instances(report.unhealthy),
        "orphans": instances(report.orphans),
        "lowered": instances(report.lowered),
        "brakes": list(report.brakes),
        "problems": list(report.problems),
    }


@app.command(name="list")
async def list_brakes(
    store: StoreOption = "", registry: RegistryOption = "", as_json: JSONOption = False
) -> None:
    """List services whose evictions are paused, with the reasons."""
    async with open_hub(store, registry=registry) as hub:
        if (evictions := _evictions(hub)) is None:
            return
        log_to_stderr("mooring.registry.redis.cleanup")
        brakes = await evictions.brakes()
        clock = 0
        for service in list(brakes)[:1]:
            clock = await evictions.clock(service)
    if not brakes:
        note("no brake is engaged")
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
async def release(
    service: ServiceArgument,
    config: ConfigOption = None,
    store: StoreOption = "",
    registry: RegistryOption = "",
    as_json: JSONOption = False,
) -> None:
    """Release the brake of a service.

    The next pass evicts its silent instances. Exits with 1 if the service does not exist.
    """
    settings = _load_settings(config)
    async with open_hub(store, registry=registry, settings=settings) as hub:
        if (evictions := _evictions(hub)) is None:
            return
        released = await evictions.release(service)
        if not released:
            await require_service(hub, service)
    if as_json:
        show_json({"service": service, "released": released})
    elif released:
        note(f"released the brake of {service}: the next pass evicts its silent instances")
    else:
        note(f"the brake of {service} is not engaged")


def _evictions(hub: Hub) -> Evictions | None:
    """The evictions of a registry on Redis. A store has none: prints a note."""
    if hub.registry.evictions is None:
        note(f"no brakes on this registry: {hub.registry.guarantees.expires}")
    return hub.registry.evictions


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
    return format_duration(max(round(ms / 1000), 1))
