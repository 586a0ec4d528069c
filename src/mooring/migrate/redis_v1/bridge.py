"""The bridge: keeps both versions in sync while v1 has writers.

It reads all services periodically. The next pass applies a change of a known service to the other
version. A scan finds services that are new in v1; scans use at most a tenth of the time. Any number
of bridges may run, and a bridge can be stopped and started at any time.

A bridge never loops: copies in v2 have a special incarnation and are never mirrored, and mirrored
records in v1 have a mark and are never copied. A v1 heartbeat is a time on the clock of its
instance. Once the bridge knows a service, a heartbeat that has changed counts as received now, and
one that has not changed as no heartbeat. So an instance that stops ages in v2 and expires there,
even if its clock is an hour ahead.
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
from mooring.migrate.redis_v1.format import (
    INCARNATION,
    V1Record,
    V1Service,
    in_seconds,
    is_bridged,
    is_v2_key,
    parse_record,
    v1_fields,
)
from mooring.migrate.redis_v1.migration import Migration
from mooring.migrate.redis_v1.plan import NOT_A_HASH, V2Service, differences, restarted
from mooring.migrate.redis_v1.reader import DEREGISTER, MIRROR, UnreadableService, printable
from mooring.model import Config
from mooring.registry.redis import layout
from mooring.registry.redis.live_service import ServiceWriter, message_head
from mooring.registry.redis.reader import with_config
from mooring.tasks import Backoff, Tasks, slices

log = logging.getLogger(__name__)

INTERVAL = 2.0
"""Seconds between two passes."""
_BATCH = 20
"""Services that are started together."""
_SCAN_SHARE = 0.1
"""The maximum share of the time that scans use."""
_BATCH_PATIENCE = 0.5
"""Seconds after which the next batch starts even if this one is not finished."""
_FAILURE_PAUSE = 10.0
"""Seconds for which a failed service is skipped, because each try waits for an unavailable node and
delays all others."""


V1_TIMEOUT = 90_000
"""Ms without a heartbeat after which v1 drops an instance: older instances are not mirrored."""


class SeenHeartbeat(NamedTuple):
    """The last heartbeat that a bridge saw from a v1 instance."""

    score: float | None
    at: int
    """When it arrived, in ms on the server's clock."""
    owned_at: int = 0
    """When a v2 process last owned it. Earlier v1 heartbeats do not restore the instance."""


@dataclass(slots=True)
class BridgePlan:
    copy: dict[str, tuple[V1Record, int]] = field(default_factory=dict)
    """To write to v2, with the last heartbeat."""
    deregister: list[str] = field(default_factory=list)
    """To remove from v2, because v1 removed it."""
    mirror: dict[str, dict[str, str]] = field(default_factory=dict)
    heartbeats: dict[str, float] = field(default_factory=dict)
    """For v1, in its unit."""
    withdraw: list[str] = field(default_factory=list)
    """To remove from v1, because v2 removed it."""
    seen: dict[str, SeenHeartbeat] = field(default_factory=dict)
    """For the next pass."""
    problems: list[str] = field(default_factory=list)
    """Instances that are left alone, and why."""


def plan_bridge(
    v1: V1Service,
    v2: V2Service,
    config: Mapping[str, Config],
    before: Mapping[str, SeenHeartbeat],
    *,
    timeout: int,
    limit: int,
) -> BridgePlan:
    """`before` is `seen` of the previous pass; `timeout` is that of v2, in ms."""
    plan = BridgePlan()
    registered = {id for id in v1.members if v1.hashes.get(id)}
    for id in sorted(registered):
        fields = v1.hashes[id] or {}
        if is_bridged(fields):
            continue
        try:
            record = parse_record(v1.service, id, fields, limit=limit)
        except InvalidRequest as error:
            plan.problems.append(f"{id}, of v1, {error}")  # its copy in v2 expires
            continue
        seen = _see(v1, record, before.get(id), v2.now)
        plan.seen[id] = seen._replace(owned_at=v2.now) if v2.owns(id, timeout) else seen
        _plan_to_v2(plan, v2, record, timeout)
    plan.deregister = [
        id
        for id in sorted(before.keys() - registered)
        if v2.records.get(id, {}).get("incarnation") == INCARNATION
    ]
    _plan_to_v1(plan, v1, v2, config)
    return plan


def _see(v1: V1Service, record: V1Record, before: SeenHeartbeat | None, now: int) -> SeenHeartbeat:
    id = record.instance.id
    score = v1.scores.get(id)
    if before is None:
        return SeenHeartbeat(score, v1.heartbeat(id, record, now))
    return before if score == before.score else before._replace(score=score, at=now)


def _plan_to_v2(plan: BridgePlan, v2: V2Service, record: V1Record, timeout: int) -> None:
    id = record.instance.id
    seen = plan.seen[id]
    if seen.at <= max(v2.now - timeout, seen.owned_at):
        return
    if id in v2.wrong_type:
        plan.problems.append(f"{id}: {NOT_A_HASH}")
        return
    if id in v2.removed and not restarted(record, seen.at, v2.removed[id]):
        if record.registered <= v2.removed[id]:  # else the next heartbeats show if it restarted
            plan.withdraw.append(id)
        return
    current = (
        id in v2.records
        and v2.listed is not False
        and v2.scores.get(id, 0) >= seen.at
        and not differences(record.fields, v2.records[id])
    )
    if not current:
        plan.copy[id] = (record, seen.at)


def _plan_to_v1(
    plan: BridgePlan, v1: V1Service, v2: V2Service, config: Mapping[str, Config]
) -> None:
    seconds = in_seconds(v1.scores.values())
    alive = v2.alive(V1_TIMEOUT)
    for id in sorted(alive):
        if not _may_mirror(plan, id, v1.hashes.get(id, {}), v2.records[id]):
            continue
        try:
            instance = with_config(layout.decode(v1.service, id, v2.records[id]), config)
        except InvalidRequest as error:
            plan.problems.append(f"{id}, of v2, {error}")  # v2 readers omit it too
            continue
        wanted = v1_fields(instance, _registration_time(v2.records[id]), in_seconds=seconds)
        if v1.hashes.get(id) != wanted or id not in v1.members:
            plan.mirror[id] = wanted
        score = v2.scores[id] // 1000 if seconds else v2.scores[id]
        if v1.scores.get(id) != score:
            plan.heartbeats[id] = score
    plan.withdraw += sorted(v1.bridged - alive)


def _may_mirror(
    plan: BridgePlan, id: str, fields: Mapping[str, str] | None, record: Mapping[str, str]
) -> bool:
    """Whether the v1 record has no owner that has been alive since a v2 process took over."""
    if fields is None:
        return False  # not a hash
    if not fields or is_bridged(fields):
        return True
    return id in plan.seen and plan.seen[id].at < _registration_time(record)


def _registration_time(record: Mapping[str, str]) -> int:
    text = record.get("registrationTime", "")
    return int(text) if text.isdecimal() else 0


@dataclass(slots=True)
class BridgePass:
    """The changes of one pass: service and id of each."""

    to_v2: list[tuple[str, str]] = field(default_factory=list)
    """Registered or changed, or with a new heartbeat."""
    out_of_v2: list[tuple[str, str]] = field(default_factory=list)
    to_v1: list[tuple[str, str]] = field(default_factory=list)
    out_of_v1: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Bridge:
    def __init__(self, migration: Migration) -> None:
        self._migration = migration
        self._connection = migration.connection
        self._v1, self._v2 = migration.v1, migration.v2
        self._services: set[str] = set()
        """The services of v1 at the last scan."""
        self._listed: set[str] | None = None
        """The services of v2; None if tier 1 is unavailable."""
        self._list_error: StoreError | None = None
        self._list_at = 0.0
        self._failed: dict[str, tuple[StoreError, float]] = {}
        """The errors of failed services, and until when to skip them."""
        self._idle = 0.0
        """Seconds in the last pass during which it only waited."""
        self._seen: dict[str, dict[str, SeenHeartbeat]] = {}
        self._reported: set[str] = set()
        self._scan_at = 0.0

    async def run(
        self, notify: Callable[[BridgePass], None] = lambda _: None, *, interval: float = INTERVAL
    ) -> None:
        """Run passes forever. While Redis is unavailable, it retries, and logs that once."""
        backoff, unavailable = Backoff(0.1, 5.0), False
        while True:
            started = time.monotonic()
            try:
                notify(await self.run_pass())
            except StoreError as error:
                if not unavailable:
                    log.warning("bridge: %s", error)
                unavailable = True
                await asyncio.sleep(backoff.next())
                continue
            if unavailable:
                log.warning("bridge: Redis is available again")
            unavailable = False
            backoff.reset()
            took = time.monotonic() - started - self._idle
            # At least half of the time is idle.
            await asyncio.sleep(max(interval - took, took))

    async def run_pass(self) -> BridgePass:
        """Bridge all services, independently of each other. Raises `StoreError` if all fail."""
        report = BridgePass()
        errors = [error for error in (await self._scan(), await self._list()) if error]
        now = time.monotonic()
        self._failed = {name: failed for name, failed in self._failed.items() if failed[1] > now}
        errors += [error for error, _ in self._failed.values()]
        every = sorted(self._services | (self._listed or set()) | self._seen.keys())
        due = [name for name in every if name not in self._failed]
        failures = await self._bridge_services(due, report)
        errors += failures
        if errors and len(failures) == len(due):
            self._failed, self._list_at = {}, 0.0
            raise errors[0]
        report.problems = [printable(text) for text in (*report.problems, *map(str, errors))]
        problems = set(report.problems)
        for problem in problems - self._reported:
            log.warning("bridge: %s", problem)
        self._reported = problems
        return report

    async def _bridge_services(self, names: list[str], report: BridgePass) -> list[StoreError]:
        """Bridge services concurrently, and return the errors. A service that waits, probably for
        an unavailable node, does not delay others."""
        running: list[asyncio.Task[object]] = []
        async with Tasks() as tasks:
            for batch_of_names in slices(names, _BATCH):
                batch = [
                    tasks.start(self._try_service(name, report), name=f"bridge of {name}")
                    for name in batch_of_names
                ]
                running += batch
                await asyncio.wait(batch, timeout=_BATCH_PATIENCE)
            idle_since = time.monotonic()
            if running:
                await asyncio.wait(running)
            self._idle = time.monotonic() - idle_since
            results = [task.result() for task in running]
        return [error for error in results if isinstance(error, StoreError)]

    async def _try_service(self, name: str, report: BridgePass) -> StoreError | None:
        try:
            await self._bridge_service(name, report)
        except StoreError as error:
            self._failed[name] = error, time.monotonic() + _FAILURE_PAUSE
            return error
        except InvalidRequest as error:
            report.problems.append(f"{name}: {error}")
        return None

    async def _scan(self) -> StoreError | None:
        """Find the services of v1. If some nodes fail, services stay known; returns the error."""
        started = time.monotonic()
        if started < self._scan_at:
            return None
        try:
            keyspace, problem = await self._migration.reader.available_keyspace()
        except StoreError as error:
            return error
        services = set(keyspace.services)
        self._services = services if problem is None else services | self._services
        ended = time.monotonic()
        self._scan_at = ended + (ended - started) * (1 / _SCAN_SHARE - 1)
        return problem

    async def _list(self) -> StoreError | None:
        """Read tier 1 of v2. Returns the error if it is unavailable."""
        if time.monotonic() < self._list_at:
            return self._list_error
        try:
            self._listed, self._list_error = {*await self._migration.reader.services()}, None
        except StoreError as error:
            self._listed, self._list_error = None, error
            self._list_at = time.monotonic() + _FAILURE_PAUSE
        return self._list_error

    async def _bridge_service(self, name: str, report: BridgePass) -> None:
        reader, seen = self._migration.reader, self._seen.get(name, {})
        try:
            v1 = await reader.v1(name)
            listed = None if self._listed is None else name in self._listed
            v2, config = await reader.v2(name, v1.ids, listed=listed)
        except UnreadableService as error:
            report.problems.append(f"{name}: {error}")
            return
        timeout, limit = self._migration.timeout, self._migration.limit
        plan = plan_bridge(v1, v2, config, seen, timeout=timeout, limit=limit)
        report.problems += [f"{name} {problem}" for problem in plan.problems]
        await self._to_v2(name, plan, v2, report)
        await self._to_v1(v1, plan, v2.now, report)
        self._seen[name] = plan.seen
        if not plan.seen:
            del self._seen[name]

    async def _to_v2(self, name: str, plan: BridgePlan, v2: V2Service, report: BridgePass) -> None:
        outcomes = await self._migration.write_copies(name, plan.copy, listed=v2.listed)
        for id, outcome in outcomes.items():
            if outcome in ("written", "beat"):
                report.to_v2.append((name, id))
                if outcome == "written":
                    log.info("%s %s: from v1 to v2", name, id)
        for id in plan.deregister:
            if await self._deregister(name, id):
                report.out_of_v2.append((name, id))
                log.info("%s %s: deregistered in v1, and so in v2", name, id)

    async def _deregister(self, name: str, id: str) -> bool:
        keys = self._v2.of(name)
        reply: Any = await self._connection.run(
            DEREGISTER,
            [keys.heartbeats, keys.instance(id), *keys.tier1],
            [id, INCARNATION, keys.changes, message_head(name, id), name],
            what=f"deregistration of {name} {id}",
        )
        removed, empty = reply
        if empty and keys.cluster:
            await ServiceWriter(self._connection, keys).drop_service()
        return bool(removed)

    async def _to_v1(self, v1: V1Service, plan: BridgePlan, now: int, report: BridgePass) -> None:
        name = v1.service
        for id, fields in plan.mirror.items():
            score = plan.heartbeats.pop(id, None)
            key = self._v1.instance(name, id)
            if is_v2_key(self._v2, key):
                report.problems.append(f"{name} {id}: its key in v1 would be a v2 key, {key}")
            elif await self._mirror(v1, id, fields, score):
                report.to_v1.append((name, id))
                known = bool(v1.hashes.get(id))
                if not known:
                    log.info("%s %s: from v2 to v1", name, id)
                await self._publish(name, id, "updated" if known else "added", now)
        await self._beat(name, plan.heartbeats)
        if plan.withdraw:
            await self._withdraw(v1, plan.withdraw, now, report)

    async def _mirror(
        self, v1: V1Service, id: str, fields: dict[str, str], score: float | None
    ) -> bool:
        """Write a v1 record and its heartbeat, unless another writer has changed the record."""
        name = v1.service
        timestamp = (v1.hashes.get(id) or {}).get("timestamp", "")
        what = f"bridge of {name} {id} to v1"
        written = await self._connection.run(
            MIRROR,
            [self._v1.instance(name, id)],
            [timestamp, *(part for pair in fields.items() for part in pair)],
            what=what,
        )
        if written:
            await self._beat(name, {} if score is None else {id: score})
            await self._connection.call(
                "SADD", self._v1.instances(name), id, what=what, writes=True
            )
        return bool(written)

    async def _beat(self, name: str, heartbeats: Mapping[str, float]) -> None:
        pairs = [word for id, score in heartbeats.items() for word in (repr(score), id)]
        if pairs:
            key = self._v1.heartbeats(name)
            await self._connection.call("ZADD", key, *pairs, what="bridge to v1", writes=True)

    async def _withdraw(self, v1: V1Service, ids: list[str], now: int, report: BridgePass) -> None:
        _, stays = await self._migration.delete_v1(v1.only(ids))
        for id in sorted(set(ids) - set(stays)):
            report.out_of_v1.append((v1.service, id))
            log.info("%s %s: removed from v2, and so from v1", v1.service, id)
            await self._publish(v1.service, id, "removed", now)

    async def _publish(self, name: str, id: str, action: str, now: int) -> None:
        """Publish a change in the format of v1."""
        message = {"serviceName": name, "action": action, "instanceId": id, "timestamp": now}
        await self._connection.call(
            "PUBLISH", self._v1.channel(name), json.dumps(message), what="bridge to v1"
        )
