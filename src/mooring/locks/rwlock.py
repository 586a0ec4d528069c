"""Read-write locks by name: many readers or one writer.

A reader is admitted when no writer is ahead of it in the queue, a writer when nothing is ahead.
"""

from __future__ import annotations

from mooring.locks.admission_rules import SHARED
from mooring.locks.lock import Lock, check_name, check_times
from mooring.locks.queue import Queue


class ReadWriteLock:
    """Many readers or one writer: enter `read()` or `write()`.

    ```python
    prices = hub.rwlock("prices")
    async with prices.read():  # together with other readers
        ...
    async with prices.write() as held:  # alone
        await hub.store.commit(Put(b"/prices", b"…"), require=[held.check])
    ```

    It is fair: a reader that arrives after a writer waits for that writer, so none starves.
    `write()` is the same lock as `Lock` and `etcdctl lock` with this name.

    Entering waits and raises like `Lock`. A read lock cannot be upgraded: a task that holds one and
    enters `write()` raises `Reentered`.
    """

    def __init__(self, queue: Queue, name: str, *, ttl: float, timeout: float | None) -> None:
        check_name(name)
        check_times(ttl, timeout)
        self.name: str = name
        """The name of the lock."""
        self._queue, self._ttl, self._timeout = queue, ttl, timeout

    def read(self) -> Lock:
        """A lock that readers share."""
        return Lock(self._queue, self.name, ttl=self._ttl, timeout=self._timeout, kind=SHARED)

    def write(self) -> Lock:
        """An exclusive lock."""
        return Lock(self._queue, self.name, ttl=self._ttl, timeout=self._timeout)
