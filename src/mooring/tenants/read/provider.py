"""The provider: follows the tenants of a store and publishes snapshots of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from mooring.errors import Closed, Unavailable
from mooring.messages import Message, as_message, combined, message, verbatim
from mooring.mirror import Mirror, RangeFeed, Update
from mooring.store.contract import Entry, Range, Store
from mooring.tasks import Backoff, Tasks, cleanup, run_cooperatively, slices
from mooring.tenants.keys import TenantKeys
from mooring.tenants.read.disk_cache import CachedTenants, TenantCache
from mooring.tenants.read.parser import KeyChange, SnapshotParser, SnapshotUpdate
from mooring.tenants.read.snapshot import TenantSnapshot
from mooring.tenants.read.tenants import Tenants
from mooring.tenants.secrets import Keyring


class PreparedUpdate(msgspec.Struct, frozen=True):
    """The effect of the mirror's next update, computed in advance."""

    base: TenantSnapshot
    """The snapshot that it applies to."""
    mark: int
    effect: SnapshotUpdate

    def fits(self, update: Update[bytes, Entry], snapshot: TenantSnapshot) -> bool:
        return update.resync and update.mark == self.mark and self.applies_to(snapshot)

    def applies_to(self, snapshot: TenantSnapshot) -> bool:
        """Whether the tenants are those of the base; everything else may have changed."""
        base = self.base
        return snapshot.tenants is base.tenants and snapshot.revision == base.revision


class PreparedFeed(RangeFeed):
    """A feed that computes the effect of its snapshot in slices, before the mirror applies it."""

    def __init__(
        self,
        store: Store,
        range: Range,
        parser: SnapshotParser,
        tenants: Tenants,
        current: Callable[[], Mapping[bytes, Entry]],
    ) -> None:
        super().__init__(store, range)
        self.prepared: PreparedUpdate | None = None
        self._parser, self._tenants, self._current = parser, tenants, current

    async def snapshot(self) -> tuple[dict[bytes, Entry], int]:
        items, mark = await super().snapshot()
        while True:
            base = self._tenants.snapshot
            changes = _changes(self._current(), items)
            effect = await run_cooperatively(self._parser.apply_in_slices(base, changes))
            self.prepared = PreparedUpdate(base, mark, effect)
            if self.prepared.applies_to(self._tenants.snapshot):  # otherwise the copy was loaded
                return items, mark


def _changes(
    before: Mapping[bytes, Entry], after: Mapping[bytes, Entry]
) -> Iterator[Sequence[KeyChange]]:
    for keys in slices(before):
        yield [(key, None) for key in keys if key not in after]
    for items in slices(after.items()):
        yield [(key, entry) for key, entry in items if before.get(key) != entry]


log = logging.getLogger(__name__)

AFRESH = 3600.0
"""Seconds after which everything is read again, even if nothing seems wrong."""

_PROBE_AFTER = 0.1  # seconds in which most stores answer
_SAVE_INTERVAL = 30.0  # minimum seconds between two saves
_SAVE_TIMEOUT = 10.0  # seconds that closing waits for the last save
_MAX_LINES = 20  # of one kind in the log for one update


class Provider:
    """Created by `hub.tenants`; use it as an async context manager.

    Entering returns the `Tenants` once all are loaded, after at most `wait` seconds. If the store
    cannot be reached, it loads the copy in `file`, immediately if the connection is refused.
    Without a copy it raises `Unavailable`, unless the store is merely slow to read: then it
    continues to wait. A copy of another cluster is discarded once the store answers: see
    `disk_cache`.

    From then on, failures keep the last known tenants, which are `stale` until the provider has
    caught up. After exit, the `Tenants` remain readable but are no longer updated.
    """

    def __init__(
        self,
        store: Store,
        keys: TenantKeys,
        ring: Keyring,
        *,
        file: Path | None = None,
        addresses: Collection[str] = (),
        afresh: float = AFRESH,
        wait: float = 5.0,
    ) -> None:
        self._store = store
        self._name = message("tenants_of", namespace=keys.namespace, store=verbatim(store.url))
        self._wait = wait
        self._parser = SnapshotParser(keys, ring)
        self._tenants = Tenants(age=self._age)
        self._feed = PreparedFeed(
            store, keys.all, self._parser, self._tenants, lambda: self._parts.items
        )
        self._parts = Mirror(self._feed, wait=False, afresh=afresh)
        self._parts.subscribe(self._apply_parts)
        self._mirrors = {keys.all: self._parts}
        for range in (keys.common, keys.platform, keys.health):
            mirror = Mirror(RangeFeed(store, range), wait=False, quiet=True, afresh=afresh)
            save = range is not keys.health  # a heartbeat alone does not require a save
            mirror.subscribe(partial(self._apply_settings, save=save))
            self._mirrors[range] = mirror
        self._copy = (
            None
            if file is None
            else TenantCache(file, namespace=keys.namespace, addresses=addresses)
        )
        self._unverified: CachedTenants | None = None
        """The copy in use, until the store answers."""
        self._foreign = False
        """Whether the current tenants are of another cluster."""
        self._revision = 0
        """The revision of the parts that were read."""
        self._missed: dict[bytes, Entry | None] | None = None
        """Changes since an update could not be applied; None if all were applied."""
        self._up_to_date = asyncio.Event()
        self._up_to_date.set()
        self._failure: Message | None = None
        """Why an update could not be applied, as logged."""
        self._unreachable: Message | None = None
        """Why no server of the store answered at the start."""
        self._changes = self._saved = 0
        self._unsaved = asyncio.Event()
        self._closed = False
        self._tasks = Tasks()

    def _age(self) -> float:
        if self._closed or self._missed is not None:
            return float("inf")
        return max([mirror.age for mirror in self._mirrors.values()])

    async def __aenter__(self) -> Tenants:
        try:
            for mirror in self._mirrors.values():
                mirror.start()
            await self._load()
        except BaseException:
            await self.aclose()
            raise
        if self._copy is not None:
            self._tasks.start(self._keep_saving(self._copy), name=f"copy of the {self._name}")
        return self._tenants

    async def _load(self) -> None:
        deadline = asyncio.get_running_loop().time() + self._wait
        usable = self._copy is not None and await asyncio.to_thread(self._copy.usable)
        await self._ready(deadline, or_failing=usable)
        if self._loaded:
            return
        if self._copy is not None and usable:
            copy = await asyncio.to_thread(self._copy.load)
            if copy is not None and await self._use_copy(copy):
                return
        await self._ready(deadline, or_failing=False)
        await self._ready(None, or_failing=True)  # reads in progress finish or fail
        if not self._loaded:
            raise Unavailable(message("tenants_unreadable", what=self._name, problem=self._reason))

    async def _ready(self, deadline: float | None, *, or_failing: bool) -> None:
        """Wait until all mirrors are loaded, or with `or_failing` until a read has failed."""
        probe: asyncio.Task[object] | None = None
        try:
            async with asyncio.timeout_at(deadline) as limit:
                if or_failing and deadline is not None:
                    name = f"status of the store of the {self._name}"
                    probe = self._tasks.start(self._end_if_unreachable(limit), name=name)
                for mirror in self._mirrors.values():
                    await mirror.ready(or_failing=or_failing)
                if deadline is not None:
                    await self._up_to_date.wait()
        except TimeoutError:
            pass
        finally:
            if probe is not None:
                probe.cancel()

    async def _end_if_unreachable(self, limit: asyncio.Timeout) -> None:
        """End a wait if no server of the store answers. The mirrors notice later, because their
        reads retry until a deadline."""
        await asyncio.sleep(_PROBE_AFTER)
        try:
            members = (await self._store.status()).members
        except Closed:
            return  # the mirrors raise it
        if all(member.problem for member in members) and not limit.expired():
            self._unreachable = combined(member.problem for member in members if member.problem)
            limit.reschedule(asyncio.get_running_loop().time())

    async def _use_copy(self, copy: CachedTenants) -> bool:
        """Load the copy; False if the store answers by now and is another cluster."""
        ranges = await asyncio.to_thread(_by_range, copy, [*self._mirrors])
        changes = slices(ranges[0].items())
        effect = await run_cooperatively(
            self._parser.apply_in_slices(self._tenants.snapshot, changes)
        )
        if self._store.identity and self._store.identity != copy.identity:
            self._warn_of_other_cluster(copy)
            return False
        if not self._loaded:  # the store may have answered meanwhile
            self._unverified = copy
            log.warning("%s: using the copy from %s: %s", self._name, copy.saved_at, self._reason)
        for mirror, entries in zip(self._mirrors.values(), ranges, strict=True):
            if mirror.loaded:
                continue
            mirror.stand_in(entries)
            if mirror is self._parts:
                self._revision = copy.revision
            self._apply(entries.items(), effect if mirror is self._parts else None)
        return True

    def _verify_copy(self) -> None:
        """The store answers: if the copy in use is of another cluster, discard it entirely, even
        values that would replace unreadable ones."""
        copy, self._unverified = self._unverified, None
        if copy is None or (copy.identity and self._store.identity == copy.identity):
            return
        self._warn_of_other_cluster(copy)
        for mirror in self._mirrors.values():
            if not mirror.loaded:
                mirror.stand_in({})
        if not self._parts.loaded:
            self._revision = 0
        self._foreign = True
        self._rebuild()

    def _warn_of_other_cluster(self, copy: CachedTenants) -> None:
        log.warning(
            "%s: the copy from %s was discarded: it is of another cluster (%s, the store is %s)",
            self._name,
            copy.saved_at,
            copy.identity or "unknown",
            self._store.identity or "unknown",
        )

    @property
    def _loaded(self) -> bool:
        """Whether everything was read and applied."""
        return self._missed is None and all(mirror.loaded for mirror in self._mirrors.values())

    @property
    def _reason(self) -> object:
        if error := next(filter(None, (mirror.error for mirror in self._mirrors.values())), None):
            return error
        return self._failure or self._unreachable or message("no_reply_in_time")

    def _apply_parts(self, update: Update[bytes, Entry]) -> None:
        self._verify_copy()
        prepared, self._feed.prepared = self._feed.prepared, None
        self._revision = update.mark
        effect = None
        if prepared is not None and prepared.fits(update, self._tenants.snapshot):
            effect = prepared.effect
        self._apply(_key_changes(update), effect)
        self._request_save()

    def _apply_settings(self, update: Update[bytes, Entry], *, save: bool) -> None:
        self._verify_copy()
        self._apply(_key_changes(update))
        if save:
            self._request_save()

    def _apply(self, changes: Iterable[KeyChange], effect: SnapshotUpdate | None = None) -> None:
        """`effect`: that of the changes, if it was computed in advance."""
        if self._missed is not None:
            self._missed.update(changes)
            return
        snapshot = self._tenants.snapshot
        try:
            if effect is None:
                effect = self._parser.apply(snapshot, changes)
            else:
                effect = effect.onto(snapshot)
            self._show(effect, self._revision)
        except Exception as error:  # noqa: BLE001 - otherwise its changes would be lost
            self._log_failure(error)
            self._rebuild()

    def _rebuild(self) -> None:
        rebuilding, self._missed = self._missed is not None, {}
        self._up_to_date.clear()
        if not self._closed and not rebuilding:
            self._tasks.start(self._keep_rebuilding(), name=f"recovery of the {self._name}")

    def _log_failure(self, error: Exception) -> None:
        failure = as_message(error)
        if failure != self._failure:
            self._failure = failure
            log.error(
                "%s: an update could not be applied; keeping the last state and rebuilding it",
                self._name,
                exc_info=error,
            )

    async def _keep_rebuilding(self) -> None:
        """Rebuild the snapshot from what was read, until it succeeds."""
        backoff = Backoff()
        while True:
            try:
                await self._rebuild_once()
            except Exception as error:  # noqa: BLE001 - the loop retries
                self._log_failure(error)
            else:
                return
            await asyncio.sleep(backoff.next())

    async def _rebuild_once(self) -> None:
        revision, self._missed = self._revision, {}
        foreign = self._foreign
        entries: dict[bytes, Entry] = {}
        for mirror in self._mirrors.values():
            entries |= mirror.items
        current = self._tenants.snapshot
        if foreign:  # its last valid settings are of another store
            current = msgspec.structs.replace(current, good=TenantSnapshot().good)
        effect = await run_cooperatively(self._parser.rebuild(current, entries))
        if foreign is not self._foreign:  # the copy was discarded meanwhile
            return await self._rebuild_once()
        self._show(effect, revision)
        missed, self._missed = self._missed, None
        self._up_to_date.set()
        if self._failure:
            log.warning("%s: the state was rebuilt and is complete", self._name)
        self._failure, self._foreign = None, False
        if missed:
            self._apply(missed.items())
        self._request_save()

    def _show(self, effect: SnapshotUpdate, revision: int) -> None:
        snapshot = msgspec.structs.replace(effect.snapshot, revision=revision)
        self._tenants.show(snapshot, effect.changes)
        kept = {key.decode() for key in snapshot.good}
        _warn(
            self._name,
            [
                f"{key} {'stays as it was' if key in kept else 'is left out'}: {reason}"
                for key, reason in effect.problems.items()
            ],
        )
        _warn(self._name, effect.conflicts)

    def _request_save(self) -> None:
        self._changes += 1
        self._unsaved.set()

    async def _keep_saving(self, copy: TenantCache) -> None:
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()  # changes during the save are saved next
            if await self._save(copy):
                await asyncio.sleep(_SAVE_INTERVAL)

    async def _save(self, copy: TenantCache) -> bool:
        """Save a copy if everything is loaded and there are changes; whether it did."""
        if not self._loaded or self._saved == self._changes:
            return False
        mirrors, changes = self._mirrors.values(), self._changes
        entries: list[Entry] = []
        for mirror in mirrors:
            entries += mirror.items.values()
        entries += self._tenants.snapshot.good.values()  # in place of unreadable ones
        identity = self._store.identity
        await asyncio.to_thread(copy.save, entries, self._revision, identity=identity)
        self._saved = changes
        return True

    async def aclose(self) -> None:
        """Stop following the store, and save a last copy."""
        if self._closed:
            return
        self._closed = True
        await self._tasks.aclose()
        for mirror in self._mirrors.values():
            await mirror.aclose()
        if self._copy is not None:
            await cleanup(self._save(self._copy), within=_SAVE_TIMEOUT)

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _by_range(copy: CachedTenants, ranges: Sequence[Range]) -> list[dict[bytes, Entry]]:
    return [{entry.key: entry for entry in copy.entries if entry.key in range} for range in ranges]


def _key_changes(update: Update[bytes, Entry]) -> Iterator[KeyChange]:
    return ((change.key, change.after) for change in update.changes)


def _warn(name: Message, lines: Sequence[object]) -> None:
    for line in lines[:_MAX_LINES]:
        log.warning("%s: %s", name, line)
    if len(lines) > _MAX_LINES:
        log.warning("%s: %d more like this", name, len(lines) - _MAX_LINES)
