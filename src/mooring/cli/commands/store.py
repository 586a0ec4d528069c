"""`mooring store`: check and back up an embedded store, export and import keys."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from mooring.backends import open_store
from mooring.cli.io.connect import run_command, url_or_local
from mooring.cli.io.options import OutputFile, StoreOption
from mooring.cli.io.streams import open_output, print_stderr, progress
from mooring.cli.typer_extensions import CommandGroup
from mooring.errors import InvalidRequest
from mooring.formatting import count_of
from mooring.store import Put, everything, prefix
from mooring.store.embedded import sqlite_file
from mooring.store.export_import import batches_of, line_of, pages, puts_of
from mooring.store.url import StoreURL, parse

app = CommandGroup()

_SERVER_RECORDS = b"/mooring/"
"""Prefix of the records of Mooring servers, which are valid in their own store only."""

FilePath = Annotated[Path, typer.Argument(metavar="PATH", help="file of an embedded store")]


@app.command()
def check(path: FilePath) -> None:
    """Check the file of an embedded store.

    The file may be in use. Exits with 1 if a check fails.
    """
    problems = sqlite_file.check(path)
    for problem in problems:
        typer.echo(f"✗ {problem}")
    if problems:
        raise typer.Exit(1)
    typer.echo(f"✓ {path} is healthy")


@app.command()
def backup(
    path: FilePath,
    target: Annotated[
        Path | None,
        typer.Argument(metavar="TARGET", help="target file (default: a new file beside the store)"),
    ] = None,
) -> None:
    """Back up the file of an embedded store.

    The copy is consistent even if the store is in use.
    """
    target = target or path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}")
    if os.path.lexists(target):
        raise InvalidRequest(f"{target} exists: choose another file")
    sqlite_file.backup(path, target)
    typer.echo(f"copied {path} to {target}")


@app.command(name="export")
def export_keys(
    key_prefix: Annotated[
        str, typer.Option("--prefix", metavar="KEY", help="only keys with this prefix")
    ] = "",
    leased: Annotated[
        bool, typer.Option("--leased", help="include keys that are attached to a lease")
    ] = False,
    file: OutputFile = None,
    store: StoreOption = "",
) -> None:
    """Export keys as JSON lines."""
    with url_or_local(store) as url:
        address = parse(url)
        if address.scheme == "sqlite" and not os.path.exists(address.file):
            raise InvalidRequest(f"{address.file} not found: name the file of a store")
        run_command(_export(address, os.fsencode(key_prefix), leased, file))


@app.command(name="import")
def import_keys(
    store: StoreOption = "",
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="input file (default, and -: standard input)"),
    ] = None,
) -> None:
    """Import exported keys into a store.

    Existing keys are overwritten.
    """
    puts = list(puts_of(_read(file)))  # reads everything before the first write
    with url_or_local(store) as url:
        run_command(_import(parse(url), puts))


def _read(file: Path | None) -> str:
    file = None if file == Path("-") else file
    name = file or "standard input"
    try:
        data = file.read_bytes() if file else sys.stdin.buffer.read()
        return data.decode()
    except OSError as error:
        raise InvalidRequest(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{name} is not UTF-8 text: expected the output of `mooring store export`"
        ) from error


async def _export(address: StoreURL, start: bytes, leased: bool, file: Path | None) -> None:
    range = prefix(start) if start else everything()
    with_own = start.startswith(_SERVER_RECORDS)
    written = skipped = own = 0
    with open_output(file) as output, progress("keys") as report:
        async with open_store(address) as store:
            async for entries in pages(store, range):
                for entry in entries:
                    if entry.key.startswith(_SERVER_RECORDS) and not with_own:
                        own += 1
                    elif entry.lease and not leased:
                        skipped += 1
                    else:
                        output.write(line_of(entry) + "\n")
                        written += 1
                report(written, None)
    left_out = f", skipped {skipped} on a lease (--leased includes them)" if skipped else ""
    if own:
        left_out += f", skipped {own} of Mooring's servers (valid in this store only)"
    print_stderr(count_of(written, "key") + left_out)


async def _import(address: StoreURL, puts: list[Put]) -> None:
    done = 0
    with progress("keys") as report:
        async with open_store(address) as store:
            for batch in batches_of(puts):
                await store.commit(*batch)
                done += len(batch)
                report(done, len(puts))
    print_stderr(count_of(len(puts), "key"))
