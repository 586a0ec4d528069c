"""Limits the open connections of each client address to a server."""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Iterable

log = logging.getLogger(__name__)

PER_ADDRESS = 1000
"""The default limit for one address."""
LOOPBACK = ("127.0.0.0/8", "::1/128")
"""Not limited by default: a proxy on the same machine holds the connections of all clients."""

_IPV6_PREFIX = 64  # bits: a client with one IPv6 address usually has 2⁶⁴


class ConnectionLimit:
    """Counts the open connections of each IPv4 address and each IPv6 /64 network. A `limit` of 0
    means no limit; networks in `exempt` have none."""

    def __init__(self, limit: int = PER_ADDRESS, *, exempt: Iterable[str] = LOOPBACK) -> None:
        self.limit = limit
        self._exempt = [ipaddress.ip_network(network, strict=False) for network in exempt]
        self._open: Counter[str] = Counter()
        self._refused: set[str] = set()

    def accept(self, peer: object) -> str | None:
        """Count a connection from `peer`, as a socket returns its name. Returns the argument for
        `release` when the connection is closed; None if the address has too many."""
        site = self._site(peer) if self.limit else ""
        if not site:
            return ""
        if self._open[site] >= self.limit:
            if site not in self._refused:
                self._refused.add(site)
                log.warning(
                    "%s has %d open connections, the limit for one address: further ones are "
                    "refused (connections.per_address)",
                    site,
                    self.limit,
                )
            return None
        self._open[site] += 1
        return site

    def release(self, site: str | None) -> None:
        if not site:
            return
        self._open[site] -= 1
        if not self._open[site]:
            del self._open[site]
            self._refused.discard(site)

    def _site(self, peer: object) -> str:
        """The address or network to count; "" if it has no limit."""
        if not isinstance(peer, tuple):
            return ""  # a Unix socket
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self._exempt):
            return ""
        if isinstance(address, ipaddress.IPv4Address):
            return str(address)
        return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
