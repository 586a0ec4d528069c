"""Heartbeats of the instances of one service: those of one moment go in one call.

While a call is under way, further beats wait for the next one: a process with a thousand instances
sends few and full calls, and a single beat waits for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mooring.errors import StoreError
from mooring.registry.redis.connection import Argument, Connection
from mooring.registry.redis.keys import Keys, ServiceKeys
from mooring.registry.redis.pipeline import HEARTBEAT
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
    def __init__(self, connection: Connection, keys: Keys, service: ServiceKeys) -> None:
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
    connection: Connection, keys: Keys, service: ServiceKeys, beats: list[Beat]
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
