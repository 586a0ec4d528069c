"""`mooring cleanup`: eviction of dead instances from a Redis registry."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from mooring.cli.io.connect import RedisTarget, run_until_stopped
from mooring.cli.io.options import JSONOption, seconds
from mooring.cli.io.streams import log_to_stderr, note
from mooring.cli.io.tables import show_json
from mooring.durations import format_duration
from mooring.model import JSON
from mooring.registry.evictions import CleanupReport
from mooring.settings import RegistrySettings, load, parse

ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="YAML file with registry settings")
]


async def cleanup(
    target: RedisTarget,
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
    as_json: JSONOption = False,
) -> None:
    """Evict instances without heartbeats from a Redis registry.

    Every Redis registry needs at least one cleanup process; `mooring serve` includes one.
    Any number may run at once. SIGTERM or Ctrl-C stops it.

    With --once, exits with 1 if a service could not be checked.
    """
    settings = load_settings(config, interval, timeout)
    async with target.connect(settings) as hub:
        evictions = hub.registry.evictions
        if evictions is None:
            note(f"nothing to clean up: {hub.registry.guarantees.expires}")
            return
        if not once:
            log_to_stderr("mooring.registry.redis.cleanup")  # each pass logs what it did
            interval = format_duration(settings.cleanup.interval)
            timeout = format_duration(settings.cleanup.global_timeout)
            await run_until_stopped(
                evictions.run,
                _report_record,
                f"{hub.registry.url}: every {interval}, evicts instances without a heartbeat for "
                f"{timeout}; Ctrl-C stops it",
                as_json=as_json,
            )
            return
        report = await evictions.sweep()
    if as_json:
        show_json(_report_record(report))
    else:
        typer.echo(str(report))
    if report.problems:
        raise typer.Exit(1)


def load_settings(config: Path | None, interval: str = "", timeout: str = "") -> RegistrySettings:
    """The settings. Flags override the environment, which overrides the file."""
    flags = {"INTERVAL": interval, "GLOBAL_TIMEOUT": timeout}
    environment = dict(os.environ)
    for name, duration in flags.items():
        if duration:
            seconds("--interval" if name == "INTERVAL" else "--timeout", duration)
            environment[f"MOORING_REGISTRY_CLEANUP_{name}"] = duration
    return parse({}, environment) if config is None else load(config, environment)


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
