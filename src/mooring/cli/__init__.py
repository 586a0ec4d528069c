"""The command `mooring`: one file for each noun, thin over the library."""

from __future__ import annotations

import sys

import typer

from mooring.cli import doctor, serve, store
from mooring.errors import MooringError

app = typer.Typer(
    name="mooring",
    help="Service registry, discovery, locks and configuration for Python.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve.serve)
app.command()(doctor.doctor)
app.add_typer(store.app, name="store")


@app.command()
def version() -> None:
    """Print the version."""
    from mooring import __version__

    typer.echo(__version__)


def main() -> None:
    """Errors of ours are for people: one line, and exit code 1. Anything else is a bug."""
    try:
        app()
    except MooringError as error:
        typer.echo(f"mooring: {error}", err=True)
        sys.exit(1)
