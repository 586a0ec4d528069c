"""`mooring migrate redis-v1`: from version 1.0 of the Redis registry to the three tiers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mooring.backends import open_redis
from mooring.cli.commands.migrate.output import reject_verified, show_deleted, show_plan
from mooring.cli.io.connect import RedisTarget, registry_url, run_until_stopped
from mooring.cli.io.options import JSONOption, seconds
from mooring.cli.io.streams import log_to_stderr, note, progress
from mooring.cli.io.tables import Columns, show
from mooring.cli.typer_extensions import CommandGroup
from mooring.durations import format_duration
from mooring.errors import InvalidRequest
from mooring.migrate import verified_file
from mooring.model import JSON
from mooring.settings import parse as parse_settings
from mooring.store.url import REDIS, parse

if TYPE_CHECKING:
    from mooring.migrate.redis_v1.bridge import BridgePass
    from mooring.migrate.redis_v1.migration import CopyOutcome, Migration
    from mooring.migrate.redis_v1.plan import InstancePlan

app = CommandGroup(help="Migrate version 1.0 of the Redis registry to version 2.")


@dataclass(frozen=True)
class RedisV1Target(RedisTarget):
    """Options that name the registry to migrate."""

    prefix: Annotated[
        str,
        typer.Option(
            "--v1-prefix", metavar="PREFIX", help="prefix of the v1 keys, as in PREFIX:services:…"
        ),
    ] = ""

    @asynccontextmanager
    async def migration(self) -> AsyncIterator[Migration]:
        self.require()
        with registry_url(self.store, self.registry) as text:
            url = parse(text)
            if url.scheme not in REDIS:
                raise InvalidRequest(
                    f"{url} is not a Redis URL: name the Redis that contains version 1.0 with "
                    "--registry URL or MOORING_REGISTRY"
                )
            async with aclosing(open_redis(url, parse_settings({}))) as registry:
                from mooring.migrate.redis_v1.migration import Migration

                yield Migration(registry, prefix=self.prefix)


FileOption = Annotated[
    Path,
    typer.Option("--verified", metavar="FILE", help="file that `verify` writes and `delete` reads"),
]
_FILE = Path("redis-v1.verified")


@app.command()
async def plan(target: RedisV1Target, as_json: JSONOption = False) -> None:
    """Show what `copy` would do. Writes nothing."""
    async with target.migration() as migration:
        with progress("compared") as report:
            steps = await migration.plan(report)
    _show_instances(steps, as_json)


@app.command()
async def copy(target: RedisV1Target, as_json: JSONOption = False) -> None:
    """Copy the instances of v1 to v2. Can be stopped and run again.

    Copies their last heartbeats too: without a bridge, the copies expire.
    """
    async with target.migration() as migration:
        with progress("copied") as report:
            outcomes = [one async for batch in migration.copy(report) for one in batch]
    columns: Columns[CopyOutcome] = {
        "service": lambda outcome: outcome.step.service,
        "id": lambda outcome: outcome.step.id,
        "done": lambda outcome: outcome.outcome,
        "why": lambda outcome: str(outcome.step),
    }
    show(outcomes, columns, _outcome_record, as_json=as_json)
    count = sum(outcome.outcome in ("written", "beat") for outcome in outcomes)
    note(f"{count} written" if count else "nothing to write")


@app.command()
async def verify(
    target: RedisV1Target, file: FileOption = _FILE, as_json: JSONOption = False
) -> None:
    """Compare v2 with v1, and write the list of what may be deleted.

    Exits with 1 if there is a difference; then nothing may be deleted.
    """
    from mooring.migrate.redis_v1.plan import DIFFERENT

    async with target.migration() as migration:
        with progress("compared") as report:
            steps, verified = await migration.verify(report)
    _show_instances(steps, as_json)
    if any(step.verdict in DIFFERENT for step in steps):
        reject_verified(file, "v1 cannot be deleted yet")
    verified_file.write(file, verified)
    note(f"v2 is complete; {file} lists what `delete` may delete")


@app.command()
async def bridge(
    target: RedisV1Target,
    interval: Annotated[
        str, typer.Option(metavar="DURATION", help="time between two passes")
    ] = "2s",
    as_json: JSONOption = False,
) -> None:
    """Keep v1 and v2 in sync while there are v1 programs.

    SIGTERM or Ctrl-C stops it, and it can be started again at any time.
    """
    pause = seconds("--interval", interval)
    async with target.migration() as migration:
        from mooring.migrate.redis_v1.bridge import Bridge

        log_to_stderr("mooring.migrate.redis_v1.bridge")
        await run_until_stopped(
            lambda notify: Bridge(migration).run(notify, interval=pause),
            _pass_record,
            f"{migration.connection.url}: syncs v1 and v2 every {format_duration(pause)}; Ctrl-C "
            "stops it",
            as_json=as_json,
        )


@app.command()
async def delete(
    target: RedisV1Target, file: FileOption = _FILE, as_json: JSONOption = False
) -> None:
    """Delete the verified parts of v1.

    Deletes nothing if v1 has changed since `verify`. Can be stopped and run again. Exits with 1 if
    something stays because it changed during the deletion.
    """
    from mooring.migrate.redis_v1.format import V1Service
    from mooring.migrate.redis_v1.migration import FORMAT, RedisV1Header

    verified = verified_file.read(file, RedisV1Header, V1Service, format=FORMAT)
    async with target.migration() as migration:
        with progress("deleted") as report:
            deleted, stays = await migration.delete(verified, report)
    show_deleted(
        deleted,
        stays,
        what="records, names and heartbeats of v1",
        why_stays="changed during the deletion, and stays",
        as_json=as_json,
    )


def _show_instances(steps: Sequence[InstancePlan], as_json: bool) -> None:
    from mooring.migrate.redis_v1.plan import REASONS

    show_plan(
        steps,
        {"service": lambda step: step.service, "id": lambda step: step.id},
        _instance_record,
        REASONS,
        is_notable=lambda step: step.verdict != "equal" or bool(step.notes),
        if_empty="there are no v1 keys here: is --v1-prefix right?",
        as_json=as_json,
    )


def _instance_record(step: InstancePlan) -> Mapping[str, JSON]:
    return {
        "service": step.service,
        "id": step.id,
        "verdict": step.verdict,
        "why": str(step),
        "differences": [
            {"field": difference.field, "v1": difference.v1, "v2": difference.v2}
            for difference in step.differences
        ],
        "notes": list(step.notes),
    }


def _outcome_record(outcome: CopyOutcome) -> Mapping[str, JSON]:
    return {**_instance_record(outcome.step), "outcome": outcome.outcome}


def _pass_record(report: BridgePass) -> Mapping[str, JSON]:
    def instances(places: list[tuple[str, str]]) -> JSON:
        return [{"service": service, "id": id} for service, id in places]

    return {
        "toV2": instances(report.to_v2),
        "outOfV2": instances(report.out_of_v2),
        "toV1": instances(report.to_v1),
        "outOfV1": instances(report.out_of_v1),
        "problems": list(report.problems),
    }
