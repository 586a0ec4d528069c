"""The migration: plan, copy, verify and delete. Every step can be interrupted and repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from mooring.errors import MigrationError
from mooring.migrate import verified_file as listing
from mooring.migrate.redis_v1.format import INCARNATION, Keyspace, Record, V1Keys, understood
from mooring.migrate.redis_v1.plan import (
    DIFFERENT,
    WRITTEN,
    InstancePlan,
    V1Service,
    V2Service,
    compared,
    pardoned,
    stranded,
)
from mooring.migrate.redis_v1.reader import BRING, FORGET, Reading, Unreadable, raw, text
from mooring.registry.redis.connection import Argument
from mooring.registry.redis.layout import ServiceKeys
from mooring.registry.redis.live_service import KEPT, message_head
from mooring.registry.redis.registry import RedisRegistry

_FORMAT = "mooring redis-v1 verified 1"


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    registry: str
    """Where it is, without any password."""
    v1_prefix: str
    v2_prefix: str
    format: str = _FORMAT


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    service: str
    hashes: dict[str, dict[str, str]]
    members: list[str]
    scores: dict[str, float]


@dataclass(frozen=True, slots=True)
class Verified:
    header: Header
    services: Mapping[str, V1Service]


def deletable(found: V1Service, steps: Iterable[InstancePlan]) -> V1Service:
    """What may go of a service: what v2 has, what has expired, what is of no use to anybody. What
    cannot be understood stays."""
    stays = {"unreadable", *DIFFERENT}
    return found.only(step.id for step in steps if step.verdict not in stays)


def since(before: V1Service, after: V1Service, steps: Iterable[InstancePlan]) -> list[str]:
    """What happened to a service of v1 since it was verified; `steps` are about `after`. What is
    gone by now is no matter."""
    told: list[str] = []
    known = set(before.ids)
    for step in steps:
        id = step.id
        if step.verdict in ("unreadable", "surplus"):
            continue
        if id not in known:
            told.append(f"{step.service} {id} came")
        elif after.hashes.get(id, {}) not in ({}, before.hashes.get(id, {})):
            told.append(f"{step.service} {id} was registered again, or changed")
        elif after.scores.get(id) not in (None, before.scores.get(id)):
            told.append(f"{step.service} {id} gave a sign of life")
    return told


def write(path: Path, verified: Verified) -> None:
    """Raises `MigrationError` where it cannot be written."""
    lines = (
        _Line(
            found.service,
            {id: dict(told) for id, told in found.hashes.items() if told is not None},
            sorted(found.members),
            dict(found.scores),
        )
        for found in verified.services.values()
    )
    listing.write(path, verified.header, lines)


def read(path: Path) -> Verified:
    """Raises `MigrationError` where it is not there, or no such file."""
    header, lines = listing.read(path, Header, _Line, format=_FORMAT)
    services = {
        line.service: V1Service(line.service, line.hashes, frozenset(line.members), line.scores)
        for line in lines
    }
    return Verified(header, services)


_TOGETHER = 200
"""Instances that are written at once, and members that one script call deletes."""

Progress = Callable[[int, int], None]
"""Called with how many instances were looked at, and of how many."""


def _silent(done: int, total: int) -> None: ...


class Looked(NamedTuple):
    """A service, read and judged."""

    found: V1Service
    held: V2Service
    steps: list[InstancePlan]


class Written(NamedTuple):
    """What became of an instance that was to be written."""

    step: InstancePlan
    outcome: str
    """`written`, `beat`, `equal`, `own`, `expired` or `removed`."""


class Changed(MigrationError):
    """v1 is no longer as it was verified; nothing was deleted."""

    def __init__(self, told: list[str]) -> None:
        more = f", and {len(told) - 3} more changes" if len(told) > 3 else ""
        super().__init__(
            f"v1 changed since it was verified: {', '.join(told[:3])}{more}. Stop what still "
            "writes v1, and verify again"
        )
        self.told = told


class Migration:
    def __init__(self, registry: RedisRegistry, *, prefix: str = "") -> None:
        """`prefix` is that of v1."""
        self.connection, self.v2, self.v1 = registry.connection, registry.keys, V1Keys(prefix)
        self.reading = Reading(self.connection, self.v1, self.v2)
        self.timeout = int(registry.settings.cleanup.global_timeout * 1000)
        self.limit = registry.settings.redis.metadata_limit

    @property
    def header(self) -> Header:
        return Header(self.connection.where, self.v1.prefix, self.v2.prefix)

    async def plan(self, progress: Progress = _silent) -> AsyncIterator[Looked]:
        """Every service of v1, and those of v2 that have copies, one after another. It writes
        nothing."""
        keyspace = await self.reading.keyspace()
        services = sorted({*keyspace.services, *await self.reading.services()})
        total, done = max(sum(map(len, keyspace.services.values())), len(services)), 0
        for stray in keyspace.strays:
            step = InstancePlan("", "", "unreadable", f"{stray} is no key of an instance")
            yield Looked(V1Service(""), V2Service(0), [step])
        for service in services:
            looked = await self.look(service, keyspace)
            if looked.steps:
                yield looked
            done += max(len(keyspace.services.get(service, ())), 1)
            progress(min(done, total), total)

    async def look(self, service: str, keyspace: Keyspace) -> Looked:
        found = V1Service(service)
        try:
            found = await self.reading.v1(service, keyspace.services.get(service, ()))
            listed = await self.reading.is_listed(service)
            held, _ = await self.reading.v2(service, found.ids, listed=listed)
        except Unreadable as error:
            now, why = await self.reading.now(), str(error)
            steps = [InstancePlan(service, "", "unreadable", why)]
            steps += stranded(found, now, timeout=self.timeout, why=why)
            return Looked(V1Service(service), V2Service(now), steps)
        steps = compared(found, held, timeout=self.timeout, limit=self.limit)
        return Looked(found, held, steps)

    async def copy(self, progress: Progress = _silent) -> AsyncIterator[list[Written]]:
        """Write into v2 what v1 has, service by service; what was to be written, and its end."""
        async for looked in self.plan(progress):
            due = [step for step in looked.steps if step.verdict in WRITTEN]
            for first in range(0, len(due), _TOGETHER):
                part = due[first : first + _TOGETHER]
                records = {step.id: self._record(looked.found, step.id) for step in part}
                outcomes = await self.bring(
                    looked.found.service,
                    {
                        id: (record, looked.found.heartbeat(id, record, looked.held.now))
                        for id, record in records.items()
                    },
                )
                yield [Written(step, outcomes[step.id]) for step in part]

    def _record(self, found: V1Service, id: str) -> Record:
        return understood(found.service, id, found.hashes[id] or {}, limit=self.limit)

    async def bring(
        self,
        service: str,
        records: Mapping[str, tuple[Record, int]],
        *,
        listed: bool | None = False,
    ) -> dict[str, str]:
        """Write instances with the time at which they were last heard; what became of each. On a
        cluster tier 1 lies elsewhere: it is left alone where it names them, or does not answer."""
        keys, what = self.v2.of(service), f"copy of {service}"
        if self.v2.cluster and records and listed is False:
            await self.connection.call("SADD", self.v2.services, service, what=what, writes=True)
        replies = await asyncio.gather(
            *(self._bring(keys, record, heard, what) for record, heard in records.values())
        )
        return dict(zip(records, replies, strict=True))

    async def _bring(self, keys: ServiceKeys, record: Record, heard: int, what: str) -> str:
        instance = record.instance
        tiers = [keys.heartbeats, keys.instance(instance.id), keys.removed]
        reply: bytes = await self.connection.run(
            BRING,
            tiers if self.v2.cluster else [*tiers, self.v2.services],
            [
                *(instance.id, heard, record.registered, self.timeout, KEPT),
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

    async def verify(self, progress: Progress = _silent) -> AsyncIterator[tuple[Looked, V1Service]]:
        """Every service, with what of it may be deleted. A heartbeat that may be on its way to v2
        is no difference."""
        async for looked in self.plan(progress):
            steps = [pardoned(step, looked.held.now) for step in looked.steps]
            yield Looked(looked.found, looked.held, steps), deletable(looked.found, steps)

    async def delete(
        self, verified: Verified, progress: Progress = _silent
    ) -> tuple[int, list[str]]:
        """Delete what was verified, if v1 is as it was then: how many records, sets and heartbeats
        went, and what stays because it changed at the last moment. Raises `Changed`."""
        if verified.header != self.header:
            raise MigrationError(
                f"what was verified is another migration: {verified.header}, not {self.header}"
            )
        if told := await self._since(verified):
            raise Changed(told)
        total, done, gone = sum(len(each.ids) for each in verified.services.values()), 0, 0
        stays: list[str] = []
        for found in verified.services.values():
            count, changed = await self.forget(found)
            gone += count
            stays += [f"{found.service} {id}" for id in changed]
            done += len(found.ids)
            progress(done, total)
        return gone, stays

    async def _since(self, verified: Verified) -> list[str]:
        told: list[str] = []
        keyspace = await self.reading.keyspace()
        for service in keyspace.services:
            looked = await self.look(service, keyspace)
            before = verified.services.get(service, V1Service(service))
            told += since(before, looked.found, looked.steps)
        return told

    async def forget(self, found: V1Service) -> tuple[int, list[str]]:
        """Delete exactly this from v1; how much went, and whose place stays because it changed."""
        service = found.service
        scores: list[list[Argument]] = [[raw(id), repr(at)] for id, at in found.scores.items()]
        gone, changed = await self._forget(self.v1.heartbeats(service), "zset", scores)
        stays = {text(id) for id in changed}
        # Whoever still beats keeps its record, too; and whoever has a new record stays in the set.
        left = [id for id, told in found.hashes.items() if told and id not in stays]
        for first in range(0, len(left), _TOGETHER):
            part = left[first : first + _TOGETHER]
            for id, (count, differs) in zip(
                part, await asyncio.gather(*(self._drop(found, id) for id in part)), strict=True
            ):
                gone += count
                stays |= {id} if differs else set()
        members = sorted(found.members - stays)
        count, _ = await self._forget(
            self.v1.instances(service), "set", [[raw(id)] for id in members]
        )
        await self._put_back(service, members)
        return gone + count, sorted(stays)

    async def _drop(self, found: V1Service, id: str) -> tuple[int, list[bytes]]:
        told = found.hashes[id] or {}
        whole: list[Argument] = [raw(word) for pair in told.items() for word in pair]
        return await self._forget(self.v1.instance(found.service, id), "hash", [whole])

    async def _forget(
        self, key: str, kind: str, parts: list[list[Argument]]
    ) -> tuple[int, list[bytes]]:
        gone, changed = 0, []
        for first in range(0, len(parts), _TOGETHER):
            arguments = [word for part in parts[first : first + _TOGETHER] for word in part]
            count, *told = await self.connection.run(
                FORGET, [key], [kind, *arguments], what=f"deletion of {key}"
            )
            gone += count
            changed += told
        return gone, changed

    async def _put_back(self, service: str, ids: list[str]) -> None:
        """Who registered while its place was deleted is in the set again."""
        what = f"deletion of {service} from v1"
        for first in range(0, len(ids), _TOGETHER):
            part = ids[first : first + _TOGETHER]
            there = await asyncio.gather(
                *(
                    self.connection.call("EXISTS", raw(self.v1.instance(service, id)), what=what)
                    for id in part
                )
            )
            if again := [raw(id) for id, found in zip(part, there, strict=True) if found]:
                await self.connection.call(
                    "SADD", self.v1.instances(service), *again, what=what, writes=True
                )
