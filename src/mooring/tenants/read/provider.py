"""The provider: follows the tenants of a store and publishes snapshots of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec

from mooring.errors import Closed, Unavailable
from mooring.formatting import describe, quoted
from mooring.mirror import Mirror, RangeFeed, Steps, Update
from mooring.store.contract import Entry, Range, Store
from mooring.tasks import Backoff, Tasks, cleanup
from mooring.tenants.cooperative import run_cooperatively, slices
from mooring.tenants.keys import TenantKeys
from mooring.tenants.read.disk_cache import CachedTenants, TenantCache
from mooring.tenants.read.parser import KeyChange, SnapshotParser, SnapshotUpdate
from mooring.tenants.read.snapshot import TenantSnapshot
from mooring.tenants.read.tenants import Tenants
from mooring.tenants.secrets import Keyring


class PreparedUpdate(msgspec.Struct, frozen=True):
    """What an update will lead to that is not told yet."""

    base: TenantSnapshot
    """What was shown when it was found out."""
    mark: int
    outcome: SnapshotUpdate

    def fits(self, update: Update[bytes, Entry], snapshot: TenantSnapshot) -> bool:
        return update.resync and update.mark == self.mark and self.stands(snapshot)

    def stands(self, snapshot: TenantSnapshot) -> bool:
        """Whether the tenants are those of then; all else may have changed."""
        base = self.base
        return snapshot.tenants is base.tenants and snapshot.revision == base.revision


class PreparedFeed:
    """A feed that finds out in slices what its snapshot leads to, so that it is shown at once."""

    def __init__(
        self,
        feed: RangeFeed,
        reading: SnapshotParser,
        tenants: Tenants,
        held: Callable[[], Mapping[bytes, Entry]],
    ) -> None:
        self.name = feed.name
        self.prepared: PreparedUpdate | None = None
        self._feed, self._reading, self._tenants, self._held = feed, reading, tenants, held

    async def snapshot(self) -> tuple[dict[bytes, Entry], int]:
        items, mark = await self._feed.snapshot()
        while True:
            base = self._tenants.snapshot
            changes = _differences(self._held(), items)
            outcome = await run_cooperatively(self._reading.applying(base, changes))
            self.prepared = PreparedUpdate(base, mark, outcome)
            if self.prepared.stands(self._tenants.snapshot):  # else the file stands in by now
                return items, mark

    def follow(
        self, mark: int, held: Mapping[bytes, Entry], *, known: float
    ) -> AbstractAsyncContextManager[Steps[bytes, Entry]]:
        return self._feed.follow(mark, held, known=known)


def _differences(
    held: Mapping[bytes, Entry], items: Mapping[bytes, Entry]
) -> Iterator[Sequence[KeyChange]]:
    for keys in slices(held):
        yield [(key, None) for key in keys if key not in items]
    for some in slices(items.items()):
        yield [(key, entry) for key, entry in some if held.get(key) != entry]


log = logging.getLogger(__name__)

AFRESH = 3600.0
"""Seconds after which everything is read anew, whether or not anything seems wrong."""

_PROBE_AFTER = 0.1  # seconds in which most stores answer
_SAVE_EVERY = 30.0  # seconds at least between two copies
_SAVE_WITHIN = 10.0  # seconds at most that closing waits for the last one
_TELL = 20  # lines of one kind that one update logs at the most


class Provider:
    """Made by `hub.tenants`; use it as an async context manager.

    Entering gives the `Tenants`. It waits for all of them, for at most `wait` seconds. If the store
    cannot be reached, the last copy in `file` stands in, at once if the connection is refused.
    Without one it raises `Unavailable`, unless nothing is wrong: a store that takes long to read is
    waited for. A copy of another cluster is discarded once the store answers: see `copy`.

    From then on a failure takes nothing away: what was last known is kept and called `stale`, until
    the provider has caught up. Leaving ends that; the `Tenants` stay readable as they were.
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
        self._name = f"tenants of {quoted(keys.namespace)} in {store.url}"
        self._wait = wait
        self._reading = SnapshotParser(keys, ring)
        self._tenants = Tenants(age=self._age)
        self._feed = PreparedFeed(
            RangeFeed(store, keys.all), self._reading, self._tenants, self._held
        )
        self._parts = Mirror(self._feed, wait=False, afresh=afresh)
        self._parts.subscribe(self._apply_parts)
        self._mirrors = {keys.all: self._parts}
        for range in (keys.common, keys.platform, keys.health):
            mirror = Mirror(RangeFeed(store, range), wait=False, quiet=True, afresh=afresh)
            mirror.subscribe(self._apply_health if range is keys.health else self._apply_common)
            self._mirrors[range] = mirror
        self._copy = (
            None
            if file is None
            else TenantCache(file, namespace=keys.namespace, addresses=addresses)
        )
        self._in_use: CachedTenants | None = None
        """The copy that stands in, until the store answers."""
        self._foreign = False
        """Whether what is shown is of another cluster."""
        self._revision = 0
        """That of the parts that were read."""
        self._missed: dict[bytes, Entry | None] | None = None
        """What came since an update could not be applied; None where nothing is missing."""
        self._level = asyncio.Event()
        self._level.set()
        self._mistake = ""
        """Why one could not be applied, as it was told."""
        self._unreachable = ""
        """Why no server of the store answered at the start."""
        self._changes = self._saved = 0
        self._unsaved = asyncio.Event()
        self._closed = False
        self._tasks = Tasks()

    def _held(self) -> Mapping[bytes, Entry]:
        return self._parts.items

    def _age(self) -> float:
        if self._closed or self._missed is not None:
            return float("inf")
        return max([mirror.age for mirror in self._mirrors.values()])

    async def __aenter__(self) -> Tenants:
        try:
            for mirror in self._mirrors.values():
                mirror.start()
            await self._first_state()
        except BaseException:
            await self.aclose()
            raise
        if self._copy is not None:
            self._tasks.start(self._keep_saving(self._copy), name=f"copy of the {self._name}")
        return self._tenants

    async def _first_state(self) -> None:
        deadline = asyncio.get_running_loop().time() + self._wait
        kept = self._copy is not None and await asyncio.to_thread(self._copy.usable)
        await self._ready(deadline, or_failing=kept)
        if self._loaded:
            return
        copy = await asyncio.to_thread(self._copy.load) if self._copy is not None and kept else None
        if copy is not None and await self._stand_in(copy):
            return
        await self._ready(deadline, or_failing=False)
        await self._ready(None, or_failing=True)  # what is under way ends, by itself or in an error
        if not self._loaded:
            raise Unavailable(f"the {self._name} cannot be read: {self._why}")

    async def _ready(self, deadline: float | None, *, or_failing: bool) -> None:
        """Wait for all, or until it is clear that there is none for now."""
        probe: asyncio.Task[object] | None = None
        try:
            async with asyncio.timeout_at(deadline) as limit:
                if or_failing and deadline is not None:
                    name = f"status of the store of the {self._name}"
                    probe = self._tasks.start(self._end_if_unreachable(limit), name=name)
                for mirror in self._mirrors.values():
                    await mirror.ready(or_failing=or_failing)
                if deadline is not None:
                    await self._level.wait()
        except TimeoutError:
            pass
        finally:
            if probe is not None:
                probe.cancel()

    async def _end_if_unreachable(self, limit: asyncio.Timeout) -> None:
        """End a wait if no server of the store answers. The mirrors find that out later: their
        reads retry until their deadline."""
        await asyncio.sleep(_PROBE_AFTER)
        try:
            members = (await self._store.status()).members
        except Closed:
            return  # the mirrors raise it
        if all(member.problem for member in members) and not limit.expired():
            self._unreachable = "; ".join(member.problem for member in members)
            limit.reschedule(asyncio.get_running_loop().time())

    async def _stand_in(self, copy: CachedTenants) -> bool:
        """Whether the copy may be used: it is not if the store answers by now, and is another."""
        known = await asyncio.to_thread(_by_range, copy, [*self._mirrors])
        changes = slices(known[0].items())
        outcome = await run_cooperatively(self._reading.applying(self._tenants.snapshot, changes))
        if self._store.identity and self._store.identity != copy.identity:
            self._warn_of_other_cluster(copy)
            return False
        if not self._loaded:  # it may be by now
            self._in_use = copy
            log.warning("%s: the copy of %s stands in: %s", self._name, copy.saved_at, self._why)
        for mirror, entries in zip(self._mirrors.values(), known, strict=True):
            if mirror.loaded:
                continue
            mirror.stand_in(entries)
            if mirror is self._parts:
                self._revision = copy.revision
            self._apply(entries.items(), outcome if mirror is self._parts else None)
        return True

    def _verify_copy(self) -> None:
        """The store answers: if the copy that stands in is of another cluster, discard it. Nothing
        of it may be left among what is read, not even in place of a value that is unreadable."""
        copy, self._in_use = self._in_use, None
        if copy is None or (copy.identity and self._store.identity == copy.identity):
            return
        self._warn_of_other_cluster(copy)
        for mirror in self._mirrors.values():
            if not mirror.loaded:
                mirror.stand_in({})
        if not self._parts.loaded:
            self._revision = 0
        self._foreign = True
        self._put_together_anew()

    def _warn_of_other_cluster(self, copy: CachedTenants) -> None:
        log.warning(
            "%s: the copy of %s was discarded: it is of another cluster (%s, the store is %s)",
            self._name,
            copy.saved_at,
            copy.identity or "unknown",
            self._store.identity or "unknown",
        )

    @property
    def _loaded(self) -> bool:
        """Whether all was read, and is shown."""
        return self._missed is None and all(mirror.loaded for mirror in self._mirrors.values())

    @property
    def _why(self) -> str:
        errors = (mirror.error for mirror in self._mirrors.values())
        return str(
            next(filter(None, errors), self._mistake or self._unreachable or "no answer in time")
        )

    def _apply_parts(self, update: Update[bytes, Entry]) -> None:
        self._verify_copy()
        prepared, self._feed.prepared = self._feed.prepared, None
        self._revision = update.mark
        known = None
        if prepared is not None and prepared.fits(update, self._tenants.snapshot):
            known = prepared.outcome
        self._apply(_news(update), known)
        self._to_save()

    def _apply_common(self, update: Update[bytes, Entry]) -> None:
        self._verify_copy()
        self._apply(_news(update))
        self._to_save()

    def _apply_health(self, update: Update[bytes, Entry]) -> None:
        self._verify_copy()
        self._apply(_news(update))  # a beat alone is not worth a copy

    def _apply(self, changes: Iterable[KeyChange], known: SnapshotUpdate | None = None) -> None:
        """`known`: what they lead to, where that was found out."""
        if self._missed is not None:
            self._missed.update(changes)
            return
        snapshot = self._tenants.snapshot
        try:
            if known is None:
                outcome = self._reading.apply(snapshot, changes)
            else:
                outcome = known.onto(snapshot)
            self._show(outcome, self._revision)
        except Exception as error:  # noqa: BLE001 - or what was in it would be missing for good
            self._stumbles(error)
            self._put_together_anew()

    def _put_together_anew(self) -> None:
        recovering, self._missed = self._missed is not None, {}
        self._level.clear()
        if not self._closed and not recovering:
            self._tasks.start(self._recover(), name=f"recovery of the {self._name}")

    def _stumbles(self, error: Exception) -> None:
        if self._mistake != describe(error):
            self._mistake = describe(error)
            log.error(
                "%s: an update could not be applied, the last state is kept while all is put "
                "together anew",
                self._name,
                exc_info=error,
            )

    async def _recover(self) -> None:
        """Put all together anew, from what was read and not from what is shown, until it works."""
        backoff = Backoff()
        while True:
            try:
                await self._start_over()
            except Exception as error:  # noqa: BLE001 - it is tried again
                self._stumbles(error)
            else:
                return
            await asyncio.sleep(backoff.next())

    async def _start_over(self) -> None:
        revision, self._missed = self._revision, {}
        foreign = self._foreign
        entries: dict[bytes, Entry] = {}
        for mirror in self._mirrors.values():
            entries |= mirror.items
        shown = self._tenants.snapshot
        if foreign:  # its last good values are not of this store
            shown = msgspec.structs.replace(shown, good=TenantSnapshot().good)
        outcome = await run_cooperatively(self._reading.anew(shown, entries))
        if foreign is not self._foreign:  # the copy was discarded meanwhile
            return await self._start_over()
        self._show(outcome, revision)
        missed, self._missed = self._missed, None
        self._level.set()
        if self._mistake:
            log.warning("%s: put together anew, nothing is missing", self._name)
        self._mistake, self._foreign = "", False
        if missed:
            self._apply(missed.items())
        self._to_save()

    def _show(self, outcome: SnapshotUpdate, revision: int) -> None:
        snapshot = msgspec.structs.replace(outcome.snapshot, revision=revision)
        self._tenants.show(snapshot, outcome.changes)
        kept = {key.decode() for key in snapshot.good}
        _warn(
            self._name,
            [
                f"{key} {'stays as it was' if key in kept else 'is left out'}: {why}"
                for key, why in outcome.problems.items()
            ],
        )
        _warn(self._name, outcome.contests)

    def _to_save(self) -> None:
        self._changes += 1
        self._unsaved.set()

    async def _keep_saving(self, copy: TenantCache) -> None:
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()  # what changes meanwhile is saved next
            if await self._save(copy):
                await asyncio.sleep(_SAVE_EVERY)

    async def _save(self, copy: TenantCache) -> bool:
        """Whether there was anything to save: a copy is of all, or not made."""
        if not self._loaded or self._saved == self._changes:
            return False
        mirrors, changes = self._mirrors.values(), self._changes
        entries: list[Entry] = []
        for mirror in mirrors:
            entries += mirror.items.values()
        entries += self._tenants.snapshot.good.values()  # in place of what cannot be understood
        identity = self._store.identity
        await asyncio.to_thread(copy.save, entries, self._revision, identity=identity)
        self._saved = changes
        return True

    async def aclose(self) -> None:
        """Stop following, and keep a last copy."""
        if self._closed:
            return
        self._closed = True
        await self._tasks.aclose()
        for mirror in self._mirrors.values():
            await mirror.aclose()
        if self._copy is not None:
            await cleanup(self._save(self._copy), within=_SAVE_WITHIN)

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _by_range(copy: CachedTenants, ranges: Sequence[Range]) -> list[dict[bytes, Entry]]:
    return [{each.key: each for each in copy.entries if each.key in range} for range in ranges]


def _news(update: Update[bytes, Entry]) -> Iterator[KeyChange]:
    return ((change.key, change.after) for change in update.changes)


def _warn(name: str, lines: Sequence[object]) -> None:
    for line in lines[:_TELL]:
        log.warning("%s: %s", name, line)
    if len(lines) > _TELL:
        log.warning("%s: %d more like this", name, len(lines) - _TELL)
