"""The server that a command talks to over HTTP, and as whom.

By default that is the one that runs on this machine for this user: its data folder says where it
is, and holds the admin token.
"""

from __future__ import annotations

import http.client
import ipaddress
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
from mooring.errors import AccessDenied, InvalidRequest, MooringError, StoreError, Unavailable
from mooring.formatting import describe, quoted
from mooring.server.auth.data_dir import DataDir, data_folder

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="MOORING_DATA",
        metavar="FOLDER",
        help="the data folder of the local `mooring serve`; default: the user's",
    ),
]
ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="MOORING_SERVER",
        metavar="URL",
        help="another server, as who MOORING_TOKEN says: https://HOST:7480",
    ),
]
CAOption = Annotated[
    Path | None,
    typer.Option("--ca", envvar="MOORING_CA", metavar="FILE", help="who signs for the server"),
]
CertOption = Annotated[
    Path | None,
    typer.Option(
        "--cert",
        envvar="MOORING_CERT",
        metavar="FILE",
        help="a certificate to show, where the server asks for one",
    ),
]
KeyOption = Annotated[
    Path | None,
    typer.Option("--key", envvar="MOORING_KEY", metavar="FILE", help="the key of --cert"),
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="show the token to another machine without TLS")
]

_PATIENCE = 20.0
_ERRORS: Mapping[int, type[MooringError]] = {400: InvalidRequest, 403: AccessDenied}
"""By the status of an answer; any other is a `StoreError`."""
_MISMATCHES = (62, 64)
"""OpenSSL's codes for a certificate of another name, and of another address."""
_WANTED = ("certificate required", "handshake failure")
"""What a server says that got no certificate, in newer and in older TLS."""
_SHOW_ONE = (
    "if it has a `client_ca`, show it a certificate that this signed, with --cert FILE --key FILE"
)
_START_ONE = (
    "start `mooring serve`, or name its folder with --data, or a server elsewhere with --server URL"
)


@dataclass(frozen=True, slots=True)
class TLS:
    """The files that TLS is spoken with."""

    ca: Path | None = None
    """Who signs for the server; None: the authorities that this machine trusts."""
    cert: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Raises `InvalidRequest` for files that are no good."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise InvalidRequest(
                f"--ca {self.ca} holds no certificate: {describe(error)}"
            ) from error
        if self.cert is None:
            if self.key is not None:
                raise InvalidRequest("--key is the key of a certificate: name that with --cert")
            return context
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except OSError as error:
            pair = f"--cert {self.cert}" + (f" --key {self.key}" if self.key else "")
            why = error.strerror if not isinstance(error, ssl.SSLError) else error.reason or error
            raise InvalidRequest(f"{pair} is no certificate with its key: {why}") from error
        return context


def _no_password() -> str:
    raise InvalidRequest("the key is protected by a password: store it without one")


class _Verified(http.client.HTTPSConnection):
    """A connection to a server by its name, at an address on this machine."""

    def __init__(self, host: str, port: int | None, at: tuple[str, int], tls: ssl.SSLContext):
        super().__init__(host, port, timeout=_PATIENCE, context=tls)
        self._at, self._tls = at, tls

    def connect(self) -> None:
        plain = socket.create_connection(self._at, _PATIENCE)
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    token: str
    tls: TLS = TLS()
    at: str = ""
    """Its address on this machine, where the URL has only the name of its certificate."""

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """What the server answers. Raises a `MooringError` that says what to do."""
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}
        content = None
        if body is not None:
            content, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        connection = self._connection()
        try:
            # Nothing follows a redirect: the token is for this server alone.
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            status, told = answer.status, answer.read()
        except ssl.SSLCertVerificationError as error:
            raise AccessDenied(self._untrusted(error)) from error
        except ssl.SSLError as error:
            raise self._refused(error) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(self._unanswered(error)) from error
        finally:
            connection.close()
        return self._understood(status, told)

    def _connection(self) -> http.client.HTTPConnection:
        parts = urllib.parse.urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_PATIENCE)
        if self.at:
            return _Verified(host, port, addresses.split(self.at), self.tls.context())
        context = self.tls.context()
        return http.client.HTTPSConnection(host, port, timeout=_PATIENCE, context=context)

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> str:
        why = error.verify_message
        if error.verify_code in _MISMATCHES:
            return (
                f"{self.url} shows a certificate that is not for that name ({why}): call it by one "
                "that it is for, with --server URL"
            )
        if self.tls.ca is None:
            told = f"shows a certificate that nobody here trusts ({why})"
            return f"{self.url} {told}: name who signs for it with --ca FILE"
        return (
            f"{self.url} shows a certificate that does not come from {self.tls.ca} ({why}): that "
            "is another authority's, or it is not the server that you mean"
        )

    def _refused(self, error: ssl.SSLError) -> StoreError:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        if self.tls.cert is None and any(word in reason for word in _WANTED):
            return AccessDenied(f"{self.url} asks for a certificate ({reason}): {_SHOW_ONE}")
        return Unavailable(f"TLS with {self.url} fails ({reason}): is it a server with TLS?")

    def _unanswered(self, error: Exception) -> str:
        reason = describe(error)
        ended = isinstance(error, http.client.RemoteDisconnected | ConnectionResetError)
        if ended and self.url.startswith("https:") and self.tls.cert is None:
            # A server of asyncio says nothing to who shows it no certificate, and hangs up.
            return f"{self.url} ends the connection without a word: {_SHOW_ONE}"
        return f"no server answers at {self.url} ({reason}): {_START_ONE}"

    def _understood(self, status: int, told: bytes) -> Any:
        try:
            value = json.loads(told) if told else None
        except ValueError:
            value = None
        if 200 <= status < 300:
            return value
        error = value.get("error") if isinstance(value, dict) else None
        said = error.get("message") if isinstance(error, dict) else None
        if status == 401:
            raise AccessDenied(
                f"{self.url} does not know the token: it is revoked, expired or another server's"
            )
        message = f"{self.url} answers {status}: {said or http.client.responses.get(status, '')}"
        raise _ERRORS.get(status, StoreError)(message)


def reach(data: Path | None, server: str, tls: TLS, *, insecure: bool) -> Server:
    """The server that is meant. Raises `InvalidRequest` or `Unavailable` where there is none."""
    tls.context()  # wrong files are reported before anything else is looked for
    folder = DataDir(data.absolute() if data else data_folder())
    token = os.environ.get("MOORING_TOKEN", "").strip()
    if not token.isascii() or not token.isprintable():
        raise InvalidRequest("MOORING_TOKEN is no token")
    url, at = (_checked(server), "") if server else _running(folder.path, folder.running())
    near = _is_near(f"//{at}" if at else url)
    if url.startswith("http://") and not near and not insecure:
        raise InvalidRequest(
            f"{url} would be shown the token for everybody on the way to read: write https://, or "
            "--insecure"
        )
    if not token and not near:
        raise InvalidRequest(
            f"{url} is not this machine, and the admin token here is not for it: set MOORING_TOKEN"
        )
    if not token:
        try:
            token = folder.read_admin_token()
        except FileNotFoundError:
            raise Unavailable(f"there is no {folder.admin_token}: {_START_ONE}") from None
    return Server(url, token, tls, at)


def _running(folder: Path, running: Any) -> tuple[str, str]:
    """The URL of the server of a folder, and its address on this machine where that is another."""
    if running is None:
        raise Unavailable(f"no server has said in {folder} where it is: {_START_ONE}")
    # What took its port may be anybody's.
    if not _is_alive(running.pid):
        raise Unavailable(f"the server of {folder} is gone: {_START_ONE}")
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
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.path not in ("", "/") or parts.query or parts.username is not None:
        raise InvalidRequest(
            f"--server {quoted(server)} is no server: write it like https://HOST:7480"
        )
    return f"{parts.scheme}://{parts.netloc}"


def _is_near(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
