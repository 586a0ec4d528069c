"""One instance's place in a registry on a store: keys on a shared lease, watched and repaired."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from mooring.errors import (
    Conflict,
    InvalidRequest,
    LeaseNotFound,
    RegistryError,
    Removed,
    StoreError,
    Superseded,
    TooLarge,
)
from mooring.model import NO_CONFIG, Config, Instance
from mooring.registry import json_values as values
from mooring.registry.contract import InstanceRecord
from mooring.registry.kv.commit_batches import CommitBatches
from mooring.registry.kv.host_watch import HostWatch
from mooring.registry.kv.layouts.layout import Layout
from mooring.registry.kv.removal import tombstone_key
from mooring.registry.kv.shared_lease import Revisions, SharedLease
from mooring.store.contract import (
    Check,
    Delete,
    Entry,
    Put,
    Query,
    Range,
    Snapshot,
    Store,
    Write,
    absent,
    key,
    on_lease,
    unchanged,
)

log = logging.getLogger(__name__)


class Repair(NamedTuple):
    writes: list[Write]
    checks: list[Check]


def repair(
    desired: Mapping[bytes, bytes],
    seen: Mapping[bytes, Entry],
    *,
    lease: int,
    ours: Collection[int],
    tombstone: bytes,
    fresh: bool = False,
    since: int = 0,
) -> Repair:
    """What makes the keys what they should be, given what was seen of them (contract M6).

    `lease` is the present one, `ours` all that ever were. `fresh`: this instance was never written,
    and whoever has its place has had it. `since`: it may have been, after that revision, and
    whoever has its place from before has had it. Raises `Superseded` or `Removed` where this
    instance must not touch the keys any more.
    """
    if fresh:
        puts = [Put(name, value, lease) for name, value in desired.items()]
        return Repair([*puts, Delete(key(tombstone))], [])
    held = [seen[name] for name in desired if name in seen]
    predecessors = {entry.lease for entry in held if entry.modified <= since}
    writes: list[Write] = []
    checks: list[Check] = []
    for name, value in desired.items():
        entry = seen.get(name)
        checks.append(unchanged(name, entry.modified if entry else 0))
        if entry is not None:
            if entry.lease == lease and entry.value == value:
                continue
            if entry.lease and entry.lease not in ours and entry.lease not in predecessors:
                raise Superseded(
                    f"{name.decode()} is under the live lease {entry.lease:x} of another process, "
                    "which registered later: this one leaves it alone"
                )
        writes.append(Put(name, value, lease))
    grave = seen.get(tombstone)
    checks.append(unchanged(tombstone, grave.modified if grave else 0))
    if grave is not None:
        if grave.modified > since:
            raise Removed(
                f"{next(iter(desired)).decode()} was deregistered by an operator: it stays out "
                "until its process starts anew"
            )
        writes.append(Delete(key(tombstone)))
    return Repair(writes, checks)


class SharedState(NamedTuple):
    """What the registrations of one registry share."""

    store: Store
    layout: Layout
    batches: CommitBatches
    revisions: Revisions
    described: set[str]
    """Services whose descriptions are known to be there."""
    leave: Callable[[Instance, Range, HostWatch], Awaitable[None]]
    """Called when the place of an instance is free again."""


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
        self._tombstone = tombstone_key(shared.layout, instance)
        self._config_key = (
            shared.layout.config_key(instance.service, instance.id) if host_watch.config else b""
        )
        self._said: Entry | None = None
        """The operator's word as it was last told."""
        self._desired: dict[bytes, bytes] = {}
        self._sent: dict[bytes, bytes] = {}
        """What may be in the store, though no answer said so."""
        self._unanswered = False
        self._since = 0
        """Where the store was before it was ever written."""
        self._left_out = ""
        """What is not written, since it is too large."""
        self._callbacks: tuple[Callable[[], None], ...] = ()
        self._in_doubt = self._writing = False
        self._written = 0

    def open(self) -> None:
        self._lease.acquire(self)
        self._host_watch.join(self._instance.id, self)

    async def aclose(self, *, within: float) -> None:
        await self._shared.leave(self._instance, self._home, self._host_watch)
        self._lease.delete_later(self._sent)
        await self._lease.release(self, within=within)

    @property
    def suspended(self) -> str:
        reason = self._reason_to_doubt()
        self._in_doubt = bool(reason)  # as it is known to who asks: `pulse` tells when it changes
        return reason

    @property
    def expired(self) -> bool:
        return self._lease.expired

    def _reason_to_doubt(self) -> str:
        if self._lease.in_doubt:
            return "the lease could not be renewed in time"
        if self._mirror.error is not None:
            return str(self._mirror.error)
        return "the store is silent" if self._mirror.loaded and self._mirror.stale else ""

    @property
    def config(self) -> Config:
        own = self._decode(self._mirror.items.get(self._config_key))
        if self._host_watch.config is None:
            return own
        return own.over(self._decode(next(iter(self._host_watch.config.items.values()), None)))

    def _decode(self, entry: Entry | None) -> Config:
        try:
            return NO_CONFIG if entry is None else self._shared.layout.decode_config(entry.value)
        except Exception:  # noqa: BLE001 - whatever it is, those who list the service report it
            return NO_CONFIG

    def subscribe(self, callback: Callable[[], None]) -> None:
        self._callbacks += (callback,)

    def lost(self) -> None:
        self._disturb()
        self._tell()

    def _disturb(self) -> None:
        self.disturbed = True
        # What took ours may have taken those too.
        self._shared.described.discard(self._instance.service)

    def pulse(self, in_doubt: bool) -> None:
        mirror = self._mirror
        doubt = in_doubt or mirror.error is not None or (mirror.loaded and mirror.stale)
        if doubt != self._in_doubt:
            self._in_doubt = doubt
            self._tell()

    def hear(self, *, anew: bool) -> None:
        if anew:
            self._written = 0
        self._look()
        said = self._mirror.items.get(self._config_key)
        if self.disturbed or said is not self._said:  # mostly it is what we wrote ourselves
            self._said = said
            self._tell()

    def configured(self) -> None:
        self._tell()

    def _look(self) -> None:
        """Are our keys still what they should be? What came before we last wrote them does not
        count, and while we write them nobody can tell."""
        if self._writing or self._mirror.mark < self._written:
            return
        session = self._lease.current
        lease = 0 if session is None else session.lease
        held = self._mirror.items
        for name, value in self._desired.items():
            entry = held.get(name)
            if entry is None or entry.value != value or entry.lease != lease:
                self._disturb()

    def _tell(self) -> None:
        for callback in self._callbacks:
            try:
                callback()
            except Exception:  # neighbours and sharers of the lease are told after it
                log.exception("%s %s: a subscriber failed", *self._labels)

    async def put(self, instance: Instance, *, fresh: bool) -> None:
        problem: TooLarge | None = None
        for desired, left_out in self._less_and_less(instance):
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
                f"{instance.service} {instance.id} says more of itself than the store takes in one "
                f"commit, in its metadata perhaps: {problem}"
            ) from problem
        if instance.service not in self._shared.described:
            try:
                await self._describe()
            except StoreError as error:
                log.info("%s: its description is made later: %s", instance.service, error)

    def _less_and_less(self, instance: Instance) -> Iterator[tuple[dict[bytes, bytes], str]]:
        """What should be there, then what should be where that is too large, and what is left out
        of it: that it is there at all, and how it is, matters more."""
        yield self._shared.layout.encode(instance), ""
        status = msgspec.structs.replace(instance.status, metrics={})
        desired = self._shared.layout.encode(msgspec.structs.replace(instance, status=status))
        yield desired, "no metrics are written"
        main = next(iter(desired))
        if main in self._desired:
            kept = {**desired, main: self._desired[main]}
            yield kept, "what it says of itself stays as it was, and no metrics are written"

    async def _write(self, desired: dict[bytes, bytes], *, fresh: bool) -> None:
        seen: Mapping[bytes, Entry] = self._mirror.items
        while True:
            session = await self._lease.session()
            if fresh and not self._since:
                self._since = await self._beginning()
            try:
                plan = repair(
                    desired,
                    seen,
                    lease=session.lease,
                    ours=self._lease.granted,
                    tombstone=self._tombstone,
                    fresh=fresh and not self._unanswered,
                    since=self._since if fresh else 0,
                )
            except RegistryError:
                self.lease = 0  # nothing there is ours any more
                raise
            self.disturbed, self._writing = False, True
            self._sent = desired
            self._lease.claim(desired)
            try:
                revision = await self._shared.batches.commit(*plan.writes, require=plan.checks)
            except Conflict:
                seen = await self._present()
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
        self._host_watch.start()  # not before: nobody shall wait for it
        if self._mirror.loaded:
            self._look()

    async def _beginning(self) -> int:
        """A revision before it was ever written. Should the answer to that be lost, it tells who
        was here before from who came after."""
        if self._mirror.loaded and not self._mirror.stale:
            return self._mirror.mark
        return await self._shared.revisions.present(self._home.start)

    async def _present(self) -> dict[bytes, Entry]:
        """Our keys, and the tombstone, as they are."""
        reads = [Query(self._home), Query(key(self._tombstone))]
        return _index((await self._shared.store.commit(read=reads)).reads)

    async def beat(self, instance: Instance, *, update: bool) -> None:
        if update:
            await self.put(instance, fresh=False)

    async def _describe(self) -> None:
        service = self._instance.service
        self._shared.described.add(service)
        try:
            await describe_service(self._shared.store, self._shared.layout, self._instance)
        except BaseException:
            self._shared.described.discard(service)
            raise

    async def _say_goodbye(self, record: Mapping[bytes, bytes]) -> None:
        """Mark the record as draining, if it can say so: consumers can then tell an instance that
        leaves from one whose record was deleted behind its back."""
        session = self._lease.current
        for name, value in record.items():
            place = self._shared.layout.locate(name)
            if session is None or place is None or place.file != "status":
                continue
            if (leaving := values.draining(value)) != value:
                with contextlib.suppress(Conflict, LeaseNotFound):  # another's, or gone
                    await self._shared.batches.commit(
                        Put(name, leaving, session.lease), require=[on_lease(name, session.lease)]
                    )

    async def withdraw(self) -> None:
        record, self._desired = self._desired, {}
        await self._say_goodbye(record)
        names = list(self._sent)
        session = self._lease.current
        checks = [on_lease(name, session.lease if session else 0) for name in names]
        while names:
            try:
                deletions = [Delete(key(name)) for name in names]
                await self._shared.batches.commit(*deletions, require=checks)
                break
            except Conflict:
                seen = await self._present()
                ours = {0, *self._lease.granted}  # without a lease: overwritten, and still ours
                names = [name for name in names if name in seen and seen[name].lease in ours]
                checks = [unchanged(name, seen[name].modified) for name in names]
        if not self._unanswered:
            self._sent = {}


async def describe_service(store: Store, layout: Layout, instance: Instance) -> None:
    """Create the descriptions of an instance's service and group that do not exist yet."""
    lasting = layout.lasting(instance)
    reads = [Query(key(name), keys_only=True) for name in lasting]
    existing = _index((await store.commit(read=reads)).reads) if reads else {}
    for name, value in lasting.items():
        if name not in existing:
            with contextlib.suppress(Conflict):  # another process was first
                await store.commit(Put(name, value), require=[absent(name)])


def _index(reads: Iterable[Snapshot]) -> dict[bytes, Entry]:
    return {entry.key: entry for found in reads for entry in found.entries}
