"""`mooring login`, and the options with which it and `mooring token` name a server.

The default is the local server of this user: its data folder has its address and the admin token.
"""

from __future__ import annotations

import os
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from mooring import addresses
from mooring.cli.io.http_client import START_ONE, AdminClient
from mooring.cli.io.output import note
from mooring.errors import InvalidRequest, InvalidURL, Unavailable
from mooring.formatting import printable, quoted
from mooring.server.auth.data_dir import DataDir, data_folder
from mooring.settings.connections import TLS


def login(target: ServerTarget) -> None:
    """Print a one-time login link for the console.

    The link is valid for ten minutes. With --server and MOORING_TOKEN, it logs in as that token.
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
        tls = self._tls()  # reports wrong files first
        folder = DataDir(self.data.absolute() if self.data else data_folder())
        token = _token_from_environment()
        url, address = (_checked(self.server), "") if self.server else _local_server(folder)
        location = urllib.parse.urlsplit(f"//{address}" if address else url)
        if not addresses.is_loopback(location.hostname or ""):
            self._check_remote(url, token)
        return AdminClient(url, token or _admin_token(folder), tls, address)

    def _check_remote(self, url: str, token: str) -> None:
        """Raise `InvalidRequest` if no token may be sent to this server on another machine."""
        if url.startswith("http://") and not self.insecure:
            raise InvalidRequest(
                f"{url} would send the token unencrypted: use https://, or add --insecure"
            )
        if not token:
            raise InvalidRequest(
                f"{url} is another machine, and the local admin token is not valid there: set "
                "MOORING_TOKEN"
            )

    def _tls(self) -> TLS:
        """Raises `InvalidRequest` for unusable files."""
        if self.key is not None and self.cert is None:
            raise InvalidRequest("--key is the key of a certificate: name that with --cert")
        tls = TLS(self.ca, self.cert, self.key)
        try:
            tls.context()
        except InvalidURL as error:
            raise InvalidRequest(f"--{error}") from error  # it begins with `ca=`, `cert=` or `key=`
        return tls


def _token_from_environment() -> str:
    token = os.environ.get("MOORING_TOKEN", "").strip()
    if not token.isascii() or not token.isprintable():
        raise InvalidRequest("MOORING_TOKEN is not a token")
    return token


def _admin_token(folder: DataDir) -> str:
    try:
        return folder.read_admin_token()
    except FileNotFoundError:
        raise Unavailable(f"{folder.admin_token} not found: {START_ONE}") from None


def _local_server(folder: DataDir) -> tuple[str, str]:
    """The URL of the server of a data folder, and its address on this machine if that differs."""
    running = folder.running()
    if running is None:
        raise Unavailable(f"no server runs with the folder {folder.path}: {START_ONE}")
    # Its port may be used by another program by now, which must not get the token.
    if not _is_alive(running.pid):
        raise Unavailable(f"the server of {folder.path} has ended: {START_ONE}")
    return running.url, running.at


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _checked(server: str) -> str:
    try:
        parts = urllib.parse.urlsplit(server)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.path not in ("", "/") or parts.query or parts.username is not None:
        raise InvalidRequest(
            f"--server {quoted(server)} is not a server: write it like https://HOST:7480"
        )
    return f"{parts.scheme}://{parts.netloc}"
