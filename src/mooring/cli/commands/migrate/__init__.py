"""`mooring migrate`: from older formats to those of today, one file for each."""

from __future__ import annotations

import typer

from mooring.cli.commands.migrate import jxt, redis_v1

app = typer.Typer(help="Migrate from older key formats.", no_args_is_help=True)
app.add_typer(jxt.app, name="jxt")
app.add_typer(redis_v1.app, name="redis-v1")
