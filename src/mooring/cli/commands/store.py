"""`mooring store`: check and back up a store's file, move keys between stores."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from mooring.cli.io.connect import named_or_local, run
from mooring.cli.io.options import StoreOption
from mooring.cli.io.output import count_of
from mooring.cli.io.stderr import progress
from mooring.cli.io.stdout import writing
from mooring.errors import InvalidRequest
from mooring.hub import open_store
from mooring.store import Put, everything, prefix
from mooring.store.embedded import sqlite_file as journal
from mooring.store.export_import import batches_of, line_of, pages, puts_of
from mooring.store.url import StoreURL, parse

app = typer.Typer(help="Look after a store: check, backup, export, import.", no_args_is_help=True)

_OWN = b"/mooring/"
"""What servers keep for themselves: bound to its store, and another store would have it refused."""

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
    if os.path.lexists(target):
        raise InvalidRequest(f"{target} exists: name another file")
    journal.backup(path, target)
    typer.echo(f"{target} is a copy of {path}")


@app.command(name="export")
def export_keys(
    store: StoreOption = "",
    start: Annotated[str, typer.Option("--prefix", help="only keys that start so")] = "",
    leased: Annotated[bool, typer.Option(help="also keys that hang on a lease")] = False,
    file: Annotated[Path | None, typer.Argument(help="default, or -: standard output")] = None,
) -> None:
    """Write keys as JSON lines."""
    with named_or_local(store) as url:
        where = parse(url)
        if where.scheme == "sqlite" and not os.path.exists(where.file):
            raise InvalidRequest(f"{where.file} is not there: name the file of a store")
        run(_export(where, os.fsencode(start), leased, _unless_dash(file)))


@app.command(name="import")
def import_keys(
    store: StoreOption = "",
    file: Annotated[Path | None, typer.Argument(help="default, or -: standard input")] = None,
) -> None:
    """Write exported keys into a store. Keys that are there already are overwritten."""
    puts = list(puts_of(_read(_unless_dash(file))))  # all is read before anything is written
    with named_or_local(store) as url:
        run(_import(parse(url), puts))


def _unless_dash(file: Path | None) -> Path | None:
    return None if file == Path("-") else file


def _read(file: Path | None) -> str:
    name = file or "standard input"
    try:
        data = file.read_bytes() if file else sys.stdin.buffer.read()
        return data.decode()
    except OSError as error:
        raise InvalidRequest(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} is no text in UTF-8, so not what was exported") from error


async def _export(where: StoreURL, start: bytes, leased: bool, file: Path | None) -> None:
    range = prefix(start) if start else everything()
    written = skipped = own = 0
    with writing(file) as output, progress("keys") as report:
        async with open_store(where) as store:
            async for entries in pages(store, range):
                for entry in entries:
                    if entry.key.startswith(_OWN) and not start.startswith(_OWN):
                        own += 1
                    elif entry.lease and not leased:
                        skipped += 1
                    else:
                        output.write(line_of(entry) + "\n")
                        written += 1
                report(written, None)
    left_out = f", {skipped} on a lease left out (--leased takes them)" if skipped else ""
    if own:
        left_out += f", {own} of Mooring's servers left out (they are of use in this store only)"
    typer.echo(count_of(written, "key") + left_out, err=True)


async def _import(where: StoreURL, puts: list[Put]) -> None:
    done = 0
    with progress("keys") as report:
        async with open_store(where) as store:
            for batch in batches_of(puts):
                await store.commit(*batch)
                done += len(batch)
                report(done, len(puts))
    typer.echo(count_of(len(puts), "key"), err=True)
