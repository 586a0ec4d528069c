"""One lease for all registrations of a process: shared, replaced when lost, revoked by the last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from mooring.errors import AccessDenied, Conflict, StoreError, Unavailable
from mooring.session import Session
from mooring.store.contract import Delete, Store, key, unchanged
from mooring.tasks import Backoff, Tasks

PULSE = 1.0
"""Seconds between two looks at whether something is in doubt."""


_LOOKS = (15.0, 5.0, 1.0)
"""Seconds between looks at keys that should be gone, the last first."""


class PendingDeletion(NamedTuple):
    """A key that should be gone: how many looks at it are left, and when the next is due."""

    looks: int
    due: float


class LeaseUser(Protocol):
    lease: int
    """The lease that its keys hang on; 0: there are none."""

    def lost(self) -> None:
        """The lease is gone, and all keys with it; or it will be: put them on another."""

    def pulse(self, in_doubt: bool) -> None:
        """Time to look whether something is in doubt; the lease is, or is not. Must be cheap:
        there may be thousands."""


class SharedLease:
    """The lease of one time-to-live. Users come with `acquire` and go with `release`."""

    def __init__(self, store: Store, ttl: float) -> None:
        self.granted: set[int] = set()
        """Every lease that was ever ours: a key on one of them is no successor's."""
        self._store, self._ttl = store, ttl
        self._session: Session | None = None
        self._opening: asyncio.Future[Session] | None = None
        self._users: dict[LeaseUser, None] = {}
        self._deserted = False
        """Whether somebody left whose keys hung on the present lease."""
        self._replaced: set[Session] = set()
        self._awaiting: dict[Session, asyncio.Task[object]] = {}
        """Who waits for the loss of each that may still be lost."""
        self._to_delete: dict[bytes, PendingDeletion] = {}
        self._more_to_delete = asyncio.Event()
        self._tasks = Tasks()

    @property
    def current(self) -> Session | None:
        return self._session

    @property
    def in_doubt(self) -> bool:
        return self._session is not None and self._session.state in ("suspended", "lost")

    @property
    def expired(self) -> bool:
        """Whether the lease is lost by this machine's clock, though its users may not know yet."""
        return self._session is not None and self._session.state == "lost"

    def acquire(self, user: LeaseUser) -> None:
        if not self._users:
            self._tasks.start(self._beat(), name="pulse of a shared lease")
            self._tasks.start(self._delete_pending(), name="keys left behind")
        self._users[user] = None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(PULSE)
            in_doubt = self.in_doubt
            for user in tuple(self._users):
                user.pulse(in_doubt)
            self._revoke_replaced()

    async def session(self) -> Session:
        """A session that is alive as far as is known; opened where there is none. Those who ask
        at the same time share one try, and its failure."""
        if self._session is not None and self._session.state in ("alive", "suspended"):
            return self._session
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
            self._tasks.start(self._open(self._opening), name="opening a shared lease")
        return await asyncio.shield(self._opening)

    async def _open(self, opened: asyncio.Future[Session]) -> None:
        try:
            session = await Session(self._store, ttl=self._ttl).__aenter__()
        except Exception as error:  # noqa: BLE001 - it is told to those who asked
            opened.set_exception(error)
            opened.exception()  # seen, though everybody who asked may be gone
        except BaseException:
            opened.set_exception(Unavailable("the lease was given up before it was granted"))
            opened.exception()
            raise
        else:
            self.granted.add(session.lease)
            self._session, self._deserted = session, False
            awaiting = self._await_loss(session)
            self._awaiting[session] = self._tasks.start(awaiting, name=f"lease {session.lease:x}")
            opened.set_result(session)
        finally:
            if self._opening is opened:
                self._opening = None

    async def discard(self, session: Session) -> None:
        """The store does not know this session's lease any more."""
        if self._session is session:
            self._session = None
            await self._give_up(session)

    async def _give_up(self, session: Session) -> None:
        if (awaiting := self._awaiting.pop(session, None)) is not None:
            awaiting.cancel()
        await session.aclose()

    def replace(self) -> None:
        """Move everybody to another lease, and revoke this one, if somebody left it.

        A store that was away may be back from a backup, with the keys of those who left since. The
        others would keep them alive for ever.
        """
        session = self._session
        if session is not None and self._deserted:
            self._session = None
            self._replaced.add(session)
            for user in tuple(self._users):
                user.lost()

    def _revoke_replaced(self) -> None:
        """Once all keys are on another: nobody shall miss them for a moment."""
        for session in tuple(self._replaced):
            if all(user.lease != session.lease for user in self._users):
                self._replaced.discard(session)
                self._tasks.start(self._give_up(session), name=f"end of lease {session.lease:x}")

    def delete_later(self, names: Iterable[bytes]) -> None:
        """Keys on this lease that should be gone and may not be: whoever left them could not reach
        the store, or was cut short. Others keep the lease alive, so they would never expire."""
        self._to_delete.update(dict.fromkeys(names, PendingDeletion(len(_LOOKS), time.monotonic())))
        self._more_to_delete.set()

    def claim(self, names: Iterable[bytes]) -> None:
        """Somebody has these keys again."""
        for name in names:
            self._to_delete.pop(name, None)

    async def _delete_pending(self) -> None:
        """Look several times: what was under way when its sender gave up may still arrive."""
        backoff = Backoff()
        while True:
            self._more_to_delete.clear()
            moment = time.monotonic()
            for name, pending in tuple(self._to_delete.items()):
                if pending.due > moment or name not in self._to_delete:
                    continue
                if await self._delete(name, backoff) and self._to_delete.get(name) is pending:
                    self._looked(name, pending)
            await self._until_due()

    def _looked(self, name: bytes, pending: PendingDeletion) -> None:
        left = pending.looks - 1
        if left:
            self._to_delete[name] = PendingDeletion(left, time.monotonic() + _LOOKS[left - 1])
        else:
            del self._to_delete[name]

    async def _until_due(self) -> None:
        """Until the next look is due, or there is more to look at."""
        timer = None
        if self._to_delete:
            due = min(pending.due for pending in self._to_delete.values())
            pause = max(due - time.monotonic(), 0.0)
            timer = asyncio.get_running_loop().call_later(pause, self._more_to_delete.set)
        try:
            await self._more_to_delete.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _delete(self, name: bytes, backoff: Backoff) -> bool:
        """Whether it is certain that the key is gone, or somebody else's."""
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
        """One user less; the last one revokes the lease, or gives up after `within` seconds."""
        self._users.pop(user, None)
        if self._users:
            self._deserted = True
            return
        # Who comes while this one ends must not wait for anything that ends with it.
        sessions, self._replaced = self._replaced, set()
        if self._session is not None:
            sessions.add(self._session)
        self._session = None
        tasks, self._tasks = self._tasks, Tasks()
        self._opening, self._awaiting = None, {}
        await tasks.aclose()
        await asyncio.gather(*(session.aclose(within=within) for session in sessions))


class Revisions:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: asyncio.Future[int] | None = None

    async def present(self, name: bytes) -> int:
        """A revision that the store has reached. `name` is a key that may be read. Who asks while
        another does shares its answer, and its failure where that is not the other's own."""
        while self._asked is not None:
            asked = self._asked
            await asyncio.wait([asked])
            if not asked.cancelled() and not isinstance(asked.exception(), AccessDenied):
                return asked.result()
        asked = self._asked = asyncio.get_running_loop().create_future()
        try:
            asked.set_result((await self._store.read(key(name), keys_only=True)).revision)
        except Exception as error:
            asked.set_exception(error)
            asked.exception()  # seen, though nobody else may have asked
            raise
        finally:
            asked.cancel()  # where this was: the next of them asks
            self._asked = None
        return asked.result()
