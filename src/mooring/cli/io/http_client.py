"""The HTTP client of commands that call the admin API."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Any

from mooring import addresses
from mooring.errors import AccessDenied, InvalidRequest, MooringError, StoreError, Unavailable
from mooring.formatting import describe
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
