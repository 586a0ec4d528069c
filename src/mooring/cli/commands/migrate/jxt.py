"""`mooring migrate jxt`: from the old keys of tenant configuration to the new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mooring.cli.commands.migrate.output import (
    reject_verified,
    show_deleted,
    show_plan,
    verdict_counts,
)
from mooring.cli.io.connect import TenantTarget, run_until_stopped
from mooring.cli.io.options import JSONOption
from mooring.cli.io.streams import log_to_stderr, note, progress, warn
from mooring.cli.io.tables import show_json, show_rows
from mooring.cli.typer_extensions import CommandGroup
from mooring.formatting import count_of
from mooring.migrate import verified_file
from mooring.model import JSON

if TYPE_CHECKING:
    from mooring.migrate.jxt.migration import Migration, VerifiedKeys
    from mooring.migrate.jxt.plan import PartPlan
    from mooring.migrate.jxt.sync_unit import SyncResult

app = CommandGroup(help="Migrate tenants from the old keys (jxt//…).")


@dataclass(frozen=True)
class JxtTarget(TenantTarget):
    """Options that name the tenants to migrate."""

    @asynccontextmanager
    async def migration(self) -> AsyncIterator[Migration]:
        async with self.connect() as hub:
            from mooring.migrate.jxt.migration import Migration

            yield Migration(hub.store, namespace=self.namespace)

    def file(self, given: Path | None) -> Path:
        return given or Path(f"{self.keys.namespace.replace('/', '-')}.verified")


FileOption = Annotated[
    Path | None,
    typer.Option(
        "--verified",
        metavar="FILE",
        help="file that `verify` and `cutover` write and `delete` reads (default: "
        "NAMESPACE.verified)",
    ),
]


@app.command()
async def plan(target: JxtTarget, as_json: JSONOption = False) -> None:
    """Show what `copy` would do. Writes nothing."""
    async with target.migration() as migration:
        with progress("compared") as report:
            steps = await migration.plan(report)
    _show_parts(steps, as_json)


@app.command()
async def copy(target: JxtTarget, as_json: JSONOption = False) -> None:
    """Copy the old keys to the new ones. Can be stopped and run again.

    Copies each tenant atomically, with its indexes, and repairs new indexes. Finally prints what
    could not be copied. Exits with 1 if a valid part could not be written, for example because
    another tenant has the same name.
    """
    from mooring.migrate.jxt.plan import LEFT, REASONS, WRITTEN

    results: dict[int, SyncResult] = {}
    async with target.migration() as migration:
        try:
            with progress("copied") as report:
                async for result in migration.copy(report):
                    _merge(results, result)
        except BaseException as error:
            if results:
                _show_copied(results, as_json)
            if isinstance(error, asyncio.CancelledError):
                note("stopped before the end: run `copy` again")
            raise
        with progress("compared") as report:
            steps = await migration.plan(report)
    _show_copied(results, as_json)
    left = [step for step in steps if step.verdict in LEFT | WRITTEN | {"blocked"}]
    if left:
        note(f"remaining: {verdict_counts(left, REASONS)}; `plan` lists them")
    if any(result.problems for result in results.values()):
        raise typer.Exit(1)


def _merge(results: dict[int, SyncResult], result: SyncResult) -> None:
    """Merge the results of one unit. Only the last problems are current."""
    if (before := results.get(result.unit)) is not None:
        result.changes = before.changes + result.changes
        result.repaired = before.repaired + result.repaired
    results[result.unit] = result


@app.command()
async def verify(
    target: JxtTarget,
    file: FileOption = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="count parts that could not be copied as differences")
    ] = False,
    as_json: JSONOption = False,
) -> None:
    """Compare the new keys with the old, and write the list of old keys that may be deleted.

    Exits with 1 if there is a difference; then nothing may be deleted.
    """
    from mooring.migrate.jxt.plan import DIFFERENT, LEFT

    async with target.migration() as migration:
        with progress("compared") as report:
            steps, verified = await migration.verify(report)
    _show_parts(steps, as_json)
    different = DIFFERENT | LEFT if strict else DIFFERENT
    if any(step.verdict in different for step in steps):
        reject_verified(target.file(file), "the old keys cannot be deleted yet")
    _save(target.file(file), verified)


@app.command()
async def bridge(target: JxtTarget, as_json: JSONOption = False) -> None:
    """Keep the old and new keys in sync while there are programs of both formats.

    SIGTERM or Ctrl-C stops it, and it can be started again at any time. After the cut-over, it only
    writes the old keys.
    """
    async with target.migration() as migration:
        from mooring.migrate.jxt.bridge import Bridge

        log_to_stderr("mooring.migrate.jxt.bridge")
        await run_until_stopped(
            Bridge(migration).run,
            _result_record,
            f"{migration.store.url}: syncs the old and new keys; Ctrl-C stops it",
            as_json=as_json,
        )


@app.command()
async def cutover(
    target: JxtTarget,
    file: FileOption = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="make both formats authoritative again")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="start the migration again, even after a deletion")
    ] = False,
    as_json: JSONOption = False,
) -> None:
    """Make only the new keys authoritative, if they match the old keys.

    After that, a bridge still writes the old keys, but no longer copies their changes. --undo is
    possible until the old keys are deleted. After a deletion, use --restart: both formats are then
    authoritative again, and a bridge writes all old keys again.
    """
    async with target.migration() as migration:
        if undo or restart:
            await migration.undo(restart=restart)
            note("both formats are authoritative again")
            return
        with progress("compared") as report:
            marker, steps, verified = await migration.cutover(report)
    _show_parts(steps, as_json)
    note(f"only the new keys have been authoritative since {marker.at} (by {marker.by})")
    _save(target.file(file), verified)


@app.command()
async def delete(target: JxtTarget, file: FileOption = None, as_json: JSONOption = False) -> None:
    """Delete the verified old keys, after the cut-over.

    Can be stopped and run again. Exits with 1 if a key stays because it was written after
    `verify`.
    """
    from mooring.migrate.jxt.migration import FORMAT, JxtHeader, VerifiedKey

    verified = verified_file.read(target.file(file), JxtHeader, VerifiedKey, format=FORMAT)
    async with target.migration() as migration:
        with progress("deleted") as report:
            deleted, stays = await migration.delete(verified, report)
    show_deleted(
        deleted,
        stays,
        what="old keys",
        why_stays="was written after it was verified, and stays: `verify` shows why",
        as_json=as_json,
    )


def _save(file: Path, verified: VerifiedKeys) -> None:
    count = len(verified.items)
    verified_file.write(file, verified)
    note(f"{file} lists {count} old keys that `delete` may delete")


def _show_parts(steps: Sequence[PartPlan], as_json: bool) -> None:
    from mooring.migrate.jxt.plan import REASONS

    show_plan(
        steps,
        {"tenant": lambda step: str(step.unit or ""), "key": lambda step: step.name},
        _part_record,
        REASONS,
        is_notable=lambda step: step.verdict != "equal",
        if_empty="there are no old keys here: is --namespace right?",
        as_json=as_json,
    )


def _part_record(step: PartPlan) -> Mapping[str, JSON]:
    return {
        "tenant": step.unit or None,
        "key": step.name,
        "verdict": step.verdict,
        "why": str(step),
        "revision": step.modified or None,
    }


def _show_copied(results: Mapping[int, SyncResult], as_json: bool) -> None:
    if as_json:
        for result in results.values():
            show_json(_result_record(result))
    else:
        _show_results(results.values())
    if repaired := sum(len(result.repaired) for result in results.values()):
        note(f"{count_of(repaired, 'index', 'indexes')} repaired")
    changed = {unit: len(result.changes) for unit, result in results.items() if result.changes}
    if not changed:
        note("nothing to write")
        return
    tenants = len(changed.keys() - {0})
    owners = [count_of(tenants, "tenant")] if tenants else []
    if 0 in changed:
        owners.append("the common settings")
    note(f"{count_of(sum(changed.values()), 'part')} of {' and '.join(owners)} written")


def _show_results(results: Collection[SyncResult]) -> None:
    conflict = "both were changed: the later counts"
    rows: list[tuple[str, ...]] = []
    for result in results:
        tenant = str(result.unit or "")
        rows += [
            (tenant, change.path, change.move, conflict if change.conflict else "")
            for change in result.changes
        ]
        rows += [(tenant, name, "index", "") for name in result.repaired]
    show_rows(("tenant", "part", "done", "why"), rows)
    for result in results:
        for problem in result.problems:
            warn(f"tenant {result.unit}: {problem}" if result.unit else problem)


def _result_record(result: SyncResult) -> Mapping[str, JSON]:
    return {
        "tenant": result.unit or None,
        "changes": [
            {"part": change.path, "move": change.move, "conflict": change.conflict}
            for change in result.changes
        ],
        "repaired": list(result.repaired),
        "problems": list(result.problems),
        "late_writes": list(result.late_writes),
    }
