"""Where a Redis is, and how it is spoken to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mooring.store.tls import client_context

Kind = Literal["single", "sentinel", "cluster"]


@dataclass(frozen=True, slots=True)
class TLS:
    """Files; None: the system's authorities, and no client certificate."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def check(self) -> None:
        """Raise `InvalidURL` for a file that is no good: the driver would take it for a server that
        does not answer, and would not name it."""
        client_context(self.ca, self.cert, self.key)


@dataclass(frozen=True, slots=True)
class Settings:
    hosts: tuple[str, ...]
    """`host:port` of the server, the sentinels, or some nodes of the cluster."""
    kind: Kind = "single"
    master: str = ""
    """The name under which the sentinels know the master."""
    database: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: Path | None = None
    """Read for every new connection, in place of `password`."""
    sentinel_password: str = field(default="", repr=False)
    tls: TLS | None = None
    timeout: float = 3.0
    """Seconds for a call, with whatever repeats it needs."""
