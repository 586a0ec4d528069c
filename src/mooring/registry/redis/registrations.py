"""Registrations on Redis: the record of an instance of this process, and the registrations that
send their heartbeats through any process."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from mooring.errors import StoreError, TooLarge
from mooring.messages import message
from mooring.model import NO_CONFIG, Config, Instance, check_text
from mooring.registry.contract import (
    InstanceRecord,
    Registrar,
    RemoteRegistrar,
    RemoteRegistration,
    StatusReport,
    check_incarnation,
    removed,
    superseded,
)
from mooring.registry.redis import layout
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.errors import refused
from mooring.registry.redis.layout import RedisKeys, ServiceKeys
from mooring.registry.redis.live_service import (
    Beat,
    LiveService,
    ServiceWriter,
    message_head,
)
from mooring.registry.redis.reader import Reader
from mooring.session import clock
from mooring.settings import RegistrySettings
from mooring.store.validation import check_ttl

log = logging.getLogger(__name__)


class RedisInstanceRecord(InstanceRecord):
    """`limit`: the bytes that its metadata and metrics may have."""

    def __init__(
        self,
        service: LiveService,
        instance: Instance,
        *,
        limit: int,
        leave: Callable[[], Awaitable[None]],
    ) -> None:
        self.disturbed = False
        self._service, self._leave, self._limit = service, leave, limit
        self.id, self._incarnation = instance.id, instance.incarnation
        self._place = f"{instance.incarnation} {secrets.token_hex(4)}"
        self._head = message_head(service.name, instance.id, instance)
        self._tried = 0.0
        """When it was first written; 0: never."""
        self._registered = ""
        self._entered = False
        """Whether it was registered, and has not left since."""
        self._beaten = 0.0
        """When the last acknowledged heartbeat was sent, on the session's clock."""
        self.notify: Callable[[], None] = lambda: None
        self._too_large = self._in_doubt = ""
        self._metadata: Mapping[str, str] | None = None
        """The last metadata within the limit."""

    @property
    def suspended(self) -> str:
        return self._in_doubt

    @property
    def expired(self) -> bool:
        return self._entered and clock() - self._beaten > self._service.timeout

    @property
    def config(self) -> Config:
        overrides = self._service.config
        return overrides.get(self.id, NO_CONFIG).over(overrides.get("", NO_CONFIG))

    def open(self, changed: Callable[[], None]) -> None:
        self.notify = changed
        self._service.join(self)

    async def aclose(self, *, within: float) -> None:
        self._service.leave(self)
        await self._leave()

    async def verify(self) -> None:
        """Check that the record still exists: it may have been removed."""
        if not self._entered or self.disturbed:
            return
        exists, doubt = True, ""
        try:
            # Without the health: an update of it may be in transit.
            exists = await self._beat(self._beat_of(None))
        except StoreError as error:
            doubt = str(error)
        if not exists or doubt != self._in_doubt:
            self._in_doubt = doubt
            self.notify()

    async def put(self, instance: Instance, *, fresh: bool) -> None:
        fields = self._fields(instance)
        self.disturbed = False
        self._head = message_head(self._service.name, self.id, instance)
        moment, sent = time.monotonic(), clock()
        self._tried = self._tried or moment
        self._registered = await self._service.register(
            instance,
            fields,
            place=self._place,
            head=self._head,
            registered=self._registered,
            fresh=fresh,
            timeout=self._service.timeout,
            tried=moment - self._tried,
        )
        self._entered, self._beaten = True, sent
        self._clear_doubt()

    async def beat(self, instance: Instance, *, update: bool) -> None:
        if update:
            self._head = message_head(self._service.name, self.id, instance)
        await self._beat(self._beat_of(instance, self._fields(instance) if update else None))
        self._clear_doubt()

    def _clear_doubt(self) -> None:
        if self._in_doubt:
            self._in_doubt = ""
            self.notify()

    def _beat_of(self, instance: Instance | None, fields: dict[str, str] | None = None) -> Beat:
        """Without an instance, a heartbeat that leaves the health unchanged."""
        return Beat(
            self.id,
            self._incarnation,
            self._registered,
            None if instance is None else instance.status.healthy,
            self._head,
            fields or {},
        )

    async def _beat(self, beat: Beat) -> bool:
        """Returns whether the record exists and belongs to this incarnation."""
        sent = clock()
        result = await self._service.heartbeats.beat(beat)
        if result == "ok":
            self._beaten = sent
            return True
        if result not in ("gone", "superseded"):
            what = message("op_heartbeat", service=self._service.name, id=self.id)
            raise refused(result, what=what, key=self._service.keys.instance(self.id))
        self.disturbed = True  # `put` detects whether a successor is alive
        return False

    def _fields(self, instance: Instance) -> dict[str, str]:
        """The fields to write. If they are too large, without the metrics, and if necessary with
        the last metadata within the limit: the heartbeat matters more."""
        fields = layout.encode(instance)
        if (size := layout.size(fields)) <= self._limit:
            self._too_large, self._metadata = "", instance.metadata
            return fields
        problem = _too_large(instance, size, self._limit)
        status = msgspec.structs.replace(instance.status, metrics={})
        instance = msgspec.structs.replace(instance, status=status)
        fields, left_out = layout.encode(instance), "no metrics are sent"
        if layout.size(fields) <= self._limit:
            self._metadata = instance.metadata
        elif self._metadata is None:
            raise problem
        else:
            fields = layout.encode(msgspec.structs.replace(instance, metadata=self._metadata))
            left_out = "the metadata stays as it was, and no metrics are sent"
        if self._too_large != left_out:
            log.warning("%s: %s", problem, left_out)
            self._too_large = left_out
        return fields

    async def withdraw(self) -> None:
        if self._tried:  # even if the reply was lost
            await self._service.deregister(
                self.id, self._incarnation, head=self._head, place=self._place
            )
        self._entered = False


class RedisRemoteRegistrations(Registrar, RemoteRegistrar):
    """Registrations whose whole state is in Redis."""

    connection: Connection
    keys: RedisKeys
    reader: Reader
    settings: RegistrySettings

    async def enter(self, instance: Instance, *, ttl: float | None = None) -> RemoteRegistration:
        """On Redis the TTL is the timeout of cleanup, whatever `ttl` requests."""
        if ttl is not None:
            check_ttl(ttl)
        returns, timeout = bool(instance.incarnation), self.settings.cleanup.global_timeout
        instance, lost = self.prepare(instance)
        keys, fields = self.keys.of(instance.service), layout.encode(instance)
        stored = await self._stored(keys, instance.id, instance.incarnation) if returns else None
        if stored is not None and stored.status.metrics:
            status = msgspec.structs.replace(instance.status, metrics=stored.status.metrics)
            complete = layout.encode(msgspec.structs.replace(instance, status=status))
            limit = self.settings.redis.metadata_limit
            fields = complete if layout.size(complete) <= limit else fields
        await ServiceWriter(self.connection, keys).register(
            instance,
            fields,
            place=_place(instance.incarnation),
            head=message_head(instance.service, instance.id, instance),
            registered="",
            fresh=not returns,
            timeout=timeout,
            returns=returns,
        )
        every = self.settings.heartbeat.heartbeat_interval
        return RemoteRegistration(instance, timeout, every, tuple(lost))

    async def _stored(self, keys: ServiceKeys, id: str, incarnation: str) -> Instance | None:
        """The record of this incarnation, if it exists."""
        stored = (await self.reader.details(keys, [id])).instances.get(id)
        return stored if stored is not None and stored.incarnation == incarnation else None

    async def _beat(self, service: str, id: str, incarnation: str, report: StatusReport) -> bool:
        check_text("id", id)
        keys = self.keys.of(service)
        beat = Beat(id, incarnation, "", None, "")
        stored = None if report.empty else await self._stored(keys, id, incarnation)
        if stored is not None:
            beat = self._beat_with(stored, report)
        writer = ServiceWriter(self.connection, keys)
        (result,) = await writer.send([beat])
        if result == "ok":
            if keys.cluster:
                with contextlib.suppress(StoreError):  # the next heartbeat retries
                    await writer.list_service()
            return True
        if result == "superseded":
            if await self._is_alive(keys, id):
                raise superseded(service, id)
        elif result != "gone":
            what = message("op_heartbeat", service=service, id=id)
            raise refused(result, what=what, key=keys.instance(id))
        if await self._was_removed(keys, f"{id} {incarnation}"):
            raise removed(service, id)
        return False

    def _beat_with(self, instance: Instance, report: StatusReport) -> Beat:
        status = report.over(instance.status)
        instance = msgspec.structs.replace(instance, status=status)
        fields = layout.encode(instance)
        if (size := layout.size(fields)) > (limit := self.settings.redis.metadata_limit):
            raise _too_large(instance, size, limit)
        head = message_head(instance.service, instance.id, instance)
        return Beat(instance.id, instance.incarnation, "", status.healthy, head, fields)

    async def _score(self, keys: ServiceKeys, key: str, member: str) -> float:
        what = message("op_read", key=keys.name)
        return float(await self.connection.call("ZSCORE", key, member, what=what) or 0)

    async def _is_alive(self, keys: ServiceKeys, id: str) -> bool:
        """Whether the instance with this id sent a heartbeat within the timeout."""
        score = await self._score(keys, keys.heartbeats, id)
        timeout = self.settings.cleanup.global_timeout * 1000
        return score > (await self.reader.state(keys)).now - timeout

    async def _was_removed(self, keys: ServiceKeys, member: str) -> bool:
        """Whether Redis remembers that an operator deregistered the instance."""
        until = await self._score(keys, keys.removed, member)
        return until > (await self.reader.state(keys)).now

    async def leave(self, service: str, id: str, incarnation: str) -> bool:
        writer = ServiceWriter(self.connection, self.keys.of(service))
        check_incarnation(service, id, incarnation)
        check_text("id", id)
        head = message_head(service, id)
        return await writer.deregister(id, incarnation, head=head, place=_place(incarnation))


def _too_large(instance: Instance, size: int, limit: int) -> TooLarge:
    return TooLarge(
        message(
            "metrics_over_limit",
            service=instance.service,
            id=instance.id,
            size=size,
            limit=limit,
        )
    )


def _place(incarnation: str) -> str:
    """One place for all registrations of an incarnation: no process knows those of the others."""
    return f"{incarnation} remote"
