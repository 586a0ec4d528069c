"""What a rollback undoes: the entries of a history after a version, newest first."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from mooring.errors import NotConfigured, Undecipherable
from mooring.tenants import history as chronicle
from mooring.tenants.history import UNREADABLE, HistoryEntry, Undone
from mooring.tenants.keys import Owner, named
from mooring.tenants.publish.merge import resealed
from mooring.tenants.publish.plan import Parts
from mooring.tenants.secrets import Keyring


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


def undone(there: Parts, entries: Sequence[HistoryEntry], ring: Keyring) -> Undone:
    """What a tenant was before these entries, with its passwords under the current key."""
    found = chronicle.before(there, entries, ring)
    wanted = dict(found.parts)
    for path, value in wanted.items():
        with contextlib.suppress(Undecipherable):
            wanted[path] = resealed(path, value, ring) or value
    return Undone(wanted, found.lost)


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
