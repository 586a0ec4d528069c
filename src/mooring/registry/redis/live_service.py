"""One service on Redis while this process uses it, and the batches in which heartbeats are sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from mooring.errors import OutcomeUnknown, StoreError, Unavailable
from mooring.model import Config, Instance
from mooring.registry.contract import removed, superseded
from mooring.registry.redis.connection import Argument, Connection
from mooring.registry.redis.layout import RedisKeys, ServiceKeys
from mooring.registry.redis.pipeline import DEREGISTER, HEARTBEAT, REGISTER
from mooring.registry.redis.pubsub import ChangeChannels, ChangeMessage
from mooring.registry.redis.reader import Reader
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

_MOST, _MOST_TOLD = 200, 400_000
"""Beats in one call, and characters of metadata that they bring: so many that it stays far below
10 ms."""


class Beat(NamedTuple):
    id: str
    incarnation: str
    registered: str
    """When this incarnation registered, as the server said."""
    healthy: bool | None
    """None: as it is."""
    head: str
    fields: Mapping[str, str] = {}
    """Empty: the sign of life alone."""

    def arguments(self) -> list[Argument]:
        healthy = "" if self.healthy is None else "true" if self.healthy else "false"
        who: list[Argument] = [self.id, self.incarnation, self.registered, healthy]
        if not self.fields:
            return [*who, 0]
        told = [part for pair in self.fields.items() for part in pair]
        return [*who, 1 + len(told), self.head, *told]

    @property
    def size(self) -> int:
        """Characters of what it brings beside the sign of life."""
        if not self.fields:
            return 0
        return len(self.head) + sum(len(name) + len(value) for name, value in self.fields.items())


class HeartbeatBatches:
    def __init__(self, connection: Connection, keys: RedisKeys, service: ServiceKeys) -> None:
        self._connection, self._keys, self._service = connection, keys, service
        self._waiting: list[tuple[Beat, asyncio.Future[str]]] = []
        self._sending = False
        self._tasks = Tasks()
        self._listing: asyncio.Task[object] | None = None

    async def beat(self, beat: Beat) -> str:
        """`ok`, `gone`, `superseded`, or what is wrong with the record."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((beat, answer))
        if not self._sending:
            self._sending = True
            self._tasks.start(self._send(), name=f"heartbeats of {self._service.name}")
        return await answer

    async def _send(self) -> None:
        waiting: list[tuple[Beat, asyncio.Future[str]]] = []
        try:
            while self._waiting:
                count = batch([beat for beat, _ in self._waiting[:_MOST]])
                waiting, self._waiting = self._waiting[:count], self._waiting[count:]
                try:
                    results = await send(
                        self._connection, self._keys, self._service, [beat for beat, _ in waiting]
                    )
                except Exception as error:  # noqa: BLE001 - those who wait must hear of it
                    for _, answer in waiting:
                        if not answer.done():
                            answer.set_exception(error)
                else:
                    for (_, answer), result in zip(waiting, results, strict=True):
                        if not answer.done():
                            answer.set_result(result)
                    if "ok" in results and self._keys.cluster:
                        self._list()
        finally:
            self._sending = False
            for _, answer in (*waiting, *self._waiting):
                answer.cancel()

    def _list(self) -> None:
        """On a cluster tier 1 lies elsewhere: it is put right beside the beats, by whoever has a
        record, and nobody waits for it: it may be on a node that is down."""
        if self._listing is None or self._listing.done():
            name = f"list of services for {self._service.name}"
            self._listing = self._tasks.start(self._put_on_the_list(), name=name)

    async def _put_on_the_list(self) -> None:
        what, service = "list of services", self._service.name
        try:
            await self._connection.call(
                "SADD", self._keys.services, service, what=what, writes=True
            )
        except StoreError as error:
            log.debug("%s: %s", service, error)  # the next beat tries again

    async def aclose(self) -> None:
        await self._tasks.aclose()


def batch(beats: Sequence[Beat]) -> int:
    """How many of some beats go in one call: one at least."""
    told = 0
    for count, beat in enumerate(beats):
        told += beat.size
        if count and told > _MOST_TOLD:
            return count
    return len(beats)


async def send(
    connection: Connection, keys: RedisKeys, service: ServiceKeys, beats: list[Beat]
) -> list[str]:
    """Any number of beats in one call; of each, as `HeartbeatBatches.beat` gives it."""
    tier1 = [] if keys.cluster else [keys.services]
    reply = await connection.run(
        HEARTBEAT,
        [
            *(service.heartbeats, service.persistent, *tier1),
            *(service.instance(beat.id) for beat in beats),
        ],
        [
            *(service.changes, 0 if keys.cluster else 1, service.name),
            *(argument for beat in beats for argument in beat.arguments()),
        ],
        what=f"heartbeat of {service.name}",
    )
    return [part.decode() if isinstance(part, bytes) else str(part) for part in reply]


RECONCILE = 30.0
"""Seconds between reads of the operator's word, beside those that a message asks for."""

KEPT = 86_400_000
"""Milliseconds that it is remembered whom an operator took out."""
KEPT_OWN = 120_000
"""The same of who left by itself: longer than a registration sent before can be under way."""

_encode = msgspec.json.Encoder().encode


class LiveRecord(Protocol):
    """An instance that is registered here."""

    id: str

    def configured(self) -> None: ...
    async def look(self) -> None: ...


class LiveService:
    """What the registrations of one service share: the channel, the operator's word, the beats."""

    def __init__(
        self,
        connection: Connection,
        keys: RedisKeys,
        changes: ChangeChannels,
        service: str,
        *,
        timeout: float,
    ) -> None:
        self.name = service
        self.config: Mapping[str, Config] = {}
        self._connection, self._all_keys, self._changes = connection, keys, changes
        self._keys = keys.of(service)
        self.timeout = timeout
        self._members: list[LiveRecord] = []
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

    def join(self, member: LiveRecord) -> None:
        self._members.append(member)
        if self._end is None:
            self._end = self._changes.listen(self.name, self._hear)
            self._tasks.start(self._follow_config(), name=f"configuration of {self.name}")

    def leave(self, member: LiveRecord) -> None:
        self._members.remove(member)

    @property
    def empty(self) -> bool:
        return not self._members

    def _hear(self, message: ChangeMessage | None) -> None:
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


async def drop_service(connection: Connection, keys: RedisKeys, service: str) -> None:
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
