"""The migration: what is to be done, the copy, the check of it, the cut-over, and the end of the
old keys. Everything may be stopped at any point and run again."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from mooring.errors import Conflict, InvalidRequest, OutcomeUnknown
from mooring.migrate.jxt.format import OldIndex
from mooring.migrate.jxt.ledger import Marker
from mooring.migrate.jxt.plan import (
    DELETABLE,
    DIFFERENT,
    Index,
    Step,
    compared,
    compared_index,
    lots,
)
from mooring.migrate.jxt.reading import Mark, Reading, Whole
from mooring.migrate.jxt.settling import Settled, Settler
from mooring.migrate.jxt.verified import Header, Listed, Verified
from mooring.store.contract import Delete, Put, Query, Store, absent, key, unchanged
from mooring.tasks import Backoff, Tasks
from mooring.tenants.keys import NAMESPACE, Keys
from mooring.tenants.publisher import Publisher
from mooring.tenants.scribe import now
from mooring.tenants.secrets import Keyring

Progress: TypeAlias = Callable[[int, int], None]
T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 16
"""Units that are worked on at once."""
_TOGETHER = 100
"""Keys that are deleted in one commit."""
_YIELD = 200  # units compared before others get their turn


def _silent(done: int, total: int) -> None:
    pass


class Different(InvalidRequest):
    """The new keys do not say yet what the old ones do."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        shown = ", ".join(f"{step.name} ({step.verdict})" for step in steps[:5])
        more = f" and {len(steps) - 5} more" if len(steps) > 5 else ""
        super().__init__(
            f"the old keys cannot be given up yet: {shown}{more}; run `copy`, or a `bridge`, and "
            "see what `verify` says"
        )


class Migration:
    """From the old keys below a namespace to the new ones, in one store.

    `by` is who is named in the histories of tenants and with the cut-over.
    """

    def __init__(
        self,
        store: Store,
        *,
        namespace: str = NAMESPACE,
        ring: Keyring | None = None,
        by: str = "",
    ) -> None:
        self.keys = Keys(namespace)
        self.store = store
        self.ring = Keyring.from_environment() if ring is None else ring
        self.reading = Reading(store, self.keys)
        self.by = by or f"{_user()}@{socket.gethostname()}"
        publisher = Publisher(store, self.keys, ring=self.ring, by=self.by)
        self.settler = Settler(store, self.reading, publisher, self.ring)

    @property
    def header(self) -> Header:
        return Header(self.store.url, self.keys.namespace)

    async def plan(self, progress: Progress = _silent) -> list[Step]:
        """What a copy would do, for each old key. Nothing is written."""
        return await self._compared(await self.reading.whole(), progress)

    async def _compared(self, whole: Whole, progress: Progress) -> list[Step]:
        lost = lots(self.keys, whole.views.values(), self.ring)
        steps: list[Step] = []
        index = dict(whole.index)
        for done, (unit, here) in enumerate(whole.views.items()):
            found = compared(self.keys, here, self.ring, phase=whole.mark.phase, lost=lost)
            empty = not here.told.findings and not here.new
            leading: list[Index] = index.pop(unit, []) if unit else []
            steps += found
            steps += compared_index(self.keys, leading, None if empty else here, found)
            progress(done, len(whole.views))
            if done % _YIELD == 0:
                await asyncio.sleep(0)
        for leading in index.values():
            steps += compared_index(self.keys, leading, None, ())
        progress(len(whole.views), len(whole.views))
        return [*steps, *whole.foreign]

    async def copy(self, progress: Progress = _silent) -> AsyncIterator[Settled]:
        """Bring what the old keys say into the new ones, unit by unit: what was done for each that
        was not level. Raises `InvalidRequest` after the cut-over."""
        whole = await self.reading.whole()
        _before_the_cut(whole.mark)
        lost = lots(self.keys, whole.views.values(), self.ring)
        due = list(whole.views)
        while due:
            again: list[int] = []
            moved = False

            async def settle(unit: int) -> Settled:
                return await self.settler.settle(unit, back=False, lost=lost)

            async for settled in _each(due, settle, progress):
                if settled.phase != "both":
                    _before_the_cut((await self.reading.unit(settled.unit))[1])
                moved = moved or bool(settled.changes)
                if settled.problems:
                    again.append(settled.unit)
                if settled.changes or settled.problems:
                    yield settled
            # What one tenant gave up in this round, another may have in the next.
            due = again if moved and len(again) < len(due) else []

    async def verify(self, progress: Progress = _silent) -> tuple[list[Step], Verified]:
        """The plan as it is now, with what may be deleted once nothing differs."""
        steps = await self._compared(await self.reading.whole(), progress)
        return steps, self._listed(steps)

    def _listed(self, steps: Iterable[Step]) -> Verified:
        listed = [
            Listed(step.unit, step.key.decode(), step.modified)
            for step in steps
            if step.verdict in DELETABLE
        ]
        return Verified(self.header, listed)

    async def cutover(self, progress: Progress = _silent) -> tuple[Marker, list[Step], Verified]:
        """From now on the new keys count alone: compared once more, and then said in the store.
        Done again, it changes nothing. Raises `Different`."""
        while True:
            whole = await self.reading.whole()
            steps = await self._compared(whole, progress)
            if whole.mark.marker is not None:
                return whole.mark.marker, steps, self._listed(steps)
            if different := [step for step in steps if step.verdict in DIFFERENT]:
                raise Different(different)
            marker = Marker(now(), self.by, whole.revision)
            name = self.reading.ledger.marker
            try:
                await self.store.commit(Put(name, _encoded(marker)), require=[absent(name)])
            except (Conflict, OutcomeUnknown):
                continue
            return marker, steps, self._listed(steps)

    async def undo(self) -> None:
        """Take the cut-over back: both formats count again. Raises `InvalidRequest` where the
        deletion of the old keys has begun, or there was no cut-over."""
        mark = await self._mark()
        if mark.marker is None:
            raise InvalidRequest("there was no cut-over")
        if mark.phase == "over":
            raise InvalidRequest(
                f"the old keys are being deleted since {mark.marker.deleting}: there is no way back"
            )
        name = self.reading.ledger.marker
        await self.store.commit(Delete(key(name)), require=[unchanged(name, mark.revision)])

    async def _mark(self) -> Mark:
        _, mark = await self.reading.unit(0)
        return mark

    async def delete(
        self, verified: Verified, progress: Progress = _silent
    ) -> tuple[int, list[str]]:
        """Delete the old keys that were verified, if they are as they were then, and then the
        ledger: how many went, and which stay because they were written since.

        Raises `InvalidRequest`, and deletes nothing, before the cut-over, and where what was
        verified is another migration.
        """
        self._check(verified)
        await self._begin_deletion()
        gone, stays = 0, []
        async for count, changed in _each(list(verified.units.items()), self._forget, progress):
            gone += count
            stays += changed
        await self._close_ledger()
        return gone, sorted(stays)

    def _check(self, verified: Verified) -> None:
        if verified.header != self.header:
            raise InvalidRequest(
                f"what was verified is another migration: {verified.header}, not {self.header}"
            )
        for each in verified.listed:
            if self.reading.old.understand(each.key.encode()) is None:
                raise InvalidRequest(f"{each.key} is none of the old keys: run `verify` again")

    async def _begin_deletion(self) -> None:
        """From here on no bridge writes any more."""
        while True:
            mark = await self._mark()
            if mark.marker is None:
                raise InvalidRequest(
                    "there was no cut-over: nothing is deleted while the old keys count"
                )
            if mark.phase == "over":
                return
            name = self.reading.ledger.marker
            marker = msgspec.structs.replace(mark.marker, deleting=now())
            try:
                await self.store.commit(
                    Put(name, _encoded(marker)), require=[unchanged(name, mark.revision)]
                )
            except (Conflict, OutcomeUnknown):
                continue

    async def _forget(self, those: tuple[int, Sequence[Listed]]) -> tuple[int, list[str]]:
        """Delete keys of a unit, with what the ledger says of it: without that nobody takes their
        absence for a deletion that counts. How many went, and which stay."""
        unit, listed = those
        ordered = sorted(listed, key=self._order)
        gone, stays = 0, []
        for first in range(0, len(ordered), _TOGETHER):
            count, changed = await self._forget_some(unit, ordered[first : first + _TOGETHER])
            gone += count
            stays += changed
        return gone, stays

    async def _forget_some(self, unit: int, listed: Sequence[Listed]) -> tuple[int, list[str]]:
        backoff = Backoff()
        tried: set[str] = set()
        while True:
            found = await self.store.commit(
                read=[Query(key(each.key.encode()), keys_only=True) for each in listed]
            )
            there = [each.first.modified if each.first else 0 for each in found.reads]
            pairs = list(zip(listed, there, strict=True))
            stays = {each.key for each, at in pairs if at not in (0, each.modified)}
            due = [each for each, at in pairs if at == each.modified]
            tried |= {each.key for each in due}
            try:
                await self.store.commit(
                    Delete(key(self.reading.ledger.of(unit))),
                    *(Delete(key(each.key.encode())) for each in due),
                    require=[unchanged(each.key.encode(), each.modified) for each in due],
                )
            except (Conflict, OutcomeUnknown):
                await asyncio.sleep(backoff.next())
                continue
            return len(tried - stays), sorted(stays)

    def _order(self, each: Listed) -> tuple[bool, str]:
        """What leads to a tenant goes first."""
        place = self.reading.old.understand(each.key.encode())
        return not isinstance(place, OldIndex), each.key

    async def _close_ledger(self) -> None:
        """Nothing is left but the marker."""
        ledger = self.reading.ledger
        found = await self.store.read(ledger.all, keys_only=True)
        names = [entry.key for entry in found.entries if ledger.unit(entry.key) is not None]
        for first in range(0, len(names), _TOGETHER):
            await self.store.commit(
                *(Delete(key(name)) for name in names[first : first + _TOGETHER])
            )


async def _each(
    items: Sequence[T], work: Callable[[T], Awaitable[R]], progress: Progress
) -> AsyncIterator[R]:
    """What work on each item gives, some at once, as it is done."""
    tasks, waiting = Tasks(), list(reversed(items))
    ready: asyncio.Queue[tuple[list[R], Exception | None]] = asyncio.Queue()

    async def go() -> None:
        while waiting:
            try:
                ready.put_nowait(([await work(waiting.pop())], None))
            except Exception as error:  # noqa: BLE001 - it is raised below
                ready.put_nowait(([], error))
                return

    try:
        for number in range(min(_AT_ONCE, len(items))):
            tasks.start(go(), name=f"migration {number}")
        for done in range(1, len(items) + 1):
            results, error = await ready.get()
            if error is not None:
                raise error
            progress(done, len(items))
            yield results[0]
    finally:
        await tasks.aclose()


def _before_the_cut(mark: Mark) -> None:
    if mark.marker is not None:
        raise InvalidRequest(
            f"the new keys count alone since {mark.marker.at} (by {mark.marker.by}): nothing is "
            "copied any more; `cutover --undo` takes that back"
        )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def _encoded(marker: Marker) -> bytes:
    return msgspec.json.encode(marker)
