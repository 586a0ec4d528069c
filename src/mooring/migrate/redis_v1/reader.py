"""Both versions of a service as they are in Redis, read in steps of bounded size."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Any

from mooring.errors import InvalidName, StoreError
from mooring.migrate.redis_v1.format import INCARNATION, Keyspace, V1Keys, of_v2, sorted_out
from mooring.migrate.redis_v1.plan import V1Service, V2Service
from mooring.model import Config
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.layout import RedisKeys
from mooring.registry.redis.live_service import KEPT
from mooring.registry.redis.pipeline import Script
from mooring.registry.redis.reader import Reader

_TOGETHER = 500
"""Records that are asked for at once."""


class Unreadable(Exception):
    """A service that cannot be looked at; the message says why. The others can."""


class Reading:
    def __init__(self, connection: Connection, v1: V1Keys, v2: RedisKeys) -> None:
        self._connection, self._v1, self._v2 = connection, v1, v2
        self._reader = Reader(connection, v2)

    async def keyspace(self) -> Keyspace:
        """Which services v1 has. It goes over the whole Redis, in small steps."""
        found, problem = await self.keyspace_that_answers()
        if problem is not None:
            raise problem
        return found

    async def keyspace_that_answers(self) -> tuple[Keyspace, StoreError | None]:
        """The same of the nodes that answer, and why others did not."""
        found, problem = await self._connection.scan_what_answers(
            self._v1.pattern, what="search for version 1.0"
        )
        return sorted_out(set(found), self._v1, self._v2), problem

    async def services(self) -> list[str]:
        """Those that v2 has."""
        told = await self._connection.call("SMEMBERS", self._v2.services, what="list of services")
        return sorted(name.decode(errors="backslashreplace") for name in told)

    async def now(self) -> int:
        """The server's clock, in ms."""
        seconds, micros = await self._connection.call("TIME", what="read of the clock")
        return int(seconds) * 1000 + int(micros) // 1000

    async def v1(self, service: str, ids: Iterable[str] = ()) -> V1Service:
        """A service in v1; `ids` are of hashes that are known beside those that it names. Raises
        `Unreadable`."""
        members = {text(id) for id in await self._scanned("SSCAN", self._v1.instances(service))}
        told = await self._scanned("ZSCAN", self._v1.heartbeats(service))
        scores = {text(id): float(score) for id, score in _pairs(told)}
        every = sorted({*members, *scores, *ids})
        # A key of v2 that an id happens to name is no record of v1.
        mine = [id for id in every if not of_v2(self._v2, self._v1.instance(service, id))]
        hashes = await self._hashes(self._v1.instance(service, id) for id in mine)
        found = {id: told for id, told in zip(mine, hashes, strict=True) if told != {}}
        return V1Service(service, found, frozenset(members), scores)

    async def is_listed(self, service: str) -> bool:
        """Whether tier 1 names a service."""
        what = f"read of {service}"
        return bool(await self._connection.call("SISMEMBER", self._v2.services, service, what=what))

    async def v2(
        self, service: str, ids: Iterable[str], *, listed: bool | None
    ) -> tuple[V2Service, Mapping[str, Config]]:
        """The same in v2, and the operator's word; `listed` is what tier 1 says. Raises
        `Unreadable`."""
        try:
            keys = self._v2.of(service)
        except InvalidName as error:
            raise Unreadable(f"{error}: v2 cannot have it") from error
        try:
            state = await self._reader.state(keys)
        except StoreError as error:
            raise _wrong_type(error, f"{keys.config} or {keys.brake}, of v2,") from error
        beats, removed = await asyncio.gather(
            self._scanned("ZSCAN", keys.heartbeats), self._scanned("ZSCAN", keys.removed)
        )
        scores = {text(id): float(score) for id, score in _pairs(beats)}
        every = sorted({*scores, *ids})
        hashes = [
            told and {shown(name): shown(value) for name, value in told.items()}
            for told in await self._hashes(keys.instance(id) for id in every)
        ]
        records = {id: told for id, told in zip(every, hashes, strict=True) if told}
        spoilt = frozenset(id for id, told in zip(every, hashes, strict=True) if told is None)
        taken_out = {
            member.removesuffix(f" {INCARNATION}"): int(forgotten - KEPT)
            for member, forgotten in ((text(one), float(other)) for one, other in _pairs(removed))
            if member.endswith(f" {INCARNATION}") and forgotten > state.now
        }
        held = V2Service(state.now, records, scores, taken_out, listed, spoilt)
        return held, state.config

    async def _scanned(self, command: str, key: str) -> list[Any]:
        """All members of a set, with their scores where it is a sorted one."""
        found: list[Any] = []
        cursor: Any = 0
        while True:
            try:
                cursor, part = await self._connection.call(
                    command, raw(key), cursor, "COUNT", 1000, what=f"read of {key}"
                )
            except StoreError as error:
                kind = "set" if command == "SSCAN" else "sorted set"
                raise _wrong_type(error, key, kind) from error
            found += part
            if not int(cursor):
                return found

    async def _hashes(self, keys: Iterable[str]) -> list[dict[str, str] | None]:
        """The fields of each, empty where it is gone, None where it is no hash."""
        wanted, found = list(keys), []
        for first in range(0, len(wanted), _TOGETHER):
            found += await asyncio.gather(
                *(self._hash(key) for key in wanted[first : first + _TOGETHER])
            )
        return found

    async def _hash(self, key: str) -> dict[str, str] | None:
        try:
            told = await self._connection.call("HGETALL", raw(key), what=f"read of {key}")
        except StoreError as error:
            _wrong_type(error, key)
            return None
        pairs = told.items() if isinstance(told, dict) else _pairs(told)
        return {text(name): text(value) for name, value in pairs}


def _wrong_type(error: StoreError, key: str, kind: str = "") -> Unreadable:
    """What to say where a key is of another kind; any other error is raised again."""
    if "WRONGTYPE" not in str(error):
        raise error
    return Unreadable(f"{key} is no {kind or 'hash'}: look what it is")


def _pairs(reply: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Two by two, as Redis gives them or as the driver does on a cluster."""
    if reply and isinstance(reply[0], tuple):
        yield from reply
    else:
        yield from zip(reply[::2], reply[1::2], strict=True)


def text(value: bytes) -> str:
    """Anything that Redis holds, so that `raw` gives it back."""
    return value.decode(errors="surrogateescape")


def raw(value: str) -> bytes:
    return value.encode(errors="surrogateescape")


def shown(value: str) -> str:
    """The same for people, and for v2's own readers: text, whatever Redis holds."""
    return value if value.isascii() else raw(value).decode(errors="backslashreplace")


def _load(name: str) -> Script:
    shared = (files("mooring.registry.redis") / "scripts" / "record.lua").read_text()
    own = (files("mooring.migrate.redis_v1") / "scripts" / f"{name}.lua").read_text()
    text = shared + own
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())


BRING = _load("bring")
LEAVE = _load("leave")
MIRROR = _load("mirror")
FORGET = _load("forget")
