"""Registrations on Redis that send their heartbeats through any process."""

from __future__ import annotations

import contextlib
import logging

import msgspec

from mooring.errors import StoreError
from mooring.messages import message
from mooring.model import Instance, check_text
from mooring.registry.contract import (
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
from mooring.registry.redis.instance_record import metrics_too_large
from mooring.registry.redis.layout import RedisKeys, ServiceKeys
from mooring.registry.redis.live_service import (
    Beat,
    ServiceWriter,
    message_head,
)
from mooring.registry.redis.reader import Reader
from mooring.settings import RegistrySettings
from mooring.store.validation import check_ttl

log = logging.getLogger(__name__)


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
            raise metrics_too_large(instance, size, limit)
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


def _place(incarnation: str) -> str:
    """One place for all registrations of an incarnation: no process knows those of the others."""
    return f"{incarnation} remote"
