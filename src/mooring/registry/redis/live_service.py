"""A service on Redis while this process has registrations in it: the scripts that write it, batches
of heartbeats, and operator overrides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from mooring.errors import OutcomeUnknown, StoreError, Unavailable
from mooring.messages import Message, message
from mooring.model import Config, Instance
from mooring.registry.contract import removed, superseded
from mooring.registry.redis.connection import Argument, Connection
from mooring.registry.redis.layout import RedisKeys, ServiceKeys
from mooring.registry.redis.pipeline import DEREGISTER, HEARTBEAT, REGISTER
from mooring.registry.redis.pubsub import ChangeChannels, ChangeMessage
from mooring.registry.redis.reader import Reader
from mooring.tasks import Tasks, settle, wait_for

log = logging.getLogger(__name__)

_BATCH, _BATCH_CHARACTERS = 200, 400_000
"""Heartbeats per call, and characters of their metadata, so that a call takes far less than
10 ms."""

RECONCILE = 30.0
"""Seconds between two reads of the operator overrides, besides those after a message."""

KEPT = 86_400_000
"""Milliseconds for which Redis remembers an instance that an operator deregistered."""
_KEPT_OWN = 120_000
"""Milliseconds for which Redis remembers an instance that deregistered itself: longer than an
earlier registration can be in transit."""

_encode = msgspec.json.Encoder().encode


class Beat(NamedTuple):
    id: str
    incarnation: str
    registered: str
    """When this incarnation registered, as reported by the server."""
    healthy: bool | None
    """None: unchanged."""
    head: str
    fields: Mapping[str, str] = {}
    """Empty for a heartbeat without data."""

    def arguments(self) -> list[Argument]:
        healthy = "" if self.healthy is None else "true" if self.healthy else "false"
        identity: list[Argument] = [self.id, self.incarnation, self.registered, healthy]
        if not self.fields:
            return [*identity, 0]
        pairs = [part for pair in self.fields.items() for part in pair]
        return [*identity, 1 + len(pairs), self.head, *pairs]

    @property
    def size(self) -> int:
        """Characters of the data."""
        if not self.fields:
            return 0
        return len(self.head) + sum(len(name) + len(value) for name, value in self.fields.items())


class HeartbeatBatches:
    def __init__(self, writer: ServiceWriter) -> None:
        self._writer = writer
        self._waiting: list[tuple[Beat, asyncio.Future[str]]] = []
        self._sending = False
        self._tasks = Tasks()
        self._listing: asyncio.Task[object] | None = None

    async def beat(self, beat: Beat) -> str:
        """Returns `ok`, `gone`, `superseded`, or the error of the record."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((beat, answer))
        if not self._sending:
            self._sending = True
            self._tasks.start(self._send(), name=f"heartbeats of {self._writer.name}")
        return await answer

    async def _send(self) -> None:
        batch: list[tuple[Beat, asyncio.Future[str]]] = []
        try:
            while self._waiting:
                count = batch_size([beat for beat, _ in self._waiting[:_BATCH]])
                batch, self._waiting = self._waiting[:count], self._waiting[count:]
                beats = [beat for beat, _ in batch]
                try:
                    results = await self._writer.send(beats)
                except Exception as error:  # noqa: BLE001 - the callers get it
                    for _, answer in batch:
                        settle(answer, error)
                else:
                    for (_, answer), result in zip(batch, results, strict=True):
                        settle(answer, result)
                    if "ok" in results and self._writer.keys.cluster:
                        self._list()
        finally:
            self._sending = False
            for _, answer in (*batch, *self._waiting):
                answer.cancel()

    def _list(self) -> None:
        """On a cluster the scripts cannot reach tier 1: repair it in the background, because its
        node may be down."""
        if self._listing is None or self._listing.done():
            name = f"list of services for {self._writer.name}"
            self._listing = self._tasks.start(self._list_service(), name=name)

    async def _list_service(self) -> None:
        try:
            await self._writer.list_service()
        except StoreError as error:
            log.debug("%s: %s", self._writer.name, error)  # the next heartbeat retries

    async def aclose(self) -> None:
        await self._tasks.aclose()


def batch_size(beats: Sequence[Beat]) -> int:
    """The number of heartbeats in the next call; at least one."""
    characters = 0
    for count, beat in enumerate(beats):
        characters += beat.size
        if count and characters > _BATCH_CHARACTERS:
            return count
    return len(beats)


class ServiceWriter:
    """Runs the scripts that write a service."""

    def __init__(self, connection: Connection, keys: ServiceKeys) -> None:
        self.name, self.keys = keys.name, keys
        self._connection = connection

    async def register(
        self,
        instance: Instance,
        fields: Mapping[str, str],
        *,
        place: str,
        head: str,
        registered: str,
        fresh: bool,
        timeout: float,
        tried: float = 0.0,
        returns: bool = False,
    ) -> str:
        """Write the record. Returns when this incarnation registered. `tried`: the seconds since an
        earlier attempt, which may have succeeded. `timeout`: after that many seconds without a
        heartbeat, a predecessor counts as dead. `returns`: register again even after the instance
        left that place. Raises `Superseded`, `Removed`."""
        mode = "fresh" if fresh else "back" if returns else "repair"
        if fresh and tried:
            mode, registered = "again", str(int(tried * 1000))
        what = message("op_registration", service=self.name, id=instance.id)
        if self.keys.cluster:
            await self.list_service(what=what)
        reply: Any = await self._connection.run(
            REGISTER,
            self._tiers(instance.id),
            [
                mode,
                instance.id,
                instance.incarnation,
                place,
                registered,
                int(timeout * 1000),
                self.keys.changes,
                head,
                "true" if instance.status.healthy else "false",
                self.name,
                *(part for pair in fields.items() for part in pair),
            ],
            what=what,
        )
        if reply[0] == b"ok":
            registered_at: str = reply[1].decode()
            return registered_at
        if reply[0] == b"removed":
            raise removed(self.name, instance.id)
        raise superseded(self.name, instance.id)

    def _tiers(self, id: str) -> list[str]:
        keys = self.keys
        return [keys.heartbeats, keys.instance(id), keys.removed, keys.persistent, *keys.tier1]

    async def deregister(self, id: str, incarnation: str, *, head: str, place: str = "") -> bool:
        """Delete the record of this incarnation; without one, as an operator, of any. An earlier
        registration from the same `place` that arrives later does not restore it. Returns whether
        it was registered."""
        reply: Any = await self._connection.run(
            DEREGISTER,
            self._tiers(id),
            [
                id,
                incarnation,
                place,
                _KEPT_OWN if incarnation else KEPT,
                self.keys.changes,
                head,
                self.name,
            ],
            what=message("op_deregistration", service=self.name, id=id),
        )
        existed, empty = reply
        if empty and self.keys.cluster:
            await self.drop_service()
        return bool(existed)

    async def send(self, beats: Sequence[Beat]) -> list[str]:
        """Send heartbeats in one call. Returns for each what `HeartbeatBatches.beat` returns."""
        keys = self.keys
        instances = [keys.instance(beat.id) for beat in beats]
        arguments = [argument for beat in beats for argument in beat.arguments()]
        reply = await self._connection.run(
            HEARTBEAT,
            [keys.heartbeats, keys.persistent, *keys.tier1, *instances],
            [keys.changes, len(keys.tier1), keys.name, *arguments],
            what=message("op_heartbeat", service=keys.name, id=None),
        )
        return [part.decode() if isinstance(part, bytes) else str(part) for part in reply]

    async def list_service(self, *, what: Message | None = None) -> None:
        """Add the service to tier 1 on a cluster, where the scripts cannot reach it."""
        what = what or message("op_list", what=message("what_services"))
        await self._connection.call("SADD", self.keys.services, self.name, what=what, writes=True)

    async def drop_service(self) -> None:
        """Remove the service, which has no instances, from tier 1 on a cluster. An instance that
        registers later adds it again; if one registered just before, this does."""
        what = message("op_delist", service=self.name)
        await self._connection.call("SREM", self.keys.services, self.name, what=what, writes=True)
        if await self._connection.call("EXISTS", self.keys.heartbeats, what=what):
            await self.list_service(what=what)


class LiveRecord(Protocol):
    """The record of an instance that is registered here."""

    id: str

    def notify(self) -> None:
        """The operator overrides changed."""

    async def verify(self) -> None:
        """Check that the record still exists."""


class LiveService(ServiceWriter):
    """What the registrations of one service share: channel, operator overrides and heartbeats."""

    def __init__(
        self,
        connection: Connection,
        keys: RedisKeys,
        channels: ChangeChannels,
        service: str,
        *,
        timeout: float,
    ) -> None:
        super().__init__(connection, keys.of(service))
        self.timeout = timeout
        self.config: Mapping[str, Config] = {}
        self.heartbeats = HeartbeatBatches(self)
        self._channels = channels
        self._records: list[LiveRecord] = []
        self._reader = Reader(connection)
        self._tasks = Tasks()
        self._subscribed = False
        self._unsubscribe: Callable[[], None] | None = None
        self._config_due = asyncio.Event()

    def join(self, record: LiveRecord) -> None:
        self._records.append(record)
        if self._unsubscribe is None:
            self._unsubscribe = self._channels.subscribe(self.name, self._on_message)
            self._tasks.start(self._follow_config(), name=f"configuration of {self.name}")

    def leave(self, record: LiveRecord) -> None:
        self._records.remove(record)

    @property
    def empty(self) -> bool:
        return not self._records

    def _on_message(self, message: ChangeMessage | None) -> None:
        if message is None:
            if self._subscribed:  # there was a break
                for record in self._records:
                    self._verify(record)
            self._subscribed = True
            self._config_due.set()
        elif message.action == "updated":
            self._config_due.set()
        elif message.action == "removed":
            for record in self._records:
                if record.id == message.instance_id:  # or its predecessor
                    self._verify(record)

    def _verify(self, record: LiveRecord) -> None:
        self._tasks.start(record.verify(), name=f"check of a record of {self.name}")

    async def _follow_config(self) -> None:
        problem = ""
        while True:
            await wait_for(self._config_due, within=RECONCILE)
            self._config_due.clear()
            try:
                state = await self._reader.state(self.keys)
            except StoreError as error:
                # If Redis is unavailable, the heartbeats report it.
                if not isinstance(error, Unavailable | OutcomeUnknown) and str(error) != problem:
                    problem = str(error)
                    log.warning("%s: operator overrides cannot be read: %s", self.name, problem)
                continue
            problem = ""
            if state.config != self.config:
                self.config = state.config
                for record in tuple(self._records):
                    record.notify()

    async def aclose(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        await self._tasks.aclose()
        await self.heartbeats.aclose()


def message_head(service: str, id: str, instance: Instance | None = None) -> str:
    """The JSON of a change message without its end: the scripts append the action and the time."""
    fields: dict[str, object] = {"serviceName": service, "instanceId": id, "instance": None}
    if instance is not None:
        fields["instance"] = {
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
    return _encode(fields).decode()[:-1]
