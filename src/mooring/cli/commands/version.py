"""`mooring version`."""

from __future__ import annotations

import typer

from mooring.version import VERSION


def version() -> None:
    """Print the version."""
    typer.echo(VERSION)
