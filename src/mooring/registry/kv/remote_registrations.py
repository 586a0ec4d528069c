"""Registrations on a store whose beats come from elsewhere, through any process: all that is known
of them stands in the store.

Each has a lease of its own, which is found again at its keys. It is known by its incarnation; in a
layout that does not carry those, by that lease.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from mooring import addresses
from mooring.errors import Conflict, LeaseNotFound, StoreError
from mooring.model import Instance, now
from mooring.registry import json_values as values
from mooring.registry.contract import StatusReport, check_incarnation, removed, superseded
from mooring.registry.kv.instance_record import describe_service, repair
from mooring.registry.kv.layouts.layout import File, Layout
from mooring.registry.kv.removal import tombstone_key
from mooring.store.contract import Delete, Entry, Put, Query, Store, key, unchanged
from mooring.tasks import cleanup

_GIVE_UP_WITHIN = 5.0

BEATS = 3
"""So many beats fit into the time that one stays without: two may be lost."""


class _Present(NamedTuple):
    """What stands at the place of an instance."""

    files: dict[File, Entry]
    grave: Entry | None

    @property
    def main(self) -> Entry | None:
        return self.files.get("data")


class StoreRemoteRegistrations:
    def __init__(self, store: Store, layout: Layout) -> None:
        self._store, self._layout = store, layout
        self._named = "incarnation" in layout.carries

    async def enter(self, instance: Instance, *, ttl: float, back: str) -> tuple[Instance, float]:
        """The instance, which was prepared, as it is registered, and the seconds that it stays
        without a beat. `back`: the incarnation as which it comes back; empty for a new start."""
        lease = await self._store.grant(ttl)
        moment = now()
        status = msgspec.structs.replace(instance.status, registered_at=moment, updated_at=moment)
        incarnation = instance.incarnation if self._named else f"{lease.id:x}"
        instance = msgspec.structs.replace(instance, incarnation=incarnation, status=status)
        try:
            instance = await self._write(instance, lease.id, back)
        except BaseException:  # whatever may have been written goes with it
            with contextlib.suppress(StoreError):
                await cleanup(self._store.revoke(lease.id), within=_GIVE_UP_WITHIN)
            raise
        with contextlib.suppress(StoreError):  # the next to register makes it
            await describe_service(self._store, self._layout, instance)
        return instance, lease.ttl

    async def _write(self, instance: Instance, lease: int, back: str) -> Instance:
        """As it is held from now on."""
        tombstone = tombstone_key(self._layout, instance)
        while True:
            kept = instance
            seen: dict[bytes, Entry] = {}
            ours = {lease}
            if back:
                present = await self._present(instance)
                found = [*present.files.values(), *filter(None, [present.grave])]
                seen = {entry.key: entry for entry in found}
                main = present.main
                same = main is not None and self._is(instance, back, main)
                if main is None or not main.lease or same:
                    ours |= {entry.lease for entry in found}  # of a successor there is the main one
                if same:
                    kept = self._kept(instance, present.files)
            desired = self._layout.encode(kept)
            plan = repair(
                desired, seen, lease=lease, ours=ours, tombstone=tombstone, fresh=not back
            )
            try:
                await self._store.commit(*plan.writes, require=plan.checks)
                return kept
            except Conflict:
                continue  # it changed meanwhile: another incarnation, perhaps

    def _kept(self, instance: Instance, files: Mapping[File, Entry]) -> Instance:
        """The same with what stays of what it was: since when it is there, and its metrics."""
        before = self._layout.assemble(instance.service, instance.id, files).instance
        if before is None or before.status.registered_at is None:
            return instance
        status = msgspec.structs.replace(
            instance.status,
            registered_at=before.status.registered_at,
            metrics=before.status.metrics,
        )
        return msgspec.structs.replace(instance, status=status)

    async def beat(self, service: str, id: str, incarnation: str, report: StatusReport) -> bool:
        """Whether it is still registered."""
        check_incarnation(service, id, incarnation)
        report.check(service)
        who = self._who(service, id, incarnation)
        while True:
            present = await self._present(who)
            main = present.main
            ours = main is not None and self._is(who, incarnation, main)
            if main is not None and main.lease and not ours:
                raise superseded(service, id)
            if present.grave is not None:
                raise removed(service, id)
            if main is None or not main.lease or not ours:
                return False
            try:
                await self._store.renew(main.lease)
                await self._say(who, main, present.files, report)
                return True
            except LeaseNotFound:
                return False
            except Conflict:
                continue  # somebody wrote it meanwhile: look who

    async def _say(
        self, who: Instance, main: Entry, files: Mapping[File, Entry], report: StatusReport
    ) -> None:
        """Write what it says, and what of it is missing, unless it is no longer its own."""
        instance = self._layout.assemble(who.service, who.id, files).instance
        if instance is None:
            return
        instance = msgspec.structs.replace(instance, status=report.over(instance.status))
        there = {entry.key: entry for entry in files.values()}
        writes = [
            Put(name, value, main.lease)
            for name, value in self._layout.encode(instance).items()
            if name != main.key and (not report.nothing or name not in there)
        ]
        if writes:
            seen = [(put.key, there.get(put.key)) for put in writes]
            checks = [unchanged(name, entry.modified if entry else 0) for name, entry in seen]
            await self._store.commit(*writes, require=[unchanged(main.key, main.modified), *checks])

    async def leave(self, service: str, id: str, incarnation: str) -> bool:
        """Whether it was there. Its lease runs out by itself: who has it is not known here."""
        check_incarnation(service, id, incarnation)
        who = self._who(service, id, incarnation)
        while True:
            present = await self._present(who)
            main = present.main
            if main is None or not self._is(who, incarnation, main):
                return False
            names = [entry.key for file, entry in present.files.items() if file != "config"]
            try:
                if (status := present.files.get("status")) is not None:
                    # Consumers can then tell it from one whose record was deleted.
                    await self._store.commit(
                        Put(status.key, values.draining(status.value), status.lease),
                        require=[unchanged(status.key, status.modified)],
                    )
                await self._store.commit(
                    *(Delete(key(name)) for name in names),
                    require=[unchanged(main.key, main.modified)],
                )
                return True
            except (Conflict, LeaseNotFound):
                continue

    def _who(self, service: str, id: str, incarnation: str) -> Instance:
        """An instance as far as its place goes. Raises `InvalidRequest` for an id that none here
        can have."""
        service = self._layout.canonical(service)
        if "id" in self._layout.carries:
            return Instance(service, port=1, id=id, incarnation=incarnation)
        host, port = addresses.split(id)
        return Instance(service, host, port, id=id, incarnation=incarnation)

    def _is(self, who: Instance, incarnation: str, main: Entry) -> bool:
        """Whether a record is that of an incarnation."""
        if not self._named:
            return f"{main.lease:x}" == incarnation
        made = self._layout.assemble(who.service, who.id, {"data": main}).instance
        return made is not None and made.incarnation == incarnation

    async def _present(self, who: Instance) -> _Present:
        tombstone = tombstone_key(self._layout, who)
        reads = [Query(self._layout.home(who)), Query(key(tombstone))]
        home, grave = (await self._store.commit(read=reads)).reads
        files: dict[File, Entry] = {}
        for entry in home.entries:
            place = self._layout.locate(entry.key)
            if place is not None and place.id == who.id:
                files[place.file] = entry
        return _Present(files, grave.first)
