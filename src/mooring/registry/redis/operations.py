"""What operators change on Redis: overrides, descriptions, deregistration."""

from __future__ import annotations

from typing import Any

from mooring.formatting import quoted
from mooring.messages import message
from mooring.model import check_text
from mooring.names import check_name
from mooring.registry.operations import ObjectOperations, StoredObject
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.layout import RedisKeys, ServiceKeys, check_service
from mooring.registry.redis.live_service import ServiceWriter, message_head
from mooring.registry.redis.pipeline import EDIT, FORGET


class _HashField(StoredObject):
    """The object in a field of a hash. Followers of `service` are notified of a change."""

    def __init__(
        self, connection: Connection, key: str, field: str, service: ServiceKeys | None = None
    ) -> None:
        self.place = f"{key} {quoted(field)}"
        self._connection, self._key, self._field = connection, key, field
        self._service = service
        self._before = b""

    async def read(self) -> bytes | None:
        what = message("op_read", key=self._key)
        value = await self._connection.call("HGET", self._key, self._field, what=what)
        self._before = value or b""
        return value or None

    async def replace(self, value: bytes) -> bool:
        service, change = self._service, ("", "")
        if service is not None:
            change = (service.changes, message_head(service.name, self._field))
        done: Any = await self._connection.run(
            EDIT,
            [self._key],
            [self._field, self._before, value, *change],
            what=message("op_change", key=self._key, field=self._field),
        )
        return bool(done)


class RedisOperations(ObjectOperations):
    def __init__(self, connection: Connection, keys: RedisKeys) -> None:
        self.url, self.connection, self.keys = connection.url, connection, keys

    def canonical(self, service: str) -> str:
        return check_service(service)

    def _overrides(self, service: str, id: str) -> StoredObject:
        keys = self.keys.of(service)
        return _HashField(self.connection, keys.config, id, keys)

    def _description(self, group: str, service: str) -> StoredObject:
        """Of a service by its name, of a group with a slash after it."""
        if service:
            return _HashField(self.connection, self.keys.info, check_service(service))
        check_name("group", group)
        return _HashField(self.connection, self.keys.info, f"{group}/")

    async def deregister(self, service: str, id: str) -> bool:
        check_text("id", id)
        writer = ServiceWriter(self.connection, self.keys.of(service))
        return await writer.deregister(id, "", head=message_head(service, id))

    async def configured(self, service: str) -> bool:
        key = self.keys.of(service).config
        return bool(await self.connection.call("HGETALL", key, what=f"read of {key}"))

    async def forget(self, service: str) -> bool:
        """On Redis, silent instances are registered until cleanup evicts them."""
        keys, what = self.keys.of(service), message("op_deletion", service=service)
        shared = [] if keys.cluster else [self.keys.info, keys.services]
        done = await self.connection.run(
            FORGET,
            [keys.heartbeats, keys.config, *shared],
            [service, keys.changes, message_head(service, "")],
            what=what,
        )
        if done and keys.cluster:
            await self.connection.call("HDEL", self.keys.info, service, what=what, writes=True)
            await ServiceWriter(self.connection, keys).drop_service()
        return bool(done)
