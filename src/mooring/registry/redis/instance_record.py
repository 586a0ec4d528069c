"""The record of an instance of this process on Redis: three tiers, kept by heartbeats."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from mooring.errors import StoreError, TooLarge
from mooring.messages import message
from mooring.model import NO_CONFIG, Config, Instance
from mooring.registry.contract import (
    InstanceRecord,
)
from mooring.registry.redis import layout
from mooring.registry.redis.errors import refused
from mooring.registry.redis.live_service import (
    Beat,
    LiveService,
    message_head,
)
from mooring.session import clock

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
        problem = metrics_too_large(instance, size, self._limit)
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


def metrics_too_large(instance: Instance, size: int, limit: int) -> TooLarge:
    return TooLarge(
        message(
            "metrics_over_limit",
            service=instance.service,
            id=instance.id,
            size=size,
            limit=limit,
        )
    )
