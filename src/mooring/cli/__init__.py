"""The command `mooring`: one file for each noun, thin over the library."""

from __future__ import annotations

import sys

import typer

from mooring.cli import (
    cleanup,
    config,
    demo,
    doctor,
    elect,
    info,
    instances,
    lock,
    locks,
    login,
    migrate,
    register,
    resolve,
    serve,
    services,
    store,
    tenant,
    token,
    watch,
    xds,
)
from mooring.cli.running import fill_descriptors
from mooring.cli.stdout import guarded
from mooring.cli.telling import printable
from mooring.errors import InvalidRequest, MooringError

app = typer.Typer(
    name="mooring",
    help="Service registry, discovery, locks and configuration for Python.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_REGISTER = "Who is there"
_CALL = "Whom to call"
_LOCK = "Whose turn it is"
_TENANTS = "Whom it is for"
_OPERATE = "The operator's word"
_STORE = "The store"

app.command(rich_help_panel=_REGISTER, cls=register.CommandAfterDashes)(register.register)
app.command(rich_help_panel=_REGISTER)(services.groups)
app.command(rich_help_panel=_REGISTER)(services.services)
app.command(rich_help_panel=_REGISTER)(instances.instances)
app.command(rich_help_panel=_REGISTER)(watch.watch)

app.command(rich_help_panel=_CALL)(resolve.resolve)
app.command(rich_help_panel=_CALL)(resolve.wait)
app.command(rich_help_panel=_CALL)(resolve.explain)

app.command(rich_help_panel=_LOCK, cls=register.CommandAfterDashes)(lock.lock)
app.command(rich_help_panel=_LOCK, cls=register.CommandAfterDashes)(elect.elect)
app.command(rich_help_panel=_LOCK)(locks.locks)

app.add_typer(tenant.app, name="tenant", rich_help_panel=_TENANTS)

app.command(rich_help_panel=_OPERATE)(instances.deregister)
app.add_typer(config.app, name="config", rich_help_panel=_OPERATE)
app.add_typer(info.app, name="info", rich_help_panel=_OPERATE)
app.command(rich_help_panel=_OPERATE)(cleanup.cleanup)
app.add_typer(cleanup.app, name="brake", rich_help_panel=_OPERATE)

app.command(rich_help_panel=_STORE)(serve.serve)
app.command(rich_help_panel=_STORE)(demo.demo)
app.command(rich_help_panel=_STORE)(login.login)
app.add_typer(token.app, name="token", rich_help_panel=_STORE)
app.add_typer(xds.app, name="xds", rich_help_panel=_STORE)
app.add_typer(store.app, name="store", rich_help_panel=_STORE)
app.add_typer(migrate.app, name="migrate", rich_help_panel=_STORE)
app.command(rich_help_panel=_STORE)(doctor.doctor)


@app.command(rich_help_panel=_STORE)
def version() -> None:
    """Print the version."""
    from mooring import __version__

    typer.echo(__version__)


def main() -> None:
    """Print an error of ours as one line, and exit with 2 for a wrong call, else with 1.
    Any other exception is a bug."""
    fill_descriptors()
    sys.stdout = guarded(sys.stdout)
    try:
        app()
    except MooringError as error:
        for line in f"mooring: {error}".split("\n"):  # which may quote what anybody wrote
            typer.echo(printable(line), err=True)
        sys.exit(2 if isinstance(error, InvalidRequest) else 1)
