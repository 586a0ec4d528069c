"""One lease for all registrations of a process: replaced when it is lost, revoked by the last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Protocol

from mooring.errors import AccessDenied, Conflict, StoreError, Unavailable
from mooring.messages import message
from mooring.session import Session
from mooring.store.contract import Delete, Store, key, unchanged
from mooring.tasks import Backoff, Schedule, Tasks, settle

PULSE = 1.0
"""Seconds between two calls of `LeaseUser.pulse`."""

_DELETION_CHECKS = (5.0, 15.0)
"""Seconds before each further check that a key is deleted; the first one is made at once."""


class LeaseUser(Protocol):
    lease: int
    """The lease of its keys; 0 if it has none."""

    def lost(self) -> None:
        """The lease is lost or about to be revoked: write the keys with another lease."""

    def pulse(self) -> None:
        """Check whether the record is in doubt. Must be cheap: there may be thousands of users."""


class SharedLease:
    """The lease of one TTL. Users come with `acquire` and go with `release`."""

    def __init__(self, store: Store, ttl: float) -> None:
        self.granted: set[int] = set()
        """All leases so far: a key on one of them does not belong to a successor."""
        self._store, self._ttl = store, ttl
        self.current: Session | None = None
        self._opening: asyncio.Future[Session] | None = None
        self._users: dict[LeaseUser, None] = {}
        self._deserted = False
        """Whether a user of the current lease was released."""
        self._replaced: set[Session] = set()
        self._awaiting: dict[Session, asyncio.Task[object]] = {}
        """The tasks that wait for the loss of each session."""
        self._to_delete: dict[bytes, Iterator[float]] = {}
        """Keys to delete, and the pauses before the checks that remain."""
        self._deletions: Schedule[bytes] = Schedule()
        self._tasks = Tasks()

    @property
    def in_doubt(self) -> bool:
        return self.current is not None and self.current.state in ("suspended", "lost")

    @property
    def expired(self) -> bool:
        """Whether the lease is lost by the local clock, even if its users were not notified yet."""
        return self.current is not None and self.current.state == "lost"

    def acquire(self, user: LeaseUser) -> None:
        if not self._users:
            self._tasks.start(self._pulse(), name="pulse of a shared lease")
            self._tasks.start(self._delete_pending(), name="deletion of abandoned keys")
        self._users[user] = None

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(PULSE)
            for user in tuple(self._users):
                user.pulse()
            self._revoke_replaced()

    async def session(self) -> Session:
        """A session that is not known to be lost; opens one if necessary. Concurrent callers share
        one attempt and its error."""
        if self.current is not None and self.current.state in ("alive", "suspended"):
            return self.current
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
            self._tasks.start(self._open(self._opening), name="opening a shared lease")
        return await asyncio.shield(self._opening)

    async def _open(self, opened: asyncio.Future[Session]) -> None:
        try:
            session = await Session(self._store, ttl=self._ttl).__aenter__()
        except Exception as error:  # noqa: BLE001 - the callers get it
            settle(opened, error)
        except BaseException:
            settle(opened, Unavailable(message("lease_released")))
            raise
        else:
            self.granted.add(session.lease)
            self.current, self._deserted = session, False
            awaiting = self._await_loss(session)
            self._awaiting[session] = self._tasks.start(awaiting, name=f"lease {session.lease:x}")
            opened.set_result(session)
        finally:
            if self._opening is opened:
                self._opening = None

    async def discard(self, session: Session) -> None:
        """Stop using a session whose lease the store does not know any more."""
        if self.current is session:
            self.current = None
            await self._close(session)

    async def _close(self, session: Session) -> None:
        if (awaiting := self._awaiting.pop(session, None)) is not None:
            awaiting.cancel()
        await session.aclose()

    def replace(self) -> None:
        """Move all users to another lease and revoke this one, if a user of it was released.

        A store that was unavailable may have been restored from a backup, with the keys of users
        that were released since. The remaining users would keep those keys alive.
        """
        session = self.current
        if session is not None and self._deserted:
            self.current = None
            self._replaced.add(session)
            for user in tuple(self._users):
                user.lost()

    def _revoke_replaced(self) -> None:
        """Revoke replaced leases once all keys are on another, so that no key disappears."""
        for session in tuple(self._replaced):
            if all(user.lease != session.lease for user in self._users):
                self._replaced.discard(session)
                self._tasks.start(self._close(session), name=f"end of lease {session.lease:x}")

    def delete_later(self, names: Iterable[bytes]) -> None:
        """Delete keys on this lease that a released user could not delete, because the store was
        unavailable or time ran out. Other users keep the lease alive, so the keys never expire."""
        for name in names:
            self._to_delete[name] = iter(_DELETION_CHECKS)
            self._deletions.plan(name, time.monotonic())

    def claim(self, names: Iterable[bytes]) -> None:
        """Do not delete these keys: they are in use again."""
        for name in names:
            self._to_delete.pop(name, None)

    async def _delete_pending(self) -> None:
        """Delete keys, and check several times: a write may arrive after its sender gave up."""
        for name in self._to_delete:
            self._deletions.plan(name, time.monotonic())
        backoff = Backoff()
        while True:
            name = await self._deletions.next()
            pauses = self._to_delete.get(name)
            if pauses is None:
                continue
            deleted = await self._delete(name, backoff)
            if self._to_delete.get(name) is not pauses:
                continue  # it was claimed meanwhile
            pause = next(pauses, None) if deleted else 0.0
            if pause is None:
                del self._to_delete[name]
            else:
                self._deletions.plan(name, time.monotonic() + pause)

    async def _delete(self, name: bytes, backoff: Backoff) -> bool:
        """Returns whether the key is certain to be gone, or to belong to another process."""
        try:
            entry = (await self._store.read(key(name))).first
            if entry is not None and name in self._to_delete and entry.lease in {0, *self.granted}:
                await self._store.commit(
                    Delete(key(name)), require=[unchanged(name, entry.modified)]
                )
        except Conflict:
            return False
        except StoreError:
            await asyncio.sleep(backoff.next())
            return False
        backoff.reset()
        return True

    async def _await_loss(self, session: Session) -> None:
        await session.lost.wait()
        self._awaiting.pop(session, None)
        for user in tuple(self._users):
            user.lost()

    async def release(self, user: LeaseUser, *, within: float) -> None:
        """Remove a user. The last one revokes the lease, or gives up after `within` seconds."""
        self._users.pop(user, None)
        if self._users:
            self._deserted = True
            return
        # A user that arrives meanwhile must not wait for anything that ends here.
        sessions, self._replaced = self._replaced, set()
        if self.current is not None:
            sessions.add(self.current)
        self.current = None
        tasks, self._tasks = self._tasks, Tasks()
        self._opening, self._awaiting = None, {}
        await tasks.aclose()
        await asyncio.gather(*(session.aclose(within=within) for session in sessions))


class Revisions:
    """The current revision of a store, with one read for all concurrent callers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reading: asyncio.Future[int] | None = None

    async def current(self, name: bytes) -> int:
        """A revision that the store has reached. `name` is a key that the caller may read. A caller
        shares the result of a read in progress, unless that was cancelled or denied."""
        while self._reading is not None:
            reading = self._reading
            await asyncio.wait([reading])
            if not reading.cancelled() and not isinstance(reading.exception(), AccessDenied):
                return reading.result()
        reading = self._reading = asyncio.get_running_loop().create_future()
        try:
            reading.set_result((await self._store.read(key(name), keys_only=True)).revision)
        except Exception as error:
            settle(reading, error)
            raise
        finally:
            reading.cancel()  # if this caller was cancelled, the next one reads
            self._reading = None
        return reading.result()
