"""The command `mooring`: one file for each noun, thin over the library."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.main import get_group

from mooring.cli.io.stdout import fill_descriptors, guarded
from mooring.cli.lazy import CommandAfterDashes, LazyGroup, Unloaded
from mooring.errors import InvalidRequest, MooringError
from mooring.formatting import printable
from mooring.version import VERSION


def _panel(title: str, *commands: Unloaded) -> tuple[Unloaded, ...]:
    """Commands that the help shows together."""
    for command in commands:
        command.rich_help_panel = title
    return commands


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(VERSION)
        raise typer.Exit


def _options() -> list[Any]:
    """The options of `mooring` itself."""
    options = typer.Typer(add_completion=False)

    @options.callback()
    def mooring(
        version: bool = typer.Option(
            False,
            "--version",
            callback=_print_version,
            expose_value=False,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ) -> None: ...

    return get_group(options).params


app = LazyGroup(
    name="mooring",
    help="Service registry, discovery, locks and configuration for Python.",
    no_args_is_help=True,
    params=_options(),
    commands=[
        *_panel(
            "Who is there",
            Unloaded(
                "register",
                "register:register",
                "Register an instance while a command runs.",
                cls=CommandAfterDashes,
            ),
            Unloaded("groups", "services:groups", "List the groups of services."),
            Unloaded(
                "services",
                "services:services",
                "List the services with the number of their instances.",
            ),
            Unloaded(
                "instances",
                "instances:instances",
                "List the instances of a service, secrets masked.",
            ),
            Unloaded("watch", "watch:watch", "Print the changes of a service as they happen."),
        ),
        *_panel(
            "Whom to call",
            Unloaded(
                "resolve",
                "resolve:resolve",
                "Print HOST:PORT of an instance to call; with --json all of it, secrets masked.",
            ),
            Unloaded("wait", "resolve:wait", "Wait until instances may be called."),
            Unloaded("explain", "resolve:explain", "Tell why each instance is or is not called."),
        ),
        *_panel(
            "Whose turn it is",
            Unloaded(
                "lock", "lock:lock", "Run a command while holding a lock.", cls=CommandAfterDashes
            ),
            Unloaded(
                "elect",
                "lock:elect",
                "Run a command while leading an election.",
                cls=CommandAfterDashes,
            ),
            Unloaded(
                "locks", "lock:locks", "Show who holds locks, leads elections, and waits for them."
            ),
        ),
        *_panel(
            "The operator's word",
            Unloaded(
                "deregister",
                "instances:deregister",
                "Take an instance out until its process starts anew.",
            ),
            Unloaded("cleanup", "cleanup:cleanup", "Take out instances that gave no sign of life."),
            Unloaded("config", "config:app", "What the operator says: get, set, unset."),
            Unloaded("info", "services:app", "Descriptions of services and groups: get, set."),
            Unloaded(
                "brake",
                "cleanup:app",
                "What holds where so many instances are silent that the fault is likely elsewhere: "
                "list, release.",
            ),
        ),
        *_panel(
            "The store",
            Unloaded(
                "serve",
                "serve:serve",
                "Serve a store: the console and its API, and etcd's API for an embedded one.",
            ),
            Unloaded(
                "demo",
                "demo:demo",
                "Start a small fleet that registers, fails, drains and recovers, to look at in "
                "the console.",
            ),
            Unloaded(
                "login",
                "token:login",
                "Print a link that logs its opener into the console, once and within ten minutes.",
            ),
            Unloaded(
                "doctor",
                "doctor:doctor",
                "Look at a store, or at a Redis: reachability, version, latency, clock, "
                "permissions, alarms.",
            ),
            Unloaded("version", "version:version", "Print the version."),
            Unloaded("token", "token:app", "Who may use the API and the console."),
            Unloaded("xds", "xds:app", "Envoy and xds:/// channels of gRPC: bootstrap."),
            Unloaded("store", "store:app", "Look after a store: check, backup, export, import."),
            Unloaded("migrate", "migrate:app", "Move from an older format."),
        ),
        *_panel(
            "Whom it is for",
            Unloaded(
                "tenant",
                "tenant:app",
                "Tenants: list, show, resolve, diff, publish, export, delete, history, "
                "rollback, rekey.",
            ),
        ),
    ],
)


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
