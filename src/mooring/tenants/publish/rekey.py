"""Changing the key: every password of the tenants and of their histories is sealed anew."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec

from mooring.errors import Conflict, TenantError, TooLarge, Undecipherable
from mooring.store.contract import Put, Store, unchanged
from mooring.tenants import history as chronicle
from mooring.tenants.keys import AREAS, Keys, Owner, named
from mooring.tenants.publish.committer import understood
from mooring.tenants.publish.merge import resealed
from mooring.tenants.publish.plan import Parts
from mooring.tenants.publish.publish_state import Published
from mooring.tenants.secrets import Keyring

Progress = Callable[[int, int], None]
Publish = Callable[[Owner, Callable[[Parts], Parts]], Awaitable[Published]]
"""Make a tenant what the function makes of it."""


class Rekeyed(msgspec.Struct, frozen=True):
    tenants: int
    """How many were changed."""
    entries: int
    """How many entries of histories were."""
    problems: tuple[str, ...]
    """What could not be decrypted, and stays as it is."""


async def rekey(
    store: Store, keys: Keys, ring: Keyring, publish: Publish, progress: Progress
) -> Rekeyed:
    """One tenant after another; one that cannot be changed does not hold up the others."""
    ids = await _owners(store, keys)
    tenants = entries = 0
    problems: list[str] = []
    for done, tenant in enumerate(ids):
        progress(done, len(ids))
        try:
            told = await publish(
                tenant,
                lambda there, tenant=tenant: _resealed(tenant, there, ring, problems),  # type: ignore[misc]
            )
            tenants += bool(told.changes)
        except (TenantError, TooLarge) as error:
            problems.append(str(error))
        entries += await _history(store, keys, ring, tenant, problems)
    progress(len(ids), len(ids))
    return Rekeyed(tenants, entries, tuple(dict.fromkeys(problems)))


def _resealed(tenant: Owner, there: Parts, ring: Keyring, problems: list[str]) -> Parts:
    wanted = dict(there)
    for path, value in there.items():
        try:
            wanted[path] = resealed(path, value, ring) or value
        except Undecipherable as error:
            problems.append(f"{named(tenant)}: {path}: {error}")
    return wanted


async def _history(
    store: Store, keys: Keys, ring: Keyring, tenant: Owner, problems: list[str]
) -> int:
    """Entry by entry; one that was trimmed meanwhile is no loss."""
    count = 0
    for entry in (await store.read(keys.history_of(tenant))).entries:
        if not (number := keys.history_number(entry.key)):
            continue
        about = f"{named(tenant)}: entry {number} of its history"
        fresh = chronicle.resealed(
            understood(entry),
            ring,
            lambda problem, about=about: problems.append(f"{about}: {problem}"),  # type: ignore[misc]
        )
        if fresh is not None:
            with contextlib.suppress(Conflict):
                await store.commit(
                    Put(entry.key, msgspec.json.encode(fresh)),
                    require=[unchanged(entry.key, entry.modified)],
                )
                count += 1
    return count


async def _owners(store: Store, keys: Keys) -> list[Owner]:
    """Those that have parts or a history: tenants, and what they share."""
    found = await asyncio.gather(
        store.read(keys.all, keys_only=True), store.read(keys.histories, keys_only=True)
    )
    names = [entry.key for each in found for entry in each.entries]
    shared = [
        area
        for area in AREAS
        if any(name.startswith(keys.history_of(area).start) for name in names)
    ]
    return [*sorted({id for name in names if (id := keys.tenant(name))}), *shared]
