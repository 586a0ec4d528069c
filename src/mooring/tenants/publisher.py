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
import time
from collections.abc import Awaitable, Callable, Sequence

from mooring.errors import (
    Conflict,
    InvalidRequest,
    NotConfigured,
    OutcomeUnknown,
    StoreError,
    TooLarge,
    Undecipherable,
)
from mooring.model import JSON
from mooring.store.contract import Delete, Store, key
from mooring.tasks import Backoff
from mooring.tenants import history as chronicle
from mooring.tenants.document import Document
from mooring.tenants.encryption import Passwords, judged
from mooring.tenants.erasing import erase
from mooring.tenants.history import UNREADABLE, HistoryEntry, Undone
from mooring.tenants.keys import (
    SENTINEL,
    Keys,
    Owner,
    area_of,
    check_id,
    check_owner,
    has_part,
    joined,
    named,
)
from mooring.tenants.merging import merged, resealed
from mooring.tenants.publishing import (
    NOTHING_RESENT,
    ROOM,
    Difference,
    Held,
    Parts,
    Resent,
    batches,
    differences,
    held,
)
from mooring.tenants.rekeying import Progress, rekey
from mooring.tenants.rekeying import Rekeyed as Rekeyed
from mooring.tenants.retention import Sweeper
from mooring.tenants.scribe import (
    Plan,
    Scribe,
    Seen,
    resending,
    room_beside,
    sign_of_life,
    understood,
)
from mooring.tenants.secrets import CURRENT, Keyring
from mooring.tenants.settings import merged_common
from mooring.tenants.stages import at_a_time, check, stage
from mooring.tenants.values import Unreadable, decode
from mooring.tenants.work import Also, Published, Work
from mooring.tenants.work import Require as Require

log = logging.getLogger(__name__)

KEEP = 100
"""Entries of a tenant's history that are kept…"""
KEEP_FOR = 90 * 86400.0
"""…and for how many seconds."""

_SWEEP_EVERY = 1.0  # seconds between two histories of others that a publisher looks at
_TRIES = 200  # lost races in a row, each of which somebody else won

Change = Callable[[Parts], Parts]
History = Sequence[HistoryEntry]


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
        # Other tenants' histories are never kept for less than the default.
        longest = max(keep_for, KEEP_FOR)
        lenient = Scribe(store, self.keys, self._ring, by=by, keep=keep, keep_for=longest)
        self._sweeper = Sweeper(store, self.keys, lenient)
        self._swept = float("-inf")

    async def read(self, tenant: Owner) -> Parts:
        """What the store has of a tenant, or of what all tenants share, by path."""
        return (await self.look(tenant)).parts

    async def look(self, tenant: Owner) -> Held:
        """The same, with its revisions."""
        entries = (await self._store.read(self.keys.parts(tenant))).entries
        return held(self.keys, tenant, entries)

    async def diff(
        self,
        document: Document,
        *,
        require: Require | None = None,
        resent: Resent = NOTHING_RESENT,
    ) -> list[Difference]:
        """What `apply` would change. Raises what it would raise. `resent`: see `change`."""
        seen = resending(await self._scribe.look(document.tenant), resent)
        if require is not None:
            require(seen.held)
        wanted = document.applied(seen.held.parts, self._ring, reseal=bool(resent))
        return await self._would_change(document.tenant, seen, wanted, resent)

    async def _would_change(
        self, tenant: Owner, seen: Seen, wanted: Parts, resent: Resent = NOTHING_RESENT
    ) -> list[Difference]:
        await self._passwords(tenant, seen, wanted, resent=resent, dry=True)
        await self._planned(tenant, seen, wanted, ROOM)
        return differences(seen.held.parts, wanted, seen.held.resent)

    async def apply(
        self, document: Document, *, note: str = "", require: Require | None = None
    ) -> Published:
        """Make a tenant what a document says. `require`: see `change`."""
        return await self.change(
            document.tenant,
            lambda there: document.applied(there, self._ring),
            note=note,
            require=require,
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
        tenant: Owner,
        change: Change,
        *,
        action: str = "publish",
        note: str = "",
        also: Also | None = None,
        require: Require | None = None,
        resent: Resent = NOTHING_RESENT,
    ) -> Published:
        """Make a tenant what `change` makes of what is there. It may be asked several times.

        `require` is called with what the store has before anything is written; what it raises ends
        the publish, and nothing was written. The secrets in `resent` count as changed even if they
        are not. `also` says from what is wanted what else to write in the last commit, and under
        which checks. Raises `Taken` where a name is another tenant's, and `TooLarge`: then nothing
        was written, save where somebody took the name between two transactions of a publish that is
        too large for one, of which a note at the error tells.
        """
        return await self._change(Work(tenant, action, note, also, require), change, resent=resent)

    async def _change(
        self,
        work: Work,
        change: Change,
        *,
        only_at: int | None = None,
        resent: Resent = NOTHING_RESENT,
    ) -> Published:
        """`only_at`: raise `Moved` unless this is the newest entry of the history before ours."""
        tenant = check_owner(work.tenant)

        async def attempt(seen: Seen) -> None:
            seen = resending(seen, resent)
            if only_at is not None and seen.last != (work.number or only_at):
                raise Moved(tenant)
            wanted = change(seen.held.parts)
            for path in wanted:
                if not has_part(tenant, path):
                    raise InvalidRequest(f"{named(tenant)}: there is no part {path}")
            # What a migration moves is in the store already.
            refuse = work.action != "migrate"
            # A rollback adds no password that the caller sent.
            sent = NOTHING_RESENT if work.action == "rollback" else resent
            work.passwords = await self._passwords(tenant, seen, wanted, refuse=refuse, resent=sent)
            plan, most = await self._planned(tenant, seen, wanted, room_beside(work, wanted))
            while (towards := stage(seen.held.parts, wanted, most=most)) is not wanted:
                part = await self._scribe.plan(tenant, seen.held, towards)
                head = await self._scribe.write(work, seen, part, towards, closing=False)
                seen = await self._scribe.look(tenant)
                if seen.head != head:
                    raise Conflict(f"{named(tenant)} was changed meanwhile", revision=seen.head)
                plan = await self._scribe.plan(tenant, seen.held, wanted)
            await self._scribe.write(work, seen, plan, wanted)

        return await self._persist(work, attempt)

    async def delete(
        self, tenant: int, *, note: str = "", require: Require | None = None
    ) -> Published:
        """Delete a tenant with all that leads to it: indexes first, its data last, in one commit
        where it fits. Its history stays. Raises `NotConfigured` where there is none. `require`:
        see `change`."""
        check_id(tenant)
        work = Work(tenant, "delete", note, require=require)

        async def attempt(seen: Seen) -> None:
            if seen.held.revisions or seen.held.strange:
                await erase(self._scribe, work, seen)
            elif not work.changes:
                raise NotConfigured(f"there is no tenant {tenant}")

        return await self._persist(work, attempt)

    def _passwords(
        self,
        tenant: Owner,
        seen: Seen,
        wanted: Parts,
        *,
        refuse: bool = True,
        resent: Resent = NOTHING_RESENT,
        dry: bool = False,
    ) -> Awaitable[Passwords]:
        return judged(
            self._store,
            self.keys,
            self._ring,
            tenant,
            seen.held.parts,
            wanted,
            refuse=refuse,
            resent=resent,
            dry=dry,
        )

    async def _planned(
        self, tenant: Owner, seen: Seen, wanted: Parts, room: int
    ) -> tuple[Plan, int]:
        """What is to be written, and how many aliases at a time. Raises whatever is against it
        before anything was."""
        plan = await self._scribe.plan(tenant, seen.held, wanted)
        most, fewer = at_a_time(room)
        if stage(seen.held.parts, wanted, most=most) is wanted and _fits(tenant, plan, room):
            return plan, most
        most = fewer if plan.guarded else most
        check(self.keys, tenant, seen.held.parts, wanted, most=most, room=room)
        return plan, most

    async def _persist(self, work: Work, attempt: Callable[[Seen], Awaitable[None]]) -> Published:
        """Look and try, until nobody else was first and the answer is known. What was written, or
        may have been, is never an error that says the contrary."""
        try:
            await self._try(work, attempt)
        except (Moved, OutcomeUnknown):
            raise
        except StoreError as error:
            if not work.begun:
                raise
            raise work.interrupted(error) from error
        except BaseException as error:
            if work.begun:
                error.add_note(work.so_far)
                log.warning("%s: %s", named(work.tenant), work.so_far)
            raise
        for remark in work.remarks():
            log.warning("%s: %s", named(work.tenant), remark)
        await self._sweep_a_little()
        return work.published()

    async def _sweep_a_little(self) -> None:
        if time.monotonic() - self._swept < _SWEEP_EVERY:
            return
        self._swept = time.monotonic()
        try:
            await self._sweeper.step()
        except StoreError as error:
            log.debug("histories of tenants: not swept: %s", error)

    @property
    def sweeper(self) -> Sweeper:
        """Deletes what is too old of all histories."""
        return self._sweeper

    async def purge(self, tenant: int) -> int:
        """Delete the history of a tenant: all of one that was deleted, else all but the newest
        entry. How many entries went."""
        return await self._sweeper.sweep(check_id(tenant), purge=True)

    async def _try(self, work: Work, attempt: Callable[[Seen], Awaitable[None]]) -> None:
        backoff = Backoff()
        for _ in range(_TRIES):
            seen = await self._scribe.look(work.tenant)
            if await self._scribe.make_sure(work, seen):
                return
            if work.require is not None and not work.written:
                work.require(seen.held)
            try:
                await attempt(seen)
                return
            except Conflict as error:
                log.debug("%s: another publisher was first: %s", named(work.tenant), error)
            except OutcomeUnknown as error:
                log.info("%s: looks whether it was written: %s", named(work.tenant), error)
            await asyncio.sleep(backoff.next())
        raise _lost(named(work.tenant))

    async def put_common(
        self,
        path: str,
        value: JSON,
        *,
        note: str = "",
        require: Require | None = None,
        resent: Resent = NOTHING_RESENT,
    ) -> Published:
        """Write `common/resolver`, `common/storage-directory` or `platform/configs/KEY`, with an
        entry in the history of `common` or `platform`. See `change` for the rest."""
        self.keys.common_part(path)  # raises for any other
        path = joined(path)
        merged_common(path, None, value)  # raises for an invalid one before anything is read

        def change(there: Parts) -> Parts:
            return {**there, path: merged_common(path, there.get(path), value)}

        return await self.change(area_of(path), change, note=note, require=require, resent=resent)

    async def diff_common(
        self,
        path: str,
        value: JSON,
        *,
        require: Require | None = None,
        resent: Resent = NOTHING_RESENT,
    ) -> list[Difference]:
        """What `put_common` would change. Raises what it would raise."""
        self.keys.common_part(path)
        path = joined(path)
        area = area_of(path)
        seen = resending(await self._scribe.look(area), resent)
        if require is not None:
            require(seen.held)
        parts = seen.held.parts
        wanted = {**parts, path: merged_common(path, parts.get(path), value)}
        return await self._would_change(area, seen, wanted)

    async def remove_common(
        self, path: str, *, note: str = "", require: Require | None = None
    ) -> Published:
        """Remove one of those. Raises `NotConfigured` if it is not there. `_health/sentinel` can be
        removed, too: it has no history."""
        path = joined(path)
        if path == SENTINEL:
            return await self._remove_sentinel(require)
        self.keys.common_part(path)

        def change(there: Parts) -> Parts:
            if path not in there:
                raise NotConfigured(f"there is no {path}")
            return {each: value for each, value in there.items() if each != path}

        return await self.change(area_of(path), change, action="delete", note=note, require=require)

    async def _remove_sentinel(self, require: Require | None) -> Published:
        if require is not None:
            require(await self.look("common"))
        if (await self._store.read(key(self.keys.sentinel))).first is None:
            raise NotConfigured(f"there is no {SENTINEL}")
        await self._store.commit(Delete(key(self.keys.sentinel)))
        return Published("common", ())

    async def health(self) -> JSON:
        """What the health sentinel says; None if there is none."""
        there = (await self._store.read(key(self.keys.sentinel))).first
        try:
            return None if there is None else decode(SENTINEL, there.value)
        except Unreadable:
            return None

    async def beat(self) -> None:
        """Say that publishers live: readers see when they last heard of one."""
        await self._store.commit(sign_of_life(self.keys))

    async def history(self, tenant: Owner) -> list[HistoryEntry]:
        """What is kept of a tenant's history, oldest first; also of one that was deleted. A publish
        is one entry, however many transactions it took."""
        found = await self._store.read(self.keys.history_of(tenant))
        return chronicle.publishes(
            understood(entry) for entry in found.entries if self.keys.history_number(entry.key)
        )

    async def rollback(
        self, tenant: Owner, number: int, *, note: str = "", require: Require | None = None
    ) -> Published:
        """Make a tenant what it was after the entry `number` of its history; 0: before the first.
        What was not changed since stays as it is. Raises `NotConfigured` if that is not kept, or
        lies in the middle of a publish. `require`: see `change`."""
        tried = 0
        for _ in range(_TRIES):
            newest, undone = await self._to_undo(tenant, number)
            if newest == tried:
                raise _torn(tenant, number)
            tried = newest
            work = Work(tenant, "rollback", "", require=require)

            def change(there: Parts, work: Work = work, undone: History = undone) -> Parts:
                found = self._undone(there, undone)
                work.lost = found.lost
                work.note = _noted(note or f"to {number}", found.lost)
                return found.parts

            try:
                return await self._change(
                    work, change, only_at=newest, resent=chronicle.resent(undone)
                )
            except Moved:
                continue
        raise _lost(named(tenant))

    async def diff_rollback(self, tenant: Owner, number: int) -> list[Difference]:
        """What `rollback` would change. Raises what it would raise."""
        _, undone = await self._to_undo(tenant, number)
        seen = resending(await self._scribe.look(tenant), chronicle.resent(undone))
        return await self._would_change(tenant, seen, self._undone(seen.held.parts, undone).parts)

    async def _to_undo(self, tenant: Owner, number: int) -> tuple[int, list[HistoryEntry]]:
        """The newest number, and the entries after `number`, newest first."""
        entries = await self.history(tenant)
        kept = [entry.number for entry in entries]
        if not kept or not kept[0] - 1 <= number <= kept[-1]:
            known = f"{kept[0] - 1} to {kept[-1]}" if kept else "none"
            raise NotConfigured(
                f"{named(tenant)}: no version {number} in its history (there are {known})"
            )
        allowed = chronicle.versions(entries)
        if number not in allowed:
            raise _in_the_middle(tenant, number, allowed)
        undone = [entry for entry in reversed(entries) if entry.number > number]
        whole = number + len(undone) == kept[-1]
        if not whole or any(entry.action == UNREADABLE for entry in undone):
            raise _torn(tenant, number)
        return kept[-1], undone

    def _undone(self, there: Parts, entries: History) -> Undone:
        found = chronicle.before(there, entries, self._ring)
        wanted = dict(found.parts)
        for path, value in wanted.items():
            with contextlib.suppress(Undecipherable):
                wanted[path] = resealed(path, value, self._ring) or value
        return Undone(wanted, found.lost)

    async def rekey(self, progress: Progress = lambda done, total: None) -> Rekeyed:
        """Seal every password with the current key: of tenants and of their histories."""
        if not self._ring.current:
            raise InvalidRequest(f"there is no key to seal with: set {CURRENT[0]}")

        def publish(tenant: Owner, change: Change) -> Awaitable[Published]:
            return self.change(tenant, change, action="rekey")

        return await rekey(self._store, self.keys, self._ring, publish, progress)


def _fits(tenant: Owner, plan: Plan, room: int) -> bool:
    """Raises `TooLarge` where no other way leads there."""
    try:
        batches(tenant, plan.units, room=room)
    except TooLarge:
        if not plan.guarded:
            raise
        return False
    return True


class Moved(Exception):
    """The history went on, so that what was decided from it no longer holds."""


def _in_the_middle(tenant: Owner, number: int, allowed: Sequence[int]) -> NotConfigured:
    below = [str(each) for each in allowed if each < number][-1:]
    above = [str(each) for each in allowed if each > number][:1]
    others = f"choose {' or '.join(below + above)}" if below or above else "publish it again"
    return NotConfigured(
        f"{named(tenant)} cannot go back to {number}, which is in the middle of a publish that "
        f"took several transactions: {others}"
    )


def _torn(tenant: Owner, number: int) -> NotConfigured:
    return NotConfigured(
        f"{named(tenant)} cannot go back to {number}: an entry of its history since then is "
        "missing or unreadable"
    )


def _noted(note: str, lost: Sequence[str]) -> str:
    return f"{note} (without {', '.join(lost)})" if lost else note


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
