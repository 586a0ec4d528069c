"""Semaphores by name: up to a fixed number of holders at a time.

The first `places` contenders of the queue hold the lock.
"""

from __future__ import annotations

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.locks.admission_rules import PLACE
from mooring.locks.lock import Lock
from mooring.locks.queue import Queue


class Semaphore(Lock):
    """A lock that up to `places` contenders hold at a time.

    ```python
    async with hub.semaphore("exports", 3):  # at most three exports at a time, on all hosts
        ...
    ```

    All must use the same number, else entering raises `InvalidRequest`. One task may hold several
    places; it never raises `Reentered`. Otherwise entering waits and raises like `Lock`.

    Contenders get places in the order of their arrival. A place is free again once its holder
    leaves, or `ttl` seconds after the holder's last heartbeat.
    """

    def __init__(
        self, queue: Queue, name: str, places: int, *, ttl: float, timeout: float | None
    ) -> None:
        check_size("places", places)
        super().__init__(queue, name, ttl=ttl, timeout=timeout, kind=PLACE, size=places)


def check_size(what: str, size: object) -> None:
    """Raise `InvalidRequest` if a number of places or parties is not a positive integer."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InvalidRequest(
            f"{what}={quoted(size)} is invalid: it must be an integer of at least 1"
        )
