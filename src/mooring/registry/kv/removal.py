"""Forgetting a service on a store: what was said of it goes, as long as nobody is registered in it.

A store cannot check that a range is empty in the moment of a write. It is looked at in the same
moment, though: whoever registered shortly before has all of it put back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from mooring.errors import Conflict, OutcomeUnknown
from mooring.model import Instance, now
from mooring.registry import json_values as values
from mooring.registry.kv.layouts.layout import Layout
from mooring.store.contract import (
    Delete,
    Entry,
    Put,
    Query,
    Range,
    Store,
    absent,
    key,
    prefix,
    unchanged,
)
from mooring.tasks import cleanup

_AT_ONCE = 60
"""Keys that one commit takes out: each has a check, too."""
_PUT_BACK_WITHIN = 10.0


async def forget(store: Store, layout: Layout, service: str) -> bool:
    """Delete what is kept of a service that has no instances: its description, and the operator's
    word on it and on those that it had. Whether that could be: not while somebody is registered."""
    gone: dict[bytes, Entry] = {}
    forgotten = False
    try:
        forgotten = await _take_out(store, layout, layout.canonical(service), gone)
    finally:
        if not forgotten:
            await cleanup(_put_back(store, list(gone.values())), within=_PUT_BACK_WITHIN)
    return forgotten


async def _take_out(store: Store, layout: Layout, service: str, gone: dict[bytes, Entry]) -> bool:
    """The same, and what may be gone by then, also where it could not be."""
    ranges = layout.ranges(service)
    while True:
        parts = [(await store.read(where)).entries for where in ranges]
        entries = [entry for part in parts for entry in part]
        if _has_instances(layout, service, entries):
            return False
        told = [each for each in entries if not each.lease and _is_of(layout, service, each)]
        some = {entry.key: entry for entry in told[:_AT_ONCE]}
        if not some:
            return True
        try:
            done = await store.commit(
                *(Delete(key(name)) for name in some),
                require=[unchanged(name, entry.modified) for name, entry in some.items()],
                read=[Query(where, keys_only=True) for where in ranges],
            )
        except Conflict:
            continue  # somebody says something of it at this very moment
        except OutcomeUnknown:
            gone |= some
            raise
        gone |= some
        if _has_instances(layout, service, (e for part in done.reads for e in part.entries)):
            return False


async def _put_back(store: Store, entries: Sequence[Entry]) -> None:
    for entry in entries:
        with contextlib.suppress(Conflict):  # somebody wrote it anew
            await store.commit(Put(entry.key, entry.value), require=[absent(entry.key)])


def _is_of(layout: Layout, service: str, entry: Entry) -> bool:
    place = layout.locate(entry.key)
    return place is not None and place.service == service


def _has_instances(layout: Layout, service: str, entries: Iterable[Entry]) -> bool:
    places = (layout.locate(entry.key) for entry in entries)
    return any(
        place is not None and place.service == service and place.file == "data" for place in places
    )


ROOT = "/mooring/tombstones/"

KEPT = 86400.0
"""Seconds that a tombstone is kept: longer than anybody is cut off without being looked at."""


def tombstone_key(layout: Layout, instance: Instance) -> bytes:
    service = layout.canonical(instance.service)
    known = "incarnation" in layout.carries and instance.incarnation
    which = instance.incarnation if known else "any"
    return f"{ROOT}{layout.scope}/{service}/{instance.id}/{which}".encode()


def tombstones_of(layout: Layout, service: str) -> Range:
    """All tombstones of a service."""
    return prefix(f"{ROOT}{layout.scope}/{layout.canonical(service)}/".encode())


def tombstone_value() -> bytes:
    return values.encode({"removedAt": now().isoformat()})
