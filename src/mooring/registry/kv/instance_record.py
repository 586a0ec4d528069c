"""The record of an instance on a store: keys on a shared lease, watched and repaired."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from mooring.errors import (
    Conflict,
    InvalidRequest,
    LeaseNotFound,
    RegistryError,
    StoreError,
    TooLarge,
)
from mooring.messages import message
from mooring.mirror import Mirror, RangeFeed, Update
from mooring.model import NO_CONFIG, Config, Instance
from mooring.registry import json_values as values
from mooring.registry.contract import InstanceRecord
from mooring.registry.kv.commit_batches import CommitBatches
from mooring.registry.kv.layouts.layout import Layout
from mooring.registry.kv.operations import create_descriptions, index
from mooring.registry.kv.repair import repair
from mooring.registry.kv.shared_lease import Revisions, SharedLease
from mooring.store.contract import (
    Delete,
    Entry,
    Put,
    Query,
    Range,
    Store,
    key,
    on_lease,
    unchanged,
)

log = logging.getLogger(__name__)


class SharedState(NamedTuple):
    """What the registrations of one registry share."""

    store: Store
    layout: Layout
    batches: CommitBatches
    revisions: Revisions
    described: set[str]
    """Services whose descriptions are known to exist."""
    leave: Callable[[Instance, Range, HostWatch], Awaitable[None]]
    """Called when the record of an instance is closed."""


class HostWatch:
    """Watches the keys of a service on one host, for all its records in this process. It notifies
    each record of changes of its own keys and of the overrides of the service. `returned` is called
    when the store is available again."""

    def __init__(
        self,
        store: Store,
        layout: Layout,
        range: Range,
        config: Mirror[bytes, Entry] | None,
        returned: Callable[[], None],
    ) -> None:
        self.range = range
        self.mirror: Mirror[bytes, Entry] = Mirror(
            RangeFeed(store, range), wait=False, quiet=True, returned=returned
        )
        self.config = config
        self._layout = layout
        self._records: dict[str, StoreInstanceRecord] = {}
        self.mirror.subscribe(self._on_change)
        self._unsubscribe = config.subscribe(self._on_config) if config else lambda: None

    def start(self) -> None:
        """Start watching, unless it watches already."""
        self.mirror.start()
        if self.config is not None:
            self.config.start()

    def join(self, id: str, record: StoreInstanceRecord) -> None:
        self._records[id] = record

    def leave(self, id: str) -> bool:
        """Returns whether this was the last record: the caller then closes the watch."""
        self._records.pop(id, None)
        return not self._records

    async def aclose(self) -> None:
        self._unsubscribe()
        await self.mirror.aclose()

    def _on_config(self, _: Update[bytes, Entry]) -> None:
        for record in tuple(self._records.values()):
            record.notify()

    def _on_change(self, update: Update[bytes, Entry]) -> None:
        if update.resync:
            touched: Iterable[str] = tuple(self._records)
        else:
            locations = map(self._layout.locate, (change.key for change in update.changes))
            touched = {location.id for location in locations if location is not None}
        restored = update.resync and self.mirror.resyncs > 0
        for id in touched:
            if (record := self._records.get(id)) is not None:
                record.keys_changed(restored=restored)


class StoreInstanceRecord(InstanceRecord):
    def __init__(
        self,
        shared: SharedState,
        lease: SharedLease,
        host_watch: HostWatch,
        instance: Instance,
        home: Range,
    ) -> None:
        self.disturbed = False
        self.lease = 0
        self._shared, self._lease, self._host_watch = shared, lease, host_watch
        self._instance, self._home = instance, home
        self._labels = (instance.service, instance.id)
        self._mirror = host_watch.mirror
        self._tombstone = shared.layout.tombstone(instance)
        self._config_key = (
            shared.layout.config_key(instance.service, instance.id) if host_watch.config else b""
        )
        self._config_entry: Entry | None = None
        """The overrides of the last notification."""
        self._desired: dict[bytes, bytes] = {}
        self._sent: dict[bytes, bytes] = {}
        """What the store may hold, even if it did not confirm the write."""
        self._unanswered = False
        self._since = 0
        """A revision from before the first write."""
        self._left_out = ""
        """What is not written because it is too large."""
        self._changed: Callable[[], None] = lambda: None
        self._in_doubt = self._writing = False
        self._written = 0

    def open(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lease.acquire(self)
        self._host_watch.join(self._instance.id, self)

    async def aclose(self, *, within: float) -> None:
        await self._shared.leave(self._instance, self._home, self._host_watch)
        self._lease.delete_later(self._sent)
        await self._lease.release(self, within=within)

    @property
    def suspended(self) -> str:
        reason = ""
        if self._lease.in_doubt:
            reason = "the lease could not be renewed in time"
        elif self._mirror.error is not None:
            reason = str(self._mirror.error)
        elif self._mirror.loaded and self._mirror.stale:
            reason = "the store is silent"
        self._in_doubt = bool(reason)  # what the caller knows: `pulse` notifies of changes
        return reason

    @property
    def expired(self) -> bool:
        return self._lease.expired

    @property
    def config(self) -> Config:
        own = self._decode(self._mirror.items.get(self._config_key))
        if self._host_watch.config is None:
            return own
        return own.over(self._decode(next(iter(self._host_watch.config.items.values()), None)))

    def _decode(self, entry: Entry | None) -> Config:
        try:
            return NO_CONFIG if entry is None else self._shared.layout.decode_config(entry.value)
        except Exception:  # noqa: BLE001 - the listing of the service reports it
            return NO_CONFIG

    def lost(self) -> None:
        self._disturb()
        self.notify()

    def _disturb(self) -> None:
        self.disturbed = True
        # The descriptions may be gone for the same reason.
        self._shared.described.discard(self._instance.service)

    def pulse(self) -> None:
        before = self._in_doubt
        if bool(self.suspended) != before:
            self.notify()

    def keys_changed(self, *, restored: bool) -> None:
        """The keys of this instance changed. `restored`: the store may be another one, whose
        revisions are not comparable."""
        if restored:
            self._written = 0
        self._verify()
        config = self._mirror.items.get(self._config_key)
        if self.disturbed or config is not self._config_entry:  # usually it is our own write
            self._config_entry = config
            self.notify()

    def _verify(self) -> None:
        """Check that our keys are as desired. Changes from before our last write do not count, and
        during a write the result would be meaningless."""
        if self._writing or self._mirror.mark < self._written:
            return
        session = self._lease.current
        lease = 0 if session is None else session.lease
        for name, value in self._desired.items():
            entry = self._mirror.items.get(name)
            if entry is None or entry.value != value or entry.lease != lease:
                self._disturb()

    def notify(self) -> None:
        try:
            self._changed()
        except Exception:  # the other records of the host and the lease follow
            log.exception("%s %s: a subscriber failed", *self._labels)

    async def put(self, instance: Instance, *, fresh: bool) -> None:
        problem: TooLarge | None = None
        for desired, left_out in self._smaller_and_smaller(instance):
            try:
                await self._write(desired, fresh=fresh)
            except TooLarge as error:
                problem = problem or error
                continue
            if problem is not None and left_out != self._left_out:
                log.warning("%s %s: %s: %s", *self._labels, problem, left_out)
            self._left_out = left_out
            break
        else:
            assert problem is not None
            if not fresh:
                raise problem
            raise InvalidRequest(
                message(
                    "record_rejected_as_too_large",
                    service=instance.service,
                    id=instance.id,
                    problem=problem,
                )
            ) from problem
        if (service := instance.service) not in self._shared.described:
            self._shared.described.add(service)
            try:
                await create_descriptions(self._shared.store, self._shared.layout, instance)
            except BaseException as error:
                self._shared.described.discard(service)
                if not isinstance(error, StoreError):
                    raise
                log.info("%s: its description will be created later: %s", service, error)

    def _smaller_and_smaller(self, instance: Instance) -> Iterator[tuple[dict[bytes, bytes], str]]:
        """The desired keys, then alternatives in case they are too large, each with what it leaves
        out: being registered with the right status matters most."""
        yield self._shared.layout.encode(instance), ""
        status = msgspec.structs.replace(instance.status, metrics={})
        desired = self._shared.layout.encode(msgspec.structs.replace(instance, status=status))
        yield desired, "no metrics are written"
        main = next(iter(desired))
        if main in self._desired:
            kept = {**desired, main: self._desired[main]}
            yield kept, "its other fields stay as they were, and no metrics are written"

    async def _write(self, desired: dict[bytes, bytes], *, fresh: bool) -> None:
        current: Mapping[bytes, Entry] = self._mirror.items
        while True:
            session = await self._lease.session()
            if fresh and not self._since:
                self._since = await self._revision_before()
            try:
                writes, checks = repair(
                    self._instance,
                    desired,
                    current,
                    lease=session.lease,
                    ours=self._lease.granted,
                    tombstone=self._tombstone,
                    fresh=fresh and not self._unanswered,
                    since=self._since if fresh else 0,
                )
            except RegistryError:
                self.lease = 0  # none of the keys is ours any more
                raise
            self.disturbed, self._writing = False, True
            self._sent = desired
            self._lease.claim(desired)
            try:
                revision = await self._shared.batches.commit(*writes, require=checks)
            except Conflict:
                current = await self._read()
            except LeaseNotFound:
                await self._lease.discard(session)
            except TooLarge:
                raise
            except BaseException:
                self._unanswered = True
                raise
            else:
                break
            finally:
                self._writing = False
        self._desired, self._written, self.lease = desired, revision, session.lease
        self._host_watch.start()  # not earlier: a registration does not wait for the watch
        if self._mirror.loaded:
            self._verify()

    async def _revision_before(self) -> int:
        """A revision from before the first write. If the answer to that write is lost, the revision
        separates predecessors from successors."""
        if self._mirror.loaded and not self._mirror.stale:
            return self._mirror.mark
        return await self._shared.revisions.current(self._home.start)

    async def _read(self) -> dict[bytes, Entry]:
        """Our keys and the tombstone in the store."""
        reads = [Query(self._home), Query(key(self._tombstone))]
        return index((await self._shared.store.commit(read=reads)).reads)

    async def beat(self, instance: Instance, *, update: bool) -> None:
        if update:
            await self.put(instance, fresh=False)

    async def _mark_draining(self, record: Mapping[bytes, bytes]) -> None:
        """Mark the record as draining, if the layout has a status: consumers can then distinguish
        an instance that leaves from one whose record was deleted."""
        session = self._lease.current
        for name, value in record.items():
            location = self._shared.layout.locate(name)
            if session is None or location is None or location.file != "status":
                continue
            if (draining := values.draining(value)) != value:
                with contextlib.suppress(Conflict, LeaseNotFound):  # another's, or deleted
                    await self._shared.batches.commit(
                        Put(name, draining, session.lease), require=[on_lease(name, session.lease)]
                    )

    async def withdraw(self) -> None:
        record, self._desired = self._desired, {}
        await self._mark_draining(record)
        names = list(self._sent)
        session = self._lease.current
        checks = [on_lease(name, session.lease if session else 0) for name in names]
        while names:
            try:
                deletions = [Delete(key(name)) for name in names]
                await self._shared.batches.commit(*deletions, require=checks)
                break
            except Conflict:
                current = await self._read()
                ours = {0, *self._lease.granted}  # 0: overwritten without a lease, and still ours
                names = [name for name in names if name in current and current[name].lease in ours]
                checks = [unchanged(name, current[name].modified) for name in names]
        if not self._unanswered:
            self._sent = {}
