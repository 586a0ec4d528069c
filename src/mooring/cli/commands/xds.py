"""`mooring xds`: the files that Envoy and gRPC start with."""

from __future__ import annotations

import json
import socket
from typing import Annotated

import typer
import yaml

from mooring.errors import MissingExtra

app = typer.Typer(help="Envoy and xds:/// channels of gRPC: bootstrap.", no_args_is_help=True)


@app.callback()
def xds() -> None:
    """Envoy and xds:/// channels of gRPC."""


@app.command()
def bootstrap(
    grpc: Annotated[
        bool, typer.Option("--grpc", help="JSON, for the file that GRPC_XDS_BOOTSTRAP names")
    ] = False,
    envoy: Annotated[bool, typer.Option("--envoy", help="YAML, for envoy -c")] = False,
    server: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="where `mooring serve --xds` is"),
    ] = "127.0.0.1:18000",
    node_id: Annotated[
        str, typer.Option(metavar="NAME", help="who it is in logs; default: this machine's name")
    ] = "",
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="instances there are called first")
    ] = "",
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="where Envoy takes calls; or PORT, or unix:/path"),
    ] = "127.0.0.1:10000",
    admin: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="where Envoy's console is; default: nowhere")
    ] = "",
    service: Annotated[
        str,
        typer.Option(metavar="SERVICE", help="all calls go there, whatever host is called"),
    ] = "",
    tls: Annotated[bool, typer.Option("--tls", help="the control plane speaks TLS")] = False,
    ca: Annotated[str, typer.Option(metavar="FILE", help="who signed its certificate")] = "",
    cert: Annotated[str, typer.Option(metavar="FILE", help="the client's own certificate")] = "",
    key: Annotated[str, typer.Option(metavar="FILE", help="and its key")] = "",
) -> None:
    """Print the file that a client of `mooring serve --xds` starts with."""
    if grpc == envoy:
        raise typer.BadParameter("name one of --grpc and --envoy", param_hint="--grpc")
    if bool(cert) != bool(key):
        raise typer.BadParameter("--cert and --key go together", param_hint="--cert")
    if grpc and (service or admin):
        raise typer.BadParameter("only Envoy has these", param_hint="--service and --admin")
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
    told = for_envoy(server, identity, listen=listen, admin=admin, service=service)
    typer.echo(yaml.safe_dump(told, sort_keys=False), nl=False)
