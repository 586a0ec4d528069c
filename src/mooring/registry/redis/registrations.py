"""One instance's place in the registry on Redis: registered, kept alive by beats, registered again
when a beat finds its record gone."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from mooring.errors import StoreError, TooLarge
from mooring.model import JSON, NO_CONFIG, Config, Instance, check_text
from mooring.registry.contract import (
    InstanceRecord,
    StatusReport,
    check_incarnation,
    removed,
    superseded,
)
from mooring.registry.redis import layout as fields
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.errors import refused
from mooring.registry.redis.layout import RedisKeys, ServiceKeys
from mooring.registry.redis.live_service import Beat, LiveService, message_head, send
from mooring.registry.redis.reader import Reader
from mooring.session import clock

log = logging.getLogger(__name__)


class RedisInstanceRecord(InstanceRecord):
    def __init__(
        self,
        service: LiveService,
        instance: Instance,
        *,
        most: int,
        leave: Callable[[], Awaitable[None]],
    ) -> None:
        self.disturbed = False
        self._service, self._leave, self._most = service, leave, most
        self.id, self._incarnation = instance.id, instance.incarnation
        self._place = f"{instance.incarnation} {secrets.token_hex(4)}"
        self._head = service.head(instance.id, instance)
        self._tried = 0.0
        """When it was first to be written; 0: it never was."""
        self._registered = ""
        self._entered = False
        """It was registered, and has not left since."""
        self._beaten = 0.0
        """When the last heartbeat that Redis answered was sent, on the session's clock."""
        self._callbacks: list[Callable[[], None]] = []
        self._too_large = self._in_doubt = ""
        self._metadata: Mapping[str, str] | None = None
        """The last that was not too large."""

    @property
    def suspended(self) -> str:
        return self._in_doubt

    @property
    def expired(self) -> bool:
        return self._entered and clock() - self._beaten > self._service.timeout

    @property
    def config(self) -> Config:
        told = self._service.config
        return told.get(self.id, NO_CONFIG).over(told.get("", NO_CONFIG))

    def subscribe(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def _tell(self) -> None:
        for callback in self._callbacks:
            callback()

    def open(self) -> None:
        self._service.join(self)

    async def aclose(self, *, within: float) -> None:
        self._service.leave(self)
        await self._leave()

    def configured(self) -> None:
        """The operator's word is another than before."""
        self._tell()

    async def look(self) -> None:
        """Is the record still there? Something was said of it, or may have been during a break."""
        if not self._entered or self.disturbed:
            return
        stands, doubt = True, ""
        try:
            # An update may be under way: whether it is healthy is not for this to say.
            stands = await self._beat(self._as_beat(None))
        except StoreError as error:
            doubt = str(error)
        if not stands or doubt != self._in_doubt:
            self._in_doubt = doubt
            self._tell()

    async def put(self, instance: Instance, *, fresh: bool) -> None:
        told = self._fields(instance)
        self.disturbed = False
        self._head = self._service.head(self.id, instance)
        moment, sent = time.monotonic(), clock()
        self._tried = self._tried or moment
        self._registered = await self._service.register(
            *(instance, told),
            place=self._place,
            head=self._head,
            registered=self._registered,
            fresh=fresh,
            tried=moment - self._tried,
        )
        self._entered, self._beaten = True, sent
        self._certain()

    async def beat(self, instance: Instance, *, update: bool) -> None:
        if update:
            self._head = self._service.head(self.id, instance)
        await self._beat(self._as_beat(instance, self._fields(instance) if update else None))
        self._certain()

    def _certain(self) -> None:
        if self._in_doubt:
            self._in_doubt = ""
            self._tell()

    def _as_beat(self, instance: Instance | None, told: dict[str, str] | None = None) -> Beat:
        """Without an instance it says nothing but that there is one."""
        return Beat(
            self.id,
            self._incarnation,
            self._registered,
            None if instance is None else instance.status.healthy,
            self._head,
            told or {},
        )

    async def _beat(self, beat: Beat) -> bool:
        """Whether the record still stands as ours."""
        sent = clock()
        result = await self._service.beating.beat(beat)
        if result == "ok":
            self._beaten = sent
            return True
        if result not in ("gone", "superseded"):
            what = f"heartbeat of {self._service.name} {self.id}"
            raise refused(result, what=what, key=self._service.key_of(self.id))
        self.disturbed = True  # `put` finds out whether a successor lives
        return False

    def _fields(self, instance: Instance) -> dict[str, str]:
        """What is written; without the metrics where they are too large, and with the last metadata
        that was not, since a sign of life matters more."""
        told = fields.encode(instance)
        if (size := fields.size(told)) <= self._most:
            self._too_large, self._metadata = "", instance.metadata
            return told
        problem = f"{size} bytes of metadata and metrics are over the limit of {self._most}"
        status = msgspec.structs.replace(instance.status, metrics={})
        instance = msgspec.structs.replace(instance, status=status)
        told, left_out = fields.encode(instance), "no metrics are sent"
        if fields.size(told) <= self._most:
            self._metadata = instance.metadata
        elif self._metadata is None:
            raise TooLarge(f"{self._service.name} {self.id}: {problem}: say less, or raise it")
        else:
            told = fields.encode(msgspec.structs.replace(instance, metadata=self._metadata))
            left_out = "the metadata stays as it was, and no metrics are sent"
        if self._too_large != left_out:
            log.warning("%s %s: %s: %s", self._service.name, self.id, problem, left_out)
            self._too_large = left_out
        return told

    async def withdraw(self) -> None:
        if self._tried:  # whether or not that was answered
            await self._service.deregister(
                self.id, self._incarnation, head=self._head, place=self._place
            )
        self._entered = False


class RedisRemoteRegistrations:
    """`timeout`: seconds without a heartbeat after which an instance counts as dead; `most`: bytes
    of what it may say of itself."""

    def __init__(
        self, connection: Connection, keys: RedisKeys, reader: Reader, *, timeout: float, most: int
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
        if not report.empty:
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
