"""The registry on a store, through a layout."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from mooring.errors import Conflict, InUse, InvalidRequest
from mooring.mirror import Feed, Mirror, RangeFeed
from mooring.model import JSON, Group, Instance, Service, State, new_incarnation
from mooring.names import check_name
from mooring.registry import json_values as values
from mooring.registry.contract import (
    InstanceFeed,
    InstanceRecord,
    Listing,
    Registry,
    RegistryGuarantees,
    RemoteRegistration,
    ServiceCount,
    StatusReport,
)
from mooring.registry.json_values import Malformed
from mooring.registry.kv.commit_batches import CommitBatches
from mooring.registry.kv.feeds import AllInstances, ServiceFeed, ServiceInstances, everything_feed
from mooring.registry.kv.host_watch import HostWatch
from mooring.registry.kv.instance_record import SharedState, StoreInstanceRecord
from mooring.registry.kv.layouts.layout import Layout, Location
from mooring.registry.kv.remote_registrations import BEATS, StoreRemoteRegistrations
from mooring.registry.kv.removal import KEPT, forget, tombstone_key, tombstone_value
from mooring.registry.kv.shared_lease import Revisions, SharedLease
from mooring.store.contract import (
    MAX_REQUEST_BYTES,
    Delete,
    Entry,
    Put,
    Range,
    Store,
    key,
    unchanged,
)
from mooring.store.validation import check_ttl

_PAGE = 1000
_PAGE_OF_VALUES = 250
_LEASES = 20  # of which it is asked at once how long they live
_MUCH = 10_000  # characters of metadata from which on it is worth to count the bytes


class StoreRegistry(Registry):
    def __init__(self, store: Store, layout: Layout) -> None:
        self.url = store.url
        self.guarantees = RegistryGuarantees(
            expires="its lease runs out, and its keys are deleted with it",
            renews=True,
            describes="config" in layout.carries,
            keeps_names=True,
        )
        self.layout = layout
        self.store = store
        self._leases: dict[float, SharedLease] = {}
        self._registered_here: set[bytes] = set()
        self._shared = SharedState(
            *(store, layout, CommitBatches(store), Revisions(store)),
            described=set(),
            leave=self._leave,
        )
        self._remote = StoreRemoteRegistrations(store, layout)
        self._host_watches: dict[Range, HostWatch] = {}
        self._configs: dict[str, Mirror[bytes, Entry]] = {}
        self._config_users: Counter[str] = Counter()

    def canonical(self, service: str) -> str:
        return self.layout.canonical(service)

    def prepare(self, instance: Instance) -> tuple[Instance, list[str]]:
        id = instance.address
        if "id" in self.layout.carries:
            id = str(uuid.uuid4()) if instance.id in ("", id) else instance.id
        ready = copy.copy(instance)
        # What was in it was checked when it was made: to replace it would check it all again.
        msgspec.structs.force_setattr(ready, "service", self.layout.canonical(instance.service))
        msgspec.structs.force_setattr(ready, "id", id)
        incarnation = instance.incarnation or new_incarnation()
        msgspec.structs.force_setattr(ready, "incarnation", incarnation)
        self.layout.check(ready)
        said = ready.metadata
        if said and sum(map(len, said)) + sum(map(len, said.values())) > _MUCH:
            self._check_size(ready)
        return ready, self.layout.cannot_carry(instance)

    def _check_size(self, instance: Instance) -> None:
        size = sum(len(key) + len(value) for key, value in self.layout.encode(instance).items())
        if size > MAX_REQUEST_BYTES:
            raise InvalidRequest(
                f"{instance.service} {instance.id} says {size} bytes of itself, in its metadata "
                f"perhaps: a store takes {MAX_REQUEST_BYTES} in one commit"
            )

    def instance_record(self, instance: Instance, *, ttl: float | None = None) -> InstanceRecord:
        ttl = self.layout.ttl if ttl is None else ttl
        check_ttl(ttl)
        home = self.layout.home(instance)
        if home.start in self._registered_here:
            raise InUse(
                f"{instance.service} {instance.id} is registered here already: close that "
                "registration first"
            )
        self._registered_here.add(home.start)
        lease = self._leases.get(ttl)
        if lease is None:
            lease = self._leases[ttl] = SharedLease(self.store, ttl)
        around = self.layout.host_range(instance)
        host_watch = self._host_watches.get(around)
        if host_watch is None:
            config = self._service_config(instance.service)
            host_watch = self._host_watches[around] = HostWatch(
                self.store, self.layout, around, config, self._returned
            )
        return StoreInstanceRecord(self._shared, lease, host_watch, instance, home)

    async def _leave(self, instance: Instance, home: Range, host_watch: HostWatch) -> None:
        self._registered_here.discard(home.start)
        if host_watch.leave(instance.id):
            del self._host_watches[
                host_watch.range
            ]  # at once: who comes meanwhile needs a live one
            self._shared.described.discard(instance.service)  # somebody may have it forgotten
            await host_watch.aclose()
            await self._leave_config(instance.service)

    def _returned(self) -> None:
        """The store was away, and may be another since: one restored from a backup."""
        for lease in self._leases.values():
            lease.replace()

    def _service_config(self, service: str) -> Mirror[bytes, Entry] | None:
        """The operator's word on a service, live; one mirror for all its host watches here."""
        if "config" not in self.layout.carries:
            return None
        self._config_users[service] += 1
        mirror = self._configs.get(service)
        if mirror is None:
            where = key(self.layout.config_key(service))
            mirror = Mirror(RangeFeed(self.store, where), wait=False, quiet=True)
            self._configs[service] = mirror
        return mirror

    async def _leave_config(self, service: str) -> None:
        self._config_users[service] -= 1
        if self._config_users[service] <= 0:
            del self._config_users[service]
            if (mirror := self._configs.pop(service, None)) is not None:
                await mirror.aclose()

    async def enter(self, instance: Instance, *, ttl: float | None = None) -> RemoteRegistration:
        ttl = self.layout.ttl if ttl is None else ttl
        check_ttl(ttl)
        ready, lost = self.prepare(instance)
        entered, stays = await self._remote.enter(ready, ttl=ttl, back=instance.incarnation)
        return RemoteRegistration(entered, stays, stays / BEATS, tuple(lost))

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
        return await self._remote.leave(service, id, incarnation)

    async def groups(self) -> list[str]:
        found: dict[str, None] = {}
        for root in self.layout.roots():
            async for place, _ in self._scan(root, by_group=True):
                found[place.group] = None
        return list(found)

    async def names(self, group: str = "") -> list[str]:
        return sorted({place.service for place, _ in await self._of_services(group)})

    async def services(self, group: str = "") -> list[ServiceCount]:
        found = await self._of_services(group, values=True)
        everything = AllInstances(self.layout)
        everything.replace(entry for _, entry in found)
        counts = dict.fromkeys((place.service for place, _ in found), 0)
        for service, _ in everything.instances:
            counts[service] += 1
        return [ServiceCount(name, count) for name, count in sorted(counts.items())]

    async def _of_services(
        self, group: str, *, values: bool = False
    ) -> list[tuple[Location, Entry]]:
        """The keys of all services, or of those of one group."""
        if group:
            check_name("group", group)
        return [
            (place, entry)
            for root in self.layout.roots(group)
            async for place, entry in self._scan(root, values=values)
            if place.service and (not group or place.group == group)
        ]

    async def _scan(
        self, range: Range, *, values: bool = False, by_group: bool = False
    ) -> AsyncIterator[tuple[Location, Entry]]:
        """The keys of a range that belong to this layout. `by_group`: after a full page, continue
        after the group in which it ended."""
        at: int | None = None
        while True:
            limit = _PAGE_OF_VALUES if values else _PAGE
            page = await self.store.read(range, keys_only=not values, limit=limit, at=at)
            at = page.revision
            last = None
            for entry in page.entries:
                if (place := self.layout.locate(entry.key)) is not None:
                    last = place
                    yield place, entry
            if not page.more:
                return
            start = page.entries[-1].key + b"\0"
            if by_group and last is not None:
                start = max(start, self.layout.after_group(last.group))
            if range.end and start >= range.end:
                return
            range = Range(start, range.end)

    async def instances(self, service: str) -> Listing:
        assembly, mark = await self._assembly(service)
        listed = sorted(assembly.instances.values(), key=lambda instance: instance.id)
        return Listing(tuple(listed), mark, tuple(assembly.problems.values()))

    async def _assembly(self, service: str) -> tuple[ServiceInstances, int]:
        """The keys of a service, and the revision from which on something may be missing."""
        assembly = ServiceInstances(self.layout, service)
        found = [await self.store.read(where) for where in self.layout.ranges(service)]
        assembly.replace(entry for part in found for entry in part.entries)
        return assembly, min(part.revision for part in found)

    async def configured(self, service: str) -> bool:
        service = self.layout.canonical(service)
        parts = [
            (await self.store.read(where, keys_only=True)).entries
            for where in self.layout.ranges(service)
        ]
        places = (self.layout.locate(entry.key) for part in parts for entry in part)
        return any(
            place is not None and place.service == service and place.file == "config"
            for place in places
        )

    def follow(self, service: str) -> InstanceFeed:
        return ServiceFeed(self.store, self.layout, service)

    def follow_all(self) -> Feed[tuple[str, str], Instance]:
        return everything_feed(self.store, self.layout)

    async def silence(self, service: str) -> Mapping[str, float]:
        service = self.layout.canonical(service)
        ids: dict[int, list[str]] = {}
        for where in self.layout.ranges(service):
            for entry in (await self.store.read(where, keys_only=True)).entries:
                place = self.layout.locate(entry.key)
                if place is None or place.service != service or place.file != "data":
                    continue
                if entry.lease:
                    ids.setdefault(entry.lease, []).append(place.id)
        silent = await self._unrenewed(ids)
        return {id: silent[lease] for lease in silent for id in ids[lease]}

    async def _unrenewed(self, leases: Iterable[int]) -> dict[int, float]:
        """Seconds since each of these leases was renewed; those that are gone are left out."""
        found: dict[int, float] = {}
        waiting = list(leases)

        async def ask() -> None:
            while waiting:
                lease = waiting.pop()
                if (told := await self.store.remaining(lease)) is not None:
                    found[lease] = told.ttl - told.remaining

        try:
            await asyncio.gather(*(ask() for _ in range(min(_LEASES, len(waiting)))))
        finally:
            waiting.clear()
        return found

    async def deregister(self, service: str, id: str) -> bool:
        service = self.layout.canonical(service)
        lease = 0
        while True:
            assembly, _ = await self._assembly(service)
            instance = assembly.instances.get(id)
            if instance is None:
                return False
            held = assembly.of(id)
            if not lease:
                lease = (await self.store.grant(KEPT)).id
            grave = Put(tombstone_key(self.layout, instance), tombstone_value(), lease)
            try:
                await self.store.commit(
                    grave,
                    *(Delete(key(entry.key)) for _, entry in held),
                    require=[
                        unchanged(entry.key, entry.modified)
                        for file, entry in held
                        if file == "data"
                    ],
                )
                return True
            except Conflict:
                continue  # it changed meanwhile: another incarnation, perhaps

    async def config(self, service: str, id: str = "") -> Mapping[str, JSON]:
        name = self.layout.config_key(service, id)
        found = await self.store.read(key(name))
        with _naming(name):
            return {} if found.first is None else values.decode(found.first.value)

    async def configure(
        self, service: str, id: str = "", *, set: Mapping[str, JSON], unset: tuple[str, ...] = ()
    ) -> Mapping[str, JSON]:
        values.check_config(service, set)
        return await self._edit(self.layout.config_key(service, id), set, unset, config=True)

    async def _edit(
        self, name: bytes, set: Mapping[str, JSON], unset: tuple[str, ...], *, config: bool
    ) -> dict[str, JSON]:
        """Change some fields of a value and leave the others, whoever else writes meanwhile."""
        while True:
            entry = (await self.store.read(key(name))).first
            fields: dict[str, JSON] = values.decode_to_change(
                b"" if entry is None else entry.value, name.decode()
            )
            fields.update(set)
            for field in unset:
                fields.pop(field, None)
            value = values.encode(fields)
            if config:
                with _naming(name):
                    self.layout.decode_config(value)  # what we could not read, we do not write
            write = Put(name, value) if fields or not config else Delete(key(name))
            try:
                await self.store.commit(
                    write, require=[unchanged(name, entry.modified if entry else 0)]
                )
                return fields
            except Conflict:
                continue

    async def info(self, *, group: str = "", service: str = "") -> Group | Service:
        name = self.layout.info_key(group=group, service=service)
        entry = (await self.store.read(key(name))).first
        return self._info(name, b"{}" if entry is None else entry.value)

    def _info(self, name: bytes, value: bytes) -> Group | Service:
        place = self.layout.locate(name)
        assert place is not None
        with _naming(name):
            return self.layout.decode_info(place, value)

    async def describe(
        self, *, group: str = "", service: str = "", set: Mapping[str, str]
    ) -> Group | Service:
        name = self.layout.info_key(group=group, service=service)
        values.check_info(set, service=bool(service))
        fields = await self._edit(name, dict(set), (), config=False)
        return self._info(name, values.encode(fields))

    async def forget(self, service: str) -> bool:
        self._shared.described.discard(self.layout.canonical(service))
        return await forget(self.store, self.layout, service)

    async def aclose(self) -> None:
        for mirror in self._configs.values():
            await mirror.aclose()
        await self._shared.batches.aclose()


@contextmanager
def _naming(name: bytes) -> Iterator[None]:
    """Say of which key something cannot be."""
    try:
        yield
    except Malformed as error:
        raise Malformed(f"{name.decode()} {error}") from error
