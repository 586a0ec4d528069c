"""The instances of all services on a store, as one feed that a mirror can follow."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeAlias

from mooring.model import Instance
from mooring.registry.following import FOREIGN, Assembly, InstancesFeed
from mooring.registry.layouts.contract import Layout, Problem
from mooring.store.contract import Entry, Store

log = logging.getLogger(__name__)

Where: TypeAlias = tuple[str, str]
"""A service and the id of an instance."""


class Everything:
    """The keys of all services, put together; one change costs one instance, however many services
    there are."""

    def __init__(self, layout: Layout) -> None:
        self.instances: dict[Where, Instance] = {}
        self._layout = layout
        self._services: dict[str, Assembly] = {}
        self._emptied: set[str] = set()
        """Services without keys. They are dropped after a whole step: an earlier change of the same
        step may have touched their instances."""
        self._foreign: dict[bytes, Entry] = {}

    @property
    def problems(self) -> dict[bytes, Problem]:
        found = {key: Problem(key, FOREIGN) for key in self._foreign}
        for assembly in self._services.values():
            found.update(assembly.problems)
        return found

    def put(self, key: bytes, entry: Entry | None) -> set[Where]:
        """One key changed; the instances that this may touch."""
        place = self._layout.locate(key)
        if place is None:
            self._report(key, entry)
            return set()
        if not place.service or place.file == "info":
            return set()
        assembly = self._services.get(place.service)
        if assembly is None:
            if entry is None:
                return set()
            assembly = self._services[place.service] = Assembly(self._layout, place.service)
        touched = assembly.take(place, key, entry)
        if not assembly.entries:
            self._emptied.add(place.service)
        return {(place.service, id) for id in touched}

    def _report(self, key: bytes, entry: Entry | None) -> None:
        if entry is None:
            self._foreign.pop(key, None)
            return
        old = self._foreign.get(key)
        self._foreign[key] = entry
        if old is None or old.value != entry.value:
            log.warning("left out: %s", Problem(key, FOREIGN))

    def build(self, touched: Iterable[Where]) -> list[tuple[Where, Instance | None]]:
        """Put these instances together anew; those that changed, None for one that is gone."""
        by_service: dict[str, list[str]] = {}
        for service, id in touched:
            by_service.setdefault(service, []).append(id)
        changes: list[tuple[Where, Instance | None]] = []
        for service, ids in by_service.items():
            assembly = self._services[service]
            changes += (((service, id), after) for id, after in assembly.build(ids))
        for service in self._emptied:
            if not self._services[service].entries:
                del self._services[service]
        self._emptied.clear()
        for where, after in changes:
            if after is None:
                self.instances.pop(where, None)
            else:
                self.instances[where] = after
        return changes

    def replace(self, entries: Iterable[Entry]) -> None:
        """Begin anew with these entries."""
        fresh = {entry.key: entry for entry in entries}
        held = dict(self._foreign)
        for assembly in self._services.values():
            held |= assembly.entries
        touched: set[Where] = set()
        for key in held.keys() - fresh.keys():
            touched |= self.put(key, None)
        for key, entry in fresh.items():
            if held.get(key) != entry:
                touched |= self.put(key, entry)
        self.build(touched)


def everything_feed(store: Store, layout: Layout) -> InstancesFeed[Where]:
    """All instances, by service and id. Raises `InvalidRequest` where the layout cannot tell its
    services from other keys."""
    return InstancesFeed(store, layout.roots(), Everything(layout), name="every service")
