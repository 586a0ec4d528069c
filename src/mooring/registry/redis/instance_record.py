"""One instance's place in the registry on Redis: registered, kept alive by beats, registered again
when a beat finds its record gone."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from mooring.errors import StoreError, TooLarge
from mooring.model import NO_CONFIG, Config, Instance
from mooring.registry.contract import InstanceRecord
from mooring.registry.redis import codec as fields
from mooring.registry.redis.errors import refused
from mooring.registry.redis.live_service import Beat, LiveService
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
