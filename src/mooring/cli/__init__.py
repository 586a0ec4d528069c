"""The command `mooring`. Each command is in a module of `commands`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import typer
from typer._completion_classes import completion_init
from typer.main import get_group, get_install_completion_arguments

from mooring import __version__
from mooring.cli.io.streams import fill_descriptors, guarded
from mooring.cli.typer_extensions import CommandGroup, ConciseCommand, LazyCommand, LazyGroup
from mooring.errors import InvalidRequest, MooringError
from mooring.formatting import printable


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


def _own_options() -> list[Any]:
    """The options of `mooring` itself."""
    options = CommandGroup()

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

    completion_init()
    return [*get_group(options).params, *get_install_completion_arguments()]


_PANELS: Mapping[str, Mapping[str, str]] = {
    "Services": {
        "register": "Register an instance while a command runs.",
        "groups": "List service groups.",
        "services": "List services and how many instances each has.",
        "instances": "List the instances of a service.",
        "watch": "Follow a service and print its changes.",
    },
    "Discovery": {
        "resolve": "Pick an instance to call and print its HOST:PORT.",
        "wait": "Wait until a service has callable instances.",
        "explain": "Show why each instance is or is not in rotation.",
    },
    "Locks": {
        "lock": "Run a command while holding a lock.",
        "elect": "Run a command while this process is the elected leader.",
        "locks": "List locks and elections with their holders and waiters.",
    },
    "Operations": {
        "deregister": "Remove an instance until its process restarts.",
        "cleanup": "Evict instances without heartbeats from a Redis registry.",
        "config": "Get, set and unset service and instance configuration.",
        "info": "Get and set descriptions of services and groups.",
        "brake": "List and release brakes of a Redis registry, which pause evictions.",
    },
    "Server": {
        "serve": "Run the server: console, admin API, and etcd's API for an embedded store.",
        "demo": "Run a small demo fleet that registers, fails, drains and recovers.",
        "login": "Print a one-time login link for the console.",
        "doctor": "Check a store or a Redis registry: latency, clock, permissions, alarms.",
        "token": "Create, list and revoke API tokens.",
        "xds": "Print bootstrap files for Envoy and gRPC xDS clients.",
        "store": "Check, back up, export and import a store.",
        "migrate": "Migrate from older key formats.",
    },
    "Tenants": {"tenant": "Publish, inspect, roll back and delete tenant configuration."},
}
"""The commands and their help, by the panel of the help that lists them."""

_MODULES = {"groups": "services", "deregister": "register"}
"""The modules of commands that are not in a module of their own name."""

app = LazyGroup(
    name="mooring",
    help="Service registry, discovery, locks and configuration for Python.",
    no_args_is_help=True,
    params=_own_options(),
    context_settings={"help_option_names": ["-h", "--help"]},
    commands=[
        *(
            LazyCommand(name, _MODULES.get(name, name), help, panel)
            for panel, commands in _PANELS.items()
            for name, help in commands.items()
        ),
        ConciseCommand(
            "version",
            callback=lambda: typer.echo(__version__),
            help="Print the version.",
            rich_help_panel="Server",
        ),
    ],
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
