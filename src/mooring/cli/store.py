"""`mooring store`: check and back up a store's file, move keys between stores."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mooring.cli.running import StoreOption, run
from mooring.errors import InvalidRequest
from mooring.hub import open_store
from mooring.store import Put, everything, prefix
from mooring.store.embedded import journal
from mooring.store.transfer import batches_of, line_of, pages, puts_of

app = typer.Typer(help="Look after a store: check, backup, export, import.", no_args_is_help=True)

FilePath = Annotated[Path, typer.Argument(metavar="PATH", help="the file of an embedded store")]


@app.command()
def check(path: FilePath) -> None:
    """Check a store's file; it may be in use. Exits with 1 if something is wrong."""
    problems = journal.check(path)
    for problem in problems:
        typer.echo(f"✗ {problem}")
    if problems:
        raise typer.Exit(1)
    typer.echo(f"✓ {path} is well")


@app.command()
def backup(
    path: FilePath,
    target: Annotated[Path | None, typer.Argument(help="where to; default: beside it")] = None,
) -> None:
    """Copy a store's file as of one instant; it may be in use."""
    target = target or path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}")
    if target.exists():
        raise InvalidRequest(f"{target} exists: name another file")
    journal.backup(path, target)
    typer.echo(f"{target} is a copy of {path}")


@app.command(name="export")
def export_keys(
    store: StoreOption = "",
    start: Annotated[str, typer.Option("--prefix", help="only keys that start so")] = "",
    leased: Annotated[bool, typer.Option(help="also keys that hang on a lease")] = False,
    file: Annotated[Path | None, typer.Argument(help="default: standard output")] = None,
) -> None:
    """Write keys as JSON lines."""
    run(_export(_named(store), start.encode(), leased, file))


@app.command(name="import")
def import_keys(
    store: StoreOption = "",
    file: Annotated[Path | None, typer.Argument(help="default: standard input")] = None,
) -> None:
    """Write exported keys into a store. Keys that are there already are overwritten."""
    lines = (file.read_text(encoding="utf-8") if file else sys.stdin.read()).splitlines()
    run(_import(_named(store), list(puts_of(lines))))  # all is read before anything is written


def _named(url: str) -> str:
    if not url:
        raise InvalidRequest("which store? Name it with --store URL or MOORING_STORE")
    return url


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)


async def _export(url: str, start: bytes, leased: bool, file: Path | None) -> None:
    range = prefix(start) if start else everything()
    written = skipped = 0
    with _writing(file) as output, _progress() as progress:
        task = progress.add_task("keys", total=None)
        async with open_store(url) as store:
            async for entries in pages(store, range):
                for entry in entries:
                    if entry.lease and not leased:
                        skipped += 1
                    else:
                        output.write(line_of(entry) + "\n")
                        written += 1
                progress.update(task, completed=written)
    left_out = f", {skipped} on a lease left out (--leased takes them)" if skipped else ""
    typer.echo(f"{written} keys{left_out}", err=True)


def _writing(file: Path | None) -> TextIO | nullcontext[TextIO]:
    return file.open("w", encoding="utf-8") if file else nullcontext(sys.stdout)


async def _import(url: str, puts: list[Put]) -> None:
    with _progress() as progress:
        task = progress.add_task("keys", total=len(puts))
        async with open_store(url) as store:
            for batch in batches_of(puts):
                await store.commit(*batch)
                progress.advance(task, len(batch))
    typer.echo(f"{len(puts)} keys", err=True)
