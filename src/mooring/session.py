"""A session: a lease that is kept alive, and that reports its loss.

```python
async with Session(store, ttl=15) as session:
    await store.commit(Put(b"/here", b"1", session.lease))
    await session.lost.wait()
```
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Literal, Self

from mooring.errors import LeaseNotFound, SessionLost, StoreError
from mooring.messages import message
from mooring.store.contract import Store
from mooring.tasks import Backoff, Tasks, cleanup

log = logging.getLogger(__name__)

SessionState = Literal["alive", "suspended", "lost", "closed"]
"""The state of a session. `suspended`: the last renewal failed; `closed`: by this process."""

_REVOKE_WITHIN = 3.0


def clock() -> float:
    """A monotonic clock that also runs while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Session:
    """A lease, renewed at a third of its time-to-live.

    Expiry is judged by the local clock, from the time at which the last successful renewal was
    *sent*. So the session is lost before the store expires the lease, by at least the time that the
    reply took. If a renewal fails, the session is `suspended` (in doubt) until it is renewed or
    `lost`. A lost session stays lost: open another.

    Entering raises what `Store.grant` raises. Leaving revokes the lease, and with it its keys. So
    does cancellation of the body or of entering.
    """

    def __init__(self, store: Store, *, ttl: float = 15.0) -> None:
        self.lease: int = 0
        """The id of the lease, for writes that end with the session. Set when it is entered."""
        self.ttl: float = ttl
        """Seconds for which the store keeps the lease; after entering, as granted."""
        self.lost: asyncio.Event = asyncio.Event()
        """Set when the session is lost."""
        self.revoked: bool = False
        """Whether the store confirmed that the lease and its keys are gone."""
        self._store = store
        self._deadline = 0.0
        self._suspended = self._closed = False
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        granting = self._tasks.start(self._grant(), name="grant of a session's lease")
        try:
            await asyncio.wait([granting])
        except asyncio.CancelledError:
            await cleanup(self._abandon(granting), within=_REVOKE_WITHIN)
            raise
        if isinstance(error := granting.result(), Exception):
            raise error
        self._tasks.start(self._keep(), name=f"session {self.lease:x}")
        return self

    async def _grant(self) -> Exception | None:
        """Runs in a task of its own: cancelling the call would lose the id of a granted lease."""
        sent = clock()
        try:
            granted = await self._store.grant(self.ttl)
        except Exception as error:  # noqa: BLE001 - entering raises it
            return error
        self.lease, self.ttl = granted.id, granted.ttl
        self._deadline = sent + granted.ttl
        return None

    async def _abandon(self, granting: asyncio.Task[object]) -> None:
        """Entering was cancelled: revoke the lease as soon as it is granted."""
        self._closed = True
        try:
            await asyncio.wait([granting])
        finally:
            await self._end(revoke=bool(self.lease))

    @property
    def state(self) -> SessionState:
        """The state by the local clock; correct in any thread."""
        if self._closed:
            return "closed"
        if self.lost.is_set() or self.remaining <= 0:
            return "lost"
        return "suspended" if self._suspended else "alive"

    @property
    def remaining(self) -> float:
        """Seconds for which the lease certainly lives; 0 once it is lost."""
        return 0.0 if self.lost.is_set() else max(self._deadline - clock(), 0.0)

    def check(self) -> None:
        """Raise `SessionLost` unless the lease certainly lives."""
        if self.state in ("lost", "closed"):
            raise SessionLost(message("session_lost", lease=f"{self.lease:x}", state=self.state))

    async def _keep(self) -> None:
        backoff = Backoff(first=0.1, most=min(1.0, self.ttl / 6))
        pause = self.ttl / 3
        while True:
            await asyncio.sleep(min(pause, self.remaining))
            if not self.remaining:
                return self._lose("it was not renewed in time")
            sent = clock()
            try:
                async with asyncio.timeout(min(self.ttl / 3, self.remaining)):
                    ttl = await self._store.renew(self.lease)
            except LeaseNotFound:
                return self._lose("the store no longer has the lease")
            except (StoreError, TimeoutError) as error:
                self._suspend(error)
                pause = backoff.next()
                continue
            if not self.remaining:  # this process was stopped for too long before it read the reply
                return self._lose("it was not renewed in time")
            self._deadline = sent + ttl
            self._resume()
            backoff.reset()
            pause = max(self.ttl / 3 - (clock() - sent), 0.0)

    def _suspend(self, error: Exception) -> None:
        if not self._suspended:
            self._suspended = True
            reason = str(error) or "no response in time"
            log.warning(
                "session %x cannot be renewed and will be lost in %.1f s: %s",
                self.lease,
                self.remaining,
                reason,
            )

    def _resume(self) -> None:
        if self._suspended:
            self._suspended = False
            log.info("session %x is renewed again", self.lease)

    def _lose(self, reason: str) -> None:
        log.warning("session %x is lost: %s", self.lease, reason)
        self.lost.set()

    async def aclose(self, *, within: float = _REVOKE_WITHIN) -> None:
        """Revoke the lease, within a few seconds even if the store is unavailable."""
        if self._closed or not self.lease:
            return
        was = self.state
        self._closed = True
        await cleanup(self._end(revoke=was != "lost"), within=within)

    async def _end(self, *, revoke: bool) -> None:
        await self._tasks.aclose()
        if revoke:
            try:
                await self._store.revoke(self.lease)
                self.revoked = True
            except LeaseNotFound:
                self.revoked = True
            except StoreError as error:
                log.info("lease %x was not revoked and will expire: %s", self.lease, error)

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
