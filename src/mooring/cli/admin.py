"""The server that a command talks to over HTTP, and as whom.

By default that is the one that runs on this machine for this user: its data folder says where it
is, and holds the admin token.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import ssl
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mooring.errors import AccessDenied, InvalidRequest, MissingExtra, StoreError, Unavailable

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
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="show the token to another machine without TLS")
]

_PATIENCE = 20.0
_START_ONE = (
    "start `mooring serve`, or name its folder with --data, or a server elsewhere with --server URL"
)


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    token: str
    ca: Path | None

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """What the server answers. Raises a `StoreError` that says what to do."""
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
            raise AccessDenied(
                f"{self.url} shows a certificate that nobody here trusts "
                f"({error.verify_message}): name who signs for it with --ca FILE"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unavailable(
                f"no server answers at {self.url} ({reason}): {_START_ONE}"
            ) from error
        finally:
            connection.close()
        return self._understood(status, told)

    def _connection(self) -> http.client.HTTPConnection:
        parts = urllib.parse.urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_PATIENCE)
        try:
            trust = ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise InvalidRequest(f"--ca {self.ca} holds no certificate: {error}") from error
        return http.client.HTTPSConnection(host, port, timeout=_PATIENCE, context=trust)

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
        raise (AccessDenied if status == 403 else StoreError)(message)


def reach(data: Path | None, server: str, ca: Path | None, *, insecure: bool) -> Server:
    """The server that is meant. Raises `InvalidRequest` or `Unavailable` where there is none."""
    try:
        from mooring.server.access.folder import Folder
        from mooring.server.settings import data_folder
    except ImportError as error:
        raise MissingExtra("mooring token", "server") from error
    folder = Folder(data.absolute() if data else data_folder())
    token = os.environ.get("MOORING_TOKEN", "").strip()
    if not token.isascii() or not token.isprintable():
        raise InvalidRequest("MOORING_TOKEN is no token")
    url = _checked(server) if server else _running(folder.path, folder.running())
    near = _is_near(url)
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
    return Server(url, token, ca)


def _running(folder: Path, running: Any) -> str:
    if running is None:
        raise Unavailable(f"no server has said in {folder} where it is: {_START_ONE}")
    # What took its port may be anybody's.
    if not _is_alive(running.pid):
        raise Unavailable(f"the server of {folder} is gone: {_START_ONE}")
    url: str = running.url
    return url


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
        raise InvalidRequest(f"--server {server!r} is no server: write it like https://HOST:7480")
    return f"{parts.scheme}://{parts.netloc}"


def _is_near(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
