"""Heartbeats of the instances of one service: those of one moment go in one call.

While a call is under way, further beats wait for the next one: a process with a thousand instances
sends few and full calls, and a single beat waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from mooring.registry.redis.connection import Argument, Connection
from mooring.registry.redis.keys import Keys, ServiceKeys
from mooring.registry.redis.scripts import HEARTBEAT
from mooring.tasks import Tasks

_MOST = 200
"""Beats in one call: so many that it stays far below 10 ms, also where each brings metadata."""


class Beat(NamedTuple):
    id: str
    incarnation: str
    registered: str
    """When this incarnation registered, as the server said."""
    healthy: bool
    head: str
    fields: Mapping[str, str] = {}
    """Empty: the sign of life alone."""

    def arguments(self) -> list[Argument]:
        flat = [part for pair in self.fields.items() for part in pair]
        healthy = "true" if self.healthy else "false"
        return [self.id, self.incarnation, self.registered, healthy, self.head, len(flat), *flat]


class Beating:
    def __init__(self, connection: Connection, keys: Keys, service: ServiceKeys) -> None:
        self._connection, self._keys, self._service = connection, keys, service
        self._waiting: list[tuple[Beat, asyncio.Future[str]]] = []
        self._sending = False
        self._tasks = Tasks()

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
                waiting, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
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
        finally:
            self._sending = False
            for _, answer in (*waiting, *self._waiting):
                answer.cancel()

    async def aclose(self) -> None:
        await self._tasks.aclose()


def persistent(service: ServiceKeys) -> str:
    """The sorted set of those that stay when they are silent, by their last heartbeat: expiry does
    not count them."""
    return f"{service.base}:persistent"


async def send(
    connection: Connection, keys: Keys, service: ServiceKeys, beats: list[Beat]
) -> list[str]:
    """Any number of beats in one call; of each, as `Beating.beat` gives it."""
    tier1 = [] if keys.cluster else [keys.services]
    what = f"heartbeat of {service.name}"
    call = connection.run(
        HEARTBEAT,
        [
            *(service.heartbeats, persistent(service), *tier1),
            *(service.instance(beat.id) for beat in beats),
        ],
        [
            *(service.changes, 0 if keys.cluster else 1, service.name),
            *(argument for beat in beats for argument in beat.arguments()),
        ],
        what=what,
    )
    if not keys.cluster:
        return _texts(await call)
    # There tier 1 is elsewhere: it is put right beside the beat, by whoever has a record.
    results = _texts(await call)
    if "ok" in results:
        await connection.call("SADD", keys.services, service.name, what=what, writes=True)
    return results


def _texts(reply: Any) -> list[str]:
    return [part.decode() if isinstance(part, bytes) else str(part) for part in reply]
