"""`mooring xds`: bootstrap files for Envoy and gRPC."""

from __future__ import annotations

import json
import socket
from typing import Annotated

import typer
import yaml

from mooring.cli.io.options import ZoneOption
from mooring.cli.typer_extensions import CommandGroup
from mooring.errors import MissingExtra

app = CommandGroup()


@app.callback()
def xds() -> None: ...  # keeps `bootstrap` a subcommand, although it is the only one


@app.command()
def bootstrap(
    grpc: Annotated[bool, typer.Option("--grpc", help="print JSON for GRPC_XDS_BOOTSTRAP")] = False,
    envoy: Annotated[bool, typer.Option("--envoy", help="print YAML for `envoy -c`")] = False,
    server: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="address of `mooring serve --xds`")
    ] = "127.0.0.1:18000",
    node_id: Annotated[
        str, typer.Option(metavar="NAME", help="node id in logs (default: the host name)")
    ] = "",
    zone: ZoneOption = "",
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="listen address of Envoy: HOST:PORT, PORT or unix:/path"
        ),
    ] = "127.0.0.1:10000",
    admin: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="address of Envoy's admin interface (default: none)"
        ),
    ] = "",
    service: Annotated[
        str,
        typer.Option(
            metavar="SERVICE", help="route all calls to this service, regardless of the host"
        ),
    ] = "",
    tls: Annotated[
        bool, typer.Option("--tls", help="connect to the control plane over TLS")
    ] = False,
    ca: Annotated[
        str, typer.Option(metavar="FILE", help="CA certificate of the control plane")
    ] = "",
    cert: Annotated[str, typer.Option(metavar="FILE", help="client certificate")] = "",
    key: Annotated[str, typer.Option(metavar="FILE", help="key of the client certificate")] = "",
) -> None:
    """Print the bootstrap file of a client of `mooring serve --xds`.

    Give either --grpc or --envoy. --listen, --admin and --service are for Envoy only.
    """
    if grpc == envoy:
        raise typer.BadParameter("give either --grpc or --envoy", param_hint="--grpc")
    if grpc and (service or admin):
        raise typer.BadParameter("only valid with --envoy", param_hint="--service and --admin")
    try:
        from mooring.xds.bootstrap import Identity, for_envoy, for_grpc
    except ImportError as error:
        raise MissingExtra("mooring xds", "server") from error
    identity = Identity(
        node_id or socket.gethostname(), zone, tls or bool(ca or cert), ca, cert, key
    )
    if grpc:
        typer.echo(json.dumps(for_grpc(server, identity), indent=2))
        return
    listen = listen if ":" in listen else f"127.0.0.1:{listen}"
    bootstrap = for_envoy(server, identity, listen=listen, admin=admin, service=service)
    typer.echo(yaml.safe_dump(bootstrap, sort_keys=False), nl=False)
