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

from mooring.cli.options import JSONOption, NamespaceOption, StoreOption
from mooring.cli.printing import show, show_json
from mooring.cli.progress import progress
from mooring.cli.reaching import reach, run_command
from mooring.cli.telling import hear, note, warn
from mooring.model import JSON
from mooring.tasks import Tasks
from mooring.tenants.keys import NAMESPACE

if TYPE_CHECKING:
    from mooring.migrate.jxt.migration import Migration
    from mooring.migrate.jxt.plan import Step
    from mooring.migrate.jxt.settling import Settled
    from mooring.migrate.jxt.verified import Verified

app = typer.Typer(
    help="The old keys of tenants (jxt//…): plan, copy, verify, bridge, cutover, delete.",
    no_args_is_help=True,
)

VerifiedOption = Annotated[
    Path,
    typer.Option(
        "--verified", metavar="FILE", help="what `verify` and `cutover` write and `delete` reads"
    ),
]
_VERIFIED = Path("jxt.verified")


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
    _show(steps, as_json)


@app.command()
def copy(
    namespace: NamespaceOption = NAMESPACE, store: StoreOption = "", as_json: JSONOption = False
) -> None:
    """Write what the old keys say into the new ones. It may be stopped and run again.

    Each tenant comes whole, with all that leads to it. Exits with 1 if something could not be
    written.
    """
    if not run_command(_copy(namespace, store, as_json)):
        raise typer.Exit(1)


async def _copy(namespace: str, store: str, as_json: bool) -> bool:
    done: dict[int, Settled] = {}
    async with _migration(store, namespace) as migration:
        with progress("copied") as told:
            async for settled in migration.copy(told):
                if (before := done.get(settled.unit)) is not None:
                    settled.changes = before.changes + settled.changes
                done[settled.unit] = settled
    _show_settled(list(done.values()), as_json)
    count = sum(len(each.changes) for each in done.values())
    note(f"{count} parts of {len(done)} tenants written" if count else "nothing to write")
    return not any(each.problems for each in done.values())


@app.command()
def verify(
    namespace: NamespaceOption = NAMESPACE,
    verified: VerifiedOption = _VERIFIED,
    store: StoreOption = "",
    as_json: JSONOption = False,
) -> None:
    """Compare the new keys with the old, and write down which old ones may be deleted.

    Exits with 1 if there is a difference; then nothing may be deleted.
    """
    if not run_command(_verify(namespace, verified, store, as_json)):
        raise typer.Exit(1)


async def _verify(namespace: str, file: Path, store: str, as_json: bool) -> bool:
    from mooring.migrate.jxt import verified
    from mooring.migrate.jxt.plan import DIFFERENT

    async with _migration(store, namespace) as migration:
        with progress("compared") as told:
            steps, listed = await migration.verify(told)
    _show(steps, as_json)
    if any(step.verdict in DIFFERENT for step in steps):
        verified.discard(file)
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

        heard: asyncio.Queue[Settled | None] = asyncio.Queue()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, heard.put_nowait, None)
        hear("mooring.migrate.jxt.bridge")
        note(f"{migration.store.url}: keeps old and new keys level; Ctrl-C stops it")
        tasks = Tasks()
        try:
            running = tasks.start(Bridge(migration).run(heard.put_nowait), name="bridge")
            running.add_done_callback(lambda _: heard.put_nowait(None))
            while (settled := await heard.get()) is not None:
                if as_json:
                    show_json(_settled_record(settled))
                    sys.stdout.flush()
            if running.done():
                running.result()  # it crashed: raise that
        finally:
            await tasks.aclose()
    note("stopped")


@app.command()
def cutover(
    namespace: NamespaceOption = NAMESPACE,
    verified: VerifiedOption = _VERIFIED,
    undo: Annotated[bool, typer.Option("--undo", help="let both count again")] = False,
    store: StoreOption = "",
    as_json: JSONOption = False,
) -> None:
    """Let the new keys count alone, if nothing differs.

    A bridge goes on to write the old keys, and no longer reads them. It can be undone until the
    old keys are deleted.
    """
    run_command(_cutover(namespace, verified, undo, store, as_json))


async def _cutover(namespace: str, file: Path, undo: bool, store: str, as_json: bool) -> None:
    async with _migration(store, namespace) as migration:
        if undo:
            await migration.undo()
            note("both formats count again")
            return
        with progress("compared") as told:
            marker, steps, listed = await migration.cutover(told)
    _show(steps, as_json)
    note(f"the new keys count alone since {marker.at} (by {marker.by})")
    _keep(file, listed)


@app.command()
def delete(
    namespace: NamespaceOption = NAMESPACE,
    verified: VerifiedOption = _VERIFIED,
    store: StoreOption = "",
    as_json: JSONOption = False,
) -> None:
    """Delete the old keys that were verified, after the cut-over.

    It may be stopped and run again. Exits with 1 if something stays because it was written since.
    """
    if not run_command(_delete(namespace, verified, store, as_json)):
        raise typer.Exit(1)


async def _delete(namespace: str, file: Path, store: str, as_json: bool) -> bool:
    from mooring.migrate.jxt import verified

    listed = verified.read(file)
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
    async with reach(store, "tree") as hub:
        from mooring.migrate.jxt.migration import Migration

        yield Migration(hub.store, namespace=namespace)


def _keep(file: Path, listed: Verified) -> None:
    from mooring.migrate.jxt import verified

    verified.write(file, listed)
    note(f"{file} lists {len(listed.listed)} old keys that `delete` may delete")


def _show(steps: Sequence[Step], as_json: bool) -> None:
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


def _record(step: Step) -> Mapping[str, JSON]:
    return {
        "tenant": step.unit or None,
        "key": step.name,
        "verdict": step.verdict,
        "why": str(step),
        "revision": step.modified or None,
    }


def _show_settled(done: Sequence[Settled], as_json: bool) -> None:
    if as_json:
        for settled in done:
            show_json(_settled_record(settled))
        return
    show(
        [(settled.unit, change) for settled in done for change in settled.changes],
        {
            "tenant": lambda each: str(each[0] or ""),
            "part": lambda each: each[1].path,
            "done": lambda each: each[1].move,
            "why": lambda each: "both were changed: the later counts" if each[1].conflict else "",
        },
        lambda each: {},
        as_json=False,
    )
    for settled in done:
        for problem in settled.problems:
            warn(f"tenant {settled.unit}: {problem}" if settled.unit else problem)


def _settled_record(settled: Settled) -> Mapping[str, JSON]:
    return {
        "tenant": settled.unit or None,
        "changes": [
            {"part": each.path, "move": each.move, "conflict": each.conflict}
            for each in settled.changes
        ],
        "problems": list(settled.problems),
        "strays": list(settled.strays),
    }
