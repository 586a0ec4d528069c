"""The command `mooring`. Each command group is a module in `commands`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer._completion_classes import completion_init
from typer.main import get_group, get_install_completion_arguments

from mooring import __version__
from mooring.cli.io.output import fill_descriptors, guarded
from mooring.cli.typer_extensions import CommandAfterDashes, LazyCommand, LazyGroup
from mooring.errors import InvalidRequest, MooringError
from mooring.formatting import printable


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


def _own_options() -> tuple[list[Any], Any]:
    """The options of `mooring` itself, and the `version` command."""
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

    @options.command()
    def version() -> None:
        """Print the version."""
        typer.echo(__version__)

    completion_init()
    group = get_group(options)
    return [*group.params, *get_install_completion_arguments()], group.commands["version"]


_OPTIONS, _VERSION = _own_options()


_PANELS: Mapping[str, Sequence[Any]] = {
    "Services": [
        LazyCommand(
            "register",
            "register:register",
            "Register an instance while a command runs.",
            cls=CommandAfterDashes,
        ),
        LazyCommand("groups", "services:groups", "List service groups."),
        LazyCommand(
            "services", "services:services", "List services and how many instances each has."
        ),
        LazyCommand("instances", "instances:instances", "List the instances of a service."),
        LazyCommand("watch", "watch:watch", "Follow a service and print its changes."),
    ],
    "Calls": [
        LazyCommand(
            "resolve", "resolve:resolve", "Pick an instance to call and print its HOST:PORT."
        ),
        LazyCommand("wait", "wait:wait", "Wait until a service has callable instances."),
        LazyCommand(
            "explain", "explain:explain", "Show why each instance is or is not in rotation."
        ),
    ],
    "Locks": [
        LazyCommand(
            "lock", "lock:lock", "Run a command while holding a lock.", cls=CommandAfterDashes
        ),
        LazyCommand(
            "elect",
            "elect:elect",
            "Run a command while this process is the elected leader.",
            cls=CommandAfterDashes,
        ),
        LazyCommand(
            "locks", "locks:locks", "List locks and elections with their holders and waiters."
        ),
    ],
    "Operations": [
        LazyCommand(
            "deregister", "register:deregister", "Remove an instance until its process restarts."
        ),
        LazyCommand(
            "cleanup",
            "cleanup:cleanup",
            "Evict instances without heartbeats from a Redis registry.",
        ),
        LazyCommand(
            "config", "config:app", "Get, set and unset service and instance configuration."
        ),
        LazyCommand("info", "info:app", "Get and set descriptions of services and groups."),
        LazyCommand(
            "brake", "brake:app", "List and release mass-expiry brakes of a Redis registry."
        ),
    ],
    "Server": [
        LazyCommand(
            "serve",
            "serve:serve",
            "Run the server: console, admin API, and etcd's API for an embedded store.",
        ),
        LazyCommand(
            "demo",
            "demo:demo",
            "Run a small demo fleet that registers, fails, drains and recovers.",
        ),
        LazyCommand("login", "login:login", "Print a one-time login link for the console."),
        LazyCommand(
            "doctor",
            "doctor:doctor",
            "Check a store or a Redis registry: latency, version, clock, permissions, alarms.",
        ),
        _VERSION,
        LazyCommand("token", "token:app", "Create, list and revoke API tokens."),
        LazyCommand("xds", "xds:app", "Print bootstrap files for Envoy and gRPC xDS clients."),
        LazyCommand("store", "store:app", "Check, back up, export and import a store."),
        LazyCommand("migrate", "migrate:app", "Migrate from older key formats."),
    ],
    "Tenants": [
        LazyCommand(
            "tenant", "tenant:app", "Publish, inspect, roll back and delete tenant configuration."
        ),
    ],
}
"""The commands, by the panel of the help that lists them."""

for _title, _commands in _PANELS.items():
    for _command in _commands:
        _command.rich_help_panel = _title

app = LazyGroup(
    name="mooring",
    help="Service registry, discovery, locks and configuration for Python.",
    no_args_is_help=True,
    params=_OPTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
    commands=[command for commands in _PANELS.values() for command in commands],
)


def main() -> None:
    """Run the command. A `MooringError` is printed without a traceback, and exits with 2 for an
    invalid request, else with 1. Any other exception is a bug."""
    fill_descriptors()
    sys.stdout = guarded(sys.stdout)
    try:
        app()
    except MooringError as error:
        for line in f"mooring: {error}".split("\n"):  # it may quote control characters
            typer.echo(printable(line), err=True)
        sys.exit(2 if isinstance(error, InvalidRequest) else 1)
