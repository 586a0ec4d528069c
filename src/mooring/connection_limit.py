"""How many connections one address may have open to a server."""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Iterable

log = logging.getLogger(__name__)

PER_ADDRESS = 1000
"""Open connections of one address, unless another number is set."""
LOOPBACK = ("127.0.0.0/8", "::1/128")
"""Not limited by default: a proxy on the same machine has the connections of all its clients."""

_IPV6_SITE = 64  # bits: whoever has one IPv6 address has 2⁶⁴ of them


class ConnectionLimit:
    """Counts the open connections of each address; of IPv6, those of each /64 network. `most` 0
    means no limit, and networks in `exempt` have none."""

    def __init__(self, most: int = PER_ADDRESS, *, exempt: Iterable[str] = LOOPBACK) -> None:
        self.most = most
        self._exempt = [ipaddress.ip_network(network, strict=False) for network in exempt]
        self._open: Counter[str] = Counter()
        self._refused: set[str] = set()

    def accept(self, peer: object) -> str | None:
        """Count a connection of a peer's name as a socket returns it. Returns what to release when
        the connection is closed; None if the address has too many."""
        site = self._site(peer) if self.most else ""
        if not site:
            return ""
        if self._open[site] >= self.most:
            if site not in self._refused:
                self._refused.add(site)
                log.warning(
                    "%s has %d connections open, which is the limit for one address: more are "
                    "refused (connections.per_address)",
                    site,
                    self.most,
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

    def forget(self, sites: Iterable[str | None]) -> None:
        """Release all of these."""
        for site in sites:
            self.release(site)

    def _site(self, peer: object) -> str:
        """The address, or network, whose connections are counted; "" if they are not."""
        if not isinstance(peer, tuple):
            return ""  # a socket file
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self._exempt):
            return ""
        if isinstance(address, ipaddress.IPv4Address):
            return str(address)
        return str(ipaddress.ip_network((address, _IPV6_SITE), strict=False))
