"""The HTTP client of commands that call the admin API, and the options that name the server.

The default is the local server of this user: its data folder has its address and the admin token.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mooring import addresses
from mooring.errors import (
    AccessDenied,
    InvalidRequest,
    InvalidURL,
    MooringError,
    StoreError,
    Unavailable,
)
from mooring.formatting import describe, quoted
from mooring.server.auth.data_dir import DataDir, data_folder
from mooring.settings.connections import TLS

_TIMEOUT = 20.0
_ERRORS: Mapping[int, type[MooringError]] = {400: InvalidRequest, 403: AccessDenied}
"""By the status of a response; any other is a `StoreError`."""
_MISMATCHES = (62, 64)
"""OpenSSL's codes for a certificate of another name, and of another address."""
_NO_CLIENT_CERTIFICATE = ("certificate required", "handshake failure")
"""The reasons of a server that requires a client certificate, in newer and in older TLS."""
_GIVE_CERTIFICATE = (
    "if the server has a `client_ca`, name a certificate of that authority with --cert FILE "
    "--key FILE"
)
_START_ONE = (
    "start `mooring serve`, or name its folder with --data, or a server elsewhere with --server URL"
)


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
        bool,
        typer.Option("--insecure", help="send the token to another machine without TLS"),
    ] = False

    def connect(self) -> AdminClient:
        """A client of this server. Raises `InvalidRequest` for wrong options, and `Unavailable` if
        no local server runs."""
        self.tls_context()  # reports wrong files first
        folder = DataDir(self.data.absolute() if self.data else data_folder())
        token = _token_from_environment()
        url, address = (_checked(self.server), "") if self.server else _local_server(folder)
        location = urllib.parse.urlsplit(f"//{address}" if address else url)
        if not addresses.is_loopback(location.hostname or ""):
            self._check_remote(url, token)
        return AdminClient(self, url, token or _admin_token(folder), address)

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

    def tls_context(self) -> ssl.SSLContext:
        """Raises `InvalidRequest` for unusable files."""
        if self.key is not None and self.cert is None:
            raise InvalidRequest("--key is the key of a certificate: name that with --cert")
        try:
            return TLS(self.ca, self.cert, self.key).context()
        except InvalidURL as error:
            raise InvalidRequest(f"--{error}") from error  # it begins with `ca=`, `cert=` or `key=`


def _token_from_environment() -> str:
    token = os.environ.get("MOORING_TOKEN", "").strip()
    if not token.isascii() or not token.isprintable():
        raise InvalidRequest("MOORING_TOKEN is not a token")
    return token


def _admin_token(folder: DataDir) -> str:
    try:
        return folder.read_admin_token()
    except FileNotFoundError:
        raise Unavailable(f"{folder.admin_token} not found: {_START_ONE}") from None


class _LocalHTTPSConnection(http.client.HTTPSConnection):
    """A connection to an address of this machine that verifies the certificate for another name."""

    def __init__(self, host: str, port: int | None, address: tuple[str, int], tls: ssl.SSLContext):
        super().__init__(host, port, timeout=_TIMEOUT, context=tls)
        self._address, self._tls = address, tls

    def connect(self) -> None:
        plain = socket.create_connection(self._address, _TIMEOUT)
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise


class AdminClient:
    """Calls the admin API of one server. Errors say what to do.

    `address` is where the server listens on this machine, if the URL has only the name of its
    certificate.
    """

    def __init__(self, target: ServerTarget, url: str, token: str, address: str = "") -> None:
        self._target, self._url, self._token, self._address = target, url, token, address

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request and return the decoded response. Raises a `MooringError`."""
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        content = None
        if body is not None:
            content, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        connection = self._connection()
        try:
            # Redirects are not followed: the token is for this server alone.
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            status, data = response.status, response.read()
        except ssl.SSLCertVerificationError as error:
            raise AccessDenied(self._untrusted(error)) from error
        except ssl.SSLError as error:
            raise self._tls_failed(error) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(self._unreachable(error)) from error
        finally:
            connection.close()
        return self._decoded(status, data)

    def _connection(self) -> http.client.HTTPConnection:
        parts = urllib.parse.urlsplit(self._url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
        context = self._target.tls_context()
        if self._address:
            return _LocalHTTPSConnection(host, port, addresses.split(self._address), context)
        return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> str:
        reason, ca = error.verify_message, self._target.ca
        if error.verify_code in _MISMATCHES:
            return (
                f"the certificate of {self._url} is for another name ({reason}): use a name in the "
                "certificate, with --server URL"
            )
        if ca is None:
            return (
                f"the certificate of {self._url} is not trusted ({reason}): name its CA with "
                "--ca FILE"
            )
        return (
            f"the certificate of {self._url} was not issued by {ca} ({reason}): this is another "
            "CA, or not the server that you mean"
        )

    def _tls_failed(self, error: ssl.SSLError) -> StoreError:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        if self._target.cert is None and any(text in reason for text in _NO_CLIENT_CERTIFICATE):
            return AccessDenied(
                f"{self._url} requires a client certificate ({reason}): {_GIVE_CERTIFICATE}"
            )
        return Unavailable(f"TLS with {self._url} fails ({reason}): is it a server with TLS?")

    def _unreachable(self, error: Exception) -> str:
        closed = isinstance(error, http.client.RemoteDisconnected | ConnectionResetError)
        if closed and self._url.startswith("https:") and self._target.cert is None:
            # A server of asyncio closes the connection of a client without a certificate.
            return f"{self._url} closed the connection without a response: {_GIVE_CERTIFICATE}"
        return f"no server answers at {self._url} ({describe(error)}): {_START_ONE}"

    def _decoded(self, status: int, data: bytes) -> Any:
        try:
            value = json.loads(data) if data else None
        except ValueError:
            value = None
        if 200 <= status < 300:
            return value
        if status == 401:
            raise AccessDenied(
                f"{self._url} does not know the token: it is revoked, expired or another server's"
            )
        error = value.get("error") if isinstance(value, dict) else None
        text = error.get("message") if isinstance(error, dict) else None
        message = f"{self._url} answers {status}: {text or http.client.responses.get(status, '')}"
        raise _ERRORS.get(status, StoreError)(message)


def _local_server(folder: DataDir) -> tuple[str, str]:
    """The URL of the server of a data folder, and its address on this machine if that differs."""
    running = folder.running()
    if running is None:
        raise Unavailable(f"no server runs with the folder {folder.path}: {_START_ONE}")
    # Its port may be used by another program by now, which must not get the token.
    if not _is_alive(running.pid):
        raise Unavailable(f"the server of {folder.path} has ended: {_START_ONE}")
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
