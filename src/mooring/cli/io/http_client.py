"""The HTTP client of commands that call the admin API."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mooring import addresses
from mooring.errors import AccessDenied, InvalidRequest, MooringError, StoreError, Unavailable
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
START_ONE = (
    "start `mooring serve`, or name its folder with --data, or a server elsewhere with --server URL"
)


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

    def __init__(self, url: str, token: str, tls: TLS, address: str = "") -> None:
        self._url, self._token, self._tls, self._address = url, token, tls, address

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
        context = self._tls.context()
        if self._address:
            return _LocalHTTPSConnection(host, port, addresses.split(self._address), context)
        return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> str:
        reason, ca = error.verify_message, self._tls.ca
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
        if self._tls.cert is None and any(text in reason for text in _NO_CLIENT_CERTIFICATE):
            return AccessDenied(
                f"{self._url} requires a client certificate ({reason}): {_GIVE_CERTIFICATE}"
            )
        return Unavailable(f"TLS with {self._url} fails ({reason}): is it a server with TLS?")

    def _unreachable(self, error: Exception) -> str:
        closed = isinstance(error, http.client.RemoteDisconnected | ConnectionResetError)
        if closed and self._url.startswith("https:") and self._tls.cert is None:
            # A server of asyncio closes the connection of a client without a certificate.
            return f"{self._url} closed the connection without a response: {_GIVE_CERTIFICATE}"
        return f"no server answers at {self._url} ({describe(error)}): {START_ONE}"

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


def connect(server: str, tls: TLS, *, data: Path | None, insecure: bool) -> AdminClient:
    """A client of a server, by default of the local one with this data folder. A token is sent to
    another machine only over TLS, unless `insecure` is set. Raises `InvalidRequest`, and
    `Unavailable` if no local server runs."""
    folder = DataDir(data.absolute() if data else data_folder())
    token = _token_from_environment()
    url, address = (_checked(server), "") if server else _local_server(folder)
    location = urllib.parse.urlsplit(f"//{address}" if address else url)
    if not addresses.is_loopback(location.hostname or ""):
        if url.startswith("http://") and not insecure:
            raise InvalidRequest(
                f"{url} would send the token unencrypted: use https://, or add --insecure"
            )
        if not token:
            raise InvalidRequest(
                f"{url} is another machine, and the local admin token is not valid there: set "
                "MOORING_TOKEN"
            )
    return AdminClient(url, token or _admin_token(folder), tls, address)


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
