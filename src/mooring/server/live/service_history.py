"""The services that servers know, written down: a restart forgets none, and a server that starts
knows of those that lost their last instance before.

    /mooring/services/{registry}/{service}

Every server writes what it sees and the store does not have yet; of several, the first one does.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator
from typing import Self

import msgspec

from mooring.errors import Conflict, StoreError
from mooring.mirror import Mirror, RangeFeed, Update
from mooring.names import is_service
from mooring.server.auth.signed_records import ROOT
from mooring.server.live.services import KnownService, ServiceRecord
from mooring.server.live.state import Fleet
from mooring.store import Delete, Entry, Put, Store, key, prefix, unchanged
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between two looks at what is new, or about so many."""
_AT_ONCE = 50


_decoder = msgspec.json.Decoder(ServiceRecord)


def scope_of(registry: str) -> str:
    """The part of the keys that tells a registry from others; empty: that of the store itself."""
    return hashlib.sha256(registry.encode()).hexdigest()[:16] if registry else "store"


class ServiceHistory:
    """Tells a fleet what was known before, and writes down what it knows. Entering does not wait
    for the store, which is awaited: it may be away."""

    def __init__(self, fleet: Fleet, store: Callable[[], Awaitable[Store]], scope: str) -> None:
        self._fleet, self._store = fleet, store
        self._root = f"{ROOT}services/{scope}/".encode()
        self._seen: set[str] = set()
        """Services that the fleet knew at an earlier look, until their record is deleted."""
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
            held = dict(self._held(mirror))
            self._fleet.remember(held)
            self._seen = {*self._fleet.names(), *held}
            mirror.subscribe(self._changed)
            done = (-1, -1)
            while True:
                await asyncio.sleep(EVERY * random.uniform(0.5, 1.5))
                now = (self._fleet.version, mirror.mark)
                if now == done or not self._fleet.loaded or self._fleet.stale or mirror.stale:
                    continue
                try:
                    await self._write(store, mirror)
                    done = now
                except StoreError as error:
                    log.debug("the history of services is not written at present: %s", error)

    def _held(self, mirror: Mirror[bytes, Entry]) -> Iterator[tuple[str, ServiceRecord]]:
        for entry in mirror.items.values():
            name = self._service(entry.key)
            try:
                if is_service(name):
                    yield name, _decoder.decode(entry.value)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # somebody else wrote it

    def _changed(self, update: Update[bytes, Entry]) -> None:
        """What another server forgets, we forget."""
        for change in update.changes:
            if change.after is None:
                self._seen.discard(self._service(change.key))
                self._fleet.forget(self._service(change.key))

    async def _write(self, store: Store, mirror: Mirror[bytes, Entry]) -> None:
        held, names = dict(self._held(mirror)), set(self._fleet.names())
        self._seen |= names
        writes: list[Put | Delete] = []
        for name in names:
            known = self._fleet.service(name)
            seen = None if known is None else _seen(known)
            before = held.get(name)
            if seen is None or (before and (before.emptied is None) is (seen.emptied is None)):
                continue
            writes.append(Put(self._key(name), msgspec.json.encode(seen)))
        writes += [Delete(key(self._key(name))) for name in (self._seen - names) & set(held)]
        for start in range(0, len(writes), _AT_ONCE):
            some = writes[start : start + _AT_ONCE]
            touched = [each.key if isinstance(each, Put) else each.range.start for each in some]
            entries = [(name, mirror.items.get(name)) for name in touched]
            checks = [unchanged(name, entry.modified if entry else 0) for name, entry in entries]
            try:
                await store.commit(*some, require=checks)
            except Conflict:
                log.debug("another server wrote some of the history first")

    def _key(self, service: str) -> bytes:
        return self._root + urllib.parse.quote(service, safe="").encode()

    def _service(self, name: bytes) -> str:
        return urllib.parse.unquote(name[len(self._root) :].decode(errors="replace"))


def _seen(known: KnownService) -> ServiceRecord | None:
    """What is to be remembered of a service; None for one that never had an instance."""
    if known.instances:
        return ServiceRecord()
    if known.emptied is not None:
        return ServiceRecord(known.emptied, known.lost)
    return ServiceRecord(known.since, lost=True) if known.remembered else None
