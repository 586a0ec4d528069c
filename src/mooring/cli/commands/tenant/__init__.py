"""`mooring tenant`: the configuration of tenants, from a file into the store and back."""

from __future__ import annotations

import typer

from mooring.cli.commands.tenant import common as shared
from mooring.cli.commands.tenant import history, show
from mooring.cli.commands.tenant import publish as publishing
from mooring.cli.commands.tenant import resolve as resolving

app = typer.Typer(
    help="Publish, inspect, roll back and delete tenant configuration.",
    no_args_is_help=True,
)
app.command(name="list")(show.list_tenants)
app.command()(show.show)
app.command()(resolving.resolve)
app.command()(publishing.diff)
app.command()(publishing.publish)
app.command()(publishing.delete)
app.command()(show.export)
app.command()(history.history)
app.command()(history.rollback)
app.command()(history.rekey)
app.add_typer(shared.common, name="common")
app.add_typer(shared.platform, name="platform")
