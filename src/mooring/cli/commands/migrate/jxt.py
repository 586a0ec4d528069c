"""`mooring migrate jxt`: from the old keys of tenant configuration to the new."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mooring.cli.io.connect import open_hub, run_command
from mooring.cli.io.options import JSONOption, NamespaceOption, StoreOption
from mooring.cli.io.output import count_of, log_to_stderr, note, progress, show, show_json, warn
from mooring.model import JSON
from mooring.tasks import Tasks
from mooring.tenants.keys import NAMESPACE, TenantKeys

if TYPE_CHECKING:
    from mooring.migrate.jxt.deletion import Verified
    from mooring.migrate.jxt.migration import Migration
    from mooring.migrate.jxt.plan import PartPlan
    from mooring.migrate.jxt.sync_unit import SyncResult


def show_steps(steps: Sequence[PartPlan], as_json: bool) -> None:
    """What is not as it should be, and then how many of each; as JSON, everything."""
    from mooring.migrate.jxt.plan import counted

    shown = [step for step in steps if as_json or step.verdict != "equal"]
    show(
        shown,
        {
            "tenant": lambda step: str(step.unit or ""),
            "key": lambda step: step.name,
            "verdict": lambda step: step.verdict,
            "why": lambda step: str(step),
        },
        _record,
        as_json=as_json,
    )
    counts = ", ".join(f"{count} {verdict}" for verdict, count in counted(steps).items())
    note(counts or "there are no old keys here: is --namespace right?")
    sys.stdout.flush()


def _record(step: PartPlan) -> Mapping[str, JSON]:
    return {
        "tenant": step.unit or None,
        "key": step.name,
        "verdict": step.verdict,
        "why": str(step),
        "revision": step.modified or None,
    }


_BOTH = "both were changed: the later counts"


def _show_settled(done: Sequence[SyncResult], as_json: bool) -> None:
    if as_json:
        for settled in done:
            show_json(settled_record(settled))
        return
    rows: list[tuple[int, str, str, str]] = [
        (settled.unit, each.path, each.move, _BOTH if each.conflict else "")
        for settled in done
        for each in settled.changes
    ]
    rows += [(settled.unit, each, "index", "") for settled in done for each in settled.mended]
    show(
        rows,
        {
            "tenant": lambda row: str(row[0] or ""),
            "part": lambda row: row[1],
            "done": lambda row: row[2],
            "why": lambda row: row[3],
        },
        lambda row: {},
        as_json=False,
    )
    for settled in done:
        for problem in settled.problems:
            warn(f"tenant {settled.unit}: {problem}" if settled.unit else problem)


def settled_record(settled: SyncResult) -> Mapping[str, JSON]:
    return {
        "tenant": settled.unit or None,
        "changes": [
            {"part": each.path, "move": each.move, "conflict": each.conflict}
            for each in settled.changes
        ],
        "mended": list(settled.mended),
        "problems": list(settled.problems),
        "strays": list(settled.strays),
    }


def show_copied(done: Mapping[int, SyncResult], as_json: bool) -> None:
    _show_settled(list(done.values()), as_json)
    count = sum(len(each.changes) for each in done.values())
    mended = sum(len(each.mended) for each in done.values())
    tenants = sum(bool(unit and each.changes) for unit, each in done.items())
    common = done[0].changes if 0 in done else []
    of = [count_of(tenants, "tenant")] if tenants else []
    of += ["what concerns all"] if common else []
    if mended:
        note(f"{count_of(mended, 'index', 'indexes')} mended")
    parts = f"{count_of(count, 'part')} of {' and of '.join(of)}"
    note(f"{parts} written" if count else "nothing to write")
    sys.stdout.flush()


app = typer.Typer(
    help="The old keys of tenants (jxt//…): plan, copy, verify, bridge, cutover, delete.",
    no_args_is_help=True,
)

VerifiedOption = Annotated[
    Path | None,
    typer.Option(
        "--verified",
        metavar="FILE",
        help="what `verify` and `cutover` write and `delete` reads; NAMESPACE.verified",
    ),
]


def _verified_file(given: Path | None, namespace: str) -> Path:
    return given or Path(f"{TenantKeys(namespace).namespace.replace('/', '-')}.verified")


@app.command()
def plan(
    namespace: NamespaceOption = NAMESPACE, store: StoreOption = "", as_json: JSONOption = False
) -> None:
    """Say what a copy would do. Nothing is written."""
    run_command(_plan(namespace, store, as_json))


async def _plan(namespace: str, store: str, as_json: bool) -> None:
    async with _migration(store, namespace) as migration:
        with progress("looked at") as told:
            steps = await migration.plan(told)
    show_steps(steps, as_json)


@app.command()
def copy(
    namespace: NamespaceOption = NAMESPACE, store: StoreOption = "", as_json: JSONOption = False
) -> None:
    """Write what the old keys say into the new ones. It may be stopped and run again.

    Each tenant comes whole, with all that leads to it; new indexes that do not lead where they
    should are mended. In the end it says what was left. Exits with 1 if something that can be
    understood could not be written, as where a name is another tenant's.
    """
    if not run_command(_copy(namespace, store, as_json)):
        raise typer.Exit(1)


async def _copy(namespace: str, store: str, as_json: bool) -> bool:
    from mooring.migrate.jxt.plan import LEFT, WRITTEN, counted

    done: dict[int, SyncResult] = {}
    async with _migration(store, namespace) as migration:
        try:
            with progress("copied") as told:
                async for settled in migration.copy(told):
                    _add(done, settled)
        except BaseException as error:
            if done:  # what is done is done
                show_copied(done, as_json)
            if isinstance(error, asyncio.CancelledError):
                note("stopped before the end: run `copy` again")
            raise
        with progress("looked at") as told:
            steps = await migration.plan(told)
    show_copied(done, as_json)
    left = [step for step in steps if step.verdict in LEFT | WRITTEN | {"blocked"}]
    if left:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in counted(left).items())
        note(f"left: {counts}; see what `plan` says")
    return not any(each.problems for each in done.values())


def _add(done: dict[int, SyncResult], settled: SyncResult) -> None:
    """A unit may come more than once: the problems that it had last are those that it has."""
    if (before := done.get(settled.unit)) is not None:
        settled.changes = before.changes + settled.changes
        settled.mended = before.mended + settled.mended
    done[settled.unit] = settled


@app.command()
def verify(
    namespace: NamespaceOption = NAMESPACE,
    deletion: VerifiedOption = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="what could not be copied is a difference, too")
    ] = False,
    store: StoreOption = "",
    as_json: JSONOption = False,
) -> None:
    """Compare the new keys with the old, and write down which old ones may be deleted.

    Exits with 1 if there is a difference; then nothing may be deleted.
    """
    file = _verified_file(deletion, namespace)
    if not run_command(_verify(namespace, file, strict, store, as_json)):
        raise typer.Exit(1)


async def _verify(namespace: str, file: Path, strict: bool, store: str, as_json: bool) -> bool:
    from mooring.migrate import verified_file as listing
    from mooring.migrate.jxt.plan import DIFFERENT, LEFT

    async with _migration(store, namespace) as migration:
        with progress("compared") as told:
            steps, listed = await migration.verify(told)
    show_steps(steps, as_json)
    if any(step.verdict in (DIFFERENT | LEFT if strict else DIFFERENT) for step in steps):
        listing.discard(file)
        note("the old keys cannot be given up yet")
        return False
    _keep(file, listed)
    return True


@app.command()
def bridge(
    namespace: NamespaceOption = NAMESPACE, store: StoreOption = "", as_json: JSONOption = False
) -> None:
    """Keep the old keys and the new ones level while there are programs of both.

    It stops with SIGTERM or Ctrl-C, and may be started again at any time; after the cut-over the
    old keys follow the new ones alone.
    """
    run_command(_bridge(namespace, store, as_json))


async def _bridge(namespace: str, store: str, as_json: bool) -> None:
    async with _migration(store, namespace) as migration:
        from mooring.migrate.jxt.bridge import Bridge

        heard: asyncio.Queue[SyncResult | None] = asyncio.Queue()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, heard.put_nowait, None)
        log_to_stderr("mooring.migrate.jxt.bridge")
        note(f"{migration.store.url}: keeps old and new keys level; Ctrl-C stops it")
        tasks = Tasks()
        try:
            running = tasks.start(Bridge(migration).run(heard.put_nowait), name="bridge")
            running.add_done_callback(lambda _: heard.put_nowait(None))
            while (settled := await heard.get()) is not None:
                if as_json:
                    show_json(settled_record(settled))
                    sys.stdout.flush()
            if running.done():
                running.result()  # it crashed: raise that
        finally:
            await tasks.aclose()
    note("stopped")


@app.command()
def cutover(
    namespace: NamespaceOption = NAMESPACE,
    deletion: VerifiedOption = None,
    undo: Annotated[bool, typer.Option("--undo", help="let both count again")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="the same after a deletion: begin again")
    ] = False,
    store: StoreOption = "",
    as_json: JSONOption = False,
) -> None:
    """Let the new keys count alone, if nothing differs.

    A bridge goes on to write the old keys, and no longer reads them. It can be undone until the
    old keys are deleted; after that a migration can be begun again with whatever old keys are
    there, and a bridge writes those that are not.
    """
    if undo or restart:
        run_command(_undo(namespace, restart, store))
    else:
        run_command(_cutover(namespace, _verified_file(deletion, namespace), store, as_json))


async def _undo(namespace: str, restart: bool, store: str) -> None:
    async with _migration(store, namespace) as migration:
        await migration.undo(restart=restart)
    note("both formats count again")


async def _cutover(namespace: str, file: Path, store: str, as_json: bool) -> None:
    async with _migration(store, namespace) as migration:
        with progress("compared") as told:
            marker, steps, listed = await migration.cutover(told)
    show_steps(steps, as_json)
    note(f"the new keys count alone since {marker.at} (by {marker.by})")
    _keep(file, listed)


@app.command()
def delete(
    namespace: NamespaceOption = NAMESPACE,
    deletion: VerifiedOption = None,
    store: StoreOption = "",
    as_json: JSONOption = False,
) -> None:
    """Delete the old keys that were verified, after the cut-over.

    It may be stopped and run again. Exits with 1 if something stays because it was written since.
    """
    if not run_command(_delete(namespace, _verified_file(deletion, namespace), store, as_json)):
        raise typer.Exit(1)


async def _delete(namespace: str, file: Path, store: str, as_json: bool) -> bool:
    from mooring.migrate.jxt import deletion

    listed = deletion.read(file)
    async with _migration(store, namespace) as migration:
        with progress("deleted") as told:
            gone, stays = await migration.delete(listed, told)
    if as_json:
        show_json({"deleted": gone, "stays": list(stays)})
    for each in stays:
        note(f"{each} was written since, and stays: see what `verify` says")
    note(f"{gone} old keys deleted")
    return not stays


@asynccontextmanager
async def _migration(store: str, namespace: str) -> AsyncIterator[Migration]:
    async with open_hub(store, "tree") as hub:
        from mooring.migrate.jxt.migration import Migration

        yield Migration(hub.store, namespace=namespace)


def _keep(file: Path, listed: Verified) -> None:
    from mooring.migrate.jxt import deletion

    deletion.write(file, listed)
    note(f"{file} lists {len(listed.listed)} old keys that `delete` may delete")
