"""`mooring serve`: one process that answers for a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mooring.cli.io.connect import run
from mooring.cli.io.stderr import hear
from mooring.errors import MissingExtra
from mooring.tenants.keys import NAMESPACE_VARIABLE


def serve(
    store: Annotated[
        str,
        typer.Option(
            envvar="MOORING_STORE",
            metavar="URL",
            help="default: a file in the user's data folder",
        ),
    ] = "",
    registry: Annotated[
        str,
        typer.Option(
            envvar="MOORING_REGISTRY",
            metavar="URL",
            help="where the registry is, if not in the store: redis://…, which is cleaned up too",
        ),
    ] = "",
    http: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="console, API, metrics and probes; default 127.0.0.1:7480"
        ),
    ] = "",
    etcd: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="etcd's API; default 127.0.0.1:2379")
    ] = "",
    xds: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="what is registered, for Envoy and xds:/// of gRPC"),
    ] = "",
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="MOORING_DATA",
            metavar="FOLDER",
            help="where tokens and the audit are kept; default: the user's data folder",
        ),
    ] = None,
    quota: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="limit the size of an embedded store, like 4GiB or off; 2GiB"
        ),
    ] = "",
    tenants_namespace: Annotated[
        str,
        typer.Option(
            envvar=NAMESPACE_VARIABLE, metavar="NAME", help="the key prefix of the tenants; jxt"
        ),
    ] = "",
    config: Annotated[Path | None, typer.Option(help="a YAML file; flags win over it")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="beyond loopback without TLS and users")
    ] = False,
) -> None:
    """Serve a store: the console and its API, and etcd's API for an embedded one.

    It prints a link that logs you into the console; `mooring login` prints another. Of a registry
    on Redis it takes out the dead. With --xds it feeds Envoy and gRPC.
    """
    try:
        from mooring.server import serving, settings
    except ImportError as error:
        raise MissingExtra("mooring serve", "server") from error
    told = settings.load(
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
    hear("mooring.registry.redis.cleanup", "mooring.server", "mooring.xds")
    run(serving.serve(told, lambda text: typer.echo(text)))
