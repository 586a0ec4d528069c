"""Carrying out a publish: read, decide and commit, until no other publisher was first and the
outcome is known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from mooring.errors import (
    Conflict,
    InvalidRequest,
    NotConfigured,
    OutcomeUnknown,
    StoreError,
    TooLarge,
)
from mooring.store.contract import Check, Delete, Entry, Query, Write, key, unchanged
from mooring.tasks import Backoff
from mooring.tenants.keys import (
    INDEXES,
    IndexEntry,
    Owner,
    TenantKeys,
    check_owner,
    has_part,
    named,
)
from mooring.tenants.parts import (
    BYTES,
    NOTHING_RESENT,
    PartDiff,
    Parts,
    Resent,
    StoredParts,
    claims,
    diff_parts,
    normalized_key,
    unclear_kinds,
)
from mooring.tenants.publish.committer import (
    Committer,
    Plan,
    StoredTenant,
    chunks,
    room_beside,
    with_resent,
)
from mooring.tenants.publish.encryption import EncryptionSearch, PasswordPlan, plan_passwords
from mooring.tenants.publish.plan import ROOM, Unit, alias_limits, batches, check_stages, next_stage
from mooring.tenants.publish.publish_state import PublishResult, PublishState
from mooring.tenants.publish.retention import Sweeper
from mooring.tenants.secrets import Keyring

log = logging.getLogger(__name__)

TRIES = 200
"""Lost races in a row, each of which another publisher won."""

Change = Callable[[Parts], Parts]
"""What a tenant is to be, from what is there."""


class CommitLoop:
    """Carries out what a publisher was asked for."""

    def __init__(self, committer: Committer, ring: Keyring, sweeper: Sweeper) -> None:
        self._committer, self._ring, self._sweeper = committer, ring, sweeper
        self._search = EncryptionSearch(committer.store, committer.keys)

    async def would_change(
        self, tenant: Owner, seen: StoredTenant, wanted: Parts, resent: Resent = NOTHING_RESENT
    ) -> list[PartDiff]:
        """What `change` would change. Raises what it would raise."""
        await self._passwords(tenant, seen, wanted, resent=resent, dry=True)
        await self._planned(tenant, seen, wanted, ROOM)
        return diff_parts(seen.stored.parts, wanted, seen.stored.resent)

    async def change(
        self,
        work: PublishState,
        change: Change,
        *,
        only_at: int | None = None,
        resent: Resent = NOTHING_RESENT,
    ) -> PublishResult:
        """`only_at`: raise `HistoryAdvanced` unless this is the newest entry that is not ours."""
        tenant = check_owner(work.tenant)

        async def attempt(seen: StoredTenant) -> None:
            seen = with_resent(seen, resent)
            if only_at is not None and seen.last != (work.number or only_at):
                raise HistoryAdvanced(tenant)
            wanted = change(seen.stored.parts)
            for path in wanted:
                if not has_part(tenant, path):
                    raise InvalidRequest(f"{named(tenant)}: there is no part {path}")
            # What a migration moves is in the store already.
            refuse = work.action != "migrate"
            # A rollback adds no password that the caller sent.
            sent = NOTHING_RESENT if work.action == "rollback" else resent
            work.passwords = await self._passwords(tenant, seen, wanted, refuse=refuse, resent=sent)
            plan, most = await self._planned(tenant, seen, wanted, room_beside(work, wanted))
            while (towards := next_stage(seen.stored.parts, wanted, most=most)) is not wanted:
                part = await self._committer.plan(tenant, seen.stored, towards)
                head = await self._committer.write(work, seen, part, towards, closing=False)
                seen = await self._committer.look(tenant)
                if seen.head != head:
                    raise Conflict(f"{named(tenant)} was changed meanwhile", revision=seen.head)
                plan = await self._committer.plan(tenant, seen.stored, wanted)
            await self._committer.write(work, seen, plan, wanted)

        return await self._persist(work, attempt)

    async def delete(self, work: PublishState) -> PublishResult:
        """Delete a tenant with all that leads to it. Raises `NotConfigured` if there is none."""

        async def attempt(seen: StoredTenant) -> None:
            if seen.stored.revisions or seen.stored.strange:
                await erase(self._committer, work, seen)
            elif not work.changes:
                raise NotConfigured(f"there is no {named(work.tenant)}")

        return await self._persist(work, attempt)

    def _passwords(
        self,
        tenant: Owner,
        seen: StoredTenant,
        wanted: Parts,
        *,
        refuse: bool = True,
        resent: Resent = NOTHING_RESENT,
        dry: bool = False,
    ) -> Awaitable[PasswordPlan]:
        return plan_passwords(
            self._search,
            self._ring,
            tenant,
            seen.stored.parts,
            wanted,
            refuse=refuse,
            resent=resent,
            dry=dry,
        )

    async def _planned(
        self, tenant: Owner, seen: StoredTenant, wanted: Parts, room: int
    ) -> tuple[Plan, int]:
        """What is to be written, and how many aliases at a time. Raises every objection
        before anything is written."""
        plan = await self._committer.plan(tenant, seen.stored, wanted)
        most, fewer = alias_limits(room)
        if next_stage(seen.stored.parts, wanted, most=most) is wanted and _fits(tenant, plan, room):
            return plan, most
        most = fewer if plan.guarded else most
        check_stages(self._committer.keys, tenant, seen.stored.parts, wanted, most=most, room=room)
        return plan, most

    async def _persist(
        self, work: PublishState, attempt: Callable[[StoredTenant], Awaitable[None]]
    ) -> PublishResult:
        """Read and commit until no other publisher was first and the outcome is known. What was
        written, or may have been, is never reported as not written."""
        try:
            await self._try(work, attempt)
        except (HistoryAdvanced, OutcomeUnknown):
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
        await self._sweeper.beside_a_publish()
        return work.published()

    async def _try(
        self, work: PublishState, attempt: Callable[[StoredTenant], Awaitable[None]]
    ) -> None:
        backoff = Backoff()
        for _ in range(TRIES):
            seen = await self._committer.look(work.tenant)
            if await self._committer.make_sure(work, seen):
                return
            if work.require is not None and not work.written:
                work.require(seen.stored)
            try:
                await attempt(seen)
                return
            except Conflict as error:
                log.debug("%s: another publisher was first: %s", named(work.tenant), error)
            except OutcomeUnknown as error:
                log.info("%s: looks whether it was written: %s", named(work.tenant), error)
            await asyncio.sleep(backoff.next())
        raise too_many_conflicts(named(work.tenant))


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
    """The history went on, so that what was decided from it no longer holds."""


def too_many_conflicts(what: str) -> Conflict:
    return Conflict(
        f"{what} was not written: others changed it {TRIES} times meanwhile; try again",
        revision=0,
    )


_AT_ONCE = BYTES // 2  # bytes of values that one commit deletes: it also records them


async def erase(committer: Committer, work: PublishState, seen: StoredTenant) -> None:
    """Delete a tenant in one commit, indexes before data. A tenant that is too large for one commit
    is deleted in pages. A page deletes objects together with their own indexes, so that a name is
    free only when no data claims it. Meta comes last, so that a deletion that was interrupted can
    be resumed."""
    leading = await committer.leading(work.tenant)
    if not _fits_one_commit(seen.stored, leading):
        seen = await _in_pages(committer, work, seen)
        leading = await committer.leading(work.tenant)
    await _last_page(committer, work, seen, leading)


def _fits_one_commit(there: StoredParts, leading: dict[bytes, Entry]) -> bool:
    count = len(there.revisions) + len(there.strange) + len(leading)
    return count <= ROOM and sum(each.size for each in diff_parts(there.parts, {})) <= _AT_ONCE


async def _in_pages(committer: Committer, work: PublishState, seen: StoredTenant) -> StoredTenant:
    """Delete all but meta."""
    rest = _last(seen.stored.parts)
    while diff_parts(seen.stored.parts, rest):
        towards = next_stage(seen.stored.parts, rest)
        plan = await committer.plan(work.tenant, seen.stored, towards, claiming=False)
        try:
            head = await committer.write(work, seen, plan, towards, closing=False)
        except TooLarge:  # another program wrote it
            plan = await committer.plan(work.tenant, seen.stored, rest, claiming=False)
            pieces = [piece for unit in plan.units for piece in _pieces(unit)]
            head = await committer.write(
                work, seen, Plan(pieces, plan.guarded), rest, closing=False
            )
        seen = await committer.look(work.tenant)
        if seen.head != head:
            raise Conflict(f"tenant {work.tenant} was changed meanwhile", revision=seen.head)
    return seen


def _last(parts: Parts) -> Parts:
    """The part that is deleted last."""
    paths = sorted(parts, key=lambda path: (path != "meta", path == "domain/aliases", path))
    return {path: parts[path] for path in paths[:1] if path != "domain/aliases"}


def _pieces(unit: Unit) -> Iterator[Unit]:
    """The deletion of an object that is too large for one commit: the data first, since what leads
    to a tenant without data is free to be taken."""
    for place, (write, check) in enumerate(zip(unit.writes, unit.checks, strict=True)):
        yield Unit(unit.changes[place : place + 1], (write,), (check,))


async def _last_page(
    committer: Committer, work: PublishState, seen: StoredTenant, leading: dict[bytes, Entry]
) -> None:
    keys, tenant, there = committer.keys, work.tenant, seen.stored
    ordered = sorted(leading.values(), key=partial(_order, keys, tenant, there))
    names = [*(keys.part(tenant, path) for path in there.revisions), *there.strange]
    at_once = len(names) + len(ordered) <= ROOM
    room = max(ROOM - len(names), ROOM // 2)
    for page in chunks(ordered[:-room], ROOM):
        await _set_aside(committer, work, page, seen.head)
    last = ordered[-room:]
    gone = diff_parts(there.parts, {})
    attempt = work.attempt(seen.last, gone, closing=True, incomplete=seen.incomplete)
    done = await committer.commit(
        work,
        attempt,
        [
            *_deletions(last),
            *([Delete(key(name)) for name in names] if at_once else [Delete(keys.parts(tenant))]),
            *committer.recorded(work, attempt),
            *committer.trimmed(tenant, attempt.number, seen),
        ],
        [
            unchanged(keys.history_head(tenant), seen.head),
            *_as_read(last),
            *(unchanged(keys.part(tenant, path), at) for path, at in there.revisions.items()),
        ],
        [Query(keys.parts(tenant), keys_only=True, limit=1)],
    )
    if done.reads[0].entries:
        raise Conflict(f"tenant {tenant} got something new meanwhile", revision=done.revision)
    if not at_once:  # what came meanwhile went unseen, and what leads to it is left
        for page in chunks([*(await committer.leading(tenant)).values()], ROOM):
            await _set_aside(committer, work, page, done.revision)


async def _set_aside(
    committer: Committer, work: PublishState, entries: Sequence[Entry], head: int
) -> None:
    """Delete indexes that no data explains. The history does not record them."""
    require = [unchanged(committer.keys.history_head(work.tenant), head), *_as_read(entries)]
    try:
        await committer.store.commit(*_deletions(entries), require=require)
    except OutcomeUnknown:
        work.aside += 1  # perhaps
        raise
    work.aside += 1


def _order(
    keys: TenantKeys, tenant: Owner, there: StoredParts, entry: Entry
) -> tuple[bool, int, bytes]:
    """What the data explains, or may explain, comes last: it goes with the data."""
    place = keys.understand(entry.key)
    assert isinstance(place, IndexEntry)
    own = {normalized_key(keys, name) for name in claims(keys, tenant, there.parts)}
    explained = normalized_key(keys, entry.key) in own or place.kind in unclear_kinds(there.parts)
    return explained, INDEXES.index(place.kind), entry.key


def _deletions(entries: Sequence[Entry]) -> list[Write]:
    return [Delete(key(entry.key)) for entry in entries]


def _as_read(entries: Sequence[Entry]) -> list[Check]:
    return [unchanged(entry.key, entry.modified) for entry in entries]
