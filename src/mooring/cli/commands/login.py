"""`mooring login`, and the options with which it and `mooring token` name a server.

The default is the local server of this user: its data folder has its address and the admin token.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from mooring.cli.io.http_client import AdminClient, connect
from mooring.cli.io.streams import note
from mooring.errors import InvalidRequest, InvalidURL
from mooring.formatting import printable
from mooring.settings.connections import TLS


def login(target: ServerTarget) -> None:
    """Print a one-time login link for the console.

    The link is valid for ten minutes. With --server and MOORING_TOKEN, it logs in with that
    token.
    """
    link = target.connect().request("POST", "/admin/login-codes")
    typer.echo(printable(link["url"]))
    note("the link works once, within ten minutes, in a browser that can reach the server")


@dataclass(frozen=True)
class ServerTarget:
    """Options that name the server that a command calls."""

    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            envvar="MOORING_DATA",
            metavar="FOLDER",
            help="data folder of the local `mooring serve` (default: the user's data folder)",
        ),
    ] = None
    server: Annotated[
        str,
        typer.Option(
            envvar="MOORING_SERVER",
            metavar="URL",
            help="call another server, such as https://HOST:7480, with the token in MOORING_TOKEN",
        ),
    ] = ""
    ca: Annotated[
        Path | None,
        typer.Option(envvar="MOORING_CA", metavar="FILE", help="CA certificate of the server"),
    ] = None
    cert: Annotated[
        Path | None,
        typer.Option(
            envvar="MOORING_CERT",
            metavar="FILE",
            help="client certificate, if the server requires one",
        ),
    ] = None
    key: Annotated[
        Path | None,
        typer.Option(envvar="MOORING_KEY", metavar="FILE", help="key of the client certificate"),
    ] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="send the token to another machine without TLS")
    ] = False

    def connect(self) -> AdminClient:
        """A client of this server. Raises `InvalidRequest` for wrong options, and `Unavailable` if
        no local server runs."""
        if self.key is not None and self.cert is None:
            raise InvalidRequest("--key is the key of a certificate: name that with --cert")
        tls = TLS(self.ca, self.cert, self.key)
        try:
            tls.context()  # reports wrong files first
        except InvalidURL as error:
            raise InvalidRequest(f"--{error}") from error  # it begins with `ca=`, `cert=` or `key=`
        return connect(self.server, tls, data=self.data, insecure=self.insecure)
