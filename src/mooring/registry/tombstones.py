"""Tombstones: an operator took an instance out, and it shall not come back by itself.

A tombstone is for one incarnation, and outlives whoever comes to that address after it. In a layout
that does not carry incarnations it is for whoever is there, and the next process to start takes it
away.
"""

from __future__ import annotations

from mooring.model import Instance, now
from mooring.registry.layouts import values
from mooring.registry.layouts.contract import Layout
from mooring.store.contract import Range, prefix

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
