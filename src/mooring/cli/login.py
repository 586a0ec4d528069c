"""`mooring login`: a link to the console."""

from __future__ import annotations

import typer

from mooring.cli.admin import (
    TLS,
    CAOption,
    CertOption,
    DataOption,
    InsecureOption,
    KeyOption,
    ServerOption,
    reach,
)
from mooring.cli.telling import note, printable


def login(
    data: DataOption = None,
    server: ServerOption = "",
    ca: CAOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Print a link that logs its opener into the console, once and within ten minutes.

    With --server and MOORING_TOKEN it is a link for the holder of that token.
    """
    told = reach(data, server, TLS(ca, cert, key), insecure=insecure).ask(
        "POST", "/admin/login-codes"
    )
    typer.echo(printable(told["url"]))
    note("it is good once, for ten minutes: open it in a browser that can reach the server")
