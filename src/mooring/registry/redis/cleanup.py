"""Taking out the dead, and the brake that stops it where so many seem dead that it is not them.

Any number of sweepers may run at once: what a script call does, it decides by itself, from what is
in Redis at that moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Counter, Gauge

from mooring.durations import show
from mooring.errors import StoreError
from mooring.heartbeat.settings import CleanupSettings
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.expiry import Brake
from mooring.registry.redis.keys import Keys, ServiceKeys
from mooring.registry.redis.reading import Reader
from mooring.registry.redis.scripts import CLEANUP, RELEASE
from mooring.registry.redis.service import drop_service, message_head
from mooring.tasks import Backoff

log = logging.getLogger(__name__)

REMOVED = Counter("mooring_cleanup_removed", "Instances that were taken out", ["service"])
BRAKE = Gauge("mooring_cleanup_brake", "1 while expiry of a service is paused", ["service"])

_BATCH = 200
"""Instances in one script call: so many that it stays far below 10 ms."""
_TOGETHER = 20
"""Services that are looked at together."""
_SCAN_EVERY = 20
"""Passes between looks for records that no list names: those go over the whole Redis."""


@dataclass(slots=True)
class Swept:
    """What a pass did."""

    services: int = 0
    removed: list[tuple[str, str]] = field(default_factory=list)
    """Service and id, as in the next two."""
    unhealthy: list[tuple[str, str]] = field(default_factory=list)
    orphans: list[tuple[str, str]] = field(default_factory=list)
    brakes: dict[str, Brake] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{self.services} services looked at", f"{len(self.removed)} instances taken out"]
        if self.unhealthy:
            parts.append(f"{len(self.unhealthy)} marked unhealthy")
        if self.orphans:
            parts.append(f"{len(self.orphans)} remains cleared away")
        parts += [f"the brake holds for {name}: {brake}" for name, brake in self.brakes.items()]
        return "; ".join([*parts, *self.problems])


class Sweeper:
    def __init__(
        self, connection: Connection, keys: Keys, reader: Reader, settings: CleanupSettings
    ) -> None:
        self._connection, self._keys, self._reader = connection, keys, reader
        self._settings = settings
        self._braked: set[str] = set()

    async def run(self, told: Callable[[Swept], None] = lambda _: None) -> None:
        """Sweep at the interval, for ever. After a time in which Redis did not answer, nobody is
        taken out before everybody had time to beat again."""
        passes, backoff, answered = 0, Backoff(1.0, self._settings.interval), 0.0
        calm = 0.0
        while True:
            try:
                started = time.monotonic()
                if answered and started - answered > 2 * self._settings.interval:
                    calm = started + self._settings.global_timeout / 2
                    log.warning("cleanup: Redis was away: nobody is taken out for a while")
                if started >= calm:
                    told(await self.sweep(orphans=passes % _SCAN_EVERY == 0))
                    passes += 1
                else:
                    await self._connection.call("PING", what="cleanup")
                answered = time.monotonic()
                backoff.reset()
                await asyncio.sleep(self._settings.interval)
            except StoreError as error:
                log.warning("cleanup: %s", error)
                await asyncio.sleep(backoff.next())

    async def sweep(self, *, orphans: bool = True) -> Swept:
        """One pass over all services. Raises what a store raises."""
        swept = Swept()
        names = await self._connection.call("SMEMBERS", self._keys.services, what="cleanup")
        services = {name.decode(errors="backslashreplace") for name in names}
        remains = await self._unlisted(services) if orphans else {}
        every = sorted(services | remains.keys())
        for first in range(0, len(every), _TOGETHER):
            await asyncio.gather(
                *(
                    self._service(name, remains.get(name, ()), swept)
                    for name in every[first:][:_TOGETHER]
                )
            )
        return swept

    async def _unlisted(self, services: set[str]) -> dict[str, list[str]]:
        """Records that their service's heartbeats do not name, by service."""
        found: dict[str, list[str]] = {}
        for key in await self._connection.scan(f"{_escaped(self._keys.services)}:*:instance:*"):
            if (place := self._keys.service_of(key)) is not None:
                found.setdefault(place[0], []).append(place[1])
        remains: dict[str, list[str]] = {}
        for service, ids in found.items():
            scores = await self._reader.scores(self._keys.of(service))
            if lost := [id for id in ids if id not in scores]:
                remains[service] = lost
            elif service not in services:
                remains[service] = []
        return remains

    async def _service(self, name: str, remains: Iterable[str], swept: Swept) -> None:
        try:
            keys = self._keys.of(name)
            swept.services += 1
            empty = await self._expire(keys, list(remains), swept)
            if self._keys.cluster:
                if empty:
                    await drop_service(self._connection, self._keys, name)
                else:
                    await self._connection.call(
                        "SADD", self._keys.services, name, what="cleanup", writes=True
                    )
        except StoreError as error:
            swept.problems.append(str(error))
            log.warning("cleanup of %s: %s", name, error)

    async def _expire(self, keys: ServiceKeys, remains: list[str], swept: Swept) -> bool:
        """Take out who is overdue, in batches; whether nobody is left."""
        timeout = self._settings.global_timeout
        now = (await self._reader.state(keys)).now
        for first in range(0, len(remains), _BATCH):
            await self._call(keys, remains[first : first + _BATCH], swept)
        offset = 0
        while True:
            told = await self._connection.call(
                *("ZRANGEBYSCORE", keys.heartbeats, "-inf", f"({now - timeout * 1000:.0f}"),
                *("LIMIT", offset, _BATCH),
                what=f"cleanup of {keys.name}",
            )
            ids = [id.decode(errors="backslashreplace") for id in told]
            gone, braked = await self._call(keys, ids, swept)
            offset += len(ids) - gone
            if len(ids) < _BATCH or braked:
                break
        left = await self._connection.call(
            "EXISTS", keys.heartbeats, what=f"cleanup of {keys.name}"
        )
        return not left

    async def _call(self, keys: ServiceKeys, ids: list[str], swept: Swept) -> tuple[int, bool]:
        """How many of these were taken out, and whether the brake holds."""
        settings, tier1 = self._settings, [] if self._keys.cluster else [self._keys.services]
        reply: Any = await self._connection.run(
            CLEANUP,
            [
                *(keys.heartbeats, keys.brake, keys.evictions, keys.unhealthy),
                *tier1,
                *(keys.instance(id) for id in ids),
            ],
            [
                *(keys.changes, len(tier1), keys.name),
                int(settings.global_timeout * 1000),
                int(settings.interval * 1000),
                int(settings.brake_release * 1000),
                settings.brake_share,
                settings.brake_least,
                *(part for id in ids for part in (id, message_head(keys.name, id))),
            ],
            what=f"cleanup of {keys.name}",
        )
        now, state, silent, total, *outcomes = reply
        braked = self._brake(keys.name, state.decode(), Brake(silent, total, int(now), 0), swept)
        gone = 0
        for outcome, id in ((one.decode(), other.decode()) for one, other in outcomes):
            gone += self._outcome(keys.name, outcome, id, swept)
        return gone, braked

    def _outcome(self, service: str, outcome: str, id: str, swept: Swept) -> bool:
        """Record what was done to an instance; whether it is no longer listed."""
        if outcome == "removed":
            swept.removed.append((service, id))
            REMOVED.labels(service).inc()
            log.info("%s %s: taken out, no heartbeat for %s", service, id, self._timeout)
        elif outcome == "unhealthy":
            swept.unhealthy.append((service, id))
            log.warning("%s %s: unhealthy, no heartbeat for %s", service, id, self._timeout)
            return False
        elif outcome == "orphan":
            swept.orphans.append((service, id))
            log.info("%s %s: half a record was cleared away", service, id)
        else:
            swept.problems.append(f"{service} {id}: {outcome}")
            log.warning("cleanup of %s %s: %s", service, id, outcome)
            return False
        return True

    @property
    def _timeout(self) -> str:
        return show(self._settings.global_timeout)

    def _brake(self, service: str, state: str, brake: Brake, swept: Swept) -> bool:
        """Tell of a change of the brake, once; whether it holds."""
        holds = state in ("tripped", "holding")
        BRAKE.labels(service).set(holds)
        if holds:
            swept.brakes[service] = brake
            if service not in self._braked:
                log.warning("%s: the brake holds: %s", service, brake)
            self._braked.add(service)
        elif service in self._braked:
            self._braked.discard(service)
            why = {"recovered": "they beat again", "timed out": "its time is over"}.get(
                state, "an operator released it"
            )
            log.warning("%s: the brake is off: %s", service, why)
        return holds

    async def brakes(self) -> dict[str, Brake]:
        """The brakes that hold, by service."""
        names = await self._connection.call("SMEMBERS", self._keys.services, what="list of brakes")
        services = sorted(name.decode(errors="backslashreplace") for name in names)
        states = await asyncio.gather(
            *(self._reader.state(self._keys.of(name)) for name in services)
        )
        return {
            name: state.brake for name, state in zip(services, states, strict=True) if state.brake
        }

    async def release(self, service: str) -> bool:
        """Let go of a brake: who is silent now is taken out at the next pass. Whether it held."""
        keys = self._keys.of(service)
        kept = int((2 * self._settings.interval + self._settings.global_timeout) * 1000)
        released = await self._connection.run(
            RELEASE, [keys.brake], [kept], what=f"release of the brake of {service}"
        )
        return bool(released)


def _escaped(prefix: str) -> str:
    """A prefix with what has a meaning in a pattern taken literally."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in prefix)
