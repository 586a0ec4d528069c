"""The migration: plan, copy, verify and delete. Every step can be interrupted and repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from mooring.errors import MigrationError
from mooring.migrate.redis_v1.format import (
    INCARNATION,
    V1Keys,
    V1Keyspace,
    V1Record,
    V1Service,
    parse_record,
)
from mooring.migrate.redis_v1.plan import (
    DIFFERENT,
    WRITTEN,
    InstancePlan,
    V2Service,
    compare,
    stranded,
    tolerate_delay,
)
from mooring.migrate.redis_v1.reader import (
    COPY,
    DELETE,
    ServiceReader,
    UnreadableService,
    raw,
    text,
)
from mooring.migrate.verified_file import Verified
from mooring.registry.redis.connection import Argument
from mooring.registry.redis.layout import ServiceKeys
from mooring.registry.redis.live_service import KEPT, message_head
from mooring.registry.redis.registry import RedisRegistry
from mooring.tasks import Progress, no_progress, slices

FORMAT = "mooring redis-v1 verified 1"


class RedisV1Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    registry: str
    """Its address, without a password."""
    v1_prefix: str
    v2_prefix: str
    format: str = FORMAT

    def __str__(self) -> str:
        return (
            f"from the prefix '{self.v1_prefix}' to '{self.v2_prefix}' on the Redis {self.registry}"
        )


VerifiedServices: TypeAlias = Verified[RedisV1Header, V1Service]


def deletable(v1: V1Service, steps: Iterable[InstancePlan]) -> V1Service:
    """What v2 has, and what expired or is useless. What cannot be parsed stays."""
    stays = {"unreadable", *DIFFERENT}
    return v1.only(step.id for step in steps if step.verdict not in stays)


def changes_since(before: V1Service, after: V1Service, steps: Iterable[InstancePlan]) -> list[str]:
    """The changes of a v1 service, except removals. `steps` are the plan for `after`."""
    changes: list[str] = []
    known = set(before.ids)
    for step in steps:
        id = step.id
        if step.verdict in ("unreadable", "surplus"):
            continue
        if id not in known:
            changes.append(f"{step.service} {id} was added")
        elif after.hashes.get(id, {}) not in ({}, before.hashes.get(id, {})):
            changes.append(f"{step.service} {id} was registered again, or changed")
        elif after.scores.get(id) not in (None, before.scores.get(id)):
            changes.append(f"{step.service} {id} sent a heartbeat")
    return changes


_BATCH = 200
"""Instances that are written concurrently, and members that one script call deletes."""


class ServicePlan(NamedTuple):
    v1: V1Service
    v2: V2Service
    steps: list[InstancePlan]


class CopyOutcome(NamedTuple):
    step: InstancePlan
    outcome: str
    """`written`, `beat`, `equal`, `own`, `expired` or `removed`."""


class Migration:
    def __init__(self, registry: RedisRegistry, *, prefix: str = "") -> None:
        """`prefix` is that of v1."""
        self.connection, self.v2, self.v1 = registry.connection, registry.keys, V1Keys(prefix)
        self.reader = ServiceReader(self.connection, self.v1, self.v2)
        self.timeout = int(registry.settings.cleanup.global_timeout * 1000)
        self.limit = registry.settings.redis.metadata_limit

    @property
    def header(self) -> RedisV1Header:
        return RedisV1Header(self.connection.where, self.v1.prefix, self.v2.prefix)

    async def plan(self, progress: Progress = no_progress) -> list[InstancePlan]:
        """What a copy would do. Writes nothing."""
        return [step async for plan in self._plans(progress) for step in plan.steps]

    async def _plans(self, progress: Progress) -> AsyncIterator[ServicePlan]:
        """The plan of each service in v1, and of each service in v2 that has copies."""
        keyspace = await self.reader.keyspace()
        services = sorted({*keyspace.services, *await self.reader.services()})
        total, done = max(sum(map(len, keyspace.services.values())), len(services)), 0
        for stray in keyspace.strays:
            step = InstancePlan("", "", "unreadable", f"{stray} is not the key of an instance")
            yield ServicePlan(V1Service(""), V2Service(0), [step])
        for service in services:
            plan = await self._plan_service(service, keyspace)
            if plan.steps:
                yield plan
            done += max(len(keyspace.services.get(service, ())), 1)
            progress(min(done, total), total)

    async def _plan_service(self, service: str, keyspace: V1Keyspace) -> ServicePlan:
        v1 = V1Service(service)
        try:
            v1 = await self.reader.v1(service, keyspace.services.get(service, ()))
            listed = await self.reader.is_listed(service)
            v2, _ = await self.reader.v2(service, v1.ids, listed=listed)
        except UnreadableService as error:
            now, why = await self.reader.now(), str(error)
            steps = [InstancePlan(service, "", "unreadable", why)]
            steps += stranded(v1, now, timeout=self.timeout, why=why)
            return ServicePlan(V1Service(service), V2Service(now), steps)
        steps = compare(v1, v2, timeout=self.timeout, limit=self.limit)
        return ServicePlan(v1, v2, steps)

    async def copy(self, progress: Progress = no_progress) -> AsyncIterator[list[CopyOutcome]]:
        async for plan in self._plans(progress):
            steps = [step for step in plan.steps if step.verdict in WRITTEN]
            for batch in slices(steps, _BATCH):
                records = {}
                for step in batch:
                    record = self._record(plan.v1, step.id)
                    records[step.id] = record, plan.v1.heartbeat(step.id, record, plan.v2.now)
                outcomes = await self.write_copies(plan.v1.service, records)
                yield [CopyOutcome(step, outcomes[step.id]) for step in batch]

    def _record(self, v1: V1Service, id: str) -> V1Record:
        return parse_record(v1.service, id, v1.hashes[id] or {}, limit=self.limit)

    async def write_copies(
        self,
        service: str,
        records: Mapping[str, tuple[V1Record, int]],
        *,
        listed: bool | None = False,
    ) -> dict[str, str]:
        """Write instances with their last heartbeats to v2. Returns the outcome for each. On a
        cluster, tier 1 is written separately, unless it lists the service or is unavailable."""
        keys, what = self.v2.of(service), f"copy of {service}"
        if self.v2.cluster and records and listed is False:
            await self.connection.call("SADD", self.v2.services, service, what=what, writes=True)
        outcomes = await asyncio.gather(
            *(self._write_copy(keys, record, at, what) for record, at in records.values())
        )
        return dict(zip(records, outcomes, strict=True))

    async def _write_copy(
        self, keys: ServiceKeys, record: V1Record, heartbeat: int, what: str
    ) -> str:
        instance = record.instance
        tiers = [keys.heartbeats, keys.instance(instance.id), keys.removed]
        reply: bytes = await self.connection.run(
            COPY,
            tiers if self.v2.cluster else [*tiers, self.v2.services],
            [
                instance.id,
                heartbeat,
                record.registered,
                self.timeout,
                KEPT,
                keys.changes,
                message_head(keys.name, instance.id, instance),
                INCARNATION,
                keys.name,
                "true" if instance.status.healthy else "false",
                *(part for pair in record.fields.items() for part in pair),
            ],
            what=f"{what} {instance.id}",
        )
        return reply.decode()

    async def verify(
        self, progress: Progress = no_progress
    ) -> tuple[list[InstancePlan], VerifiedServices]:
        """The current plan, and what may be deleted if nothing differs. A heartbeat that may not
        have reached v2 yet is not a difference."""
        steps: list[InstancePlan] = []
        services: list[V1Service] = []
        async for plan in self._plans(progress):
            tolerant = [tolerate_delay(step, plan.v2.now) for step in plan.steps]
            steps += tolerant
            if (listed := deletable(plan.v1, tolerant)).ids:
                services.append(listed)
        return steps, Verified(self.header, services)

    async def delete(
        self, verified: VerifiedServices, progress: Progress = no_progress
    ) -> tuple[int, list[str]]:
        """Delete the verified parts of v1. Returns the number of deleted records, set members and
        heartbeats, and the instances that stay because they changed during the deletion. Raises
        `MigrationError`, and deletes nothing, if v1 has changed before, or if `verified` belongs to
        another migration."""
        verified.check_header(self.header)
        services = {v1.service: v1 for v1 in verified.items}
        if changes := await self._changes_since(services):
            more = f", and {len(changes) - 3} more changes" if len(changes) > 3 else ""
            raise MigrationError(
                f"v1 changed since it was verified: {', '.join(changes[:3])}{more}. Stop the "
                "programs that still write v1, and run `verify` again"
            )
        total, done, deleted = sum(len(v1.ids) for v1 in services.values()), 0, 0
        stays: list[str] = []
        for v1 in services.values():
            count, changed = await self.delete_v1(v1)
            deleted += count
            stays += [f"{v1.service} {id}" for id in changed]
            done += len(v1.ids)
            progress(done, total)
        return deleted, stays

    async def _changes_since(self, verified: Mapping[str, V1Service]) -> list[str]:
        changes: list[str] = []
        keyspace = await self.reader.keyspace()
        for service in keyspace.services:
            plan = await self._plan_service(service, keyspace)
            before = verified.get(service, V1Service(service))
            changes += changes_since(before, plan.v1, plan.steps)
        return changes

    async def delete_v1(self, v1: V1Service) -> tuple[int, list[str]]:
        """Delete exactly these parts. Returns their number, and the instances that have changed."""
        service = v1.service
        scores: list[list[Argument]] = [[raw(id), repr(at)] for id, at in v1.scores.items()]
        deleted, changed = await self._delete(self.v1.heartbeats(service), "zset", scores)
        stays = {text(id) for id in changed}
        # An instance with a new heartbeat keeps its record, and one with a new record stays listed.
        ids = [id for id, fields in v1.hashes.items() if fields and id not in stays]
        for batch in slices(ids, _BATCH):
            outcomes = await asyncio.gather(*(self._delete_hash(v1, id) for id in batch))
            for id, (count, changed) in zip(batch, outcomes, strict=True):
                deleted += count
                stays |= {id} if changed else set()
        members = sorted(v1.members - stays)
        count, _ = await self._delete(
            self.v1.instances(service), "set", [[raw(id)] for id in members]
        )
        await self._restore_members(service, members)
        return deleted + count, sorted(stays)

    async def _delete_hash(self, v1: V1Service, id: str) -> tuple[int, list[bytes]]:
        fields = v1.hashes[id] or {}
        arguments: list[Argument] = [raw(part) for pair in fields.items() for part in pair]
        return await self._delete(self.v1.instance(v1.service, id), "hash", [arguments])

    async def _delete(
        self, key: str, kind: str, parts: list[list[Argument]]
    ) -> tuple[int, list[bytes]]:
        deleted, changed = 0, []
        for batch in slices(parts, _BATCH):
            arguments = [word for part in batch for word in part]
            count, *members = await self.connection.run(
                DELETE, [key], [kind, *arguments], what=f"deletion of {key}"
            )
            deleted += count
            changed += members
        return deleted, changed

    async def _restore_members(self, service: str, ids: list[str]) -> None:
        """Put instances that registered during the deletion back into the set."""
        what = f"deletion of {service} from v1"
        for batch in slices(ids, _BATCH):
            exist = await asyncio.gather(
                *(
                    self.connection.call("EXISTS", raw(self.v1.instance(service, id)), what=what)
                    for id in batch
                )
            )
            if members := [raw(id) for id, exists in zip(batch, exist, strict=True) if exists]:
                await self.connection.call(
                    "SADD", self.v1.instances(service), *members, what=what, writes=True
                )
