"""The known services, in the store: a restarted server remembers those without instances too.

    /mooring/services/{registry}/{service}

Every server writes what it knows and the store does not contain yet.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Self

import msgspec

from mooring.errors import Conflict, StoreError
from mooring.mirror import Mirror, RangeFeed, Update
from mooring.names import is_service
from mooring.server.auth.signed_records import ROOT
from mooring.server.live.services import KnownService, ServiceRecord
from mooring.server.live.state import Fleet
from mooring.store import Delete, Entry, Put, Store, key, prefix, unchanged
from mooring.tasks import Tasks, slices

log = logging.getLogger(__name__)

EVERY = 2.0
"""The average of the seconds between two writes."""
_BATCH = 50

_decoder = msgspec.json.Decoder(ServiceRecord)


def scope_of(registry: str) -> str:
    """The part of the keys that identifies a registry; empty: the registry in the store itself."""
    return hashlib.sha256(registry.encode()).hexdigest()[:16] if registry else "store"


class ServiceHistory:
    """Adds the stored services to a fleet, and stores those that the fleet knows. Entering does not
    wait for the store, which may be unavailable."""

    def __init__(self, fleet: Fleet, store: Callable[[], Awaitable[Store]], scope: str) -> None:
        self._fleet, self._store = fleet, store
        self._root = f"{ROOT}services/{scope}/".encode()
        self._seen: set[str] = set()
        """Services that the fleet knew at an earlier write and whose records are not deleted."""
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), name="history of services")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()

    async def _run(self) -> None:
        store = await self._store()
        async with Mirror(RangeFeed(store, prefix(self._root)), wait=False) as mirror:
            await mirror.ready()
            records = dict(self._records(mirror))
            self._fleet.remember(records)
            self._seen = {*self._fleet.names(), *records}
            mirror.subscribe(self._changed)
            written = (-1, -1)
            while True:
                await asyncio.sleep(EVERY * random.uniform(0.5, 1.5))
                state = (self._fleet.version, mirror.mark)
                if state == written or not self._fleet.loaded or self._fleet.stale or mirror.stale:
                    continue
                try:
                    await self._write(store, mirror)
                    written = state
                except StoreError as error:
                    log.debug("the known services could not be stored: %s", error)

    def _records(self, mirror: Mirror[bytes, Entry]) -> Iterator[tuple[str, ServiceRecord]]:
        for entry in mirror.items.values():
            name = self._service(entry.key)
            try:
                if is_service(name):
                    yield name, _decoder.decode(entry.value)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # not written by a server

    def _changed(self, update: Update[bytes, Entry]) -> None:
        """Forget the services that another server forgot."""
        for change in update.changes:
            if change.after is None:
                self._seen.discard(self._service(change.key))
                self._fleet.forget(self._service(change.key))

    async def _write(self, store: Store, mirror: Mirror[bytes, Entry]) -> None:
        writes = self._pending(dict(self._records(mirror)))
        for batch in slices(writes, _BATCH):
            entries = [(name, mirror.items.get(name)) for name in batch]
            checks = [unchanged(name, entry.modified if entry else 0) for name, entry in entries]
            try:
                await store.commit(*(writes[name] for name in batch), require=checks)
            except Conflict:
                log.debug("another server stored some of the known services first")

    def _pending(self, records: Mapping[str, ServiceRecord]) -> dict[bytes, Put | Delete]:
        """The writes that bring these records up to date, by key."""
        names = set(self._fleet.names())
        self._seen |= names
        writes: dict[bytes, Put | Delete] = {}
        for known in self._fleet.services():
            before, record = records.get(known.name), _record_of(known)
            if record is None or (before and (before.emptied is None) is (record.emptied is None)):
                continue
            name = self._key(known.name)
            writes[name] = Put(name, msgspec.json.encode(record))
        for service in (self._seen - names) & set(records):
            name = self._key(service)
            writes[name] = Delete(key(name))
        return writes

    def _key(self, service: str) -> bytes:
        return self._root + urllib.parse.quote(service, safe="").encode()

    def _service(self, name: bytes) -> str:
        return urllib.parse.unquote(name[len(self._root) :].decode(errors="replace"))


def _record_of(known: KnownService) -> ServiceRecord | None:
    """The record of a service; None if it never had an instance."""
    if known.instances:
        return ServiceRecord()
    if known.emptied is not None:
        return ServiceRecord(known.emptied, known.lost)
    return ServiceRecord(known.since, lost=True) if known.remembered else None
