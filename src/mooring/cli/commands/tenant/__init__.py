"""`mooring tenant`: the configuration of tenants, from a file into the store and back."""

from __future__ import annotations

import typer

from mooring.cli.commands.tenant import common as shared
from mooring.cli.commands.tenant import history
from mooring.cli.commands.tenant import list_show as exporting
from mooring.cli.commands.tenant import list_show as looking
from mooring.cli.commands.tenant import publish as publishing
from mooring.cli.commands.tenant import resolve as resolving

app = typer.Typer(
    help="Publish, inspect, roll back and delete tenant configuration.",
    no_args_is_help=True,
)
app.command(name="list")(looking.list_tenants)
app.command()(looking.show)
app.command()(resolving.resolve)
app.command()(publishing.diff)
app.command()(publishing.publish)
app.command()(publishing.delete)
app.command()(exporting.export)
app.command()(history.history)
app.command()(history.rollback)
app.command()(history.rekey)
app.add_typer(shared.common, name="common")
app.add_typer(shared.platform, name="platform")
