"""`mooring migrate`: from older formats to those of today, one file for each."""

from __future__ import annotations

import typer

from mooring.cli.commands.migrate import jxt, redis_v1

app = typer.Typer(help="Move from an older format.", no_args_is_help=True)
app.add_typer(jxt.app, name="jxt")
app.add_typer(redis_v1.app, name="redis-v1")
