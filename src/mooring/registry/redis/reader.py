"""Reads the state, the heartbeats and the instances of a service."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from mooring.durations import format_duration
from mooring.errors import InvalidRequest, StoreError
from mooring.formatting import quoted
from mooring.messages import message
from mooring.model import NO_CONFIG, Config, Instance, applied
from mooring.registry import json_values as values
from mooring.registry.contract import Problem
from mooring.registry.evictions import Brake
from mooring.registry.json_values import Malformed
from mooring.registry.redis import layout
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.consumer_liveness import ServerClock, brake_of
from mooring.registry.redis.layout import ServiceKeys
from mooring.registry.redis.pipeline import LIST, STATE
from mooring.tasks import slices

log = logging.getLogger(__name__)

T = TypeVar("T")

_CHUNK = 100
"""Instances per script call, so that it takes far less than 10 ms."""

_CALLS = 50
"""Concurrent script calls: they share one time limit, and Redis buffers their replies."""

_AT_ONCE = 2_500
"""Members per command. A larger set is read in steps, so that it does not block Redis."""


class ServiceState(NamedTuple):
    """The state of a service, without its instances."""

    now: int
    """The server's time, in ms."""
    clock: ServerClock
    config: Mapping[str, Config]
    """Operator overrides by id; those of the service under the empty id."""
    brake: Brake | None
    problems: tuple[Problem, ...]


class InstanceDetails(NamedTuple):
    instances: dict[str, Instance]
    """Without operator overrides. Deleted and unreadable instances are left out."""
    problems: dict[str, Problem]


class Reader:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def state(self, service: ServiceKeys) -> ServiceState:
        asked = time.monotonic()
        reply: Any = await self._connection.run(
            STATE,
            [service.config, service.brake, service.evictions],
            [],
            what=message("op_read", key=service.name),
        )
        now, overrides, brake = reply
        clock = self._connection.clock(service.name)
        if step := clock.read(int(now), asked=asked, answered=time.monotonic()):
            log.warning(
                "%s: the clock of Redis stepped %s by %s: %s",
                self._connection.where,
                "forward" if step > 0 else "back",
                format_duration(abs(step)),
                "no instance counts as silent because of it"
                if step > 0
                else "a dead instance is listed until cleanup has lowered its heartbeat",
            )
        config: dict[str, Config] = {}
        problems: list[Problem] = []
        for id, value in layout.from_pairs(overrides).items():
            try:
                config[id] = values.decode_config(value.encode())
            except Malformed as error:
                problems.append(Problem(f"{service.config} {quoted(id)}".encode(), str(error)))
        held = brake_of(layout.from_pairs(brake))
        return ServiceState(int(now), clock, config, held, tuple(problems))

    async def scores(self, service: ServiceKeys) -> dict[str, float]:
        """The last heartbeat of each instance, in ms of the server's clock, oldest first."""
        what = message("op_read", key=service.name)
        key = service.heartbeats
        size, reply = await asyncio.gather(
            self._connection.call("ZCARD", key, what=what),
            self._connection.call("ZRANGE", key, 0, _AT_ONCE - 1, "WITHSCORES", what=what),
        )
        if size <= _AT_ONCE:
            return _scores(reply)
        # By cursor, not by rank: a concurrent heartbeat would move others out of the window.
        scores: dict[str, float] = {}
        cursor: bytes | str = "0"
        while True:
            cursor, part = await self._connection.call(
                "ZSCAN", key, cursor, "COUNT", 1000, what=what
            )
            scores.update(_scores(part))
            if int(cursor) == 0:
                return dict(sorted(scores.items(), key=lambda item: item[1]))

    async def departed(self, service: ServiceKeys, missing: Mapping[str, Instance]) -> set[str]:
        """The missing instances that deregistered or were deregistered recently."""
        if not missing:
            return set()
        reply = await self._connection.call(
            "ZRANGE", service.removed, 0, -1, what=message("op_read", key=service.name)
        )
        members = [member.decode(errors="backslashreplace") for member in reply]
        left = {tuple(member.split(" ")[:2]) for member in members}
        return {id for id, old in missing.items() if (id, old.incarnation) in left}

    async def between(
        self, service: ServiceKeys, since: float, until: float
    ) -> list[tuple[str, float]]:
        """The instances with a last heartbeat in a range (ms, inclusive), ordered by it."""
        reply = await self._connection.call(
            "ZRANGEBYSCORE",
            service.heartbeats,
            since,
            until,
            "WITHSCORES",
            what=message("op_read", key=service.name),
        )
        return list(_scores(reply).items())

    async def details(self, service: ServiceKeys, ids: Iterable[str]) -> InstanceDetails:
        """Read instances. Decodes some while others are in transit, so that neither Redis nor this
        process waits for the other."""
        details = InstanceDetails({}, {})
        for chunks in slices(slices(ids, _CHUNK), _CALLS):
            await asyncio.gather(*(self._read(details, service, chunk) for chunk in chunks))
        return details

    async def _read(self, details: InstanceDetails, service: ServiceKeys, ids: list[str]) -> None:
        while ids:
            reply: Any = await self._connection.run(
                LIST,
                [service.instance(id) for id in ids],
                layout.READ,
                what=message("op_read", key=service.name),
            )
            for id, record in zip(ids, reply, strict=False):
                self._decode(details, service, id, record)
            ids = ids[len(reply) :]

    def _decode(self, details: InstanceDetails, service: ServiceKeys, id: str, record: Any) -> None:
        if record is None:
            return  # it was deleted in the meantime
        key = service.instance(id).encode()
        if isinstance(record, bytes | str | Exception):
            error = record.decode() if isinstance(record, bytes) else str(record)
            details.problems[id] = Problem(key, f"cannot be read ({error})")
            return
        try:
            fields = layout.from_pairs(record[1:]) if record[0] else layout.from_reply(record[1:])
            details.instances[id] = layout.decode(service.name, id, fields)
        except InvalidRequest as error:
            details.problems[id] = Problem(key, str(error))


async def read_each(
    names: Iterable[str], read: Callable[[str], Awaitable[T]], *, log: logging.Logger
) -> dict[str, T]:
    """Read several services. Leaves out those that cannot be read, with a warning in `log`. Raises
    `StoreError` if none can."""
    names = list(names)
    results: dict[str, T] = {}
    failed: dict[str, StoreError] = {}
    for name, result in zip(
        names, await asyncio.gather(*map(read, names), return_exceptions=True), strict=True
    ):
        if isinstance(result, StoreError):
            failed[name] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            results[name] = result
    if failed:
        first = next(iter(failed.values()))
        if not results:
            raise first
        log.warning("%s cannot be read and is left out: %s", ", ".join(failed), first)
    return results


def with_config(instance: Instance, config: Mapping[str, Config]) -> Instance:
    """The instance with operator overrides applied."""
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
