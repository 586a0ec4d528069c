"""The registry on Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from mooring.errors import InUse, InvalidRequest, StoreError
from mooring.formatting import quoted
from mooring.mirror import Feed
from mooring.model import JSON, Group, Instance, Service, State, check_text, new_incarnation
from mooring.names import check_name, split_service
from mooring.registry import json_values as values
from mooring.registry.contract import (
    InstanceFeed,
    InstanceRecord,
    Listing,
    Problem,
    Registry,
    RegistryGuarantees,
    RemoteRegistration,
    ServiceCount,
    StatusReport,
)
from mooring.registry.kv.layouts.layout import operator_fields
from mooring.registry.redis import layout as fields
from mooring.registry.redis.all_services_feed import AllServicesFeed
from mooring.registry.redis.cleanup import RedisEvictions
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.layout import RedisKeys, check_service
from mooring.registry.redis.leader_lease import RedisLeaderLease
from mooring.registry.redis.live_service import LiveService, drop_service, message_head
from mooring.registry.redis.liveness import overdue, standing
from mooring.registry.redis.pipeline import EDIT, FORGET
from mooring.registry.redis.pubsub import ChangeChannels
from mooring.registry.redis.reader import Reader, of_each, with_config
from mooring.registry.redis.registrations import RedisInstanceRecord, RedisRemoteRegistrations
from mooring.registry.redis.service_feed import LastAnswer, ServiceFeed
from mooring.settings.registry import RegistrySettings
from mooring.store.validation import check_ttl

log = logging.getLogger(__name__)


class RedisRegistry(Registry):
    evictions: RedisEvictions
    leader_lease: RedisLeaderLease

    def __init__(self, connection: Connection, keys: RedisKeys, settings: RegistrySettings) -> None:
        self.url = connection.url
        self.guarantees = RegistryGuarantees(
            expires=(
                "its heartbeats stop: consumers leave it out after their own timeout, and "
                "`mooring cleanup` takes it out"
            ),
            renews=False,
            describes=True,
            late=3 * settings.heartbeat.heartbeat_interval,
        )
        self.connection, self.keys, self.settings = connection, keys, settings
        self.reader = Reader(connection, keys)
        self.evictions = RedisEvictions(
            connection,
            keys,
            self.reader,
            settings.cleanup,
            beat=settings.heartbeat.heartbeat_interval,
        )
        self.leader_lease = RedisLeaderLease(connection, keys)
        self._changes = ChangeChannels(connection, keys)
        self._services: dict[str, LiveService] = {}
        self._registered_here: set[tuple[str, str]] = set()
        self._remote = RedisRemoteRegistrations(
            *(connection, keys, self.reader),
            timeout=settings.cleanup.global_timeout,
            most=settings.redis.metadata_limit,
        )

    @property
    def timeout(self) -> float:
        """Seconds without a heartbeat after which an instance is left out here."""
        redis = self.settings.redis
        return redis.consumer_timeout or self.settings.cleanup.global_timeout

    def canonical(self, service: str) -> str:
        return check_service(service)

    def prepare(self, instance: Instance) -> tuple[Instance, list[str]]:
        ready = msgspec.structs.replace(
            instance,
            service=check_service(instance.service),
            incarnation=instance.incarnation or new_incarnation(),
        )
        size, most = fields.size(fields.encode(ready)), self.settings.redis.metadata_limit
        if size > most:
            raise InvalidRequest(
                f"{size} bytes of metadata of {ready.service} {ready.id} are over the limit of "
                f"{most}: say less, or raise registry.redis.metadata-limit"
            )
        return ready, operator_fields(instance)

    def instance_record(self, instance: Instance, *, ttl: float | None = None) -> InstanceRecord:
        if ttl is not None:
            check_ttl(ttl)
            log.info(
                "%s %s: on Redis a TTL has no effect: heartbeats come every %g s",
                *(instance.service, instance.id, self.settings.heartbeat.heartbeat_interval),
            )
        place = (instance.service, instance.id)
        if place in self._registered_here:
            raise InUse(
                f"{instance.service} {instance.id} is registered here already: close that "
                "registration first"
            )
        self._registered_here.add(place)
        live = self._live(instance.service)

        async def leave() -> None:
            self._registered_here.discard(place)
            if live.empty and self._services.get(live.name) is live:
                del self._services[live.name]
                await live.aclose()

        return RedisInstanceRecord(
            live, instance, most=self.settings.redis.metadata_limit, leave=leave
        )

    def _live(self, service: str) -> LiveService:
        live = self._services.get(service)
        if live is None:
            live = self._services[service] = self._apart(service)
        return live

    def _apart(self, service: str) -> LiveService:
        """For one call, in which nobody registered here takes part."""
        return LiveService(
            *(self.connection, self.keys, self._changes, service),
            timeout=self.settings.cleanup.global_timeout,
        )

    async def enter(self, instance: Instance, *, ttl: float | None = None) -> RemoteRegistration:
        """As everywhere; its time-to-live is that of cleanup, whatever is asked for."""
        if ttl is not None:
            check_ttl(ttl)
        ready, lost = self.prepare(instance)
        live = self._apart(ready.service)
        await self._remote.enter(live, ready, back=bool(instance.incarnation))
        every = self.settings.heartbeat.heartbeat_interval
        return RemoteRegistration(ready, self.settings.cleanup.global_timeout, every, tuple(lost))

    async def beat(
        self,
        service: str,
        id: str,
        incarnation: str,
        *,
        healthy: bool | None = None,
        state: State | None = None,
        metrics: Mapping[str, JSON] | None = None,
    ) -> bool:
        return await self._remote.beat(
            service, id, incarnation, StatusReport(healthy, state, metrics)
        )

    async def leave(self, service: str, id: str, incarnation: str) -> bool:
        return await self._remote.leave(self._apart(check_service(service)), id, incarnation)

    async def groups(self) -> list[str]:
        listed, described = await self._listed(), await self._described()
        found = {split_service(name)[0] for name in (*listed, *described) if _is_service(name)}
        return sorted(found | {name[:-1] for name in described if _is_group(name)})

    async def names(self, group: str = "") -> list[str]:
        """As everywhere: those that have instances, and those that are described. What is no
        service's name is left out."""
        if group:
            check_name("group", group)
        listed, described = await self._listed(), await self._described()
        names = sorted(name for name in {*listed, *described} if _is_service(name))
        return [name for name in names if not group or split_service(name)[0] == group]

    async def _listed(self) -> list[str]:
        told = await self.connection.call("SMEMBERS", self.keys.services, what="list of services")
        return [name.decode(errors="backslashreplace") for name in told]

    async def _described(self) -> list[str]:
        """None where they cannot be read: then who has instances is still known."""
        key = self.keys.info
        try:
            told = await self.connection.call("HGETALL", key, what="list of descriptions")
        except StoreError as error:
            log.warning("left out who has no instances: %s", error)
            return []
        return [*fields.from_pairs(told)]

    async def configured(self, service: str) -> bool:
        state = await self.reader.state(self.keys.of(service))
        return bool(state.config or state.problems)

    async def services(self, group: str = "") -> list[ServiceCount]:
        """As everywhere; one that cannot be read is left out, and a warning is logged."""
        listings = await of_each(await self.names(group), self.instances, log=log)
        return [ServiceCount(name, len(each.instances)) for name, each in listings.items()]

    async def instances(self, service: str) -> Listing:
        keys = self.keys.of(service)
        state, scores = await asyncio.gather(self.reader.state(keys), self.reader.scores(keys))
        details = await self.reader.details(keys, scores)
        shown = standing(
            {id: with_config(each, state.config) for id, each in details.instances.items()},
            overdue(scores, state.now, self.timeout, state.clock),
            held={},
            braked=state.brake is not None,
            grace=False,
            missed=(),
        )
        problems = [*details.problems.values(), *state.problems]
        if state.brake is not None:
            problems.append(Problem(keys.brake.encode(), str(state.brake)))
        listed = sorted(shown.values(), key=lambda instance: instance.id)
        return Listing(tuple(listed), state.now, tuple(problems))

    async def heard_between(
        self, service: str, since: float, until: float = float("inf")
    ) -> list[tuple[Instance, float]]:
        """The instances whose last heartbeat was within a time (seconds since the epoch, on the
        server's clock), with that heartbeat, in its order, whether they are overdue or not."""
        keys = self.keys.of(service)
        found = dict(await self.reader.between(keys, since * 1000, until * 1000))
        state, details = await asyncio.gather(
            self.reader.state(keys), self.reader.details(keys, found)
        )
        return [
            (with_config(details.instances[id], state.config), score / 1000)
            for id, score in found.items()
            if id in details.instances
        ]

    def follow(self, service: str) -> InstanceFeed:
        return self._feed(service, LastAnswer())

    def _feed(self, service: str, last_answer: LastAnswer) -> ServiceFeed:
        beats = self.settings.heartbeat.heartbeat_interval
        return ServiceFeed(
            *(self.reader, self._changes, self.keys.of(service)),
            where=self.url,
            timeout=self.timeout,
            grace=2 * beats + 5,
            last_answer=last_answer,
        )

    def follow_all(self) -> Feed[tuple[str, str], Instance]:
        return AllServicesFeed(self._inhabited, self._feed, where=self.url)

    async def _inhabited(self) -> list[str]:
        """The services that have instances."""
        return sorted(name for name in await self._listed() if _is_service(name))

    async def silence(self, service: str) -> Mapping[str, float]:
        keys = self.keys.of(service)
        state, scores = await asyncio.gather(self.reader.state(keys), self.reader.scores(keys))
        return {id: state.clock.silence(score, state.now) for id, score in scores.items()}

    async def deregister(self, service: str, id: str) -> bool:
        check_text("id", id)
        live = self._apart(check_service(service))
        return await live.deregister(id, "", head=message_head(service, id))

    async def config(self, service: str, id: str = "") -> Mapping[str, JSON]:
        keys = self.keys.of(service)
        value = await self._field(keys.config, id)
        with values.located(f"{keys.config} {quoted(id)}"):
            return values.decode(value) if value else {}

    async def _field(self, key: str, field: str) -> bytes:
        told: bytes | None = await self.connection.call("HGET", key, field, what=f"read of {key}")
        return told or b""

    async def configure(
        self, service: str, id: str = "", *, set: Mapping[str, JSON], unset: tuple[str, ...] = ()
    ) -> Mapping[str, JSON]:
        values.check_config(service, set)
        keys = self.keys.of(service)
        return await self._edit(keys.config, id, set, unset, tell=(keys.changes, service))

    async def _edit(
        self,
        key: str,
        field: str,
        set: Mapping[str, JSON],
        unset: tuple[str, ...] = (),
        *,
        tell: tuple[str, str] = ("", ""),
    ) -> dict[str, JSON]:
        """Change some of a value and leave the rest, whoever else writes meanwhile."""
        channel, service = tell
        while True:
            before = await self._field(key, field)
            where = f"{key} {quoted(field)}"
            told = values.edited(before, where, set, unset)
            after = values.encode(told) if told else b""
            if channel and told:
                with values.located(where):
                    values.decode_config(after)  # never write overrides that cannot be read
            done: Any = await self.connection.run(
                EDIT,
                [key],
                [field, before, after, channel, message_head(service, field)],
                what=f"change of {key} {field}",
            )
            if done:
                return told

    async def info(self, *, group: str = "", service: str = "") -> Group | Service:
        field = _info_field(group, service)
        value = await self._field(self.keys.info, field)
        return self._info(field, value or b"{}", group, service)

    def _info(self, field: str, value: bytes, group: str, service: str) -> Group | Service:
        with values.located(f"{self.keys.info} {quoted(field)}"):
            return values.decode_info(value, group=group, service=service)

    async def describe(
        self, *, group: str = "", service: str = "", set: Mapping[str, str]
    ) -> Group | Service:
        field = _info_field(group, service)
        values.check_info(set, service=bool(service))
        told = await self._edit(self.keys.info, field, dict(set))
        return self._info(field, values.encode(told), group, service)

    async def forget(self, service: str) -> bool:
        """As everywhere. Also who is silent is registered, until cleanup takes it out."""
        keys, what = self.keys.of(service), f"forgetting of {service}"
        beyond = [] if self.keys.cluster else [self.keys.info, self.keys.services]
        done = await self.connection.run(
            FORGET,
            [keys.heartbeats, keys.config, *beyond],
            [service, keys.changes, message_head(service, "")],
            what=what,
        )
        if done and self.keys.cluster:
            await self.connection.call("HDEL", self.keys.info, service, what=what, writes=True)
            await drop_service(self.connection, self.keys, service)
        return bool(done)

    async def aclose(self) -> None:
        for live in list(self._services.values()):
            await live.aclose()
        await self._changes.aclose()
        await self.connection.aclose()


def _is_service(name: str) -> bool:
    try:
        check_service(name)
    except InvalidRequest:
        return False
    return True


def _is_group(field: str) -> bool:
    """Whether a description is of a group: see `_info_field`."""
    try:
        check_name("group", field.removesuffix("/"))
    except InvalidRequest:
        return False
    return field.endswith("/")


def _info_field(group: str, service: str) -> str:
    if service:
        return check_service(service)
    check_name("group", group)
    return f"{group}/"
