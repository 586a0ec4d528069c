"""Rate limits, as token buckets.

Requests and wrong credentials are counted by the address of the client, and writes by token. A
caller with a valid token is admitted regardless of wrong credentials from the same address.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from mooring.messages import Message, message
from mooring.server.auth.authorization import Principal
from mooring.server.http.response import HTTPError

MOST = 10_000
"""Clients that are tracked; beyond that, the least recently seen ones are forgotten."""


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits; 0 means no limit."""

    reads: float = 10_000
    """Requests per second from one address."""
    writes: float = 1_000
    """Writes per second with one token."""
    failures: float = 10
    """Wrong tokens and codes per minute from one address."""
    body: int = 1024 * 1024
    """Bytes of a request body."""


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

    def take(self, key: str) -> float:
        """Take a token, or return the seconds until there is one; 0 if it was taken."""
        if self._rate <= 0:
            return 0.0
        now = self._clock()
        before, at = self._left.get(key, (self._burst, now))
        left = min(self._burst, before + (now - at) * self._rate)
        wait = 0.0 if left >= 1 else (1 - left) / self._rate
        self._left[key] = (left if wait else left - 1, now)
        self._left.move_to_end(key)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return wait


class RateLimits:
    def __init__(self, rates: Rates, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.body = rates.body
        self._reads = TokenBuckets(rates.reads, max(2 * rates.reads, 1), clock=clock)
        self._writes = TokenBuckets(rates.writes, max(2 * rates.writes, 1), clock=clock)
        self._failures = TokenBuckets(rates.failures / 60, max(rates.failures, 1), clock=clock)

    def check(self, client: str) -> None:
        """Count a request from an address. Raises `HTTPError` (429)."""
        if wait := self._reads.take(network(client)):
            raise too_many(message("requests_from_address"), wait)

    def check_write(self, principal: Principal) -> None:
        """Count a write of an authenticated caller. Raises `HTTPError` (429)."""
        if principal.token and (wait := self._writes.take(principal.token)):
            raise too_many(message("writes_of", name=principal.name), wait)

    def count_failure(self, client: str) -> None:
        """Count a wrong token or code. Raises `HTTPError` (429)."""
        if wait := self._failures.take(network(client)):
            raise too_many(message("wrong_tokens_from_address"), wait)


def network(client: str) -> str:
    """The addresses that count as one client: for IPv6 the /64, which one client may own."""
    if ":" not in client:
        return client
    try:
        address = ipaddress.IPv6Address(client.partition("%")[0])
    except ValueError:
        return client
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


def too_many(what: Message, wait: float) -> HTTPError:
    seconds = math.ceil(wait)
    return HTTPError(429, "too_many", "too_many", what=what, seconds=seconds, retry_after=seconds)
