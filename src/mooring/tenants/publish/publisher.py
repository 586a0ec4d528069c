"""Publishes, deletes and rolls back tenants, each atomically with its indexes."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
from collections.abc import Sequence

from mooring.errors import InvalidRequest, NotConfigured, Undecipherable
from mooring.messages import message
from mooring.model import JSON
from mooring.store.contract import Delete, Store, key
from mooring.tasks import Progress, no_progress
from mooring.tenants.document import Document
from mooring.tenants.history import (
    HistoryEntry,
    RollbackState,
    decode_entry,
    entries_after,
    incomplete_history,
    merge_pages,
    state_before,
)
from mooring.tenants.history import resent as resent_in
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
from mooring.tenants.parts import NOTHING_RESENT, PartDiff, Parts, Resent, StoredParts, read_parts
from mooring.tenants.publish.commit_loop import (
    TRIES,
    CommitLoop,
    HistoryAdvanced,
    too_many_conflicts,
)
from mooring.tenants.publish.commit_loop import ChangeParts as ChangeParts
from mooring.tenants.publish.committer import Committer, sentinel_write
from mooring.tenants.publish.encryption import RekeyResult as RekeyResult
from mooring.tenants.publish.encryption import rekey
from mooring.tenants.publish.merge import merged, merged_common, resealed
from mooring.tenants.publish.publish_state import ExtraWrites, PublishState
from mooring.tenants.publish.publish_state import Require as Require
from mooring.tenants.publish.result import PublishResult
from mooring.tenants.publish.retention import Sweeper
from mooring.tenants.secrets import Keyring

History = Sequence[HistoryEntry]


class Publisher:
    """Writes the tenants below one namespace of a store. It does not need to be closed.

    The history names `by` as the author: by default the user and the machine.
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
            raise InvalidRequest(message("keep_too_small"))
        self.keys: TenantKeys = keys or TenantKeys()
        self._store = store
        self._ring = Keyring.from_environment() if ring is None else ring
        by = by or default_author()
        self._committer = Committer(
            store, self.keys, self._ring, by=by, keep=keep, keep_for=keep_for
        )
        # Histories of other publishers are never kept for less than the default.
        longest = max(keep_for, KEEP_FOR)
        lenient = Committer(store, self.keys, self._ring, by=by, keep=keep, keep_for=longest)
        self.sweeper = Sweeper(lenient)
        """Deletes old entries of all histories."""
        self._commit_loop = CommitLoop(self._committer, self._ring, self.sweeper)

    async def read(self, tenant: Owner) -> Parts:
        """The stored parts of a tenant or an area of shared settings, by path."""
        return (await self.look(tenant)).parts

    async def look(self, tenant: Owner) -> StoredParts:
        """The stored parts with their revisions."""
        return await read_parts(self._store, self.keys, tenant)

    async def diff(
        self, document: Document, *, require: Require | None = None, resent: Resent = NOTHING_RESENT
    ) -> list[PartDiff]:
        """What `apply` would change. Raises what it would raise. `resent`: see `change`."""
        state = PublishState(document.tenant, "publish", "", require=require, resent=resent)
        return await self._commit_loop.preview(
            state, lambda stored: document.applied(stored, self._ring, reseal=bool(resent))
        )

    async def apply(
        self, document: Document, *, note: str = "", require: Require | None = None
    ) -> PublishResult:
        """Publish a document. `require`: see `change`."""
        return await self.change(
            document.tenant,
            lambda stored: document.applied(stored, self._ring),
            note=note,
            require=require,
        )

    async def put(self, tenant: int, path: str, value: JSON) -> PublishResult:
        """Write one part: `meta`, `domain/primary`, `database/SERVICE`, `ftp/USER`, `storage`…"""

        def change(stored: Parts) -> Parts:
            return {**stored, path: merged(tenant, path, stored.get(path), value, self._ring)}

        return await self.change(tenant, change)

    async def remove(self, tenant: int, path: str) -> PublishResult:
        """Remove one part, or all of a kind: `ftp/USER`, `domain`, `storage`…"""
        if path == "meta":
            problem = message("meta_required")
            raise InvalidRequest(message("of_owner", owner=named(tenant), problem=problem))

        def change(stored: Parts) -> Parts:
            removed = {part for part in stored if part == path or part.startswith(f"{path}/")}
            if not removed:
                raise NotConfigured(message("tenant_lacks", tenant=named(tenant), what=path))
            return {part: value for part, value in stored.items() if part not in removed}

        return await self.change(tenant, change)

    async def change(
        self,
        tenant: Owner,
        change: ChangeParts,
        *,
        action: str = "publish",
        note: str = "",
        also: ExtraWrites | None = None,
        require: Require | None = None,
        resent: Resent = NOTHING_RESENT,
    ) -> PublishResult:
        """Publish what `change` returns for the stored parts. `change` may be called several times.

        `require` is called with the stored parts before anything is written; an exception from it
        ends the publish. The secrets in `resent` count as changed even if they are not. `also`
        receives the target, and returns further writes and checks for the last commit. Raises
        `Taken` if a name belongs to another tenant, and `TooLarge`. Nothing is written then, unless
        the name was taken between two commits of a publish that is too large for one: a note on
        the exception says so.
        """
        return await self._commit_loop.change(
            PublishState(tenant, action, note, also, require, resent), change
        )

    async def delete(
        self, tenant: int, *, note: str = "", require: Require | None = None
    ) -> PublishResult:
        """Delete a tenant with all its index entries, in one commit if it fits. Its history stays.
        Raises `NotConfigured` if there is no such tenant. `require`: see `change`."""
        check_id(tenant)
        state = PublishState(tenant, "delete", note, require=require)
        return await self._commit_loop.delete(state)

    async def purge(self, tenant: int) -> int:
        """Delete the history of a tenant, except the newest entry of an existing tenant; how many
        entries were deleted."""
        return await self.sweeper.sweep(check_id(tenant), purge=True)

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
        path, change = self._common_change(path, value)
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
        path, change = self._common_change(path, value)
        state = PublishState(area_of(path), "publish", "", require=require, resent=resent)
        return await self._commit_loop.preview(state, change)

    def _common_change(self, path: str, value: JSON) -> tuple[str, ChangeParts]:
        """The path and the change of a shared setting. Raises `InvalidRequest` before anything is
        read."""
        self.keys.common_part(path)
        path = joined(path)
        merged_common(path, None, value)
        return path, lambda stored: {
            **stored,
            path: merged_common(path, stored.get(path), value),
        }

    async def remove_common(
        self, path: str, *, note: str = "", require: Require | None = None
    ) -> PublishResult:
        """Remove a shared setting. Raises `NotConfigured` if it is not set. `_health/sentinel` can
        be removed too; it has no history."""
        path = joined(path)
        if path == SENTINEL:
            return await self._remove_sentinel(require)
        self.keys.common_part(path)

        def change(stored: Parts) -> Parts:
            if path not in stored:
                raise NotConfigured(message("not_found", what=path))
            return {part: value for part, value in stored.items() if part != path}

        return await self.change(area_of(path), change, action="delete", note=note, require=require)

    async def _remove_sentinel(self, require: Require | None) -> PublishResult:
        if require is not None:
            require(await self.look("common"))
        if (await self._store.read(key(self.keys.sentinel))).first is None:
            raise NotConfigured(message("not_found", what=SENTINEL))
        await self._store.commit(Delete(key(self.keys.sentinel)))
        return PublishResult("common", ())

    async def health(self) -> JSON:
        """The value of the health sentinel; None if it is missing or unreadable."""
        entry = (await self._store.read(key(self.keys.sentinel))).first
        try:
            return None if entry is None else decode(SENTINEL, entry.value)
        except UnreadableValue:
            return None

    async def beat(self) -> None:
        """Update the health sentinel, from which readers see when a publisher was last alive."""
        await self._store.commit(sentinel_write(self.keys))

    async def history(self, tenant: Owner) -> list[HistoryEntry]:
        """The history of a tenant, oldest first, also after its deletion. A publish is one entry,
        however many commits it took."""
        snapshot = await self._store.read(self.keys.history_of(tenant))
        return merge_pages(
            decode_entry(entry) for entry in snapshot.entries if self.keys.history_number(entry.key)
        )

    async def rollback(
        self, tenant: Owner, number: int, *, note: str = "", require: Require | None = None
    ) -> PublishResult:
        """Restore a tenant to its state after entry `number` of its history; 0: before the first.
        Parts that did not change since stay. Raises `NotConfigured` if that version is not kept, or
        is in the middle of a publish. `require`: see `change`."""
        tried = 0
        for _ in range(TRIES):
            entries = await self.history(tenant)
            later = entries_after(tenant, entries, number)
            newest = entries[-1].number
            if newest == tried:
                raise incomplete_history(tenant, number)
            tried = newest
            state = PublishState(tenant, "rollback", "", require=require, resent=resent_in(later))

            def change(stored: Parts, state: PublishState = state, later: History = later) -> Parts:
                target = self._before(stored, later)
                state.lost = target.lost
                without = f" (without {', '.join(target.lost)})" if target.lost else ""
                state.note = f"{note or f'to {number}'}{without}"
                return target.parts

            try:
                return await self._commit_loop.change(state, change, only_at=newest)
            except HistoryAdvanced:
                continue
        raise too_many_conflicts(tenant)

    async def diff_rollback(self, tenant: Owner, number: int) -> list[PartDiff]:
        """What `rollback` would change. Raises what it would raise."""
        later = entries_after(tenant, await self.history(tenant), number)
        state = PublishState(tenant, "rollback", "", resent=resent_in(later))
        return await self._commit_loop.preview(
            state, lambda stored: self._before(stored, later).parts
        )

    def _before(self, stored: Parts, entries: History) -> RollbackState:
        """The state before these entries, with passwords under the current key."""
        target = state_before(stored, entries, self._ring)
        parts = dict(target.parts)
        for path, value in parts.items():
            with contextlib.suppress(Undecipherable):
                parts[path] = resealed(path, value, self._ring)
        return RollbackState(parts, target.lost)

    async def rekey(self, progress: Progress = no_progress) -> RekeyResult:
        """Encrypt all passwords of tenants and their histories with the current key."""
        if not self._ring.current:
            raise InvalidRequest(message("rekey_without_key", remedy=self._ring.remedy))

        async def publish(tenant: Owner, change: ChangeParts) -> bool:
            return bool((await self.change(tenant, change, action="rekey")).changes)

        return await rekey(self._store, self.keys, self._ring, publish, progress)


def default_author() -> str:
    """The user and the machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
