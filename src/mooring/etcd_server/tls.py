"""Where a server of gRPC listens, and its TLS files, looked at before it starts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from mooring.errors import InvalidRequest, StoreError


@dataclass(frozen=True, slots=True)
class ServerTLS:
    """The files of a server that speaks TLS. With `client_ca`, clients must show a certificate
    of that authority."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def check(self) -> None:
        """Raises `InvalidRequest`, which names the file that is no good. gRPC itself would start,
        and then refuse each client."""
        for path in (self.cert, self.key, self.client_ca):
            if path is not None:
                _read(path)
        for path in (self.cert, self.client_ca):
            if path is not None:
                _check_certificates(path)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self.cert, self.key, password=self._no_password
            )
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise InvalidRequest(f"{self.key} is not the key of {self.cert}") from error
            raise InvalidRequest(f"{self.key} is no private key in PEM format") from error

    def credentials(self) -> grpc.ServerCredentials:
        self.check()
        authority = _read(self.client_ca) if self.client_ca else None
        return grpc.ssl_server_credentials(
            [(_read(self.key), _read(self.cert))], authority, require_client_auth=bool(authority)
        )

    def _no_password(self) -> str:
        """Asked for where the key has one: there is nobody to type it when a server starts."""
        raise InvalidRequest(f"{self.key} is protected by a password: store it without one")


def listen(server: grpc.aio.Server, bind: str, tls: ServerTLS | None) -> int:
    """Bind a server that is not started yet; the port. Raises `StoreError` where that fails."""
    try:
        if tls is None:
            port: int = server.add_insecure_port(bind)
        else:
            port = server.add_secure_port(bind, tls.credentials())
    except RuntimeError as error:
        raise StoreError(
            f"cannot listen at {bind}: is it this machine's, and is the port free?"
        ) from error
    return port


def _check_certificates(path: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise InvalidRequest(f"{path} holds no certificate in PEM format") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
