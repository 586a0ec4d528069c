"""`mooring tenant`: publish, inspect, roll back and delete the configuration of tenants."""

from __future__ import annotations

from mooring.cli.commands.tenant.history import history, rollback
from mooring.cli.commands.tenant.publish import delete, diff, publish
from mooring.cli.commands.tenant.rekey import rekey
from mooring.cli.commands.tenant.resolve import resolve
from mooring.cli.commands.tenant.shared_settings import common, platform
from mooring.cli.commands.tenant.show import export, list_tenants, show_tenant
from mooring.cli.typer_extensions import CommandGroup

app = CommandGroup()
app.command(name="list")(list_tenants)
app.command(name="show")(show_tenant)
for command in (resolve, diff, publish, delete, export, history, rollback, rekey):
    app.command()(command)
app.add_typer(common, name="common")
app.add_typer(platform, name="platform")
