"""A semaphore: so many holders at a time, in the order in which they came."""

from __future__ import annotations

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.locks.lock import Lock
from mooring.locks.ordering import PLACE, ContenderValue, SemaphoreRule, encode_value
from mooring.locks.queue import Queue


class Semaphore(Lock):
    """A lock that `places` contenders may hold at a time. All must agree on their number; who asks
    for another raises `InvalidRequest`. One task may hold several places."""

    def __init__(
        self, queue: Queue, name: str, places: int, *, ttl: float, timeout: float | None
    ) -> None:
        check_size("places", places)
        super().__init__(
            queue,
            name,
            rule=SemaphoreRule(places),
            value=encode_value(ContenderValue(PLACE, queue.by, places)),
            ttl=ttl,
            timeout=timeout,
            reentrant=True,
        )


def check_size(what: str, size: object) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InvalidRequest(f"{what}={quoted(size)} is not possible: a number from 1 up")
