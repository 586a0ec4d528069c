"""What a checker is: somebody who tries one target, and says how that went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mooring import addresses


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be probed. Its `address` was looked up and allowed: a checker connects to that
    very one, and never looks up the host again, which may lead somewhere else by then."""

    service: str
    id: str
    protocol: str
    host: str
    """As it is registered: for the `Host` header and for the name in a certificate."""
    address: str
    """The IP address to connect to."""
    port: int
    path: str = "/"
    """Where the protocol knows paths."""

    @property
    def authority(self) -> str:
        return addresses.join(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Outcome:
    ok: bool
    ms: float
    """Until it was certain, from the first packet on."""
    failure: str = ""
    """Why not, in our own words: what a remote says is never shown. Empty where it is `ok`."""


class Checker(Protocol):
    async def check(self, target: Target, *, timeout: float) -> Outcome:
        """Try the target for at most `timeout` seconds. It follows no redirect, sends no
        credentials, and keeps nothing open. It raises only where the checker itself is broken:
        that the target is down is an outcome. Cancelled, it closes what it opened."""
        ...
