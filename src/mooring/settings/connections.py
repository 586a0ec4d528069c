"""How to reach etcd and Redis: addresses, TLS files, user and password."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mooring.errors import InvalidURL

RedisKind = Literal["single", "sentinel", "cluster"]


@dataclass(frozen=True, slots=True)
class TLS:
    """The files of a TLS connection. Without `ca`, the system's authorities are trusted.

    The files are checked here, because drivers do not report which of them is invalid."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """The files as an `ssl` context. Raises `InvalidURL` for an invalid file."""
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            try:
                if path is not None:
                    path.read_bytes()
            except OSError as error:
                raise InvalidURL(f"{name}={path} cannot be read: {error.strerror}") from error
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except ssl.SSLError as error:
            raise InvalidURL(f"ca={self.ca} contains no certificate in PEM format") from error
        try:
            if self.cert:
                context.load_cert_chain(self.cert, self.key, password=self._no_password)
        except ssl.SSLError as error:
            raise InvalidURL(
                f"cert={self.cert} and key={self.key or self.cert} are not a certificate with its "
                "key in PEM format"
            ) from error
        return context

    def _no_password(self) -> str:
        raise InvalidURL(
            f"key={self.key or self.cert} is protected by a password: store it without one"
        )


@dataclass(frozen=True, slots=True)
class EtcdConnectionSettings:
    endpoints: tuple[str, ...]
    tls: TLS | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: Path | None = None
    """Read at every login, instead of `password`."""
    timeout: float = 5.0


@dataclass(frozen=True, slots=True)
class RedisConnectionSettings:
    hosts: tuple[str, ...]
    """`host:port` of the server, of the sentinels, or of nodes of the cluster."""
    kind: RedisKind = "single"
    master: str = ""
    """The name of the master that the sentinels monitor."""
    database: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: Path | None = None
    """Read for every new connection, instead of `password`."""
    sentinel_password: str = field(default="", repr=False)
    tls: TLS | None = None
    timeout: float = 3.0
    """Seconds for a call with its retries."""
