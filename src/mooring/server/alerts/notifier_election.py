"""The duty of calling the webhook: of the servers that see one registry, one has it.

It lies where the registry is: an election on the store, or a lease on Redis. If the server that has
it dies, another takes over within the TTL, and reads what was already reported.

While the store is away nothing can be decided, and that is when alerts matter most. So a server
keeps what it last knew: the one that had the duty goes on until it learns that another one has it,
and one that never could ask takes it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from mooring.errors import Conflict, MooringError, StoreError
from mooring.hub import Hub
from mooring.locks.election import Leader, Leadership
from mooring.server.auth.signed_records import ROOT
from mooring.store import Put, key
from mooring.tasks import Backoff, Tasks, cleanup

if TYPE_CHECKING:
    from mooring.registry.contract import LeaderLease

log = logging.getLogger(__name__)

TTL = 10.0
"""Seconds after which another server takes over from one that died."""
_ELECTION = f"{ROOT}alerts/leader"
_NOTIFIED = f"{ROOT}alerts/notified".encode()
_ASK_WITHIN = _CLOSE_WITHIN = 2.0


class Duty(ABC):
    """Entering does not wait for the store."""

    def __init__(self) -> None:
        self._id = f"{socket.gethostname()} {secrets.token_hex(6)}"
        self._mine: bool | None = None
        self.term = 0
        """Increases whenever this server is elected: another one may have been elected before."""
        self._tasks = Tasks()

    @property
    def mine(self) -> bool:
        """Whether it is for this server to call."""
        return self._mine is True

    @abstractmethod
    async def confirm(self) -> bool:
        """Check with the store before a call. False if another server is elected, or if the store
        is back and the election is still open."""

    @abstractmethod
    async def reported(self) -> bytes:
        """What the server with the duty last reported. Raises what a store raises."""

    @abstractmethod
    async def leave(self, reported: bytes) -> None:
        """Leave to the others what was reported. Raises what a store raises."""

    @abstractmethod
    async def _run(self) -> None:
        """Keep `_mine` right."""

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), name="duty of calling the webhook")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()
        self._mine = False

    def _set(self, mine: bool) -> None:
        if mine is not self._mine:
            log.info("%s calls the webhook", "this server" if mine else "another server")
            self.term += mine
        self._mine = mine

    def _cannot_ask(self, error: MooringError) -> None:
        if self._mine is None:
            log.warning("which server calls the webhook cannot be decided: %s", error)
            self._set(True)


class DutyOnStore(Duty):
    def __init__(self, hub: Hub, *, ttl: float = TTL) -> None:
        super().__init__()
        self._store, self._election = hub.store, hub.election(_ELECTION, ttl=ttl)
        self._leadership: Leadership | None = None

    async def _run(self) -> None:
        self._tasks.start(self._campaign(), name="campaign for calling the webhook")
        async with self._election.observe() as leaders:
            async for leader in leaders:
                if leader is not None:
                    self._learn(leader)

    async def _campaign(self) -> None:
        backoff = Backoff(0.2, 2.0)
        while True:
            try:
                async with self._election.campaign(self._id) as leadership:
                    self._leadership = leadership
                    self.term += 1
                    self._set(True)
                    backoff.reset()
                    await leadership.lost.wait()
            except MooringError as error:
                self._cannot_ask(error)
            finally:
                self._leadership = None
            await asyncio.sleep(backoff.next())

    def _learn(self, leader: Leader) -> None:
        if leader.text != self._id:
            self._set(False)
        elif self._leadership is not None and self._leadership.key == leader.key:
            self._set(True)
        # Otherwise it is this server's key from before an outage: it must expire first.

    async def confirm(self) -> bool:
        if self._leadership is not None or not self.mine:
            return self.mine
        try:
            async with asyncio.timeout(_ASK_WITHIN):
                await self.reported()
        except (StoreError, TimeoutError):
            return self.mine
        return False

    async def reported(self) -> bytes:
        found = (await self._store.read(key(_NOTIFIED))).first
        return b"" if found is None else found.value

    async def leave(self, reported: bytes) -> None:
        if self._leadership is None:
            raise StoreError("it is not known whether another server has the duty")
        try:
            await self._store.commit(Put(_NOTIFIED, reported), require=[self._leadership.check])
        except Conflict as error:
            raise StoreError("another server has the duty") from error


class DutyOnRedis(Duty):
    def __init__(self, lease: LeaderLease, *, ttl: float = TTL) -> None:
        super().__init__()
        self._lease, self._ttl = lease, ttl

    async def _run(self) -> None:
        while True:
            await self._campaign()
            await asyncio.sleep(self._ttl / 3)

    async def _campaign(self) -> None:
        try:
            self._set(await self._lease.lead(self._id, self._ttl))
        except StoreError as error:
            self._cannot_ask(error)

    async def confirm(self) -> bool:
        await self._campaign()
        return self.mine

    async def __aexit__(self, *_: object) -> None:
        mine = self.mine
        await super().__aexit__()
        if mine:
            await cleanup(self._resign(), within=_CLOSE_WITHIN)

    async def _resign(self) -> None:
        try:
            await self._lease.resign(self._id)
        except StoreError as error:
            log.debug("the duty is left to its lease: %s", error)

    async def reported(self) -> bytes:
        return await self._lease.note()

    async def leave(self, reported: bytes) -> None:
        if not await self._lease.leave_note(self._id, reported):
            raise StoreError("another server has the duty")
