"""The change channels: one connection that subscribes to those of all followed services.

Messages are hints, because pub/sub does not deliver to absent subscribers. A listener is notified
when a subscription begins, also after each break, and reads the state then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec
from redis import exceptions as driver

from mooring.errors import StoreError
from mooring.messages import message
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.errors import LOST, code_of
from mooring.registry.redis.layout import RedisKeys
from mooring.tasks import Backoff, Tasks

log = logging.getLogger(__name__)

PING = 1.5
"""Seconds of silence after which the connection sends a PING."""

STALL = 1.0
"""Seconds without an answer after which Redis counts as stopped: heartbeats may be missing because
of that."""


class ChangeMessage(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A change of an instance; `instance_id` is empty for a change of the service. The action is
    `added`, `removed`, `updated`, `health_recovery` or `health_failure`."""

    service_name: str = ""
    instance_id: str = ""
    action: str = "updated"
    timestamp: int = 0


ChangeListener = Callable[[ChangeMessage | None], None]
"""Called with a message, or with None when the subscription begins. It must not block."""

_decode = msgspec.json.Decoder(ChangeMessage).decode


class ChangeChannels:
    def __init__(self, connection: Connection, keys: RedisKeys) -> None:
        self._connection, self._keys = connection, keys
        self._listeners: dict[str, list[ChangeListener]] = {}
        self.heard = 0.0
        """When the server last sent anything, on the monotonic clock."""
        self._wake = asyncio.Event()
        self._subscribed: set[str] = set()
        self._tasks = Tasks()
        self._started = self._closed = False
        self._pinged = 0.0
        """When the oldest unanswered PING was sent."""
        self._breaks = 0
        self._forbidden = False
        """Whether a missing permission to subscribe was logged."""

    @property
    def breaks(self) -> int:
        """The number of broken connections and stops so far. If it has changed, instances may be
        overdue because of that."""
        stalls = bool(self._pinged) and time.monotonic() - self._pinged > STALL
        return self._breaks + stalls

    def hears(self, service: str) -> bool:
        """Whether messages about a service arrive now."""
        return self._keys.of(service).changes in self._subscribed

    def subscribe(self, service: str, listener: ChangeListener) -> Callable[[], None]:
        """Subscribe to a service. Returns a function that unsubscribes."""
        channel = self._keys.of(service).changes
        self._listeners.setdefault(channel, []).append(listener)
        if not self._started:
            self._started = True
            self._tasks.start(self._run(), name=f"changes at {self._connection.where}")
        self._wake.set()
        if channel in self._subscribed:
            listener(None)

        def unsubscribe() -> None:
            with contextlib.suppress(KeyError, ValueError):
                self._listeners[channel].remove(listener)
                if not self._listeners[channel]:
                    del self._listeners[channel]
                    self._wake.set()

        return unsubscribe

    async def _run(self) -> None:
        backoff = Backoff()
        while not self._closed:
            try:
                client = await self._connection.listener()
                pool: Any = client.connection_pool
                connection: Any = pool.make_connection()  # outside the pool: it is not shared
                heard = self.heard
                try:
                    await connection.connect()
                    await self._listen(connection)
                finally:
                    if self.heard > heard:
                        backoff.reset()
                    self._subscribed = set()
                    await connection.disconnect(nowait=True)
                    if self._connection.cluster:
                        with contextlib.suppress(driver.RedisError, OSError):
                            await client.aclose()
            except (*LOST, StoreError) as error:
                log.debug("changes at %s: %s", self._connection.where, error)
            await asyncio.sleep(backoff.next())

    async def _listen(self, connection: Any) -> None:
        requested: set[str] = set()
        reading = Tasks()
        try:
            task = reading.start(self._read(connection), name="read changes")
            # A cancellation can be lost: in Python 3.11 by `asyncio.wait_for`, in the driver.
            while not task.done() and not self._closed:
                self._wake.clear()
                channels = set(self._listeners)
                if new := channels - requested:
                    await connection.send_command("SUBSCRIBE", *new)
                if old := requested - channels:
                    await connection.send_command("UNSUBSCRIBE", *old)
                    self._subscribed -= old
                requested = channels
                waiting = reading.start(self._wake.wait(), name="wait for listeners")
                done, _ = await asyncio.wait(
                    [task, waiting], timeout=PING, return_when=asyncio.FIRST_COMPLETED
                )
                waiting.cancel()
                if not done and requested:
                    if self._pinged and time.monotonic() - self._pinged > 2 * PING:
                        raise driver.TimeoutError(message("redis_no_pong"))
                    await connection.send_command("PING")
                    self._pinged = self._pinged or time.monotonic()
        finally:
            self._pinged = 0.0
            self._breaks += bool(self._subscribed)
            await reading.aclose()

    async def _read(self, connection: Any) -> None:
        """Read until the connection breaks."""
        try:
            while True:
                reply = await connection.read_response(timeout=float("inf"), push_request=True)
                self._breaks, self._pinged = self.breaks, 0.0
                self.heard = time.monotonic()
                self._process(reply)
        except LOST as error:
            # Count it at once: a feed may ask before `_listen` notices.
            self._breaks += bool(self._subscribed)
            if code_of(error) == "NOPERM" and not self._forbidden:
                self._forbidden = True
                log.warning(
                    "no permission to subscribe to changes at %s: services are read every few "
                    "seconds instead: %s",
                    self._connection.where,
                    error,
                )
            log.debug("changes at %s: %s", self._connection.where, error)

    def _process(self, reply: Any) -> None:
        if not isinstance(reply, list | tuple) or len(reply) < 3:
            return  # an answer to PING
        kind, channel = reply[0], reply[1].decode() if reply[1] else ""
        if kind == b"subscribe":
            self._subscribed.add(channel)
            self._notify(channel, None)
        elif kind == b"message":
            try:
                message = _decode(reply[2])
            except (ValueError, RecursionError):
                log.warning("%s: a message cannot be read, so the service is read again", channel)
                message = ChangeMessage()
            self._notify(channel, message)

    def _notify(self, channel: str, message: ChangeMessage | None) -> None:
        for listener in tuple(self._listeners.get(channel, ())):
            try:
                listener(message)
            except Exception:
                log.exception("%s: a listener failed", channel)

    async def aclose(self) -> None:
        self._closed = True
        self._wake.set()
        await self._tasks.aclose()
