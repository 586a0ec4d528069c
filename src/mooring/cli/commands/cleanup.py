"""`mooring cleanup`, `mooring brake`: taking out the dead of a registry on Redis, and what holds it
up."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mooring import durations
from mooring.cli.io.connect import must_be_known, on_redis, reach, run_command
from mooring.cli.io.options import JSONOption, RegistryOption, ServiceArgument, StoreOption, seconds
from mooring.cli.io.output import show, show_json
from mooring.cli.io.stderr import hear, note
from mooring.hub import Hub
from mooring.model import JSON
from mooring.settings.registry import RegistrySettings, load, parse
from mooring.tasks import Tasks

if TYPE_CHECKING:
    from mooring.registry.redis.cleanup import Swept
    from mooring.registry.redis.liveness import Brake
    from mooring.registry.redis.registry import RedisRegistry

app = typer.Typer(
    help="What holds where so many instances are silent that the fault is likely elsewhere: list, "
    "release.",
    no_args_is_help=True,
)

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="YAML with the settings of the registry"),
]


def cleanup(
    once: Annotated[bool, typer.Option("--once", help="one pass, and print what it did")] = False,
    interval: Annotated[
        str, typer.Option(metavar="DURATION", help="between two passes; default 30s")
    ] = "",
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="so long without a heartbeat; default 2m")
    ] = "",
    config: ConfigOption = None,
    store: StoreOption = "",
    registry: RegistryOption = "",
    as_json: JSONOption = False,
) -> None:
    """Take out instances that gave no sign of life.

    A registry on Redis needs one of these, and any number may run at once; `mooring serve` is one,
    too. It stops with SIGTERM or Ctrl-C.

    With --once, exits with 1 if something could not be looked at.
    """
    settings = settings_of(config, interval, timeout)
    if not run_command(_cleanup(once, settings, store, registry, as_json)):
        raise typer.Exit(1)


def settings_of(config: Path | None, interval: str = "", timeout: str = "") -> RegistrySettings:
    """Those of a file, under the environment's, under what was typed."""
    told = {"INTERVAL": interval, "GLOBAL_TIMEOUT": timeout}
    environment = dict(os.environ)
    for name, typed in told.items():
        if typed:
            seconds("--interval" if name == "INTERVAL" else "--timeout", typed)
            environment[f"MOORING_REGISTRY_CLEANUP_{name}"] = typed
    return parse({}, environment) if config is None else load(config, environment)


async def _cleanup(
    once: bool, settings: RegistrySettings, store: str, registry: str, as_json: bool
) -> bool:
    """Whether all could be looked at."""
    async with reach(store, "tree", registry=registry, settings=settings) as hub:
        redis = on_redis(hub)
        if redis is None:
            note(await hub.registry.sweep())
            return True
        if not once:
            await _sweep(redis, settings, as_json)
            return True
        swept = await redis.sweeper().sweep()
    if as_json:
        show_json(_record(swept))
    else:
        typer.echo(str(swept))
    return not swept.problems


async def _sweep(redis: RedisRegistry, settings: RegistrySettings, as_json: bool) -> None:
    """Until a signal asks to stop. What is done is logged as it happens."""
    passes: asyncio.Queue[Swept | None] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, passes.put_nowait, None)
    hear("mooring.registry.redis.cleanup")
    note(f"{redis.url}: {in_words(settings)}; Ctrl-C stops it")
    tasks = Tasks()
    try:
        running = tasks.start(redis.sweeper().run(passes.put_nowait), name="cleanup")
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
    """What a sweeper does with these settings."""
    told = settings.cleanup
    return (
        f"every {durations.show(told.interval)} takes out who gave no sign of life for "
        f"{durations.show(told.global_timeout)}"
    )


def _record(swept: Swept) -> dict[str, JSON]:
    def places(found: list[tuple[str, str]]) -> JSON:
        return [{"service": service, "id": id} for service, id in found]

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
    """List the services of which nobody is taken out at present, and why."""
    run_command(_list(store, registry, as_json))


async def _list(store: str, registry: str, as_json: bool) -> None:
    async with _braked(store, registry) as (_, redis):
        if redis is None:
            return
        hear("mooring.registry.redis.cleanup")
        found = await redis.sweeper().brakes()
        clock = 0
        for service in list(found)[:1]:
            clock = (await redis.reader.state(redis.keys.of(service))).now
    if not found:
        note("no brake holds")
    show(
        list(found.items()),
        {
            "service": lambda each: each[0],
            "silent": lambda each: f"{each[1].silent} of {each[1].total}",
            "since": lambda each: f"{_span(clock - each[1].since)} ago",
            "until": lambda each: f"in {_span(each[1].until - clock)} at the latest",
            "why": lambda each: str(each[1]),
        },
        lambda each: _brake_record(*each),
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
    """Let go: who is silent is taken out at the next pass.

    Exits with 1 if there is no such service.
    """
    run_command(_release(service, settings_of(config), store, registry, as_json))


async def _release(
    service: str, settings: RegistrySettings, store: str, registry: str, as_json: bool
) -> None:
    async with _braked(store, registry, settings) as (hub, redis):
        if redis is None:
            return
        released = await redis.sweeper().release(service)
        if not released:
            await must_be_known(hub, service)
    if as_json:
        show_json({"service": service, "released": released})
    elif released:
        note(f"the brake of {service} is released: who is silent is taken out at the next pass")
    else:
        note(f"no brake holds for {service}")


@contextlib.asynccontextmanager
async def _braked(
    store: str, registry: str, settings: RegistrySettings | None = None
) -> AsyncIterator[tuple[Hub, RedisRegistry | None]]:
    """The registry with its brakes; on a store there are none, and it is said why."""
    async with reach(store, "tree", registry=registry, settings=settings) as hub:
        redis = on_redis(hub)
        if redis is None:
            note(f"there are no brakes: {hub.registry.guarantees.expires}")
        yield hub, redis


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
    """Between two moments of the server's clock."""
    return durations.show(max(round(ms / 1000), 1))
