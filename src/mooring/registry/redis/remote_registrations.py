"""Registrations on Redis whose beats come from elsewhere, through any process: all that is known of
them stands in Redis."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

import msgspec

from mooring.errors import StoreError, TooLarge
from mooring.model import JSON, Instance, check_text
from mooring.registry.contract import removed, superseded
from mooring.registry.kv.remote_registrations import StatusReport, check_incarnation
from mooring.registry.redis import codec as fields
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.errors import refused
from mooring.registry.redis.keys import Keys, ServiceKeys
from mooring.registry.redis.live_service import Beat, LiveService, message_head, send
from mooring.registry.redis.reader import Reader

log = logging.getLogger(__name__)


class RedisRemoteRegistrations:
    """`timeout`: seconds without a heartbeat after which an instance counts as dead; `most`: bytes
    of what it may say of itself."""

    def __init__(
        self, connection: Connection, keys: Keys, reader: Reader, *, timeout: float, most: int
    ) -> None:
        self._connection, self._keys, self._reader = connection, keys, reader
        self._timeout, self._most = timeout, most

    async def enter(self, live: LiveService, instance: Instance, *, back: bool) -> None:
        """`instance` was prepared. `back`: it comes back as what it was, also where it had left."""
        told = fields.encode(instance)
        if back and (kept := await self._metrics(instance)):
            status = msgspec.structs.replace(instance.status, metrics=kept)
            whole = fields.encode(msgspec.structs.replace(instance, status=status))
            told = whole if fields.size(whole) <= self._most else told
        await live.register(
            *(instance, told),
            place=_place(instance.incarnation),
            head=live.head(instance.id, instance),
            registered="",
            fresh=not back,
            returns=back,
        )

    async def _metrics(self, instance: Instance) -> Mapping[str, JSON]:
        """What it report last, if it is still there."""
        keys = self._keys.of(instance.service)
        held = (await self._reader.details(keys, [instance.id])).instances.get(instance.id)
        if held is None or held.incarnation != instance.incarnation:
            return {}
        return held.status.metrics

    async def beat(self, service: str, id: str, incarnation: str, report: StatusReport) -> bool:
        """Whether it is still registered."""
        check_incarnation(service, id, incarnation)
        check_text("id", id)
        report.check(service)
        keys = self._keys.of(service)
        beat = Beat(id, incarnation, "", None, "")
        if not report.nothing:
            instance = (await self._reader.details(keys, [id])).instances.get(id)
            if instance is not None and instance.incarnation == incarnation:
                beat = self._update(instance, report)
        (result,) = await send(self._connection, self._keys, keys, [beat])
        if result == "ok":
            await self._list(service)
            return True
        if result == "superseded":
            if await self._lives(keys, id):
                raise superseded(service, id)
        elif result != "gone":
            raise refused(result, what=f"heartbeat of {service} {id}", key=keys.instance(id))
        if await self._remembered(keys, f"{id} {incarnation}"):
            raise removed(service, id)
        return False

    def _update(self, instance: Instance, report: StatusReport) -> Beat:
        status = report.over(instance.status)
        instance = msgspec.structs.replace(instance, status=status)
        told = fields.encode(instance)
        if (size := fields.size(told)) > self._most:
            raise TooLarge(
                f"{instance.service} {instance.id}: {size} bytes of metadata and metrics are over "
                f"the limit of {self._most}: say less"
            )
        head = message_head(instance.service, instance.id, instance)
        return Beat(instance.id, instance.incarnation, "", status.healthy, head, told)

    async def _list(self, service: str) -> None:
        """On a cluster tier 1 lies elsewhere: whoever has a record puts it right."""
        if self._keys.cluster:
            with contextlib.suppress(StoreError):  # the next beat tries again
                await self._connection.call(
                    *("SADD", self._keys.services, service), what="list of services", writes=True
                )

    async def _lives(self, keys: ServiceKeys, id: str) -> bool:
        """Whether whoever has a place gave a sign of life in time."""
        score = await self._connection.call(
            "ZSCORE", keys.heartbeats, id, what=f"read of {keys.name}"
        )
        now = (await self._reader.state(keys)).now
        return score is not None and float(score) > now - self._timeout * 1000

    async def _remembered(self, keys: ServiceKeys, member: str) -> bool:
        """Whether an operator took it out, and that is not forgotten."""
        until = await self._connection.call(
            "ZSCORE", keys.removed, member, what=f"read of {keys.name}"
        )
        return until is not None and float(until) > (await self._reader.state(keys)).now

    async def leave(self, live: LiveService, id: str, incarnation: str) -> bool:
        """Whether it was there."""
        check_incarnation(live.name, id, incarnation)
        check_text("id", id)
        return await live.deregister(id, incarnation, head=live.head(id), place=_place(incarnation))


def _place(incarnation: str) -> str:
    """One for all registrations of an incarnation: no process knows of the others' places."""
    return f"{incarnation} remote"
