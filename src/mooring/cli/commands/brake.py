"""`mooring brake`: brakes of a Redis registry, which pause evictions."""

from __future__ import annotations

import datetime

from mooring.cli.commands.cleanup import ConfigOption, load_settings
from mooring.cli.io.connect import RedisTarget
from mooring.cli.io.options import JSONOption, ServiceArgument
from mooring.cli.io.streams import log_to_stderr, note
from mooring.cli.io.tables import show, show_json
from mooring.cli.typer_extensions import CommandGroup
from mooring.durations import format_duration
from mooring.hub import Hub
from mooring.model import JSON
from mooring.registry.evictions import Brake, Evictions
from mooring.registry.lookup import require_service

app = CommandGroup()


@app.command(name="list")
async def list_brakes(target: RedisTarget, as_json: JSONOption = False) -> None:
    """List services whose evictions are paused, with the reasons."""
    async with target.connect() as hub:
        if (evictions := _evictions(hub)) is None:
            return
        log_to_stderr("mooring.registry.redis.cleanup")
        brakes = await evictions.brakes()
        clock = await evictions.clock(next(iter(brakes))) if brakes else 0
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
    target: RedisTarget,
    config: ConfigOption = None,
    as_json: JSONOption = False,
) -> None:
    """Release the brake of a service.

    The next pass evicts its silent instances. Exits with 1 if the service does not exist.
    """
    settings = load_settings(config)
    async with target.connect(settings) as hub:
        if (evictions := _evictions(hub)) is None:
            return
        released = await evictions.release(service)
        if not released:
            await require_service(hub.registry, service)
    if as_json:
        show_json({"service": service, "released": released})
    elif released:
        note(f"released the brake of {service}: the next pass evicts its silent instances")
    else:
        note(f"the brake of {service} is not engaged")


def _evictions(hub: Hub) -> Evictions | None:
    """The evictions of a registry on Redis. A store has none: prints a note."""
    if hub.registry.evictions is None:
        note(f"this registry has no brakes: {hub.registry.guarantees.expires}")
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
