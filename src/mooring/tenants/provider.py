"""Keeps the tenants of a store at hand: a mirror of their keys, turned into snapshots.

async with hub.tenants() as tenants:
    database = tenants.database(7, "evidence-query")

Indexes are not read: what they say follows from the data, so that it never matters what comes
first. All changes of one revision are applied at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec

from mooring.errors import Unavailable
from mooring.mirror import Mirror, RangeFeed, Steps, Update
from mooring.store.contract import Entry, Range, Store
from mooring.tasks import Tasks, cleanup
from mooring.tenants.copy import Copy, CopyFile
from mooring.tenants.keys import Keys
from mooring.tenants.live import Tenants
from mooring.tenants.pacing import in_turns, slices
from mooring.tenants.reading import KeyChange, Outcome, Reading
from mooring.tenants.secrets import Keyring
from mooring.tenants.snapshot import Snapshot

log = logging.getLogger(__name__)

AFRESH = 3600.0
"""Seconds after which everything is read anew, whether or not anything seems wrong."""

_SAVE_EVERY = 30.0  # seconds at least between two copies
_SAVE_WITHIN = 10.0  # seconds at most that closing waits for the last one
_TELL = 20  # lines of one kind that one update logs at the most


class Provider:
    """Made by `hub.tenants`; use it as an async context manager.

    Entering gives the `Tenants`. It waits for all of them, for at most `wait` seconds; where the
    store is away, the last copy in `file` stands in. Without one it raises `Unavailable`, unless
    nothing is wrong: a store that takes long to read is waited for.

    From then on a failure takes nothing away: what was last known is kept and called `stale`, until
    the provider has caught up. Leaving ends that; the `Tenants` stay readable as they were.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        ring: Keyring,
        *,
        file: Path | None = None,
        afresh: float = AFRESH,
        wait: float = 5.0,
    ) -> None:
        self._name = f"tenants of {keys.namespace!r} in {store.url}"
        self._wait = wait
        self._reading = Reading(keys, ring)
        self._tenants = Tenants(age=self._age)
        self._feed = _Prepared(RangeFeed(store, keys.all), self._reading, self._tenants, self._held)
        self._parts = Mirror(self._feed, wait=False, afresh=afresh)
        self._parts.subscribe(self._apply_parts)
        self._mirrors = {keys.all: self._parts}
        for range in (keys.common, keys.platform, keys.health):
            mirror = Mirror(RangeFeed(store, range), wait=False, quiet=True, afresh=afresh)
            mirror.subscribe(self._apply_health if range is keys.health else self._apply_common)
            self._mirrors[range] = mirror
        self._copy = (
            None if file is None else CopyFile(file, store=store.url, namespace=keys.namespace)
        )
        self._changes = self._saved = 0
        self._unsaved = asyncio.Event()
        self._closed = False
        self._tasks = Tasks()

    def _held(self) -> Mapping[bytes, Entry]:
        return self._parts.items

    def _age(self) -> float:
        if self._closed:
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
        kept = self._copy is not None and self._copy.usable()
        await self._ready(deadline, or_failing=kept)
        if self._loaded:
            return
        copy = await asyncio.to_thread(self._copy.load) if self._copy is not None and kept else None
        if copy is not None:
            return await self._stand_in(copy)
        await self._ready(deadline, or_failing=False)
        await self._ready(None, or_failing=True)  # what is under way ends, by itself or in an error
        if not self._loaded:
            raise Unavailable(f"the {self._name} cannot be read: {self._why}")

    async def _ready(self, deadline: float | None, *, or_failing: bool) -> None:
        """Wait for all, or until it is clear that there is none for now."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                for mirror in self._mirrors.values():
                    await mirror.ready(or_failing=or_failing)

    async def _stand_in(self, copy: Copy) -> None:
        known = await asyncio.to_thread(_by_range, copy, [*self._mirrors])
        changes = slices(known[0].items())
        outcome = await in_turns(self._reading.applying(self._tenants.snapshot, changes))
        if not self._loaded:  # it may be by now
            log.warning("%s: the copy of %s stands in: %s", self._name, copy.saved_at, self._why)
        for mirror, entries in zip(self._mirrors.values(), known, strict=True):
            if mirror.loaded:
                continue
            mirror.stand_in(entries)
            if mirror is self._parts:
                self._show(outcome.onto(self._tenants.snapshot), copy.revision)
            else:
                self._apply(entries.items())

    @property
    def _loaded(self) -> bool:
        return all(mirror.loaded for mirror in self._mirrors.values())

    @property
    def _why(self) -> str:
        errors = (mirror.error for mirror in self._mirrors.values())
        return str(next(filter(None, errors), "no answer in time"))

    def _apply_parts(self, update: Update[bytes, Entry]) -> None:
        prepared, self._feed.prepared = self._feed.prepared, None
        snapshot = self._tenants.snapshot
        if prepared is not None and prepared.fits(update, snapshot):
            outcome = prepared.outcome.onto(snapshot)
        else:
            outcome = self._reading.apply(snapshot, _news(update))
        self._show(outcome, update.mark)
        self._to_save()

    def _apply_common(self, update: Update[bytes, Entry]) -> None:
        self._apply(_news(update))
        self._to_save()

    def _apply_health(self, update: Update[bytes, Entry]) -> None:
        self._apply(_news(update))  # a beat alone is not worth a copy

    def _apply(self, changes: Iterable[KeyChange]) -> None:
        snapshot = self._tenants.snapshot
        self._show(self._reading.apply(snapshot, changes), snapshot.revision)

    def _show(self, outcome: Outcome, revision: int) -> None:
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

    async def _keep_saving(self, copy: CopyFile) -> None:
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()  # what changes meanwhile is saved next
            if await self._save(copy):
                await asyncio.sleep(_SAVE_EVERY)

    async def _save(self, copy: CopyFile) -> bool:
        """Whether there was anything to save: a copy is of all, or not made."""
        if not self._loaded or self._saved == self._changes:
            return False
        mirrors, changes = self._mirrors.values(), self._changes
        entries: list[Entry] = []
        for mirror in mirrors:
            entries += mirror.items.values()
        entries += self._tenants.snapshot.good.values()  # in place of what cannot be understood
        await asyncio.to_thread(copy.save, entries, self._parts.mark)
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


class _Outlook(msgspec.Struct, frozen=True):
    """What an update will lead to that is not told yet."""

    base: Snapshot
    """What was shown when it was found out."""
    mark: int
    outcome: Outcome

    def fits(self, update: Update[bytes, Entry], snapshot: Snapshot) -> bool:
        return update.resync and update.mark == self.mark and self.stands(snapshot)

    def stands(self, snapshot: Snapshot) -> bool:
        """Whether the tenants are those of then; all else may have changed."""
        base = self.base
        return snapshot.tenants is base.tenants and snapshot.revision == base.revision


class _Prepared:
    """A feed that finds out in slices what its snapshot leads to, so that it is shown at once."""

    def __init__(
        self,
        feed: RangeFeed,
        reading: Reading,
        tenants: Tenants,
        held: Callable[[], Mapping[bytes, Entry]],
    ) -> None:
        self.name = feed.name
        self.prepared: _Outlook | None = None
        self._feed, self._reading, self._tenants, self._held = feed, reading, tenants, held

    async def snapshot(self) -> tuple[dict[bytes, Entry], int]:
        items, mark = await self._feed.snapshot()
        while True:
            base = self._tenants.snapshot
            changes = _differences(self._held(), items)
            outcome = await in_turns(self._reading.applying(base, changes))
            self.prepared = _Outlook(base, mark, outcome)
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


def _by_range(copy: Copy, ranges: Sequence[Range]) -> list[dict[bytes, Entry]]:
    return [{each.key: each for each in copy.entries if each.key in range} for range in ranges]


def _news(update: Update[bytes, Entry]) -> Iterator[KeyChange]:
    return ((change.key, change.after) for change in update.changes)


def _warn(name: str, lines: Sequence[object]) -> None:
    for line in lines[:_TELL]:
        log.warning("%s: %s", name, line)
    if len(lines) > _TELL:
        log.warning("%s: %d more like this", name, len(lines) - _TELL)
