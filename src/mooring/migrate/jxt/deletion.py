"""Deletes the old keys that `verify` found correct and that have not changed since."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from mooring.errors import Conflict, MigrationError, OutcomeUnknown
from mooring.formatting import quoted
from mooring.migrate import verified_file as listing
from mooring.migrate.jxt.format import OldIndex, OldKeys
from mooring.migrate.jxt.parallel import Progress, each, silent
from mooring.migrate.jxt.reader import Mark, Reading
from mooring.migrate.jxt.state import SyncedState
from mooring.migrate.jxt.translation import translated
from mooring.migrate.jxt.unit import View
from mooring.store.contract import Delete, Entry, Put, Query, Store, key, unchanged
from mooring.tasks import Backoff
from mooring.tenants.publish.committer import now

_FORMAT = "mooring jxt verified 1"


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: str
    """Where it is, without any password."""
    namespace: str
    format: str = _FORMAT

    def __str__(self) -> str:
        return f"the namespace {quoted(self.namespace)} in {self.store}"


class VerifiedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    unit: int
    key: str
    modified: int


class Verified(msgspec.Struct, frozen=True):
    header: Header
    listed: Sequence[VerifiedKey]

    @property
    def units(self) -> Mapping[int, list[VerifiedKey]]:
        units: dict[int, list[VerifiedKey]] = {}
        for verified in self.listed:
            units.setdefault(verified.unit, []).append(verified)
        return units


def write(path: Path, verified: Verified) -> None:
    """Raises `MigrationError` where it cannot be written."""
    listing.write(path, verified.header, verified.listed)


def read(path: Path) -> Verified:
    """Raises `MigrationError` where it is not there, or no such file."""
    return Verified(*listing.read(path, Header, VerifiedKey, format=_FORMAT))


_TOGETHER = 100
"""Keys that are deleted in one commit."""


class Deletion:
    def __init__(self, store: Store, reading: Reading) -> None:
        self._store, self._reading = store, reading

    async def run(self, verified: Verified, progress: Progress) -> tuple[int, list[str]]:
        """How many went, and which stay. Raises `MigrationError`, and deletes nothing, before the
        cut-over, and where a key is listed that is none of the old ones."""
        for listed in verified.listed:
            if self._reading.old.understand(listed.key.encode()) is None:
                raise MigrationError(f"{listed.key} is none of the old keys: run `verify` again")
        await self._begin()
        gone, stays = 0, []
        async for count, changed in each(list(verified.units.items()), self._forget, progress):
            gone += count
            stays += changed
        async for _ in each(await self._recorded(), self._close, silent):
            pass
        return gone, sorted(stays)

    async def _begin(self) -> None:
        """From here on no bridge writes any more."""
        while True:
            _, mark = await self._reading.unit(0)
            if mark.marker is None:
                raise MigrationError(
                    "there was no cut-over: nothing is deleted while the old keys count"
                )
            if mark.phase == "over":
                return
            name = self._reading.ledger.marker
            marker = msgspec.structs.replace(mark.marker, deleting=now())
            try:
                await self._store.commit(
                    Put(name, msgspec.json.encode(marker)), require=[unchanged(name, mark.revision)]
                )
            except (Conflict, OutcomeUnknown):
                continue

    async def _forget(self, those: tuple[int, Sequence[VerifiedKey]]) -> tuple[int, list[str]]:
        """Delete keys of a unit, with what the ledger says of them: without that nobody takes their
        absence for a deletion that counts. How many went, and which stay."""
        unit, listed = those
        ordered = sorted(listed, key=self._order)
        gone, stays = 0, []
        for first in range(0, len(ordered), _TOGETHER):
            count, changed = await self._forget_some(unit, ordered[first : first + _TOGETHER])
            gone += count
            stays += changed
        return gone, stays

    async def _forget_some(self, unit: int, listed: Sequence[VerifiedKey]) -> tuple[int, list[str]]:
        backoff = Backoff()
        tried: set[str] = set()
        while True:
            found = await self._store.commit(
                read=[Query(key(each.key.encode()), keys_only=True) for each in listed]
            )
            there = [each.first.modified if each.first else 0 for each in found.reads]
            pairs = list(zip(listed, there, strict=True))
            stays = {each.key for each, at in pairs if at not in (0, each.modified)}
            due = [each for each, at in pairs if at == each.modified]
            tried |= {each.key for each in due}
            try:
                await self._commit(unit, due)
            except (Conflict, OutcomeUnknown):
                await asyncio.sleep(backoff.next())
                continue
            return len(tried - stays), sorted(stays)

    async def _commit(self, unit: int, due: Sequence[VerifiedKey]) -> None:
        """Delete these, and what the ledger says of what they gave."""
        here, mark = await self._reading.unit(unit)
        _still_over(mark)
        names = [each.key.encode() for each in due]
        known, ledger = remembered(self._reading.old, here, names), self._reading.ledger
        if not names and known == here.known:
            return
        await self._store.commit(
            *([] if known == here.known else [ledger.written(unit, known)]),
            *(Delete(key(name)) for name in names),
            require=[
                unchanged(ledger.marker, mark.revision),
                unchanged(ledger.of(unit), here.recorded),
                *(unchanged(each.key.encode(), each.modified) for each in due),
            ],
        )

    def _order(self, each: VerifiedKey) -> tuple[bool, str]:
        """What leads to a tenant goes first."""
        place = self._reading.old.understand(each.key.encode())
        return not isinstance(place, OldIndex), each.key

    async def _recorded(self) -> list[int]:
        """Units of which the ledger still says something."""
        ledger = self._reading.ledger
        found = await self._store.read(ledger.all, keys_only=True)
        units = (ledger.unit(entry.key) for entry in found.entries)
        return [unit for unit in units if unit is not None]

    async def _close(self, unit: int) -> None:
        """Nothing is kept but about old keys that are still there."""
        backoff = Backoff()
        while True:
            try:
                return await self._commit(unit, ())
            except (Conflict, OutcomeUnknown):
                await asyncio.sleep(backoff.next())


def _still_over(mark: Mark) -> None:
    if mark.phase != "over":
        raise MigrationError("the migration was begun again meanwhile: nothing more is deleted")


def remembered(old_keys: OldKeys, here: View, gone: Collection[bytes]) -> SyncedState:
    """What the ledger says of a unit of which these old keys go: only what others of them give. A
    part whose key was written since must be known for that, and one whose key is gone must not be
    taken for deleted."""
    left = translated(
        old_keys,
        here.unit,
        [
            Entry(name, raw, 0, here.told.findings[name].modified, 0)
            for name, raw in here.told.raw.items()
            if name not in gone
        ],
    )
    bases = {
        path: base
        for path, base in here.bases.items()
        if path in left.parts or (path not in here.told.parts and left.hides(path))
    }
    return SyncedState(
        bases, {name: path for name, path in here.known.led.items() if path in bases}
    )
