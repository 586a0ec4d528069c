"""Carries out publishes and deletions: reads, plans and commits, and starts over after a conflict
with another publisher, until the outcome is known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

from mooring.errors import (
    Conflict,
    InvalidRequest,
    NotConfigured,
    OutcomeUnknown,
    StoreError,
    TooLarge,
)
from mooring.messages import message
from mooring.store.contract import Check, Delete, Entry, Query, Write, key, unchanged
from mooring.tasks import Backoff, slices
from mooring.tenants.keys import INDEXES, Owner, check_owner, has_part, named
from mooring.tenants.parts import (
    COMMIT_BYTES,
    NOTHING_RESENT,
    PartDiff,
    Parts,
    StoredParts,
    claims,
    diff_parts,
    normalized_key,
    unclear_kinds,
)
from mooring.tenants.publish.committer import Committer, Plan, StoredTenant
from mooring.tenants.publish.encryption import PasswordPlan, PasswordPlanner
from mooring.tenants.publish.plan import (
    COMMIT_OPERATIONS,
    Unit,
    alias_limits,
    batches,
    check_stages,
    next_stage,
)
from mooring.tenants.publish.publish_state import PublishState
from mooring.tenants.publish.result import PublishResult, result_of
from mooring.tenants.publish.retention import Sweeper
from mooring.tenants.secrets import Keyring

log = logging.getLogger(__name__)

TRIES = 200
"""Consecutive conflicts with other publishers after which a publish fails."""

ChangeParts = Callable[[Parts], Parts]
"""Returns the target for the stored parts."""


class CommitLoop:
    def __init__(self, committer: Committer, ring: Keyring, sweeper: Sweeper) -> None:
        self._committer, self._sweeper = committer, sweeper
        self._passwords = PasswordPlanner(committer.store, committer.keys, ring)

    async def preview(self, state: PublishState, change: ChangeParts) -> list[PartDiff]:
        """What `change` would change. Raises what it would raise."""
        seen = await self._committer.read(state.tenant, state.resent)
        if state.require is not None:
            state.require(seen.stored)
        target = change(seen.stored.parts)
        await self._plan_passwords(state, seen.stored, target, dry=True)
        await self._plan(state.tenant, seen, target, COMMIT_OPERATIONS)
        return diff_parts(seen.stored.parts, target, seen.stored.resent)

    async def change(
        self, state: PublishState, change: ChangeParts, *, only_at: int | None = None
    ) -> PublishResult:
        """`only_at`: raise `HistoryAdvanced` unless this is the newest entry that is not ours."""
        tenant = check_owner(state.tenant)

        async def attempt(seen: StoredTenant) -> None:
            if only_at is not None and seen.last != (state.number or only_at):
                raise HistoryAdvanced(tenant)
            target = change(seen.stored.parts)
            for path in target:
                if not has_part(tenant, path):
                    raise InvalidRequest(message("part_of_other", owner=named(tenant), path=path))
            state.passwords = await self._plan_passwords(state, seen.stored, target)
            room = COMMIT_OPERATIONS - state.extra(target).operations
            plan, limit = await self._plan(tenant, seen, target, room)
            while (stage := next_stage(seen.stored.parts, target, limit=limit)) is not target:
                part = await self._committer.plan(tenant, seen.stored, stage)
                seen = await self._write_stage(state, seen, part, stage)
                plan = await self._committer.plan(tenant, seen.stored, target)
            await self._committer.write(state, seen, plan, target)

        return await self._persist(state, attempt)

    async def _plan_passwords(
        self, state: PublishState, stored: StoredParts, target: Parts, *, dry: bool = False
    ) -> PasswordPlan:
        # The parts of a migration are in the store already.
        refuse = state.action != "migrate"
        # A rollback adds no password that the caller sent.
        sent = NOTHING_RESENT if state.action == "rollback" else state.resent
        return await self._passwords.plan(
            state.tenant, stored.parts, target, refuse=refuse, resent=sent, dry=dry
        )

    async def delete(self, state: PublishState) -> PublishResult:
        """Delete a tenant with all its index entries. Raises `NotConfigured` if it does not exist.

        A tenant that is too large for one commit is deleted in pages. A page deletes objects
        together with their own index entries, so that a name is free only if no data claims it.
        `meta` comes last, so that an interrupted deletion can be resumed.
        """

        async def attempt(seen: StoredTenant) -> None:
            if seen.stored.revisions or seen.stored.unknown_keys:
                index = await self._committer.index_entries_of(state.tenant)
                if not _fits_one_commit(seen.stored, index):
                    seen = await self._delete_pages(state, seen)
                    index = await self._committer.index_entries_of(state.tenant)
                await self._delete_rest(state, seen, index)
            elif not state.changes:
                raise NotConfigured(message("not_found", what=named(state.tenant)))

        return await self._persist(state, attempt)

    async def _plan(
        self, tenant: Owner, seen: StoredTenant, target: Parts, room: int
    ) -> tuple[Plan, int]:
        """The plan, and how many aliases a stage may change. Raises every objection before anything
        is written."""
        plan = await self._committer.plan(tenant, seen.stored, target)
        limit, guarded_limit = alias_limits(room)
        if next_stage(seen.stored.parts, target, limit=limit) is target and _fits(
            tenant, plan, room
        ):
            return plan, limit
        limit = guarded_limit if plan.guarded else limit
        keys = self._committer.keys
        check_stages(keys, tenant, seen.stored.parts, target, limit=limit, room=room)
        return plan, limit

    async def _write_stage(
        self, state: PublishState, seen: StoredTenant, plan: Plan, stage: Parts
    ) -> StoredTenant:
        """Write a stage that is not the last, and read the tenant again."""
        head = await self._committer.write(state, seen, plan, stage, closing=False)
        seen = await self._committer.read(state.tenant)
        if seen.head != head:
            raise _changed_meanwhile(state.tenant, seen.head)
        return seen

    async def _persist(
        self, state: PublishState, attempt: Callable[[StoredTenant], Awaitable[None]]
    ) -> PublishResult:
        """Call `attempt` until there is no conflict and the outcome is known. What was written, or
        may have been, is never reported as not written."""
        try:
            await self._retry(state, attempt)
        except (HistoryAdvanced, OutcomeUnknown):
            raise
        except StoreError as error:
            if not state.begun:
                raise
            raise state.interrupted(error) from error
        except BaseException as error:
            if state.begun:
                error.add_note(str(state.progress))
                log.warning("%s: %s", named(state.tenant), state.progress)
            raise
        result = result_of(state)
        for remark in result.remarks:
            log.warning("%s: %s", named(state.tenant), remark)
        await self._sweeper.beside_a_publish()
        return result

    async def _retry(
        self, state: PublishState, attempt: Callable[[StoredTenant], Awaitable[None]]
    ) -> None:
        backoff = Backoff()
        for _ in range(TRIES):
            seen = await self._committer.read(state.tenant, state.resent)
            if await self._committer.resolve_unconfirmed(state, seen):
                return
            if state.require is not None and not state.written:
                state.require(seen.stored)
            try:
                await attempt(seen)
                return
            except Conflict as error:
                log.debug("%s: another publisher was first: %s", named(state.tenant), error)
            except OutcomeUnknown as error:
                log.info("%s: checking whether it was written: %s", named(state.tenant), error)
            await asyncio.sleep(backoff.next())
        raise too_many_conflicts(state.tenant)

    async def _delete_pages(self, state: PublishState, seen: StoredTenant) -> StoredTenant:
        """Delete all but the part that goes last."""
        rest = _last_part(seen.stored.parts)
        while diff_parts(seen.stored.parts, rest):
            stage = next_stage(seen.stored.parts, rest)
            plan = await self._committer.plan(state.tenant, seen.stored, stage, claiming=False)
            try:
                seen = await self._write_stage(state, seen, plan, stage)
            except TooLarge:  # an object that another program wrote
                plan = await self._committer.plan(state.tenant, seen.stored, rest, claiming=False)
                units = [piece for unit in plan.units for piece in _split(unit)]
                seen = await self._write_stage(state, seen, Plan(units, plan.guarded), rest)
        return seen

    async def _delete_rest(
        self, state: PublishState, seen: StoredTenant, index: dict[bytes, Entry]
    ) -> None:
        committer, tenant, stored = self._committer, state.tenant, seen.stored
        keys = committer.keys
        own = {normalized_key(keys, name) for name in claims(keys, tenant, stored.parts)}

        def order(entry: Entry) -> tuple[bool, int, bytes]:
            """What the data requires, or may require, comes last: it goes with the data."""
            kind = keys.index_kind(entry.key)
            assert kind is not None
            required = normalized_key(keys, entry.key) in own or kind in unclear_kinds(stored.parts)
            return required, INDEXES.index(kind), entry.key

        entries = sorted(index.values(), key=order)
        names = [*(keys.part(tenant, path) for path in stored.revisions), *stored.unknown_keys]
        at_once = len(names) + len(entries) <= COMMIT_OPERATIONS
        room = max(COMMIT_OPERATIONS - len(names), COMMIT_OPERATIONS // 2)
        for page in slices(entries[:-room], COMMIT_OPERATIONS):
            await self._delete_orphans(state, page, seen.head)
        last = entries[-room:]
        data = [Delete(key(name)) for name in names] if at_once else [Delete(keys.parts(tenant))]
        changes = diff_parts(stored.parts, {})
        attempt = state.attempt(seen.last, changes, closing=True, incomplete=seen.incomplete)
        done = await committer.commit(
            state,
            attempt,
            [
                *_deletions(last),
                *data,
                *committer.history_writes(state, attempt, seen),
            ],
            [
                unchanged(keys.history_head(tenant), seen.head),
                *_unchanged(last),
                *(unchanged(keys.part(tenant, path), at) for path, at in stored.revisions.items()),
            ],
            [Query(keys.parts(tenant), keys_only=True, limit=1)],
        )
        if done.reads[0].entries:
            raise _changed_meanwhile(tenant, done.revision)
        if not at_once:  # parts written meanwhile were deleted unread: their index entries remain
            left = await committer.index_entries_of(tenant)
            for page in slices([*left.values()], COMMIT_OPERATIONS):
                await self._delete_orphans(state, page, done.revision)

    async def _delete_orphans(
        self, state: PublishState, entries: Sequence[Entry], head: int
    ) -> None:
        """Delete index entries that no data requires. The history does not record them."""
        committer = self._committer
        require = [unchanged(committer.keys.history_head(state.tenant), head), *_unchanged(entries)]
        try:
            await committer.store.commit(*_deletions(entries), require=require)
        except OutcomeUnknown:
            state.transactions += 1  # it may have been written
            raise
        state.transactions += 1


def _fits(tenant: Owner, plan: Plan, room: int) -> bool:
    """Raises `TooLarge` if the plan cannot be split."""
    try:
        batches(tenant, plan.units, room=room)
    except TooLarge:
        if not plan.guarded:
            raise
        return False
    return True


class HistoryAdvanced(Exception):
    """The history has newer entries, so that decisions made from it no longer hold."""


def too_many_conflicts(owner: Owner) -> Conflict:
    return Conflict(message("too_many_conflicts", owner=named(owner), tries=TRIES), revision=0)


def _changed_meanwhile(owner: Owner, revision: int) -> Conflict:
    return Conflict(message("changed_meanwhile", owner=named(owner)), revision=revision)


def _fits_one_commit(stored: StoredParts, index: dict[bytes, Entry]) -> bool:
    count = len(stored.revisions) + len(stored.unknown_keys) + len(index)
    size = sum(change.size for change in diff_parts(stored.parts, {}))
    # The commit also records what it deletes.
    return count <= COMMIT_OPERATIONS and size <= COMMIT_BYTES // 2


def _last_part(parts: Parts) -> Parts:
    """The part that is deleted last."""
    paths = sorted(parts, key=lambda path: (path != "meta", path == "domain/aliases", path))
    return {path: parts[path] for path in paths[:1] if path != "domain/aliases"}


def _split(unit: Unit) -> Iterator[Unit]:
    """The deletion of an object that is too large for one commit: the data first, since an index
    entry without data may be taken over."""
    for place, (write, check) in enumerate(zip(unit.writes, unit.checks, strict=True)):
        yield Unit(unit.changes[place : place + 1], (write,), (check,))


def _deletions(entries: Sequence[Entry]) -> list[Write]:
    return [Delete(key(entry.key)) for entry in entries]


def _unchanged(entries: Sequence[Entry]) -> list[Check]:
    return [unchanged(entry.key, entry.modified) for entry in entries]
