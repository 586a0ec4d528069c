"""A read-write lock: many readers, or one writer, in the order in which they came."""

from __future__ import annotations

from mooring.locks.lock import Lock, check_name, check_times
from mooring.locks.ordering import (
    EXCLUSIVE,
    EXCLUSIVE_RULE,
    SHARED,
    SHARED_RULE,
    ContenderValue,
    encode_value,
)
from mooring.locks.queue import Queue


class ReadWriteLock:
    """Its two sides, `read()` and `write()`, are locks to be entered.

    Fair: a reader who comes after a writer waits for that writer, so that none starves. The
    writers' side is the plain lock of the same name, also for `etcdctl lock`.
    """

    def __init__(self, queue: Queue, name: str, *, ttl: float, timeout: float | None) -> None:
        check_name(name)
        check_times(ttl, timeout)
        self.name: str = name
        self._queue, self._ttl, self._timeout = queue, ttl, timeout

    def read(self) -> Lock:
        """Shared with other readers."""
        card = ContenderValue(SHARED, self._queue.by)
        return Lock(
            self._queue,
            self.name,
            rule=SHARED_RULE,
            value=encode_value(card),
            ttl=self._ttl,
            timeout=self._timeout,
        )

    def write(self) -> Lock:
        """Shared with nobody."""
        card = ContenderValue(EXCLUSIVE, self._queue.by)
        return Lock(
            self._queue,
            self.name,
            rule=EXCLUSIVE_RULE,
            value=encode_value(card),
            ttl=self._ttl,
            timeout=self._timeout,
        )
