"""`mooring serve`: the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mooring.cli.io.connect import run_command
from mooring.cli.io.streams import log_to_stderr
from mooring.errors import MissingExtra
from mooring.tenants.keys import NAMESPACE_VARIABLE


def serve(
    store: Annotated[
        str,
        typer.Option(
            envvar="MOORING_STORE",
            metavar="URL",
            help="URL of the store (default: an embedded store in the user's data folder)",
        ),
    ] = "",
    registry: Annotated[
        str,
        typer.Option(
            envvar="MOORING_REGISTRY",
            metavar="URL",
            help="URL of a Redis registry, if the registry is not in the store; the server "
            "also evicts its expired instances",
        ),
    ] = "",
    http: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="address of the console, API, metrics and probes (default: 127.0.0.1:7480)",
        ),
    ] = "",
    etcd: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="address of etcd's API (default: 127.0.0.1:2379)"),
    ] = "",
    xds: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="address of the xDS control plane for Envoy and gRPC (default: off)",
        ),
    ] = "",
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="MOORING_DATA",
            metavar="FOLDER",
            help="folder for tokens, the audit log and the embedded store (default: the user's "
            "data folder)",
        ),
    ] = None,
    quota: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="size limit of an embedded store, such as 4GiB or off (default: 2GiB)",
        ),
    ] = "",
    tenants_namespace: Annotated[
        str,
        typer.Option(
            envvar=NAMESPACE_VARIABLE,
            metavar="NAME",
            help="key prefix of the tenants (default: jxt)",
        ),
    ] = "",
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML file with settings; flags override it")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="allow addresses beyond loopback without TLS, or without users for etcd's API",
        ),
    ] = False,
) -> None:
    """Run the server: console, admin API, and etcd's API for an embedded store.

    Prints a one-time login link for the console; `mooring login` prints another one. With
    --registry it also evicts expired instances from the Redis registry. With --xds it serves
    Envoy and gRPC clients.
    """
    try:
        from mooring.server import lifecycle, settings
    except ImportError as error:
        raise MissingExtra("mooring serve", "server") from error
    server_settings = settings.load(
        config,
        store=store,
        registry=registry,
        http=http,
        etcd=etcd,
        xds=xds,
        data=str(data) if data else "",
        quota=quota,
        tenants_namespace=tenants_namespace,
        insecure=insecure,
    )
    log_to_stderr("mooring.registry.redis.cleanup", "mooring.server", "mooring.xds")
    run_command(lifecycle.serve(server_settings, lambda text: typer.echo(text)))
