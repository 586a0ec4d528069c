"""The bridge: both versions kept up to date for as long as there are writers of v1.

It looks at every service again and again. A change of a service that it knows is in the other
version after the next look; a service that v1 has for the first time is found by a scan, for which
it takes a tenth of its time at the most. Any number of bridges may run; one that stops and starts
again finds everything as it is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mooring.errors import InvalidRequest, StoreError
from mooring.migrate.redis_v1.bridge_plan import BridgePlan, SeenHeartbeat, plan_bridge
from mooring.migrate.redis_v1.format import INCARNATION, of_v2
from mooring.migrate.redis_v1.migration import Migration
from mooring.migrate.redis_v1.plan import V1Service, V2Service
from mooring.migrate.redis_v1.reader import LEAVE, MIRROR, Unreadable, shown
from mooring.registry.redis.live_service import drop_service, message_head
from mooring.tasks import Backoff, Tasks

log = logging.getLogger(__name__)

INTERVAL = 2.0
"""Seconds between two looks."""
_SERVICES = 20
"""Services that are looked at together."""
_SCANNING = 0.1
"""The share of the time that may go into scans."""
_PATIENCE = 0.5
"""Seconds after which a look at some does not wait for the one at those before."""
_REST = 10.0
"""Seconds for which what failed is left alone: each try waits for a node that is down, and all the
others wait with it."""


@dataclass(slots=True)
class BridgePass:
    """What a look changed: service and id of each."""

    to_v2: list[tuple[str, str]] = field(default_factory=list)
    """Registered, changed, or beaten."""
    out_of_v2: list[tuple[str, str]] = field(default_factory=list)
    to_v1: list[tuple[str, str]] = field(default_factory=list)
    out_of_v1: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Ailing(NamedTuple):
    """A service that could not be looked at, and until when it is left alone."""

    error: StoreError
    until: float


class Bridge:
    def __init__(self, migration: Migration) -> None:
        self._migration = migration
        self._connection = migration.connection
        self._v1, self._v2 = migration.v1, migration.v2
        self._services: set[str] = set()
        """Those of v1, as they were last found."""
        self._listed: set[str] | None = None
        """Those of v2; None where tier 1 does not answer."""
        self._unlisted: StoreError | None = None
        self._list_at = 0.0
        self._ailing: dict[str, _Ailing] = {}
        self._idle = 0.0
        """Seconds of the last look in which it did nothing but wait."""
        self._seen: dict[str, dict[str, SeenHeartbeat]] = {}
        self._told: set[str] = set()
        self._scan_at = 0.0

    async def run(
        self, told: Callable[[BridgePass], None] = lambda _: None, *, interval: float = INTERVAL
    ) -> None:
        """Look for ever. While Redis is away it waits, and tells once."""
        backoff, away = Backoff(0.1, 5.0), False
        while True:
            started = time.monotonic()
            try:
                told(await self.look())
            except StoreError as error:
                if not away:
                    log.warning("bridge: %s", error)
                away = True
                await asyncio.sleep(backoff.next())
                continue
            if away:
                log.warning("bridge: Redis is back")
            away = False
            backoff.reset()
            took = time.monotonic() - started - self._idle
            await asyncio.sleep(
                max(interval - took, took)
            )  # never busy for more than half the time

    async def look(self) -> BridgePass:
        """One look at all services. One that cannot be looked at costs no other; raises what a
        store raises where none can."""
        passed = BridgePass()
        failed = [error for error in (await self._scan(), await self._list()) if error]
        now = time.monotonic()
        self._ailing = {name: one for name, one in self._ailing.items() if one.until > now}
        failed += [one.error for one in self._ailing.values()]
        every = sorted(self._services | (self._listed or set()) | self._seen.keys())
        due = [name for name in every if name not in self._ailing]
        errors = await self._look_at(due, passed)
        failed += errors
        if failed and len(errors) == len(due):
            self._ailing, self._list_at = {}, 0.0
            raise failed[0]
        passed.problems = [shown(told) for told in (*passed.problems, *map(str, failed))]
        for problem in set(passed.problems) - self._told:
            log.warning("bridge: %s", problem)
        self._told = set(passed.problems)
        return passed

    async def _look_at(self, names: list[str], passed: BridgePass) -> list[StoreError]:
        """Look at services, some at once; the errors of those that failed. Who waits, for a node
        that is down most likely, holds up none of the others."""
        tasks = Tasks()
        looks: list[asyncio.Task[object]] = []
        try:
            for first in range(0, len(names), _SERVICES):
                part = [
                    tasks.start(self._try(name, passed), name=f"bridge of {name}")
                    for name in names[first : first + _SERVICES]
                ]
                looks += part
                await asyncio.wait(part, timeout=_PATIENCE)
            waits = time.monotonic()
            if looks:
                await asyncio.wait(looks)
            self._idle = time.monotonic() - waits
            told = [look.result() for look in looks]
        finally:
            await tasks.aclose()
        return [error for error in told if isinstance(error, StoreError)]

    async def _try(self, name: str, passed: BridgePass) -> StoreError | None:
        """Look at a service; what kept it from that, and keeps it out for a while."""
        try:
            await self._service(name, passed)
        except StoreError as error:
            self._ailing[name] = _Ailing(error, time.monotonic() + _REST)
            return error
        except InvalidRequest as error:
            passed.problems.append(f"{name}: {error}")
        return None

    async def _scan(self) -> StoreError | None:
        """Search for services of v1; what kept some from being found, which stay known then."""
        started = time.monotonic()
        if started < self._scan_at:
            return None
        try:
            keyspace, problem = await self._migration.reading.keyspace_that_answers()
        except StoreError as error:
            return error
        found = set(keyspace.services)
        self._services = found if problem is None else found | self._services
        ended = time.monotonic()
        self._scan_at = ended + (ended - started) * (1 / _SCANNING - 1)
        return problem

    async def _list(self) -> StoreError | None:
        """Read tier 1 of v2, or why it cannot be."""
        if time.monotonic() < self._list_at:
            return self._unlisted
        try:
            self._listed, self._unlisted = {*await self._migration.reading.services()}, None
        except StoreError as error:
            self._listed, self._unlisted = None, error
            self._list_at = time.monotonic() + _REST
        return self._unlisted

    async def _service(self, name: str, passed: BridgePass) -> None:
        reading, seen = self._migration.reading, self._seen.get(name, {})
        try:
            found = await reading.v1(name)
            listed = None if self._listed is None else name in self._listed
            held, config = await reading.v2(name, found.ids, listed=listed)
        except Unreadable as error:
            passed.problems.append(f"{name}: {error}")
            return
        due = plan_bridge(
            *(found, held, config, seen),
            timeout=self._migration.timeout,
            limit=self._migration.limit,
        )
        passed.problems += [f"{name} {problem}" for problem in due.problems]
        await self._to_v2(name, due, held, passed)
        await self._to_v1(found, due, held.now, passed)
        self._seen[name] = due.seen
        if not due.seen:
            del self._seen[name]

    async def _to_v2(self, name: str, due: BridgePlan, held: V2Service, passed: BridgePass) -> None:
        brought = await self._migration.bring(name, due.bring, listed=held.listed)
        for id, outcome in brought.items():
            if outcome in ("written", "beat"):
                passed.to_v2.append((name, id))
                if outcome == "written":
                    log.info("%s %s: from v1 to v2", name, id)
        for id in due.deregister:
            if await self._deregister(name, id):
                passed.out_of_v2.append((name, id))
                log.info("%s %s: deregistered in v1, and so in v2", name, id)

    async def _deregister(self, name: str, id: str) -> bool:
        keys = self._v2.of(name)
        tiers = [keys.heartbeats, keys.instance(id)]
        reply: Any = await self._connection.run(
            LEAVE,
            tiers if self._v2.cluster else [*tiers, self._v2.services],
            [id, INCARNATION, keys.changes, message_head(name, id), name],
            what=f"deregistration of {name} {id}",
        )
        there, empty = reply
        if empty and self._v2.cluster:
            await drop_service(self._connection, self._v2, name)
        return bool(there)

    async def _to_v1(self, found: V1Service, due: BridgePlan, now: int, passed: BridgePass) -> None:
        name = found.service
        for id, wanted in due.mirror.items():
            score = due.beats.pop(id, None)
            key = self._v1.instance(name, id)
            if of_v2(self._v2, key):
                passed.problems.append(f"{name} {id}: v1 would have it at a key of v2, {key}")
            elif await self._mirror(found, id, wanted, score):
                passed.to_v1.append((name, id))
                known = bool(found.hashes.get(id))
                if not known:
                    log.info("%s %s: from v2 to v1", name, id)
                await self._tell(name, id, "updated" if known else "added", now)
        await self._beat(name, due.beats)
        if due.withdraw:
            await self._withdraw(found, due.withdraw, now, passed)

    async def _mirror(
        self, found: V1Service, id: str, wanted: dict[str, str], score: float | None
    ) -> bool:
        """Write a record of v1 with its heartbeat, and then name it where readers look, unless
        somebody else wrote meanwhile."""
        name = found.service
        stamp = (found.hashes.get(id) or {}).get("timestamp", "")
        what = f"bridge of {name} {id} to v1"
        written = await self._connection.run(
            MIRROR,
            [self._v1.instance(name, id)],
            [stamp, *(part for pair in wanted.items() for part in pair)],
            what=what,
        )
        if written:
            await self._beat(name, {} if score is None else {id: score})
            await self._connection.call(
                "SADD", self._v1.instances(name), id, what=what, writes=True
            )
        return bool(written)

    async def _beat(self, name: str, beats: Mapping[str, float]) -> None:
        pairs = [word for id, score in beats.items() for word in (repr(score), id)]
        if pairs:
            key = self._v1.heartbeats(name)
            await self._connection.call("ZADD", key, *pairs, what="bridge to v1", writes=True)

    async def _withdraw(
        self, found: V1Service, ids: list[str], now: int, passed: BridgePass
    ) -> None:
        part = found.only(ids)
        _, stays = await self._migration.forget(part)
        for id in sorted(set(ids) - set(stays)):
            passed.out_of_v1.append((found.service, id))
            log.info("%s %s: left v2, and so v1", found.service, id)
            await self._tell(found.service, id, "removed", now)

    async def _tell(self, name: str, id: str, action: str, now: int) -> None:
        """Tell v1's readers, in v1's words."""
        message = {"serviceName": name, "action": action, "instanceId": id, "timestamp": now}
        await self._connection.call(
            *("PUBLISH", self._v1.channel(name), json.dumps(message)), what="bridge to v1"
        )
