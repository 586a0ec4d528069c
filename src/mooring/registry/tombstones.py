"""Tombstones: an operator took an instance out, and it shall not come back by itself.

A tombstone names the incarnation that is meant; without one (a layout that does not carry it) it
means whoever is there. A process that starts anew takes the tombstone away.
"""

from __future__ import annotations

from mooring.names import split_service
from mooring.registry.layouts import values
from mooring.registry.layouts.contract import Malformed

ROOT = "/mooring/tombstones/"

KEPT = 86400.0
"""Seconds that a tombstone is kept: longer than anybody is cut off without being looked at."""


def tombstone_key(service: str, id: str) -> bytes:
    group, name = split_service(service)
    return f"{ROOT}{group}/{name}/{id}".encode()


def tombstone_value(incarnation: str) -> bytes:
    return values.encode({"incarnation": incarnation})


def applies(value: bytes, incarnation: str) -> bool:
    try:
        meant = values.get(values.decode(value), "incarnation", str, "")
    except Malformed:
        return False
    return meant in ("", incarnation)
