"""How much is too much.

A bucket holds so many tokens as may come at once and is filled at a steady rate. Reads are counted
by the client's address, writes by who asks, and so are wrong tokens and codes by the address: who
has the right one is let in, whatever somebody else at the same address tried.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from mooring.server.auth.authorization import Principal
from mooring.server.http.response import HTTPError

MOST = 10_000
"""Clients that are counted at once; of more, those are forgotten that were heard of longest ago."""


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is allowed; 0: anything."""

    reads: float = 10_000
    """Requests a second from one address."""
    writes: float = 1_000
    """Writes a second with one token."""
    failures: float = 10
    """Wrong tokens and codes a minute from one address; the next are not looked at."""
    body: int = 1024 * 1024
    """Bytes of a request's body."""


class TokenBuckets:
    """A bucket for each key, in bounded memory."""

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._burst, self._most, self._clock = rate, burst, most, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def take(self, key: str) -> float:
        """Take one; the seconds until there is one again, 0 where there was one."""
        if self._rate <= 0:
            return 0.0
        now = self._clock()
        left = self._level(key, now)
        wait = 0.0 if left >= 1 else (1 - left) / self._rate
        self._left[key] = (left if wait else left - 1, now)
        self._left.move_to_end(key)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return wait

    def wait(self, key: str) -> float:
        """The seconds until there is one, without taking any."""
        if self._rate <= 0:
            return 0.0
        left = self._level(key, self._clock())
        return 0.0 if left >= 1 else (1 - left) / self._rate

    def _level(self, key: str, now: float) -> float:
        left, at = self._left.get(key, (self._burst, now))
        return min(self._burst, left + (now - at) * self._rate)


class RateLimits:
    def __init__(self, rates: Rates, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.body = rates.body
        self._reads = TokenBuckets(rates.reads, max(2 * rates.reads, 1), clock=clock)
        self._writes = TokenBuckets(rates.writes, max(2 * rates.writes, 1), clock=clock)
        self._failures = TokenBuckets(rates.failures / 60, max(rates.failures, 1), clock=clock)

    def check(self, client: str) -> None:
        """Count a request from an address. Raises `HTTPError` (429)."""
        if wait := self._reads.take(network(client)):
            raise too_many("requests from your address", wait)

    def check_write(self, principal: Principal) -> None:
        """Count a write of somebody who said who it is. Raises `HTTPError` (429)."""
        if principal.token and (wait := self._writes.take(principal.token)):
            raise too_many(f"writes of {principal.name}", wait)

    def count_failure(self, client: str) -> None:
        """Count a wrong token or code. Raises `HTTPError` (429) where there were too many."""
        if wait := self._failures.take(network(client)):
            raise too_many("wrong tokens or codes from your address", wait)


def network(client: str) -> str:
    """What is counted as one client: of IPv6 the /64 that a single one may have to itself."""
    if ":" not in client:
        return client
    try:
        address = ipaddress.IPv6Address(client.partition("%")[0])
    except ValueError:
        return client
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


def too_many(what: str, wait: float) -> HTTPError:
    seconds = math.ceil(wait)
    return HTTPError(
        429,
        "too_many",
        f"too many {what}: try again in {seconds} s",
        headers={"Retry-After": str(seconds)},
    )
