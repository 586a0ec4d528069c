"""One service of the registry on Redis, as long as somebody here is registered in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from mooring.errors import OutcomeUnknown, StoreError, Unavailable
from mooring.model import Config, Instance
from mooring.registry.contract import removed, superseded
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.heartbeat_batches import HeartbeatBatches
from mooring.registry.redis.keys import Keys
from mooring.registry.redis.pipeline import DEREGISTER, REGISTER
from mooring.registry.redis.pubsub import Changes, Message
from mooring.registry.redis.reader import Reader
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

RECONCILE = 30.0
"""Seconds between reads of the operator's word, beside those that a message asks for."""

KEPT = 86_400_000
"""Milliseconds that it is remembered whom an operator took out."""
KEPT_OWN = 120_000
"""The same of who left by itself: longer than a registration sent before can be under way."""

_encode = msgspec.json.Encoder().encode


class Member(Protocol):
    """An instance that is registered here."""

    id: str

    def configured(self) -> None: ...
    async def look(self) -> None: ...


class LiveService:
    """What the registrations of one service share: the channel, the operator's word, the beats."""

    def __init__(
        self, connection: Connection, keys: Keys, changes: Changes, service: str, *, timeout: float
    ) -> None:
        self.name = service
        self.config: Mapping[str, Config] = {}
        self._connection, self._all_keys, self._changes = connection, keys, changes
        self._keys = keys.of(service)
        self.timeout = timeout
        self._members: list[Member] = []
        self.beating = HeartbeatBatches(connection, keys, self._keys)
        self._reader = Reader(connection, keys)
        self._tasks = Tasks()
        self._heard = False
        self._end: Callable[[], None] | None = None
        self._due = asyncio.Event()

    def head(self, id: str, instance: Instance | None = None) -> str:
        """The beginning of a message about an instance, in which the scripts put what happened."""
        return message_head(self.name, id, instance)

    def key_of(self, id: str) -> str:
        """The key of an instance's record."""
        return self._keys.instance(id)

    def join(self, member: Member) -> None:
        self._members.append(member)
        if self._end is None:
            self._end = self._changes.listen(self.name, self._hear)
            self._tasks.start(self._follow_config(), name=f"configuration of {self.name}")

    def leave(self, member: Member) -> None:
        self._members.remove(member)

    @property
    def empty(self) -> bool:
        return not self._members

    def _hear(self, message: Message | None) -> None:
        if message is None:
            if self._heard:  # there was a break
                for member in self._members:
                    self._tasks.start(member.look(), name=f"a look at {self.name}")
            self._heard = True
            self._due.set()
            return
        if message.action == "updated":
            self._due.set()
        if message.action == "removed":
            for member in self._members:
                if member.id == message.instance_id:  # it, or who had its place before
                    self._tasks.start(member.look(), name=f"a look at {self.name}")

    async def _follow_config(self) -> None:
        trouble = ""
        while True:
            try:
                async with asyncio.timeout(RECONCILE):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            try:
                state = await self._reader.state(self._keys)
            except StoreError as error:
                # Of a Redis that is away the beats tell.
                if not isinstance(error, Unavailable | OutcomeUnknown) and str(error) != trouble:
                    trouble = str(error)
                    log.warning("%s: the operator's word is not heard: %s", self.name, trouble)
                continue
            trouble = ""
            if state.config != self.config:
                self.config = state.config
                for member in tuple(self._members):
                    member.configured()

    async def register(
        self,
        instance: Instance,
        told: Mapping[str, str],
        *,
        place: str,
        head: str,
        registered: str,
        fresh: bool,
        tried: float = 0.0,
        returns: bool = False,
    ) -> str:
        """Write the record; when this incarnation registered. `tried`: so many seconds ago it may
        have been written already. `returns`: also where it had left from that place. Raises
        `Superseded`, `Removed`."""
        mode = "fresh" if fresh else "back" if returns else "repair"
        if fresh and tried:
            mode, registered = "again", str(int(tried * 1000))
        keys, what = self._keys, f"registration of {self.name} {instance.id}"
        if self._all_keys.cluster:
            services = self._all_keys.services
            await self._connection.call("SADD", services, self.name, what=what, writes=True)
        reply: Any = await self._connection.run(
            REGISTER,
            self._tiers(instance.id),
            [
                mode,
                instance.id,
                instance.incarnation,
                place,
                registered,
                int(self.timeout * 1000),
                keys.changes,
                head,
                "true" if instance.status.healthy else "false",
                self.name,
                *(part for pair in told.items() for part in pair),
            ],
            what=what,
        )
        if reply[0] == b"ok":
            when: str = reply[1].decode()
            return when
        if reply[0] == b"removed":
            raise removed(self.name, instance.id)
        raise superseded(self.name, instance.id)

    def _tiers(self, id: str) -> list[str]:
        keys = self._keys
        tiers = [keys.heartbeats, keys.instance(id), keys.removed, keys.persistent]
        return tiers if self._all_keys.cluster else [*tiers, self._all_keys.services]

    async def deregister(self, id: str, incarnation: str, *, head: str, place: str = "") -> bool:
        """Take it out, if it is this incarnation's; without one, as an operator. Nothing that was
        sent before from the same `place` brings it back."""
        what = f"deregistration of {self.name} {id}"
        reply: Any = await self._connection.run(
            DEREGISTER,
            self._tiers(id),
            [
                *(id, incarnation, place, KEPT_OWN if incarnation else KEPT),
                *(self._keys.changes, head, self.name),
            ],
            what=what,
        )
        there, empty = reply
        if empty and self._all_keys.cluster:
            await drop_service(self._connection, self._all_keys, self.name)
        return bool(there)

    async def aclose(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None
        await self._tasks.aclose()
        await self.beating.aclose()


async def drop_service(connection: Connection, keys: Keys, service: str) -> None:
    """Take a service without instances out of tier 1 on a cluster, where no script reaches it. Who
    registers meanwhile puts it back, and if that came first, it is put back here."""
    what = f"removal of {service} from the list of services"
    await connection.call("SREM", keys.services, service, what=what, writes=True)
    if await connection.call("EXISTS", keys.of(service).heartbeats, what=what):
        await connection.call("SADD", keys.services, service, what=what, writes=True)


def message_head(service: str, id: str, instance: Instance | None = None) -> str:
    """The JSON of a message without its end: the scripts add what happened, and when."""
    told: dict[str, object] = {"serviceName": service, "instanceId": id, "instance": None}
    if instance is not None:
        told["instance"] = {
            "host": instance.host,
            "port": instance.port,
            "protocol": instance.protocol,
            "version": instance.version,
            "zone": instance.zone,
            "weight": instance.weight,
            "healthy": instance.status.healthy,
            "enabled": instance.enabled,
            "metadata": instance.metadata,
        }
    return _encode(told).decode()[:-1]
