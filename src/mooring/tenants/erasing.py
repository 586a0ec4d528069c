"""Deleting a tenant: what leads to it first, its data last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from mooring.errors import Conflict, OutcomeUnknown
from mooring.store.contract import Check, Delete, Entry, Query, Write, key, unchanged
from mooring.tenants.keys import INDEXES, IndexEntry, Keys
from mooring.tenants.publishing import BYTES, ROOM, Difference, differences
from mooring.tenants.scribe import Scribe, Seen, chunks
from mooring.tenants.work import Work

_CHAPTER = BYTES // 2  # bytes of what is deleted at once: each is in the history then


async def erase(scribe: Scribe, work: Work, seen: Seen) -> None:
    """What leads to the tenant, then the tenant: in one commit, or in several in that order."""
    keys, tenant, there = scribe.keys, work.tenant, seen.held
    number, head = seen.last, seen.head
    leading = list((await scribe.leading(tenant)).values())
    pages = list(chunks(sorted(leading, key=partial(_order, keys)), ROOM)) or [[]]
    chapters = list(_chapters(differences(there.parts, {}))) or [()]
    everything = [*(keys.part(tenant, path) for path in there.revisions), *there.strange]
    at_once = len(chapters) == 1 and len(everything) + len(leading) <= ROOM
    alongside = pages.pop() if len(chapters) == 1 else []
    for page in pages:
        await _set_aside(scribe, work, page, head)
    for place, chapter in enumerate(chapters):
        closing = place + 1 == len(chapters)
        attempt = work.attempt(number + 1, chapter, closing=closing)
        names = {each.path: keys.part(tenant, each.path) for each in chapter}
        seen_so = [unchanged(name, there.revisions[path]) for path, name in names.items()]
        whole = Delete(keys.parts(tenant))
        gone = everything if at_once else names.values()
        done = await scribe.commit(
            work,
            attempt,
            [
                *_deletions(alongside),
                *([whole] if closing and not at_once else [Delete(key(each)) for each in gone]),
                *scribe.recorded(work, attempt),
                *(scribe.trimmed(tenant, number + 1, seen) if closing else []),
            ],
            [
                unchanged(keys.history_head(tenant), head),
                *_as_read(alongside),
                *seen_so[: ROOM - len(alongside)],
            ],
            [Query(keys.parts(tenant), keys_only=True, limit=1)] if at_once else [],
        )
        number, head = number + 1, done.revision
    if at_once and done.reads[0].entries:
        raise Conflict(f"tenant {tenant} got something new meanwhile", revision=head)
    if not at_once:  # what came meanwhile went unseen, and what leads to it is left
        for page in chunks([*(await scribe.leading(tenant)).values()], ROOM):
            await _set_aside(scribe, work, page, head)


async def _set_aside(scribe: Scribe, work: Work, entries: Sequence[Entry], head: int) -> None:
    """Take away what leads to a tenant, without a word in its history."""
    require = [unchanged(scribe.keys.history_head(work.tenant), head), *_as_read(entries)]
    try:
        await scribe.store.commit(*_deletions(entries), require=require)
    except OutcomeUnknown:
        work.aside += 1  # perhaps
        raise
    work.aside += 1


def _order(keys: Keys, entry: Entry) -> tuple[int, bytes]:
    place = keys.understand(entry.key)
    assert isinstance(place, IndexEntry)
    return INDEXES.index(place.kind), entry.key


def _deletions(entries: Sequence[Entry]) -> list[Write]:
    return [Delete(key(entry.key)) for entry in entries]


def _as_read(entries: Sequence[Entry]) -> list[Check]:
    return [unchanged(entry.key, entry.modified) for entry in entries]


def _chapters(changes: Sequence[Difference]) -> Iterator[Sequence[Difference]]:
    """What fits into one entry of a history, and unless all fits, into one commit."""
    most = ROOM if sum(change.size for change in changes) > _CHAPTER else len(changes)
    chapter: list[Difference] = []
    size = 0
    for change in changes:
        if chapter and (size + change.size > _CHAPTER or len(chapter) == most):
            yield tuple(chapter)
            chapter, size = [], 0
        chapter.append(change)
        size += change.size
    if chapter:
        yield tuple(chapter)
