"""What operators change on a store: overrides, descriptions, deregistration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from mooring.errors import Conflict, OutcomeUnknown
from mooring.model import Instance, now
from mooring.registry import json_values as values
from mooring.registry.kv.feeds import InstanceIndex
from mooring.registry.kv.layouts.layout import Layout
from mooring.registry.operations import ObjectOperations, StoredObject
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


class _Key(StoredObject):
    """The object in a key."""

    def __init__(self, store: Store, name: bytes) -> None:
        self._store, self._name, self.place = store, name, name.decode()
        self._modified = 0

    async def read(self) -> bytes | None:
        entry = (await self._store.read(key(self._name))).first
        self._modified = 0 if entry is None else entry.modified
        return None if entry is None else entry.value

    async def replace(self, value: bytes) -> bool:
        write = Put(self._name, value) if value else Delete(key(self._name))
        try:
            await self._store.commit(write, require=[unchanged(self._name, self._modified)])
        except Conflict:
            return False
        return True


class StoreOperations(ObjectOperations):
    def __init__(self, store: Store, layout: Layout) -> None:
        self.store, self.layout = store, layout
        self.described: set[str] = set()
        """Services whose descriptions are known to exist."""

    def canonical(self, service: str) -> str:
        return self.layout.canonical(service)

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

    def _overrides(self, service: str, id: str) -> StoredObject:
        return _Key(self.store, self.layout.config_key(service, id))

    def _description(self, group: str, service: str) -> StoredObject:
        return _Key(self.store, self.layout.info_key(group=group, service=service))

    async def configured(self, service: str) -> bool:
        service = self.layout.canonical(service)
        entries, _ = await self._entries(service, keys_only=True)
        return any(at.file == "config" for at, _ in self.layout.keys_of(service, entries))

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
