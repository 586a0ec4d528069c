"""The publisher: writes tenants, each publish whole and with all that leads to it.

It reads, decides (`publishing.py`), and commits under the condition that nothing of what it read
has changed; where something has, it begins again. So any number of publishers may work at once, in
any number of processes, and a name is never given to two tenants.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from mooring.errors import (
    Conflict,
    InvalidRequest,
    NotConfigured,
    OutcomeUnknown,
    TenantError,
    TooLarge,
    Undecipherable,
)
from mooring.model import JSON
from mooring.store.contract import Delete, Put, Store, exists, key, unchanged
from mooring.tasks import Backoff
from mooring.tenants import history as chronicle
from mooring.tenants.document import Document
from mooring.tenants.history import HistoryEntry
from mooring.tenants.keys import PLATFORM, Keys, check_id, is_path, joined
from mooring.tenants.merging import merged, resealed
from mooring.tenants.publishing import Difference, Parts, batches, differences, held
from mooring.tenants.rules import FIELDS, checked_common
from mooring.tenants.scribe import UNREADABLE, Also, Published, Scribe, Seen, Work, understood
from mooring.tenants.secrets import CURRENT, Keyring
from mooring.tenants.stages import stage
from mooring.tenants.values import Unreadable, decode, encode

log = logging.getLogger(__name__)

KEEP = 100
"""Entries of a tenant's history that are kept…"""
KEEP_FOR = 90 * 86400.0
"""…and for how many seconds."""

_TRIES = 200  # lost races in a row, each of which somebody else won

Change = Callable[[Parts], Parts]
Progress = Callable[[int, int], None]


class Rekeyed(msgspec.Struct, frozen=True):
    tenants: int
    """How many were changed."""
    entries: int
    """How many entries of histories were."""
    problems: tuple[str, ...]
    """What could not be decrypted, and stays as it is."""


class Publisher:
    """Writes tenants below one namespace of a store. Nothing of it needs to be closed.

    `by` is who is named in the history: by default the user and the machine.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys | None = None,
        *,
        ring: Keyring | None = None,
        by: str = "",
        keep: int = KEEP,
        keep_for: float = KEEP_FOR,
    ) -> None:
        if keep < 1:
            raise InvalidRequest(f"keep={keep}: a history has at least one entry")
        self.keys: Keys = keys or Keys()
        self._store = store
        self._ring = Keyring.from_environment() if ring is None else ring
        by = by or f"{_user()}@{socket.gethostname()}"
        self._scribe = Scribe(store, self.keys, self._ring, by=by, keep=keep, keep_for=keep_for)

    async def read(self, tenant: int) -> Parts:
        """What the store has of a tenant, by path."""
        return held(
            self.keys, tenant, (await self._store.read(self.keys.parts(tenant))).entries
        ).parts

    async def diff(self, document: Document) -> list[Difference]:
        """What `apply` would change. Raises what it would raise."""
        tenant = document.tenant
        seen = await self._scribe.look(tenant)
        wanted = document.applied(seen.held.parts, self._ring)
        found = differences(seen.held.parts, wanted)
        plan = await self._scribe.plan(tenant, seen.held, wanted)
        if (towards := stage(seen.held.parts, wanted)) is not wanted:
            plan = await self._scribe.plan(tenant, seen.held, towards)
        batches(tenant, plan.units)
        return found

    async def apply(self, document: Document, *, note: str = "") -> Published:
        """Make a tenant what a document says."""
        return await self.change(
            document.tenant, lambda there: document.applied(there, self._ring), note=note
        )

    async def put(self, tenant: int, path: str, value: JSON) -> Published:
        """Write one part: `meta`, `domain/primary`, `database/SERVICE`, `ftp/USER`, `storage`…"""

        def change(there: Parts) -> Parts:
            return {**there, path: merged(tenant, path, there.get(path), value, self._ring)}

        return await self.change(tenant, change)

    async def remove(self, tenant: int, path: str) -> Published:
        """Remove one part, or all of a kind: `ftp/USER`, `domain`, `storage`…"""
        if path == "meta":
            raise InvalidRequest(
                f"tenant {tenant}: meta cannot be removed alone; delete the tenant"
            )

        def change(there: Parts) -> Parts:
            gone = {each for each in there if each == path or each.startswith(f"{path}/")}
            if not gone:
                raise NotConfigured(f"tenant {tenant} has no {path}")
            return {each: value for each, value in there.items() if each not in gone}

        return await self.change(tenant, change)

    async def change(
        self,
        tenant: int,
        change: Change,
        *,
        action: str = "publish",
        note: str = "",
        also: Also | None = None,
        only_at: int | None = None,
    ) -> Published:
        """Make a tenant what `change` makes of what is there. It may be asked several times.

        `also` says from what is wanted what else to write in the last commit, and under which
        checks. `only_at`: raise `Moved` unless this is the newest entry of the history. Raises
        `Taken` where a name is another tenant's: then nothing was written.
        """
        check_id(tenant)
        work = Work(tenant, action, note, also)

        async def attempt(seen: Seen) -> None:
            if only_at not in (None, seen.last):
                raise Moved(tenant)
            wanted = change(seen.held.parts)
            for path in wanted:
                if not is_path(path):
                    raise InvalidRequest(f"tenant {tenant}: {path} is no part of a tenant")
            plan = await self._scribe.plan(tenant, seen.held, wanted)
            while (towards := stage(seen.held.parts, wanted)) is not wanted:
                part = await self._scribe.plan(tenant, seen.held, towards)
                head = await self._scribe.write(work, seen, part, towards, closing=False)
                seen = await self._scribe.look(tenant)
                if seen.head != head:
                    raise Conflict(f"tenant {tenant} was changed meanwhile", revision=seen.head)
                plan = await self._scribe.plan(tenant, seen.held, wanted)
            await self._scribe.write(work, seen, plan, wanted)

        return await self._persist(work, attempt)

    async def delete(self, tenant: int, *, note: str = "") -> Published:
        """Delete a tenant with all that leads to it: indexes first, its data last, in one commit
        where it fits. Its history stays. Raises `NotConfigured` where there is none."""
        check_id(tenant)
        work = Work(tenant, "delete", note)

        async def attempt(seen: Seen) -> None:
            if seen.held.revisions or seen.held.strange:
                await self._scribe.erase(work, seen)
            elif not work.changes:
                raise NotConfigured(f"there is no tenant {tenant}")

        return await self._persist(work, attempt)

    async def _persist(self, work: Work, attempt: Callable[[Seen], Awaitable[None]]) -> Published:
        """Look and try, until nobody else was first and the answer is known."""
        backoff = Backoff()
        for _ in range(_TRIES):
            seen = await self._scribe.look(work.tenant)
            if await self._scribe.make_sure(work, seen):
                return work.published()
            try:
                await attempt(seen)
            except Conflict as error:
                work.unsure = None
                log.debug("tenant %d: another publisher was first: %s", work.tenant, error)
            except OutcomeUnknown as error:
                log.info("tenant %d: looks whether it was written: %s", work.tenant, error)
            except BaseException:
                if work.transactions:
                    log.warning(
                        "tenant %d: written in part, in %d transactions: publish it again",
                        work.tenant,
                        work.transactions,
                    )
                raise
            else:
                return work.published()
            await asyncio.sleep(backoff.next())
        raise _lost(f"tenant {work.tenant}")

    async def put_common(self, path: str, value: JSON) -> None:
        """Write `common/resolver`, `common/storage-directory` or `platform/configs/KEY`."""
        name, path = self.keys.common_part(path), joined(path)
        fields = checked_common(path, value)
        backoff = Backoff()
        for _ in range(_TRIES):
            there = (await self._store.read(key(name))).first
            raw = encode(path, _with_foreign(path, there.value if there else b"", fields))
            check = unchanged(name, there.modified if there else 0)
            try:
                await self._store.commit(
                    Put(name, raw), self._scribe.sign_of_life(), require=[check]
                )
                return
            except Conflict:
                await asyncio.sleep(backoff.next())
        raise _lost(path)

    async def remove_common(self, path: str) -> None:
        """Remove one of those. Raises `NotConfigured` where it is not there."""
        name = self.keys.common_part(path)
        try:
            await self._store.commit(
                Delete(key(name)), self._scribe.sign_of_life(), require=[exists(name)]
            )
        except Conflict:
            raise NotConfigured(f"there is no {joined(path)}") from None

    async def beat(self) -> None:
        """Say that publishers live: readers see when they last heard of one."""
        await self._store.commit(self._scribe.sign_of_life())

    async def history(self, tenant: int) -> list[HistoryEntry]:
        """What is kept of a tenant's history, oldest first; also of one that was deleted."""
        found = await self._store.read(self.keys.history_of(tenant))
        return [understood(entry) for entry in found.entries if self.keys.history_number(entry.key)]

    async def rollback(self, tenant: int, number: int, *, note: str = "") -> Published:
        """Make a tenant what it was after the entry `number` of its history; 0: before the first.
        What was not changed since stays as it is. Raises `NotConfigured` where that is not kept."""
        tried = 0
        for _ in range(_TRIES):
            newest, undone = await self._to_undo(tenant, number)
            if newest == tried:
                raise _torn(tenant, number)
            tried = newest
            try:
                return await self.change(
                    tenant,
                    lambda there, undone=undone: self._undone(there, undone),  # type: ignore[misc]
                    action="rollback",
                    note=note or f"to {number}",
                    only_at=newest,
                )
            except Moved:
                continue
        raise _lost(f"tenant {tenant}")

    async def diff_rollback(self, tenant: int, number: int) -> list[Difference]:
        """What `rollback` would change. Raises what it would raise."""
        _, undone = await self._to_undo(tenant, number)
        seen = await self._scribe.look(tenant)
        wanted = self._undone(seen.held.parts, undone)
        await self._scribe.plan(tenant, seen.held, wanted)
        return differences(seen.held.parts, wanted)

    async def _to_undo(self, tenant: int, number: int) -> tuple[int, list[HistoryEntry]]:
        """The newest number, and the entries after `number`, newest first."""
        entries = await self.history(tenant)
        kept = [entry.number for entry in entries]
        if not kept or not kept[0] - 1 <= number <= kept[-1]:
            known = f"{kept[0] - 1} to {kept[-1]}" if kept else "none"
            raise NotConfigured(
                f"tenant {tenant} has no version {number} in its history (there are {known})"
            )
        undone = [entry for entry in reversed(entries) if entry.number > number]
        whole = number + len(undone) == kept[-1]
        if not whole or any(entry.action == UNREADABLE for entry in undone):
            raise _torn(tenant, number)
        return kept[-1], undone

    def _undone(self, there: Parts, entries: Sequence[HistoryEntry]) -> Parts:
        wanted = dict(chronicle.before(there, entries, self._ring))
        for path, value in wanted.items():
            with contextlib.suppress(Undecipherable):
                wanted[path] = resealed(path, value, self._ring) or value
        return wanted

    async def rekey(self, progress: Progress = lambda done, total: None) -> Rekeyed:
        """Seal every password with the current key: of tenants and of their histories."""
        if not self._ring.current:
            raise InvalidRequest(f"there is no key to seal with: set {CURRENT[0]}")
        ids = sorted(await self._ids())
        tenants = entries = 0
        problems: list[str] = []
        for done, tenant in enumerate(ids):
            progress(done, len(ids))
            try:
                told = await self.change(
                    tenant,
                    lambda there, tenant=tenant: self._resealed(tenant, there, problems),  # type: ignore[misc]
                    action="rekey",
                )
                tenants += bool(told.changes)
            except (TenantError, TooLarge) as error:
                problems.append(str(error))
            entries += await self._rekey_history(tenant, problems)
        progress(len(ids), len(ids))
        return Rekeyed(tenants, entries, tuple(dict.fromkeys(problems)))

    def _resealed(self, tenant: int, there: Parts, problems: list[str]) -> Parts:
        wanted = dict(there)
        for path, value in there.items():
            try:
                wanted[path] = resealed(path, value, self._ring) or value
            except Undecipherable as error:
                problems.append(f"tenant {tenant}: {path}: {error}")
        return wanted

    async def _rekey_history(self, tenant: int, problems: list[str]) -> int:
        """Entry by entry; one that was trimmed meanwhile is no loss."""
        count = 0
        for entry in (await self._store.read(self.keys.history_of(tenant))).entries:
            if not (number := self.keys.history_number(entry.key)):
                continue
            about = f"tenant {tenant}: entry {number} of its history"
            fresh = chronicle.resealed(
                understood(entry),
                self._ring,
                lambda problem, about=about: problems.append(f"{about}: {problem}"),  # type: ignore[misc]
            )
            if fresh is not None:
                with contextlib.suppress(Conflict):
                    await self._store.commit(
                        Put(entry.key, msgspec.json.encode(fresh)),
                        require=[unchanged(entry.key, entry.modified)],
                    )
                    count += 1
        return count

    async def _ids(self) -> set[int]:
        found = await asyncio.gather(
            self._store.read(self.keys.all, keys_only=True),
            self._store.read(self.keys.histories, keys_only=True),
        )
        return {
            id for each in found for entry in each.entries if (id := self.keys.tenant(entry.key))
        }


class Moved(Exception):
    """The history went on, so that what was decided from it no longer holds."""


def _torn(tenant: int, number: int) -> NotConfigured:
    return NotConfigured(
        f"tenant {tenant} cannot go back to {number}: an entry of its history since then is "
        "missing or unreadable"
    )


def _with_foreign(path: str, there: bytes, fields: JSON) -> JSON:
    """With the fields that are not known here, as they are in the store."""
    if path.startswith(PLATFORM) or not isinstance(fields, dict):
        return fields
    try:
        held = decode(path, there) if there else {}
    except Unreadable:
        return fields
    assert isinstance(held, dict)
    return {name: inner for name, inner in held.items() if name not in FIELDS[path]} | fields


def _lost(what: str) -> Conflict:
    return Conflict(
        f"{what} was not written: others changed it {_TRIES} times meanwhile; try again",
        revision=0,
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
