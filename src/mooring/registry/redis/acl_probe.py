"""Tries what a registry needs, to see whether the ACL of the connected user allows it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mooring.errors import Unavailable
from mooring.messages import message
from mooring.model import Instance
from mooring.registry.contract import InstanceRecord
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.errors import translate
from mooring.registry.redis.registry import RedisRegistry
from mooring.registry.redis.server_info import FAILURES, TIMEOUT, connected

SCRATCH = "mooring-doctor"
"""The service that a probe registers in; each probe has its own instance."""


class AccessProbe:
    """Registers a disabled instance for a moment, to try all operations of a registry."""

    def __init__(self, registry: RedisRegistry, masters: Sequence[str]) -> None:
        self._registry, self.masters = registry, masters
        scratch = Instance(
            SCRATCH, "doctor.invalid", 1, id=uuid.uuid4().hex, weight=0, enabled=False
        )
        self.instance, _ = registry.prepare(scratch)
        self._record: InstanceRecord | None = None
        self._registered = False

    async def read(self) -> None:
        await self._registry.info(service=SCRATCH)

    async def list(self) -> None:
        await self._registry.instances(SCRATCH)
        await self._registry.names()

    async def register(self) -> None:
        record = self._registry.instance_record(self.instance)
        record.open(lambda: None)
        self._record = record
        await record.put(self.instance, fresh=True)
        self._registered = True

    async def beat(self) -> None:
        assert self._record is not None
        await self._record.beat(self.instance, update=False)

    async def hear(self) -> float | None:
        """Subscribe to changes and make one. Returns the seconds until it arrives; None if the
        instance is not registered."""
        connection, keys = self._registry.connection, self._registry.keys.of(SCRATCH)
        try:
            async with asyncio.timeout(TIMEOUT), _listening(connection) as listening:
                await listening.subscribe(keys.changes)
                await _heard(listening, "subscribe")
                if self._record is None or not self._registered:
                    return None
                started = time.monotonic()
                await self._record.beat(self.instance, update=True)
                await _heard(listening, "message")
                return time.monotonic() - started
        except TimeoutError as error:
            silent = message("channel_silent", channel=keys.changes, seconds=TIMEOUT)
            raise Unavailable(silent) from error
        except FAILURES as error:
            what = message("op_changes", channel=keys.changes)
            raise translate(error, what=what, where=connection.where, writes=False) from error

    async def scan(self) -> None:
        """The first step of the search of cleanup for orphans."""
        settings, pattern = self._registry.connection.settings, f"{self._registry.keys.services}:*"
        for address in self.masters:
            try:
                async with connected(settings, address) as client:
                    await client.execute_command("SCAN", "0", "MATCH", pattern, "COUNT", "10")
            except FAILURES as error:
                raise translate(
                    error, what=message("op_cleanup_scan"), where=address, writes=False
                ) from error

    async def aclose(self) -> None:
        """Deregister the instance. Raises `StoreError`."""
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
        message = await listening.get_message(timeout=TIMEOUT)
        if message is not None and message["type"] == kind:
            return
