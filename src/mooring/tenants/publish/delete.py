"""Deleting a tenant: each object together with its own indexes, and meta last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from mooring.errors import Conflict, OutcomeUnknown, TooLarge
from mooring.store.contract import Check, Delete, Entry, Query, Write, key, unchanged
from mooring.tenants.keys import INDEXES, IndexEntry, Keys, Owner
from mooring.tenants.publish.alias_batches import stage
from mooring.tenants.publish.claims import claims, folded
from mooring.tenants.publish.committer import Committer, Plan, StoredTenant, chunks
from mooring.tenants.publish.plan import BYTES, ROOM, Parts, StoredParts, Unit, differences, unclear
from mooring.tenants.publish.publish_state import PublishState

_AT_ONCE = BYTES // 2  # bytes of values that one commit deletes: it also records them


async def erase(committer: Committer, work: PublishState, seen: StoredTenant) -> None:
    """Delete a tenant in one commit, indexes before data. A tenant that is too large for one commit
    is deleted in pages. A page deletes objects together with their own indexes, so that a name is
    free only when no data claims it. Meta comes last, so that a deletion that was interrupted can
    be resumed."""
    leading = await committer.leading(work.tenant)
    if not _fits(seen.held, leading):
        seen = await _in_pages(committer, work, seen)
        leading = await committer.leading(work.tenant)
    await _last_page(committer, work, seen, leading)


def _fits(there: StoredParts, leading: dict[bytes, Entry]) -> bool:
    count = len(there.revisions) + len(there.strange) + len(leading)
    return count <= ROOM and sum(each.size for each in differences(there.parts, {})) <= _AT_ONCE


async def _in_pages(committer: Committer, work: PublishState, seen: StoredTenant) -> StoredTenant:
    """Delete all but meta."""
    rest = _last(seen.held.parts)
    while differences(seen.held.parts, rest):
        towards = stage(seen.held.parts, rest)
        plan = await committer.plan(work.tenant, seen.held, towards, claiming=False)
        try:
            head = await committer.write(work, seen, plan, towards, closing=False)
        except TooLarge:  # another program wrote it
            plan = await committer.plan(work.tenant, seen.held, rest, claiming=False)
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
    keys, tenant, there = committer.keys, work.tenant, seen.held
    ordered = sorted(leading.values(), key=partial(_order, keys, tenant, there))
    names = [*(keys.part(tenant, path) for path in there.revisions), *there.strange]
    at_once = len(names) + len(ordered) <= ROOM
    room = max(ROOM - len(names), ROOM // 2)
    for page in chunks(ordered[:-room], ROOM):
        await _set_aside(committer, work, page, seen.head)
    last = ordered[-room:]
    gone = differences(there.parts, {})
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


def _order(keys: Keys, tenant: Owner, there: StoredParts, entry: Entry) -> tuple[bool, int, bytes]:
    """What the data explains, or may explain, comes last: it goes with the data."""
    place = keys.understand(entry.key)
    assert isinstance(place, IndexEntry)
    own = {folded(keys, name) for name in claims(keys, tenant, there.parts)}
    explained = folded(keys, entry.key) in own or place.kind in unclear(there.parts)
    return explained, INDEXES.index(place.kind), entry.key


def _deletions(entries: Sequence[Entry]) -> list[Write]:
    return [Delete(key(entry.key)) for entry in entries]


def _as_read(entries: Sequence[Entry]) -> list[Check]:
    return [unchanged(entry.key, entry.modified) for entry in entries]
