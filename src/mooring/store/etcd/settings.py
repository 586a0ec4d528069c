"""How to reach an etcd cluster: endpoints, TLS files, user and password."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import grpc

from mooring.errors import InvalidURL


@dataclass(frozen=True, slots=True)
class TLS:
    """The files of a TLS connection; None for the system's roots and for no client certificate."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        def read(path: Path | None, what: str) -> bytes | None:
            try:
                return path.read_bytes() if path else None
            except OSError as error:
                raise InvalidURL(f"{what}={path} cannot be read: {error.strerror}") from error

        return grpc.ssl_channel_credentials(
            read(self.ca, "ca"), read(self.key, "key"), read(self.cert, "cert")
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach a cluster."""

    endpoints: tuple[str, ...]
    tls: TLS | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    timeout: float = 5.0
