"""The registry on Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from mooring.errors import InvalidRequest, StoreError
from mooring.messages import message
from mooring.mirror import Feed
from mooring.model import Instance, new_incarnation
from mooring.names import accepts, check_name, split_service
from mooring.registry.contract import (
    InstanceFeed,
    InstanceKey,
    InstanceRecord,
    LeaderLease,
    Listing,
    Problem,
    Registry,
    RegistryGuarantees,
    ServiceCount,
    operator_fields,
    registered_here,
)
from mooring.registry.redis import layout
from mooring.registry.redis.all_services_feed import AllServicesFeed
from mooring.registry.redis.cleanup import RedisEvictions
from mooring.registry.redis.connection import Connection
from mooring.registry.redis.consumer_liveness import overdue, visible
from mooring.registry.redis.instance_record import RedisInstanceRecord
from mooring.registry.redis.layout import RedisKeys, check_service, is_service
from mooring.registry.redis.live_service import LiveService
from mooring.registry.redis.operations import RedisOperations
from mooring.registry.redis.pipeline import LEAD, NOTE
from mooring.registry.redis.pubsub import ChangeChannels
from mooring.registry.redis.reader import Reader, read_each, with_config
from mooring.registry.redis.remote_registrations import RedisRemoteRegistrations
from mooring.registry.redis.service_feed import LastAnswer, ServiceFeed
from mooring.settings import RegistrySettings
from mooring.store.validation import check_ttl

log = logging.getLogger(__name__)

_NOTE_TTL = 7 * 86400
"""Seconds for which the note of the last leader is kept."""


class RedisRegistry(RedisOperations, RedisRemoteRegistrations, Registry):
    evictions: RedisEvictions
    leader_lease: RedisLeaderLease

    def __init__(self, connection: Connection, keys: RedisKeys, settings: RegistrySettings) -> None:
        super().__init__(connection, keys)
        interval = settings.heartbeat.heartbeat_interval
        self.guarantees = RegistryGuarantees(
            expires=(
                "consumers leave out an instance without heartbeats after their own timeout, and "
                "`mooring cleanup` evicts it"
            ),
            renews=False,
            describes=True,
            late=3 * interval,
        )
        self.settings = settings
        self.reader = Reader(connection)
        self.evictions = RedisEvictions(
            connection, keys, self.reader, settings.cleanup, beat=interval
        )
        self.leader_lease = RedisLeaderLease(connection, keys)
        self._channels = ChangeChannels(connection, keys)
        self._services: dict[str, LiveService] = {}
        self._registered_here: set[InstanceKey] = set()

    @property
    def timeout(self) -> float:
        """Seconds without a heartbeat after which this consumer leaves out an instance."""
        redis = self.settings.redis
        return redis.consumer_timeout or self.settings.cleanup.global_timeout

    def prepare(self, instance: Instance) -> tuple[Instance, list[str]]:
        ready = msgspec.structs.replace(
            instance,
            service=check_service(instance.service),
            incarnation=instance.incarnation or new_incarnation(),
        )
        size, limit = layout.size(layout.encode(ready)), self.settings.redis.metadata_limit
        if size > limit:
            raise InvalidRequest(
                message(
                    "metadata_over_limit",
                    size=size,
                    service=ready.service,
                    id=ready.id,
                    limit=limit,
                )
            )
        return ready, operator_fields(instance)

    def instance_record(self, instance: Instance, *, ttl: float | None = None) -> InstanceRecord:
        if ttl is not None:
            check_ttl(ttl)
            log.info(
                "%s %s: on Redis a TTL has no effect: heartbeats are sent every %g s",
                instance.service,
                instance.id,
                self.settings.heartbeat.heartbeat_interval,
            )
        place = (instance.service, instance.id)
        if place in self._registered_here:
            raise registered_here(instance.service, instance.id)
        self._registered_here.add(place)
        live = self._services.get(instance.service)
        if live is None:
            live = self._services[instance.service] = LiveService(
                self.connection,
                self.keys,
                self._channels,
                instance.service,
                timeout=self.settings.cleanup.global_timeout,
            )

        async def leave() -> None:
            self._registered_here.discard(place)
            if live.empty and self._services.get(live.name) is live:
                del self._services[live.name]
                await live.aclose()

        limit = self.settings.redis.metadata_limit
        return RedisInstanceRecord(live, instance, limit=limit, leave=leave)

    async def groups(self) -> list[str]:
        listed, described = await self._listed(), await self._described()
        groups = {split_service(name)[0] for name in (*listed, *described) if is_service(name)}
        for field in described:
            if field.endswith("/") and accepts(check_name, "group", field[:-1]):
                groups.add(field[:-1])
        return sorted(groups)

    async def names(self, group: str = "") -> list[str]:
        """The services that have instances or a description. Ignores invalid names."""
        if group:
            check_name("group", group)
        listed, described = await self._listed(), await self._described()
        names = sorted(name for name in {*listed, *described} if is_service(name))
        return [name for name in names if not group or split_service(name)[0] == group]

    async def _listed(self) -> list[str]:
        what = message("op_list", what=message("what_services"))
        reply = await self.connection.call("SMEMBERS", self.keys.services, what=what)
        return [name.decode(errors="backslashreplace") for name in reply]

    async def _described(self) -> list[str]:
        """Empty if the descriptions cannot be read: services with instances are listed anyway."""
        key, what = self.keys.info, message("op_list", what=message("what_descriptions"))
        try:
            reply = await self.connection.call("HGETALL", key, what=what)
        except StoreError as error:
            log.warning("services without instances are left out: %s", error)
            return []
        return [*layout.from_pairs(reply)]

    async def services(self, group: str = "") -> list[ServiceCount]:
        """Leaves out services that cannot be read, with a warning."""
        listings = await read_each(await self.names(group), self.instances, log=log)
        return [ServiceCount(name, len(listing.instances)) for name, listing in listings.items()]

    async def instances(self, service: str) -> Listing:
        keys = self.keys.of(service)
        state, scores = await asyncio.gather(self.reader.state(keys), self.reader.scores(keys))
        details = await self.reader.details(keys, scores)
        shown = visible(
            {id: with_config(one, state.config) for id, one in details.instances.items()},
            overdue(scores, state.now, self.timeout, state.clock),
            before={},
            braked=state.brake is not None,
        )
        problems = [*details.problems.values(), *state.problems]
        if state.brake is not None:
            problems.append(Problem(keys.brake.encode(), str(state.brake)))
        listed = sorted(shown.values(), key=lambda instance: instance.id)
        return Listing(tuple(listed), state.now, tuple(problems))

    async def heard_between(
        self, service: str, since: float, until: float = float("inf")
    ) -> list[tuple[Instance, float]]:
        """The instances with a last heartbeat within a time (seconds since the epoch, by the
        server's clock), with that heartbeat and in its order, including overdue ones."""
        keys = self.keys.of(service)
        scores = dict(await self.reader.between(keys, since * 1000, until * 1000))
        state, details = await asyncio.gather(
            self.reader.state(keys), self.reader.details(keys, scores)
        )
        return [
            (with_config(details.instances[id], state.config), score / 1000)
            for id, score in scores.items()
            if id in details.instances
        ]

    def follow(self, service: str) -> InstanceFeed:
        return self._feed(service, LastAnswer())

    def _feed(self, service: str, last_answer: LastAnswer) -> ServiceFeed:
        return ServiceFeed(
            self.reader,
            self._channels,
            self.keys.of(service),
            where=self.url,
            timeout=self.timeout,
            grace=2 * self.settings.heartbeat.heartbeat_interval + 5,
            last_answer=last_answer,
        )

    def follow_all(self) -> Feed[InstanceKey, Instance]:
        return AllServicesFeed(self._with_instances, self._feed, where=self.url)

    async def _with_instances(self) -> list[str]:
        return sorted(name for name in await self._listed() if is_service(name))

    async def silence(self, service: str) -> Mapping[str, float]:
        keys = self.keys.of(service)
        state, scores = await asyncio.gather(self.reader.state(keys), self.reader.scores(keys))
        return {id: state.clock.silence(score, state.now) for id, score in scores.items()}

    async def aclose(self) -> None:
        for live in list(self._services.values()):
            await live.aclose()
        await self._channels.aclose()
        await self.connection.aclose()


class RedisLeaderLease(LeaderLease):
    """Redis has no fencing, and a failover may forget a lease: for a moment there may be two
    leaders."""

    def __init__(self, connection: Connection, keys: RedisKeys) -> None:
        self._connection = connection
        self._leader, self._note = keys.leader, keys.alerts

    async def lead(self, id: str, ttl: float) -> bool:
        done = await self._connection.run(
            LEAD, [self._leader], [id, int(ttl * 1000)], what=message("op_election")
        )
        return bool(done)

    async def resign(self, id: str) -> None:
        await self.lead(id, 0)

    async def note(self) -> bytes:
        what = message("op_read", key=self._note)
        note: bytes | None = await self._connection.call("GET", self._note, what=what)
        return note or b""

    async def leave_note(self, id: str, note: bytes) -> bool:
        what, keys = message("op_write", key=self._note), [self._leader, self._note]
        done = await self._connection.run(NOTE, keys, [id, note, _NOTE_TTL], what=what)
        return bool(done)
