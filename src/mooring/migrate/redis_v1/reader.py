"""Reads both versions of a service from Redis, in steps of bounded size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mooring.errors import InvalidName, StoreError
from mooring.migrate.redis_v1.format import (
    INCARNATION,
    V1Keys,
    V1Keyspace,
    V1Service,
    is_v2_key,
    parse_keyspace,
)
from mooring.migrate.redis_v1.plan import V2Service
from mooring.model import Config
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.layout import RedisKeys
from mooring.registry.redis.live_service import KEPT
from mooring.registry.redis.pipeline import load_script
from mooring.registry.redis.reader import Reader
from mooring.tasks import slices

_BATCH = 500
"""Records that are read concurrently."""


class UnreadableService(Exception):
    """A service that cannot be read; the message gives the reason."""


class ServiceReader:
    def __init__(self, connection: Connection, v1: V1Keys, v2: RedisKeys) -> None:
        self._connection, self._v1, self._v2 = connection, v1, v2
        self._reader = Reader(connection)

    async def keyspace(self) -> V1Keyspace:
        """The services of v1. Scans the whole Redis in small steps."""
        keyspace, problem = await self.available_keyspace()
        if problem is not None:
            raise problem
        return keyspace

    async def available_keyspace(self) -> tuple[V1Keyspace, StoreError | None]:
        """The services on the nodes that respond, and why others did not."""
        keys, problem = await self._connection.scan_available(
            self._v1.pattern, what="search for version 1.0"
        )
        return parse_keyspace(set(keys), self._v1, self._v2), problem

    async def services(self) -> list[str]:
        names = await self._connection.call("SMEMBERS", self._v2.services, what="list of services")
        return sorted(name.decode(errors="backslashreplace") for name in names)

    async def now(self) -> int:
        """The server's clock, in ms."""
        seconds, micros = await self._connection.call("TIME", what="read of the clock")
        return int(seconds) * 1000 + int(micros) // 1000

    async def v1(self, service: str, ids: Iterable[str] = ()) -> V1Service:
        """A service in v1. `ids` are known hashes that its set and its heartbeats may lack. Raises
        `UnreadableService`."""
        members = {text(id) for id in await self._scan_set("SSCAN", self._v1.instances(service))}
        heartbeats = await self._scan_set("ZSCAN", self._v1.heartbeats(service))
        scores = _scores(heartbeats)
        # An id may produce the name of a v2 key, which is not a record of v1.
        keys = {
            id: key
            for id in sorted({*members, *scores, *ids})
            if not is_v2_key(self._v2, key := self._v1.instance(service, id))
        }
        hashes = await self._hashes(keys)
        present = {id: fields for id, fields in hashes.items() if fields != {}}
        return V1Service(service, present, frozenset(members), scores)

    async def is_listed(self, service: str) -> bool:
        what = f"read of {service}"
        return bool(await self._connection.call("SISMEMBER", self._v2.services, service, what=what))

    async def v2(
        self, service: str, ids: Iterable[str], *, listed: bool | None
    ) -> tuple[V2Service, Mapping[str, Config]]:
        """A service, and its overrides. `listed` is `is_listed`. Raises `UnreadableService`."""
        try:
            keys = self._v2.of(service)
        except InvalidName as error:
            raise UnreadableService(f"{error}: v2 cannot represent it") from error
        try:
            state = await self._reader.state(keys)
        except StoreError as error:
            raise _wrong_type(error, f"{keys.config} or {keys.brake}, of v2,") from error
        heartbeats, removals = await asyncio.gather(
            self._scan_set("ZSCAN", keys.heartbeats), self._scan_set("ZSCAN", keys.removed)
        )
        scores = _scores(heartbeats)
        hashes = await self._hashes({id: keys.instance(id) for id in sorted({*scores, *ids})})
        records = {
            id: {printable(name): printable(value) for name, value in fields.items()}
            for id, fields in hashes.items()
            if fields
        }
        wrong_type = frozenset(id for id, fields in hashes.items() if fields is None)
        removed = _removed_copies(removals, state.now)
        return V2Service(state.now, records, scores, removed, listed, wrong_type), state.config

    async def _scan_set(self, command: str, key: str) -> list[Any]:
        """All members of a set, with scores if it is a sorted set."""
        members: list[Any] = []
        cursor: Any = 0
        while True:
            try:
                cursor, part = await self._connection.call(
                    command, raw(key), cursor, "COUNT", 1000, what=f"read of {key}"
                )
            except StoreError as error:
                kind = "set" if command == "SSCAN" else "sorted set"
                raise _wrong_type(error, key, kind) from error
            members += part
            if not int(cursor):
                return members

    async def _hashes(self, keys: Mapping[str, str]) -> dict[str, dict[str, str] | None]:
        """The fields of each hash, by id; empty if it does not exist, None if it is not a hash."""
        hashes: list[dict[str, str] | None] = []
        for batch in slices(keys.values(), _BATCH):
            hashes += await asyncio.gather(*(self._hash(key) for key in batch))
        return dict(zip(keys, hashes, strict=True))

    async def _hash(self, key: str) -> dict[str, str] | None:
        try:
            reply = await self._connection.call("HGETALL", raw(key), what=f"read of {key}")
        except StoreError as error:
            _wrong_type(error, key)
            return None
        pairs = reply.items() if isinstance(reply, dict) else _pairs(reply)
        return {text(name): text(value) for name, value in pairs}


def _wrong_type(error: StoreError, key: str, kind: str = "hash") -> UnreadableService:
    """The error for a key of another type. Raises any other error again."""
    if "WRONGTYPE" not in str(error):
        raise error
    return UnreadableService(f"{key} is not a {kind}: check what it contains")


def _pairs(reply: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Pairs from a flat reply, or from the tuples that the driver returns on a cluster."""
    if reply and isinstance(reply[0], tuple):
        yield from reply
    else:
        yield from zip(reply[::2], reply[1::2], strict=True)


def _scores(reply: list[Any]) -> dict[str, float]:
    return {text(member): float(score) for member, score in _pairs(reply)}


def _removed_copies(reply: list[Any], now: int) -> dict[str, int]:
    """When an operator deregistered each copy, from the removals that are still in force."""
    suffix = f" {INCARNATION}"
    return {
        member.removesuffix(suffix): int(until - KEPT)
        for member, until in _scores(reply).items()
        if member.endswith(suffix) and until > now
    }


def text(value: bytes) -> str:
    """Any bytes as text, so that `raw` restores them."""
    return value.decode(errors="surrogateescape")


def raw(value: str) -> bytes:
    return value.encode(errors="surrogateescape")


def printable(value: str) -> str:
    """A value from `text` as valid Unicode."""
    return value if value.isascii() else raw(value).decode(errors="backslashreplace")


_PACKAGE = "mooring.migrate.redis_v1"
COPY = load_script("copy", _PACKAGE)
DEREGISTER = load_script("deregister", _PACKAGE)
MIRROR = load_script("mirror", _PACKAGE)
DELETE = load_script("delete", _PACKAGE)
