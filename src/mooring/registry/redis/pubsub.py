"""The change channels: one connection that hears those of all services that somebody here follows.

Messages are hints, since pub/sub loses what is sent while nobody listens. Whoever listens is told
when a channel begins to be heard, also after each break, and reads then for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from redis import exceptions as driver
from redis.asyncio import Redis

from mooring.errors import StoreError
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.errors import LOST, code_of
from mooring.registry.redis.layout import RedisKeys
from mooring.tasks import Backoff, Tasks

log = logging.getLogger(__name__)

PING = 1.5
"""Seconds of silence after which the server is asked for a sign of life."""

STALL = 1.0
"""Seconds without an answer after which Redis stood still, and beats may be missing for it."""

Action = Literal["added", "removed", "updated", "health_recovery", "health_failure"]


class ChangeMessage(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What happened, as it is told. `instance_id` is empty where it concerns the service."""

    service_name: str = ""
    instance_id: str = ""
    action: str = "updated"
    timestamp: int = 0


Listener = Callable[[ChangeMessage | None], None]
"""Called with a message, or with None when the channel begins to be heard. It must not block."""

_decode = msgspec.json.Decoder(ChangeMessage).decode


class ChangeChannels:
    def __init__(self, connection: Connection, keys: RedisKeys) -> None:
        self._connection, self._keys = connection, keys
        self._listeners: dict[str, list[Listener]] = {}
        self._heard = 0.0
        self._wake = asyncio.Event()
        self._hearing: set[str] = set()
        self._tasks = Tasks()
        self._started = self._closed = False
        self._asked = 0.0
        """When the oldest ping was sent that has no answer yet."""
        self._breaks = 0
        self._deaf = False
        """It was told that changes may not be heard here."""

    @property
    def breaks(self) -> int:
        """How often it broke off or stood still so far: a number that is another than before says
        that who is overdue may be so for that reason."""
        stalls = bool(self._asked) and time.monotonic() - self._asked > STALL
        return self._breaks + stalls

    @property
    def heard(self) -> float:
        """When the server last said anything here, on the monotonic clock."""
        return self._heard

    def hears(self, service: str) -> bool:
        """Whether messages about a service arrive at present."""
        return self._keys.of(service).changes in self._hearing

    def listen(self, service: str, listener: Listener) -> Callable[[], None]:
        """Hear of a service; what is returned ends it."""
        channel = self._keys.of(service).changes
        self._listeners.setdefault(channel, []).append(listener)
        if not self._started:
            self._started = True
            self._tasks.start(self._run(), name=f"changes at {self._connection.where}")
        self._wake.set()
        if channel in self._hearing:
            listener(None)

        def end() -> None:
            with contextlib.suppress(KeyError, ValueError):
                self._listeners[channel].remove(listener)
                if not self._listeners[channel]:
                    del self._listeners[channel]
                    self._wake.set()

        return end

    async def _run(self) -> None:
        backoff = Backoff()
        while not self._closed:
            try:
                client = await self._connection.listener()
                pool: Any = client.connection_pool
                connection: Any = pool.make_connection()  # not the pool's: nobody else gets it
                heard = self._heard
                try:
                    await connection.connect()
                    await self._hear(connection)
                finally:
                    if self._heard > heard:
                        backoff.reset()
                    self._hearing = set()
                    await connection.disconnect(nowait=True)
                    if self._connection.cluster:
                        await _close(client)
            except (*LOST, StoreError) as error:
                log.debug("changes at %s: %s", self._connection.where, error)
            await asyncio.sleep(backoff.next())

    async def _hear(self, connection: Any) -> None:
        asked: set[str] = set()
        reading = Tasks()
        try:
            task = reading.start(self._read(connection), name="hear changes")
            # A cancellation can be lost: in Python 3.11 `asyncio.wait_for` does it, in the driver.
            while not task.done() and not self._closed:
                self._wake.clear()
                wanted = set(self._listeners)
                if new := wanted - asked:
                    await connection.send_command("SUBSCRIBE", *new)
                if old := asked - wanted:
                    await connection.send_command("UNSUBSCRIBE", *old)
                    self._hearing -= old
                asked = wanted
                waiting = reading.start(self._wake.wait(), name="wait for listeners")
                done, _ = await asyncio.wait(
                    [task, waiting], timeout=PING, return_when=asyncio.FIRST_COMPLETED
                )
                waiting.cancel()
                if not done and asked:
                    if self._asked and time.monotonic() - self._asked > 2 * PING:
                        raise driver.TimeoutError("it has gone silent")
                    await connection.send_command("PING")
                    self._asked = self._asked or time.monotonic()
        finally:
            self._asked = 0.0
            self._breaks += bool(self._hearing)
            await reading.aclose()

    async def _read(self, connection: Any) -> None:
        """Hear until the connection breaks."""
        try:
            while True:
                reply = await connection.read_response(timeout=float("inf"), push_request=True)
                self._breaks, self._asked = self.breaks, 0.0
                self._heard = time.monotonic()
                self._take(reply)
        except LOST as error:
            # At once: others may ask before this is noticed elsewhere.
            self._breaks += bool(self._hearing)
            if code_of(error) == "NOPERM" and not self._deaf:
                self._deaf = True
                log.warning(
                    "changes at %s are not heard, services are looked at every few seconds: %s",
                    *(self._connection.where, error),
                )
            log.debug("changes at %s: %s", self._connection.where, error)

    def _take(self, reply: Any) -> None:
        if not isinstance(reply, list | tuple) or len(reply) < 3:
            return  # an answer to PING
        kind, channel = reply[0], reply[1].decode() if reply[1] else ""
        if kind == b"subscribe":
            self._hearing.add(channel)
            self._tell(channel, None)
        elif kind == b"message":
            try:
                message = _decode(reply[2])
            except (ValueError, RecursionError):
                log.warning("%s: a message cannot be read: the service is looked at", channel)
                message = ChangeMessage()
            self._tell(channel, message)

    def _tell(self, channel: str, message: ChangeMessage | None) -> None:
        for listener in tuple(self._listeners.get(channel, ())):
            try:
                listener(message)
            except Exception:
                log.exception("%s: a listener failed", channel)

    async def aclose(self) -> None:
        self._closed = True
        self._wake.set()
        await self._tasks.aclose()


async def _close(client: Redis) -> None:
    with contextlib.suppress(driver.RedisError, OSError):
        await client.aclose()
