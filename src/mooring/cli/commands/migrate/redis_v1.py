"""`mooring migrate redis-v1`: from version 1.0 of the Redis registry to the three tiers."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mooring import durations
from mooring.cli.io.connect import open_hub, run_command
from mooring.cli.io.options import JSONOption, RegistryOption, StoreOption, seconds
from mooring.cli.io.output import log_to_stderr, note, progress, show, show_json
from mooring.errors import InvalidRequest
from mooring.model import JSON
from mooring.tasks import Tasks

if TYPE_CHECKING:
    from mooring.migrate.redis_v1.bridge import BridgePass
    from mooring.migrate.redis_v1.migration import Migration, Written
    from mooring.migrate.redis_v1.plan import InstancePlan

app = typer.Typer(
    help="Version 1.0 of the Redis registry: plan, copy, verify, bridge, delete.",
    no_args_is_help=True,
)

PrefixOption = Annotated[
    str,
    typer.Option(
        "--v1-prefix", metavar="PREFIX", help="what v1's keys begin with: PREFIX:services:…"
    ),
]
VerifiedOption = Annotated[
    Path,
    typer.Option("--verified", metavar="FILE", help="what `verify` writes and `delete` reads"),
]
_VERIFIED = Path("redis-v1.verified")


@app.command()
def plan(
    prefix: PrefixOption = "",
    store: StoreOption = "",
    registry: RegistryOption = "",
    as_json: JSONOption = False,
) -> None:
    """Say what a copy would do. Nothing is written."""
    run_command(_plan(prefix, store, registry, as_json))


async def _plan(prefix: str, store: str, registry: str, as_json: bool) -> None:
    async with _migration(store, registry, prefix) as migration:
        with progress("looked at") as told:
            steps = [step async for looked in migration.plan(told) for step in looked.steps]
    _show(steps, as_json)


@app.command()
def copy(
    prefix: PrefixOption = "",
    store: StoreOption = "",
    registry: RegistryOption = "",
    as_json: JSONOption = False,
) -> None:
    """Write into v2 what v1 has. It may be stopped and run again.

    The heartbeats come along: what nobody beats expires, unless a bridge runs.
    """
    run_command(_copy(prefix, store, registry, as_json))


async def _copy(prefix: str, store: str, registry: str, as_json: bool) -> None:
    async with _migration(store, registry, prefix) as migration:
        with progress("copied") as told:
            done = [each async for part in migration.copy(told) for each in part]
    show(
        done,
        {
            "service": lambda each: each.step.service,
            "id": lambda each: each.step.id,
            "done": lambda each: each.outcome,
            "because": lambda each: str(each.step),
        },
        _written_record,
        as_json=as_json,
    )
    count = sum(each.outcome in ("written", "beat") for each in done)
    note(f"{count} written" if count else "nothing to write")


@app.command()
def verify(
    prefix: PrefixOption = "",
    verified: VerifiedOption = _VERIFIED,
    store: StoreOption = "",
    registry: RegistryOption = "",
    as_json: JSONOption = False,
) -> None:
    """Compare v2 with v1, and write down what may be deleted.

    Exits with 1 if there is a difference; then nothing may be deleted.
    """
    if not run_command(_verify(prefix, verified, store, registry, as_json)):
        raise typer.Exit(1)


async def _verify(prefix: str, file: Path, store: str, registry: str, as_json: bool) -> bool:
    from mooring.migrate import verified_file as listing
    from mooring.migrate.redis_v1.migration import Verified, write
    from mooring.migrate.redis_v1.plan import DIFFERENT

    steps: list[InstancePlan] = []
    services = {}
    async with _migration(store, registry, prefix) as migration:
        with progress("compared") as told:
            async for looked, deletable in migration.verify(told):
                steps += looked.steps
                if deletable.ids:
                    services[deletable.service] = deletable
        header = migration.header
    _show(steps, as_json)
    if any(step.verdict in DIFFERENT for step in steps):
        listing.discard(file)
        note("v1 cannot be given up yet")
        return False
    write(file, Verified(header, services))
    note(f"v2 has all that it should; {file} lists what `delete` may delete")
    return True


@app.command()
def bridge(
    prefix: PrefixOption = "",
    interval: Annotated[
        str, typer.Option(metavar="DURATION", help="between two looks at everything")
    ] = "2s",
    store: StoreOption = "",
    registry: RegistryOption = "",
    as_json: JSONOption = False,
) -> None:
    """Keep v1 and v2 up to date with each other while v1 has writers.

    It stops with SIGTERM or Ctrl-C, and may be started again at any time.
    """
    run_command(_bridge(prefix, seconds("--interval", interval), store, registry, as_json))


async def _bridge(prefix: str, interval: float, store: str, registry: str, as_json: bool) -> None:
    """Until a signal asks to stop. What is done is logged as it happens."""
    async with _migration(store, registry, prefix) as migration:
        from mooring.migrate.redis_v1.bridge import Bridge

        passes: asyncio.Queue[BridgePass | None] = asyncio.Queue()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, passes.put_nowait, None)
        log_to_stderr("mooring.migrate.redis_v1.bridge")
        note(
            f"{migration.connection.url}: looks at v1 and v2 every {durations.show(interval)}; "
            "Ctrl-C stops it"
        )
        tasks = Tasks()
        try:
            work = Bridge(migration).run(passes.put_nowait, interval=interval)
            running = tasks.start(work, name="bridge")
            running.add_done_callback(lambda _: passes.put_nowait(None))
            while (passed := await passes.get()) is not None:
                if as_json:
                    show_json(_passed_record(passed))
            if running.done():
                running.result()  # it crashed: raise that
        finally:
            await tasks.aclose()
    note("stopped")


@app.command()
def delete(
    prefix: PrefixOption = "",
    verified: VerifiedOption = _VERIFIED,
    store: StoreOption = "",
    registry: RegistryOption = "",
    as_json: JSONOption = False,
) -> None:
    """Delete from v1 what was verified.

    It refuses, and deletes nothing, where v1 changed since. It may be stopped and run again.
    Exits with 1 if something stays because it changed at the last moment.
    """
    if not run_command(_delete(prefix, verified, store, registry, as_json)):
        raise typer.Exit(1)


async def _delete(prefix: str, file: Path, store: str, registry: str, as_json: bool) -> bool:
    from mooring.migrate.redis_v1.migration import read

    listed = read(file)
    async with _migration(store, registry, prefix) as migration:
        with progress("deleted") as told:
            gone, stays = await migration.delete(listed, told)
    if as_json:
        show_json({"deleted": gone, "stays": list(stays)})
    for each in stays:
        note(f"{each} changed at the last moment, and stays")
    note(f"{gone} records, names and heartbeats of v1 deleted")
    return not stays


@asynccontextmanager
async def _migration(store: str, registry: str, prefix: str) -> AsyncIterator[Migration]:
    async with open_hub(store, "tree", registry=registry) as hub:
        if hub.registry.evictions is None:
            raise InvalidRequest(
                f"{hub.registry.url} is no Redis: name the one where v1 is with --registry URL or "
                "MOORING_REGISTRY"
            )
        from mooring.migrate.redis_v1.migration import Migration
        from mooring.registry.redis.registry import RedisRegistry

        assert isinstance(hub.registry, RedisRegistry)
        yield Migration(hub.registry, prefix=prefix)


def _show(steps: Sequence[InstancePlan], as_json: bool) -> None:
    """What is not as it should be, and then how many of each; as JSON, everything."""
    from mooring.migrate.redis_v1.plan import counted

    shown = [step for step in steps if as_json or step.verdict != "equal" or step.notes]
    show(
        shown,
        {
            "service": lambda step: step.service,
            "id": lambda step: step.id,
            "verdict": lambda step: step.verdict,
            "why": lambda step: str(step),
        },
        _record,
        as_json=as_json,
    )
    counts = ", ".join(f"{count} {verdict}" for verdict, count in counted(steps).items())
    note(counts or "v1 has nothing here: is --v1-prefix right?")
    sys.stdout.flush()


def _record(step: InstancePlan) -> Mapping[str, JSON]:
    return {
        "service": step.service,
        "id": step.id,
        "verdict": step.verdict,
        "why": str(step),
        "differences": [
            {"field": each.field, "v1": each.v1, "v2": each.v2} for each in step.differences
        ],
        "notes": list(step.notes),
    }


def _written_record(each: Written) -> Mapping[str, JSON]:
    return {**_record(each.step), "outcome": each.outcome}


def _passed_record(passed: BridgePass) -> Mapping[str, JSON]:
    def places(found: list[tuple[str, str]]) -> JSON:
        return [{"service": service, "id": id} for service, id in found]

    return {
        "toV2": places(passed.to_v2),
        "outOfV2": places(passed.out_of_v2),
        "toV1": places(passed.to_v1),
        "outOfV1": places(passed.out_of_v1),
        "problems": list(passed.problems),
    }
