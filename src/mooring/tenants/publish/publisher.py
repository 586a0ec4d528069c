"""The publisher: publishes, deletes and rolls back tenants, each atomically with its indexes."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
from collections.abc import Sequence

from mooring.errors import InvalidRequest, NotConfigured, Undecipherable
from mooring.model import JSON
from mooring.store.contract import Delete, Store, key
from mooring.tenants import history as chronicle
from mooring.tenants.document import Document
from mooring.tenants.history import UNREADABLE, HistoryEntry, RollbackState, decode_entry
from mooring.tenants.keys import (
    KEEP,
    KEEP_FOR,
    SENTINEL,
    Owner,
    TenantKeys,
    area_of,
    check_id,
    joined,
    named,
)
from mooring.tenants.model import UnreadableValue, decode
from mooring.tenants.parts import NOTHING_RESENT, PartDiff, Parts, Resent, StoredParts, stored_parts
from mooring.tenants.publish.commit_loop import (
    TRIES,
    CommitLoop,
    HistoryAdvanced,
    too_many_conflicts,
)
from mooring.tenants.publish.commit_loop import Change as Change
from mooring.tenants.publish.committer import Committer, sentinel_write, with_resent
from mooring.tenants.publish.encryption import Progress, rekey
from mooring.tenants.publish.encryption import RekeyResult as RekeyResult
from mooring.tenants.publish.merge import merged, merged_common, resealed
from mooring.tenants.publish.publish_state import ExtraWrites, PublishResult, PublishState
from mooring.tenants.publish.publish_state import Require as Require
from mooring.tenants.publish.retention import Sweeper
from mooring.tenants.secrets import CURRENT, Keyring


def to_undo(
    tenant: Owner, entries: Sequence[HistoryEntry], number: int
) -> tuple[int, list[HistoryEntry]]:
    """The newest number, and the entries after `number`, newest first. Raises `NotConfigured` if
    that version is not kept, or lies in the middle of a publish."""
    kept = [entry.number for entry in entries]
    if not kept or not kept[0] - 1 <= number <= kept[-1]:
        known = f"{kept[0] - 1} to {kept[-1]}" if kept else "none"
        raise NotConfigured(
            f"{named(tenant)}: no version {number} in its history (there are {known})"
        )
    allowed = chronicle.versions(entries)
    if number not in allowed:
        raise _in_the_middle(tenant, number, allowed)
    later = [entry for entry in reversed(entries) if entry.number > number]
    whole = number + len(later) == kept[-1]
    if not whole or any(entry.action == UNREADABLE for entry in later):
        raise torn(tenant, number)
    return kept[-1], later


def undone(there: Parts, entries: Sequence[HistoryEntry], ring: Keyring) -> RollbackState:
    """What a tenant was before these entries, with its passwords under the current key."""
    found = chronicle.state_before(there, entries, ring)
    wanted = dict(found.parts)
    for path, value in wanted.items():
        with contextlib.suppress(Undecipherable):
            wanted[path] = resealed(path, value, ring) or value
    return RollbackState(wanted, found.lost)


def _in_the_middle(tenant: Owner, number: int, allowed: Sequence[int]) -> NotConfigured:
    below = [str(each) for each in allowed if each < number][-1:]
    above = [str(each) for each in allowed if each > number][:1]
    others = f"choose {' or '.join(below + above)}" if below or above else "publish it again"
    return NotConfigured(
        f"{named(tenant)} cannot go back to {number}, which is in the middle of a publish that "
        f"took several transactions: {others}"
    )


def torn(tenant: Owner, number: int) -> NotConfigured:
    return NotConfigured(
        f"{named(tenant)} cannot go back to {number}: an entry of its history since then is "
        "missing or unreadable"
    )


def noted(note: str, lost: Sequence[str]) -> str:
    return f"{note} (without {', '.join(lost)})" if lost else note


History = Sequence[HistoryEntry]


class Publisher:
    """Writes tenants below one namespace of a store. Nothing of it needs to be closed.

    `by` is who is named in the history: by default the user and the machine.
    """

    def __init__(
        self,
        store: Store,
        keys: TenantKeys | None = None,
        *,
        ring: Keyring | None = None,
        by: str = "",
        keep: int = KEEP,
        keep_for: float = KEEP_FOR,
    ) -> None:
        if keep < 1:
            raise InvalidRequest(f"keep={keep}: a history has at least one entry")
        self.keys: TenantKeys = keys or TenantKeys()
        self._store = store
        self._ring = Keyring.from_environment() if ring is None else ring
        by = by or f"{_user()}@{socket.gethostname()}"
        self._committer = Committer(
            store, self.keys, self._ring, by=by, keep=keep, keep_for=keep_for
        )
        # Other tenants' histories are never kept for less than the default.
        longest = max(keep_for, KEEP_FOR)
        lenient = Committer(store, self.keys, self._ring, by=by, keep=keep, keep_for=longest)
        self._sweeper = Sweeper(store, self.keys, lenient)
        self._commit_loop = CommitLoop(self._committer, self._ring, self._sweeper)

    async def read(self, tenant: Owner) -> Parts:
        """What the store has of a tenant, or of what all tenants share, by path."""
        return (await self.look(tenant)).parts

    async def look(self, tenant: Owner) -> StoredParts:
        """The same, with its revisions."""
        entries = (await self._store.read(self.keys.parts(tenant))).entries
        return stored_parts(self.keys, tenant, entries)

    async def diff(
        self,
        document: Document,
        *,
        require: Require | None = None,
        resent: Resent = NOTHING_RESENT,
    ) -> list[PartDiff]:
        """What `apply` would change. Raises what it would raise. `resent`: see `change`."""
        seen = with_resent(await self._committer.look(document.tenant), resent)
        if require is not None:
            require(seen.stored)
        wanted = document.applied(seen.stored.parts, self._ring, reseal=bool(resent))
        return await self._commit_loop.would_change(document.tenant, seen, wanted, resent)

    async def apply(
        self, document: Document, *, note: str = "", require: Require | None = None
    ) -> PublishResult:
        """Make a tenant what a document says. `require`: see `change`."""
        return await self.change(
            document.tenant,
            lambda there: document.applied(there, self._ring),
            note=note,
            require=require,
        )

    async def put(self, tenant: int, path: str, value: JSON) -> PublishResult:
        """Write one part: `meta`, `domain/primary`, `database/SERVICE`, `ftp/USER`, `storage`…"""

        def change(there: Parts) -> Parts:
            return {**there, path: merged(tenant, path, there.get(path), value, self._ring)}

        return await self.change(tenant, change)

    async def remove(self, tenant: int, path: str) -> PublishResult:
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
        also: ExtraWrites | None = None,
        require: Require | None = None,
        resent: Resent = NOTHING_RESENT,
    ) -> PublishResult:
        """Make a tenant what `change` makes of what is there. It may be asked several times.

        `require` is called with what the store has before anything is written; what it raises ends
        the publish, and nothing was written. The secrets in `resent` count as changed even if they
        are not. `also` says from what is wanted what else to write in the last commit, and under
        which checks. Raises `Taken` where a name is another tenant's, and `TooLarge`: then nothing
        was written, save where somebody took the name between two transactions of a publish that is
        too large for one, of which a note at the error tells.
        """
        return await self._commit_loop.change(
            PublishState(tenant, action, note, also, require), change, resent=resent
        )

    async def delete(
        self, tenant: int, *, note: str = "", require: Require | None = None
    ) -> PublishResult:
        """Delete a tenant with all that leads to it: indexes first, its data last, in one commit
        where it fits. Its history stays. Raises `NotConfigured` where there is none. `require`:
        see `change`."""
        check_id(tenant)
        work = PublishState(tenant, "delete", note, require=require)
        return await self._commit_loop.delete(work)

    @property
    def sweeper(self) -> Sweeper:
        """Deletes what is too old of all histories."""
        return self._sweeper

    async def purge(self, tenant: int) -> int:
        """Delete the history of a tenant: all of one that was deleted, else all but the newest
        entry. How many entries went."""
        return await self._sweeper.sweep(check_id(tenant), purge=True)

    async def put_common(
        self,
        path: str,
        value: JSON,
        *,
        note: str = "",
        require: Require | None = None,
        resent: Resent = NOTHING_RESENT,
    ) -> PublishResult:
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
    ) -> list[PartDiff]:
        """What `put_common` would change. Raises what it would raise."""
        self.keys.common_part(path)
        path = joined(path)
        area = area_of(path)
        seen = with_resent(await self._committer.look(area), resent)
        if require is not None:
            require(seen.stored)
        parts = seen.stored.parts
        wanted = {**parts, path: merged_common(path, parts.get(path), value)}
        return await self._commit_loop.would_change(area, seen, wanted)

    async def remove_common(
        self, path: str, *, note: str = "", require: Require | None = None
    ) -> PublishResult:
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

    async def _remove_sentinel(self, require: Require | None) -> PublishResult:
        if require is not None:
            require(await self.look("common"))
        if (await self._store.read(key(self.keys.sentinel))).first is None:
            raise NotConfigured(f"there is no {SENTINEL}")
        await self._store.commit(Delete(key(self.keys.sentinel)))
        return PublishResult("common", ())

    async def health(self) -> JSON:
        """What the health sentinel says; None if there is none."""
        there = (await self._store.read(key(self.keys.sentinel))).first
        try:
            return None if there is None else decode(SENTINEL, there.value)
        except UnreadableValue:
            return None

    async def beat(self) -> None:
        """Say that publishers live: readers see when they last heard of one."""
        await self._store.commit(sentinel_write(self.keys))

    async def history(self, tenant: Owner) -> list[HistoryEntry]:
        """What is kept of a tenant's history, oldest first; also of one that was deleted. A publish
        is one entry, however many transactions it took."""
        found = await self._store.read(self.keys.history_of(tenant))
        return chronicle.merge_pages(
            decode_entry(entry) for entry in found.entries if self.keys.history_number(entry.key)
        )

    async def rollback(
        self, tenant: Owner, number: int, *, note: str = "", require: Require | None = None
    ) -> PublishResult:
        """Make a tenant what it was after the entry `number` of its history; 0: before the first.
        What was not changed since stays as it is. Raises `NotConfigured` if that is not kept, or
        lies in the middle of a publish. `require`: see `change`."""
        tried = 0
        for _ in range(TRIES):
            newest, entries = to_undo(tenant, await self.history(tenant), number)
            if newest == tried:
                raise torn(tenant, number)
            tried = newest
            work = PublishState(tenant, "rollback", "", require=require)

            def change(
                there: Parts, work: PublishState = work, entries: History = entries
            ) -> Parts:
                found = undone(there, entries, self._ring)
                work.lost = found.lost
                work.note = noted(note or f"to {number}", found.lost)
                return found.parts

            try:
                return await self._commit_loop.change(
                    work, change, only_at=newest, resent=chronicle.resent(entries)
                )
            except HistoryAdvanced:
                continue
        raise too_many_conflicts(named(tenant))

    async def diff_rollback(self, tenant: Owner, number: int) -> list[PartDiff]:
        """What `rollback` would change. Raises what it would raise."""
        _, entries = to_undo(tenant, await self.history(tenant), number)
        seen = with_resent(await self._committer.look(tenant), chronicle.resent(entries))
        return await self._commit_loop.would_change(
            tenant, seen, undone(seen.stored.parts, entries, self._ring).parts
        )

    async def rekey(self, progress: Progress = lambda done, total: None) -> RekeyResult:
        """Seal every password with the current key: of tenants and of their histories."""
        if not self._ring.current:
            raise InvalidRequest(f"there is no key to seal with: set {CURRENT[0]}")

        async def publish(tenant: Owner, change: Change) -> bool:
            return bool((await self.change(tenant, change, action="rekey")).changes)

        return await rekey(self._store, self.keys, self._ring, publish, progress)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
