"""The way to a tenant that has more hosts than one commit takes: its aliases go and come so many at
a time, each time with all that leads to them."""

from __future__ import annotations

from mooring.model import JSON
from mooring.store.contract import Entry
from mooring.tenants.keys import Keys, Owner
from mooring.tenants.publish.claims import claims
from mooring.tenants.publish.plan import ROOM, Parts, StoredParts, Unread, batches, units

MOST = ROOM - 20
"""Aliases that one stage changes; the rest is for the other domains and the parts themselves."""

_ALIASES = "domain/aliases"


def stage(there: Parts, wanted: Parts, *, most: int = MOST) -> Parts:
    """What is wanted, or where that is too much, what comes before it."""
    had, will = _listed(there), _listed(wanted)
    kept = {host.lower() for host in will}
    kept |= {str(wanted.get(f"domain/{each}", "")).lower() for each in ("primary", "internal")}
    gone = [host for host in had if host.lower() not in kept]
    before = {host.lower() for host in had}
    come = [host for host in will if host.lower() not in before]
    if len(gone) + len(come) <= most:
        return wanted
    if gone:
        first = set(gone[:most])
        aliases: list[JSON] = [host for host in had if host not in first]
    else:
        aliases = [*had, *come[:most]]
    rest = {path: value for path, value in wanted.items() if path != _ALIASES}
    return {**rest, _ALIASES: aliases} if aliases else rest


def at_a_time(room: int) -> list[int]:
    """How many aliases one stage may change where a commit has this room: the most; and fewer, for
    where some are taken over from tenants that are gone, each under a condition more."""
    most = max(room - (ROOM - MOST), 1)
    return [most, max(most // 3, 1)]


def check(keys: Keys, tenant: Owner, there: Parts, wanted: Parts, *, most: int, room: int) -> None:
    """Go the whole way in thought. Raises `TooLarge` where a stage of it is more than one commit
    takes: better before the first of them than in the middle."""
    while True:
        towards = stage(there, wanted, most=most)
        leading = {
            name: Entry(name, claim.value, 1, 1, 1)
            for name, claim in claims(keys, tenant, there).items()
        }
        batches(
            tenant, units(keys, tenant, StoredParts(dict(there), {}), towards, leading), room=room
        )
        if towards is wanted:
            return
        there = towards


def _listed(parts: Parts) -> list[str]:
    found = parts.get(_ALIASES)
    if isinstance(found, Unread) or not isinstance(found, list):
        return []
    return [host for host in found if isinstance(host, str)]
