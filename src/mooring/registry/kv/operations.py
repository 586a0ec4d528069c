"""What operators change on a store: overrides, descriptions, deregistration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from mooring.errors import Conflict, OutcomeUnknown
from mooring.model import JSON, Group, Instance, Service, now
from mooring.registry import json_values as values
from mooring.registry.contract import Operations
from mooring.registry.kv.feeds import InstanceIndex
from mooring.registry.kv.layouts.layout import Layout
from mooring.store.contract import (
    Delete,
    Entry,
    Put,
    Query,
    Snapshot,
    Store,
    absent,
    key,
    unchanged,
)
from mooring.tasks import cleanup

_TOMBSTONE_TTL = 86400.0
"""Seconds after which a tombstone expires: a partition that lasts longer is noticed."""
_FORGET_BATCH = 60
"""Keys that one commit deletes. Each needs a check, too."""
_RESTORE_WITHIN = 10.0


class StoreOperations(Operations):
    def __init__(self, store: Store, layout: Layout) -> None:
        self.store, self.layout = store, layout
        self.described: set[str] = set()
        """Services whose descriptions are known to exist."""

    async def _entries(self, service: str, *, keys_only: bool = False) -> tuple[list[Entry], int]:
        """All entries in the ranges of a service, and a revision that they are not older than."""
        parts = [
            await self.store.read(range, keys_only=keys_only)
            for range in self.layout.ranges(service)
        ]
        entries = [entry for part in parts for entry in part.entries]
        return entries, min(part.revision for part in parts)

    async def _service(self, service: str) -> tuple[InstanceIndex, int]:
        entries, revision = await self._entries(service)
        index = InstanceIndex(self.layout, service)
        index.replace(entries)
        return index, revision

    async def deregister(self, service: str, id: str) -> bool:
        service = self.layout.canonical(service)
        lease = 0
        while True:
            registered, _ = await self._service(service)
            instance = registered.instances.get((service, id))
            if instance is None:
                return False
            if not lease:
                lease = (await self.store.grant(_TOMBSTONE_TTL)).id
            value = values.encode({"removedAt": now().isoformat()})
            files = registered.files_of(service, id)
            try:
                await self.store.commit(
                    Put(self.layout.tombstone(instance), value, lease),
                    *(Delete(key(entry.key)) for _, entry in files),
                    require=[
                        unchanged(entry.key, entry.modified)
                        for file, entry in files
                        if file == "data"
                    ],
                )
                return True
            except Conflict:
                continue  # it has changed: perhaps another incarnation registered

    async def config(self, service: str, id: str = "") -> Mapping[str, JSON]:
        name = self.layout.config_key(service, id)
        entry = (await self.store.read(key(name))).first
        with values.located(name.decode()):
            return {} if entry is None else values.decode(entry.value)

    async def configure(
        self, service: str, id: str = "", *, set: Mapping[str, JSON], unset: tuple[str, ...] = ()
    ) -> Mapping[str, JSON]:
        values.check_config(service, set)
        return await self._edit(self.layout.config_key(service, id), set, unset, config=True)

    async def _edit(
        self, name: bytes, set: Mapping[str, JSON], unset: tuple[str, ...] = (), *, config: bool
    ) -> dict[str, JSON]:
        """Change some fields of a value and keep the others, even under concurrent writes."""
        where = name.decode()
        while True:
            entry = (await self.store.read(key(name))).first
            fields = values.edited(b"" if entry is None else entry.value, where, set, unset)
            value = values.encode(fields)
            if config:
                with values.located(where):
                    self.layout.decode_config(value)  # never write overrides that cannot be read
            write = Put(name, value) if fields or not config else Delete(key(name))
            check = unchanged(name, entry.modified if entry else 0)
            with contextlib.suppress(Conflict):
                await self.store.commit(write, require=[check])
                return fields

    async def info(self, *, group: str = "", service: str = "") -> Group | Service:
        name = self.layout.info_key(group=group, service=service)
        entry = (await self.store.read(key(name))).first
        return self._info(name, b"{}" if entry is None else entry.value, group, service)

    def _info(self, name: bytes, value: bytes, group: str, service: str) -> Group | Service:
        with values.located(name.decode()):
            service = service and self.layout.canonical(service)
            return values.decode_info(value, group=group, service=service)

    async def describe(
        self, *, group: str = "", service: str = "", set: Mapping[str, str]
    ) -> Group | Service:
        name = self.layout.info_key(group=group, service=service)
        values.check_info(set, service=bool(service))
        fields = await self._edit(name, dict(set), config=False)
        return self._info(name, values.encode(fields), group, service)

    async def forget(self, service: str) -> bool:
        """A store cannot check in a commit that a range is empty. So each commit also reads the
        ranges: if an instance registered in the meantime, all deleted keys are restored."""
        service = self.layout.canonical(service)
        self.described.discard(service)
        deleted: dict[bytes, Entry] = {}
        forgotten = False
        try:
            forgotten = await self._forget(service, deleted)
        finally:
            if not forgotten:
                await cleanup(self._restore(list(deleted.values())), within=_RESTORE_WITHIN)
        return forgotten

    async def _forget(self, service: str, deleted: dict[bytes, Entry]) -> bool:
        """Adds every entry that may be deleted to `deleted`, even if it fails."""
        ranges = self.layout.ranges(service)
        while True:
            entries, _ = await self._entries(service)
            if self._has_instances(service, entries):
                return False
            lasting = [e for _, e in self.layout.keys_of(service, entries) if not e.lease]
            batch = {entry.key: entry for entry in lasting[:_FORGET_BATCH]}
            if not batch:
                return True
            try:
                done = await self.store.commit(
                    *(Delete(key(name)) for name in batch),
                    require=[unchanged(name, entry.modified) for name, entry in batch.items()],
                    read=[Query(range, keys_only=True) for range in ranges],
                )
            except Conflict:
                continue  # an operator changed one of the keys
            except OutcomeUnknown:
                deleted |= batch
                raise
            deleted |= batch
            if self._has_instances(service, index(done.reads).values()):
                return False

    def _has_instances(self, service: str, entries: Iterable[Entry]) -> bool:
        return any(at.file == "data" for at, _ in self.layout.keys_of(service, entries))

    async def _restore(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            with contextlib.suppress(Conflict):  # it was written again
                await self.store.commit(Put(entry.key, entry.value), require=[absent(entry.key)])


async def create_descriptions(store: Store, layout: Layout, instance: Instance) -> None:
    """Create the missing descriptions of the service and the group of an instance."""
    lasting = layout.lasting(instance)
    reads = [Query(key(name), keys_only=True) for name in lasting]
    existing = index((await store.commit(read=reads)).reads) if reads else {}
    for name, value in lasting.items():
        if name not in existing:
            with contextlib.suppress(Conflict):  # another process was first
                await store.commit(Put(name, value), require=[absent(name)])


def index(reads: Iterable[Snapshot]) -> dict[bytes, Entry]:
    return {entry.key: entry for read in reads for entry in read.entries}
