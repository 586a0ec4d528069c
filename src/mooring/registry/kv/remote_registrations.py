"""Registrations on a store that send their heartbeats through any process: all of their state is in
the store.

Each has a lease of its own, which its keys refer to. Its incarnation identifies it; in a layout
without incarnations, the lease does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec

from mooring import addresses
from mooring.errors import Conflict, LeaseNotFound, StoreError
from mooring.model import Instance, now
from mooring.registry import json_values as values
from mooring.registry.contract import (
    Registrar,
    RemoteRegistrar,
    RemoteRegistration,
    StatusReport,
    check_incarnation,
    removed,
    superseded,
)
from mooring.registry.kv.layouts.layout import File, Layout
from mooring.registry.kv.operations import create_descriptions
from mooring.registry.kv.repair import repair
from mooring.store.contract import Delete, Entry, Put, Query, Store, key, unchanged
from mooring.store.validation import check_ttl
from mooring.tasks import cleanup

_BEATS_PER_TTL = 3
"""Heartbeats within the TTL: two may be lost."""
_REVOKE_WITHIN = 5.0


class StoreRemoteRegistrations(Registrar, RemoteRegistrar):
    store: Store
    layout: Layout

    async def enter(self, instance: Instance, *, ttl: float | None = None) -> RemoteRegistration:
        ttl = self.layout.ttl if ttl is None else ttl
        check_ttl(ttl)
        returning = instance.incarnation
        instance, lost = self.prepare(instance)
        lease = await self.store.grant(ttl)
        moment = now()
        status = msgspec.structs.replace(instance.status, registered_at=moment, updated_at=moment)
        has_incarnations = "incarnation" in self.layout.carries
        incarnation = instance.incarnation if has_incarnations else f"{lease.id:x}"
        instance = msgspec.structs.replace(instance, incarnation=incarnation, status=status)
        try:
            instance = await self._write_record(instance, lease.id, returning)
        except BaseException:  # the lease takes with it whatever was written
            with contextlib.suppress(StoreError):
                await cleanup(self.store.revoke(lease.id), within=_REVOKE_WITHIN)
            raise
        with contextlib.suppress(StoreError):  # the next registration creates them
            await create_descriptions(self.store, self.layout, instance)
        return RemoteRegistration(instance, lease.ttl, lease.ttl / _BEATS_PER_TTL, tuple(lost))

    async def _write_record(self, instance: Instance, lease: int, returning: str) -> Instance:
        """Returns the instance as registered. `returning`: the incarnation as which it returns;
        empty for a new start."""
        tombstone = self.layout.tombstone(instance)
        while True:
            kept = instance
            current: dict[bytes, Entry] = {}
            ours = {lease}
            if returning:
                files, removal = await self._read_record(instance)
                entries = [*files.values(), *filter(None, [removal])]
                current = {entry.key: entry for entry in entries}
                main = files.get("data")
                same = main is not None and self._is_incarnation(instance, returning, main)
                if main is None or not main.lease or same:
                    # The main key alone decides about a successor.
                    ours |= {entry.lease for entry in entries}
                if same:
                    kept = self._with_history(instance, files)
            writes, checks = repair(
                instance,
                self.layout.encode(kept),
                current,
                lease=lease,
                ours=ours,
                tombstone=tombstone,
                fresh=not returning,
            )
            with contextlib.suppress(Conflict):  # retry: perhaps another incarnation registered
                await self.store.commit(*writes, require=checks)
                return kept

    def _with_history(self, instance: Instance, files: Mapping[File, Entry]) -> Instance:
        """The instance with the registration time and the metrics of its stored record."""
        before = self.layout.assemble(instance.service, instance.id, files).instance
        if before is None or before.status.registered_at is None:
            return instance
        status = msgspec.structs.replace(
            instance.status,
            registered_at=before.status.registered_at,
            metrics=before.status.metrics,
        )
        return msgspec.structs.replace(instance, status=status)

    async def _beat(self, service: str, id: str, incarnation: str, report: StatusReport) -> bool:
        instance = self._identified(service, id, incarnation)
        while True:
            files, tombstone = await self._read_record(instance)
            main = files.get("data")
            ours = main is not None and self._is_incarnation(instance, incarnation, main)
            if main is not None and main.lease and not ours:
                raise superseded(service, id)
            if tombstone is not None:
                raise removed(service, id)
            if main is None or not main.lease or not ours:
                return False
            try:
                await self.store.renew(main.lease)
                await self._update_record(instance, main, files, report)
                return True
            except LeaseNotFound:
                return False
            except Conflict:
                continue  # perhaps another incarnation registered

    async def _update_record(
        self, instance: Instance, main: Entry, files: Mapping[File, Entry], report: StatusReport
    ) -> None:
        """Write the reported status and missing keys, if the record still has this main key."""
        stored = self.layout.assemble(instance.service, instance.id, files).instance
        if stored is None:
            return
        stored = msgspec.structs.replace(stored, status=report.over(stored.status))
        current = {entry.key: entry for entry in files.values()}
        writes = [
            Put(name, value, main.lease)
            for name, value in self.layout.encode(stored).items()
            if name != main.key and (not report.empty or name not in current)
        ]
        if writes:
            entries = [(put.key, current.get(put.key)) for put in writes]
            checks = [unchanged(name, entry.modified if entry else 0) for name, entry in entries]
            await self.store.commit(*writes, require=[unchanged(main.key, main.modified), *checks])

    async def leave(self, service: str, id: str, incarnation: str) -> bool:
        """Its lease is left to expire: other keys may be on it."""
        check_incarnation(service, id, incarnation)
        instance = self._identified(service, id, incarnation)
        while True:
            files, _ = await self._read_record(instance)
            main = files.get("data")
            if main is None or not self._is_incarnation(instance, incarnation, main):
                return False
            names = [entry.key for file, entry in files.items() if file != "config"]
            with contextlib.suppress(Conflict, LeaseNotFound):
                if (status := files.get("status")) is not None:
                    # Consumers can then distinguish it from one whose record was deleted.
                    await self.store.commit(
                        Put(status.key, values.draining(status.value), status.lease),
                        require=[unchanged(status.key, status.modified)],
                    )
                await self.store.commit(
                    *(Delete(key(name)) for name in names),
                    require=[unchanged(main.key, main.modified)],
                )
                return True

    def _identified(self, service: str, id: str, incarnation: str) -> Instance:
        """An instance with only its identity. Raises `InvalidRequest` for an invalid id."""
        service = self.layout.canonical(service)
        if "id" in self.layout.carries:
            return Instance(service, port=1, id=id, incarnation=incarnation)
        host, port = addresses.split(id)
        return Instance(service, host, port, id=id, incarnation=incarnation)

    def _is_incarnation(self, instance: Instance, incarnation: str, main: Entry) -> bool:
        """Whether a record belongs to an incarnation."""
        if "incarnation" not in self.layout.carries:
            return f"{main.lease:x}" == incarnation
        stored = self.layout.assemble(instance.service, instance.id, {"data": main}).instance
        return stored is not None and stored.incarnation == incarnation

    async def _read_record(self, instance: Instance) -> tuple[dict[File, Entry], Entry | None]:
        """The files of an instance in the store, and its tombstone."""
        reads = [Query(self.layout.home(instance)), Query(key(self.layout.tombstone(instance)))]
        home, tombstone = (await self.store.commit(read=reads)).reads
        files: dict[File, Entry] = {}
        for entry in home.entries:
            location = self.layout.locate(entry.key)
            if location is not None and location.id == instance.id:
                files[location.file] = entry
        return files, tombstone.first
