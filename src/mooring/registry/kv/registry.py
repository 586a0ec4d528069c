"""The registry on a store, through a layout."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping

import msgspec

from mooring.errors import InvalidRequest
from mooring.messages import message, verbatim
from mooring.mirror import Feed, Mirror, RangeFeed
from mooring.model import Instance, new_incarnation
from mooring.names import check_name
from mooring.registry.contract import (
    InstanceFeed,
    InstanceKey,
    InstanceRecord,
    Listing,
    Registry,
    RegistryGuarantees,
    ServiceCount,
    registered_here,
)
from mooring.registry.kv.commit_batches import CommitBatches
from mooring.registry.kv.feeds import InstanceIndex, InstancesFeed, ServiceFeed
from mooring.registry.kv.instance_record import HostWatch, SharedState, StoreInstanceRecord
from mooring.registry.kv.layouts.layout import Layout, Location
from mooring.registry.kv.operations import StoreOperations
from mooring.registry.kv.remote_registrations import StoreRemoteRegistrations
from mooring.registry.kv.shared_lease import Revisions, SharedLease
from mooring.store.contract import MAX_REQUEST_BYTES, Entry, LeaseTime, Range, Store, key
from mooring.store.validation import check_ttl
from mooring.tasks import in_parallel

_PAGE = 1000
_PAGE_OF_VALUES = 250


class StoreRegistry(StoreOperations, StoreRemoteRegistrations, Registry):
    def __init__(self, store: Store, layout: Layout) -> None:
        super().__init__(store, layout)
        self.url, self.lease_store = store.url, store
        self.guarantees = RegistryGuarantees(
            expires="in a store, instances expire with their lease",
            renews=True,
            describes="config" in layout.carries,
            keeps_names=True,
        )
        self._leases: dict[float, SharedLease] = {}
        self._registered_here: set[bytes] = set()
        self._shared = SharedState(
            store,
            layout,
            CommitBatches(store),
            Revisions(store),
            described=self.described,
            leave=self._leave,
        )
        self._host_watches: dict[Range, HostWatch] = {}
        self._configs: dict[str, Mirror[bytes, Entry]] = {}
        self._config_users: Counter[str] = Counter()

    def prepare(self, instance: Instance) -> tuple[Instance, list[str]]:
        id = instance.address
        if "id" in self.layout.carries:
            id = str(uuid.uuid4()) if instance.id in ("", id) else instance.id
        ready = msgspec.structs.replace(
            instance,
            service=self.layout.canonical(instance.service),
            id=id,
            incarnation=instance.incarnation or new_incarnation(),
        )
        size = sum(len(name) + len(value) for name, value in self.layout.encode(ready).items())
        if size > MAX_REQUEST_BYTES:
            raise InvalidRequest(
                message(
                    "record_too_large",
                    service=ready.service,
                    id=ready.id,
                    size=size,
                    limit=MAX_REQUEST_BYTES,
                )
            )
        return ready, self.layout.cannot_carry(instance)

    def instance_record(self, instance: Instance, *, ttl: float | None = None) -> InstanceRecord:
        ttl = self.layout.ttl if ttl is None else ttl
        check_ttl(ttl)
        home = self.layout.home(instance)
        if home.start in self._registered_here:
            raise registered_here(instance.service, instance.id)
        self._registered_here.add(home.start)
        lease = self._leases.get(ttl)
        if lease is None:
            lease = self._leases[ttl] = SharedLease(self.store, ttl)
        range = self.layout.host_range(instance)
        host_watch = self._host_watches.get(range)
        if host_watch is None:
            config = self._service_config(instance.service)
            host_watch = HostWatch(self.store, self.layout, range, config, self._store_returned)
            self._host_watches[range] = host_watch
        return StoreInstanceRecord(self._shared, lease, host_watch, instance, home)

    async def _leave(self, instance: Instance, home: Range, host_watch: HostWatch) -> None:
        self._registered_here.discard(home.start)
        if host_watch.leave(instance.id):
            # Before it is closed: a new registration must not join a closed watch.
            del self._host_watches[host_watch.range]
            self.described.discard(instance.service)  # from now on the service may be forgotten
            await host_watch.aclose()
            await self._leave_config(instance.service)

    def _store_returned(self) -> None:
        """The store was unavailable, and may have been restored from a backup since."""
        for lease in self._leases.values():
            lease.replace()

    def _service_config(self, service: str) -> Mirror[bytes, Entry] | None:
        """The overrides of a service, live; all host watches of the service share one mirror."""
        if "config" not in self.layout.carries:
            return None
        self._config_users[service] += 1
        mirror = self._configs.get(service)
        if mirror is None:
            feed = RangeFeed(self.store, key(self.layout.config_key(service)))
            mirror = self._configs[service] = Mirror(feed, wait=False, quiet=True)
        return mirror

    async def _leave_config(self, service: str) -> None:
        self._config_users[service] -= 1
        if self._config_users[service] <= 0:
            del self._config_users[service]
            if (mirror := self._configs.pop(service, None)) is not None:
                await mirror.aclose()

    async def groups(self) -> list[str]:
        groups: dict[str, None] = {}
        for root in self.layout.roots():
            async for location, _ in self._scan(root, by_group=True):
                groups[location.group] = None
        return list(groups)

    async def names(self, group: str = "") -> list[str]:
        return sorted({location.service for location, _ in await self._keys(group)})

    async def services(self, group: str = "") -> list[ServiceCount]:
        keys = await self._keys(group, values=True)
        registered = InstanceIndex(self.layout)
        registered.replace(entry for _, entry in keys)
        counts = dict.fromkeys((location.service for location, _ in keys), 0)
        for service, _ in registered.instances:
            counts[service] += 1
        return [ServiceCount(name, count) for name, count in sorted(counts.items())]

    async def _keys(self, group: str, *, values: bool = False) -> list[tuple[Location, Entry]]:
        """The keys of all services, or of the services of one group."""
        if group:
            check_name("group", group)
        return [
            (location, entry)
            for root in self.layout.roots(group)
            async for location, entry in self._scan(root, values=values)
            if location.service and (not group or location.group == group)
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
                if (location := self.layout.locate(entry.key)) is not None:
                    last = location
                    yield location, entry
            if not page.more:
                return
            start = page.entries[-1].key + b"\0"
            if by_group and last is not None:
                start = max(start, self.layout.after_group(last.group))
            if range.end and start >= range.end:
                return
            range = Range(start, range.end)

    async def instances(self, service: str) -> Listing:
        registered, revision = await self._service(service)
        instances = sorted(registered.instances.values(), key=lambda instance: instance.id)
        return Listing(tuple(instances), revision, tuple(registered.problems.values()))

    def follow(self, service: str) -> InstanceFeed:
        return ServiceFeed(self.store, self.layout, service)

    def follow_all(self) -> Feed[InstanceKey, Instance]:
        ranges, index = self.layout.roots(), InstanceIndex(self.layout)
        name = message("services_of", registry=verbatim(self.url))
        return InstancesFeed(self.store, ranges, index, lambda name: name, name=name)

    async def silence(self, service: str) -> Mapping[str, float]:
        service = self.layout.canonical(service)
        entries, _ = await self._entries(service, keys_only=True)
        ids: dict[int, list[str]] = {}
        for location, entry in self.layout.keys_of(service, entries):
            if location.file == "data" and entry.lease:
                ids.setdefault(entry.lease, []).append(location.id)

        async def status_of(lease: int) -> tuple[int, LeaseTime | None]:
            return lease, await self.store.remaining(lease)

        return {
            id: status.ttl - status.remaining
            async for lease, status in in_parallel([*ids], status_of)
            if status is not None
            for id in ids[lease]
        }

    async def aclose(self) -> None:
        for mirror in self._configs.values():
            await mirror.aclose()
        await self._shared.batches.aclose()
