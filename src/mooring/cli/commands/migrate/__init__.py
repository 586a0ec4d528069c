"""`mooring migrate`: migrations from older formats, one module for each."""

from __future__ import annotations

from mooring.cli.commands.migrate import jxt, redis_v1
from mooring.cli.typer_extensions import CommandGroup

app = CommandGroup()
app.add_typer(jxt.app, name="jxt")
app.add_typer(redis_v1.app, name="redis-v1")
