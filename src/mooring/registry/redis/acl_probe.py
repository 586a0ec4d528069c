"""What a user may do on a Redis, by doing it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mooring.errors import Unavailable
from mooring.model import Instance
from mooring.registry.contract import InstanceRecord
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.errors import translate
from mooring.registry.redis.registry import RedisRegistry
from mooring.registry.redis.server_info import FAILURES, client_of

SCRATCH = "mooring-doctor"
"""The service that is registered for a moment; each trial has an instance of its own."""

_PATIENCE = 3.0


class Trial:
    """An instance that nobody calls is registered for a moment."""

    def __init__(self, registry: RedisRegistry, masters: Sequence[str]) -> None:
        self._registry, self.masters = registry, masters
        named = Instance(SCRATCH, "doctor.invalid", 1, id=uuid.uuid4().hex, weight=0, enabled=False)
        self.instance, _ = registry.prepare(named)
        self._record: InstanceRecord | None = None
        self._registered = False

    async def read(self) -> None:
        await self._registry.info(service=SCRATCH)

    async def look(self) -> None:
        await self._registry.instances(SCRATCH)
        await self._registry.names()

    async def register(self) -> None:
        record = self._registry.instance_record(self.instance)
        record.open()
        self._record = record
        await record.put(self.instance, fresh=True)
        self._registered = True

    async def beat(self) -> None:
        assert self._record is not None
        await self._record.beat(self.instance, update=False)

    async def hear(self) -> float | None:
        """Listen to the changes, and make one; the seconds until it is heard. None where nothing
        is registered that could change."""
        connection, keys = self._registry.connection, self._registry.keys.of(SCRATCH)
        try:
            async with asyncio.timeout(_PATIENCE), _listening(connection) as listening:
                await listening.subscribe(keys.changes)
                await _heard(listening, "subscribe")
                if self._record is None or not self._registered:
                    return None
                started = time.monotonic()
                await self._record.beat(self.instance, update=True)
                await _heard(listening, "message")
                return time.monotonic() - started
        except TimeoutError as error:
            raise Unavailable(
                f"changes on {keys.changes} are not heard within {_PATIENCE:g} s"
            ) from error
        except FAILURES as error:
            raise translate(
                error, what=f"changes on {keys.changes}", where=connection.where, writes=False
            ) from error

    async def scan(self) -> None:
        """The first step of what cleanup does to find remains."""
        settings, pattern = self._registry.connection.settings, f"{self._registry.keys.services}:*"
        for address in self.masters:
            try:
                async with client_of(settings, address) as client:
                    await client.execute_command("SCAN", "0", "MATCH", pattern, "COUNT", "10")
            except FAILURES as error:
                raise translate(
                    error, what="cleanup (SCAN)", where=address, writes=False
                ) from error

    async def aclose(self) -> None:
        """Raises what a store raises where the instance could not be taken out."""
        if self._record is not None:
            record, self._record = self._record, None
            try:
                if self._registered:
                    await record.withdraw()
            finally:
                await record.aclose(within=1.0)


@asynccontextmanager
async def _listening(connection: Connection) -> AsyncIterator[Any]:
    client: Any = await connection.listener()
    try:
        async with client.pubsub() as listening:
            yield listening
    finally:
        if connection.cluster:
            await client.aclose()


async def _heard(listening: Any, kind: str) -> None:
    while True:
        message = await listening.get_message(timeout=_PATIENCE)
        if message is not None and message["type"] == kind:
            return
