"""How to reach an etcd cluster: endpoints, TLS files, user and password."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from mooring.errors import InvalidURL
from mooring.store.tls import client_context


@dataclass(frozen=True, slots=True)
class TLS:
    """The files of a TLS connection; None for the system's roots and for no client certificate."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Read and checked at once: gRPC itself ends the process over some bad files."""
        if bool(self.cert) != bool(self.key):
            raise InvalidURL("a client certificate needs both: cert=FILE and key=FILE")
        self.context()
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes() if self.ca else None,
            self.key.read_bytes() if self.key else None,
            self.cert.read_bytes() if self.cert else None,
        )

    def context(self) -> ssl.SSLContext:
        """The same for Python's own TLS; raises `InvalidURL` where a file is no good."""
        return client_context(self.ca, self.cert, self.key)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach a cluster."""

    endpoints: tuple[str, ...]
    tls: TLS | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: Path | None = None
    """Read at every login, in place of `password`."""
    timeout: float = 5.0
