"""Reading a service: who is there, since when nothing was heard of whom, and the details."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from mooring.durations import show
from mooring.errors import InvalidRequest, StoreError
from mooring.formatting import quoted
from mooring.model import NO_CONFIG, Config, Instance, applied
from mooring.registry import json_values as values
from mooring.registry.contract import Brake, Problem
from mooring.registry.json_values import Malformed
from mooring.registry.redis import layout as fields
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.layout import RedisKeys, ServiceKeys
from mooring.registry.redis.liveness import ServerClock, brake_of
from mooring.registry.redis.pipeline import LIST, STATE

log = logging.getLogger(__name__)

T = TypeVar("T")

_CHUNK = 100
"""Instances whose details one script call gives at the most: it stays far below 10 ms."""

_CALLS = 50
"""Of these calls on their way at once: all have the time of one, and Redis keeps their replies."""

_AT_ONCE = 2_500
"""Members that are read by one command; more are read in steps, so that nobody waits for them."""


class ServiceState(NamedTuple):
    """A service but for its instances."""

    now: int
    """The server's time, in ms."""
    clock: ServerClock
    config: Mapping[str, Config]
    """The operator's word by id; on the service under the empty one."""
    brake: Brake | None
    problems: tuple[Problem, ...]


class InstanceDetails(NamedTuple):
    instances: dict[str, Instance]
    """As they say of themselves; what is gone or cannot be read is not among them."""
    problems: dict[str, Problem]


class Reader:
    def __init__(self, connection: Connection, keys: RedisKeys) -> None:
        self._connection, self._keys = connection, keys

    async def state(self, service: ServiceKeys) -> ServiceState:
        asked = time.monotonic()
        reply: Any = await self._connection.run(
            STATE,
            [service.config, service.brake, service.evictions],
            [],
            what=f"read of {service.name}",
        )
        now, told, brake = reply
        clock = self._connection.clock(service.name)
        if step := clock.read(int(now), asked=asked, answered=time.monotonic()):
            log.warning(
                "%s: the clock of Redis stepped %s by %s: %s",
                *(self._connection.where, "forward" if step > 0 else "back", show(abs(step))),
                "no instance counts as silent because of it"
                if step > 0
                else "an instance that died is listed until cleanup has lowered its heartbeat",
            )
        config: dict[str, Config] = {}
        problems: list[Problem] = []
        for id, value in fields.from_pairs(told).items():
            try:
                config[id] = values.decode_config(value.encode())
            except Malformed as error:
                problems.append(Problem(f"{service.config} {quoted(id)}".encode(), str(error)))
        held = brake_of(fields.from_pairs(brake))
        return ServiceState(int(now), clock, config, held, tuple(problems))

    async def scores(self, service: ServiceKeys) -> dict[str, float]:
        """The last heartbeat of each instance, in ms on the server's clock, oldest first."""
        what = f"read of {service.name}"
        where = service.heartbeats
        size, reply = await asyncio.gather(
            self._connection.call("ZCARD", where, what=what),
            self._connection.call("ZRANGE", where, 0, _AT_ONCE - 1, "WITHSCORES", what=what),
        )
        if size <= _AT_ONCE:
            return _scores(reply)
        # By a cursor, not by rank: a heartbeat meanwhile would move others out of the window.
        found: dict[str, float] = {}
        cursor: bytes | str = "0"
        while True:
            cursor, part = await self._connection.call(
                "ZSCAN", where, cursor, "COUNT", 1000, what=what
            )
            found.update(_scores(part))
            if int(cursor) == 0:
                return dict(sorted(found.items(), key=lambda item: item[1]))

    async def departed(self, service: ServiceKeys, missing: Mapping[str, Instance]) -> set[str]:
        """Those of some instances that are no longer there of whom it is remembered that they left,
        or were taken out."""
        if not missing:
            return set()
        told = await self._connection.call(
            "ZRANGE", service.removed, 0, -1, what=f"read of {service.name}"
        )
        members = [member.decode(errors="backslashreplace") for member in told]
        left = {tuple(member.split(" ")[:2]) for member in members}
        return {id for id, each in missing.items() if (id, each.incarnation) in left}

    async def between(
        self, service: ServiceKeys, since: float, until: float
    ) -> list[tuple[str, float]]:
        """Those whose last heartbeat is within a time (ms, both included), in that order."""
        reply = await self._connection.call(
            *("ZRANGEBYSCORE", service.heartbeats, since, until, "WITHSCORES"),
            what=f"read of {service.name}",
        )
        return list(_scores(reply).items())

    async def details(self, service: ServiceKeys, ids: Iterable[str]) -> InstanceDetails:
        """All that instances say of themselves. Some are made of their fields while others are
        still on their way, so that neither Redis nor this process waits for the other."""
        details, wanted = InstanceDetails({}, {}), list(ids)
        chunks = [wanted[first : first + _CHUNK] for first in range(0, len(wanted), _CHUNK)]
        for first in range(0, len(chunks), _CALLS):
            some = chunks[first : first + _CALLS]
            await asyncio.gather(*(self._read(details, service, chunk) for chunk in some))
        return details

    async def _read(self, details: InstanceDetails, service: ServiceKeys, ids: list[str]) -> None:
        while ids:
            reply: Any = await self._connection.run(
                LIST,
                [service.instance(id) for id in ids],
                fields.READ,
                what=f"read of {service.name}",
            )
            for id, told in zip(ids, reply, strict=False):
                self._take(details, service, id, told)
            ids = ids[len(reply) :]

    def _take(self, details: InstanceDetails, service: ServiceKeys, id: str, told: Any) -> None:
        if told is None:
            return  # it went meanwhile
        key = service.instance(id).encode()
        if isinstance(told, bytes | str | Exception):
            text = told.decode() if isinstance(told, bytes) else str(told)
            details.problems[id] = Problem(key, f"cannot be read ({text})")
            return
        try:
            pairs = fields.from_pairs(told[1:]) if told[0] else fields.from_reply(told[1:])
            details.instances[id] = fields.decode(service.name, id, pairs)
        except InvalidRequest as error:
            details.problems[id] = Problem(key, str(error))


async def of_each(
    names: Iterable[str], read: Callable[[str], Awaitable[T]], *, log: logging.Logger
) -> dict[str, T]:
    """What is read of each service. One that cannot be read costs none of the others: it is left
    out, and told of. Raises what a store raises where not one can be read."""
    wanted = list(names)
    found: dict[str, T] = {}
    failed: dict[str, StoreError] = {}
    for name, told in zip(
        wanted, await asyncio.gather(*map(read, wanted), return_exceptions=True), strict=True
    ):
        if isinstance(told, StoreError):
            failed[name] = told
        elif isinstance(told, BaseException):
            raise told
        else:
            found[name] = told
    if failed:
        first = next(iter(failed.values()))
        if not found:
            raise first
        log.warning("%s cannot be read and is left out: %s", ", ".join(failed), first)
    return found


def with_config(instance: Instance, config: Mapping[str, Config]) -> Instance:
    """The instance as the operator wants it."""
    own = config.get(instance.id)
    service = config.get("", NO_CONFIG)
    if own is not None:
        instance = msgspec.structs.replace(instance, config=own)
    return applied(instance, service)


def _scores(reply: list[bytes]) -> dict[str, float]:
    return {
        id.decode(errors="backslashreplace"): float(score)
        for id, score in zip(reply[::2], reply[1::2], strict=True)
    }
