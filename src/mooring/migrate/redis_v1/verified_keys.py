"""What was verified, as a file: all that may be deleted from v1, with what it held. It is a copy of
v1, too, for whoever wants that back.

The first line says which registry, the following hold one service each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mooring.migrate import verified_file as listing
from mooring.migrate.redis_v1.plan import DIFFERENT, InstancePlan, V1Service

_FORMAT = "mooring redis-v1 verified 1"


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    registry: str
    """Where it is, without any password."""
    v1_prefix: str
    v2_prefix: str
    format: str = _FORMAT


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    service: str
    hashes: dict[str, dict[str, str]]
    members: list[str]
    scores: dict[str, float]


@dataclass(frozen=True, slots=True)
class Verified:
    header: Header
    services: Mapping[str, V1Service]


def deletable(found: V1Service, steps: Iterable[InstancePlan]) -> V1Service:
    """What may go of a service: what v2 has, what has expired, what is of no use to anybody. What
    cannot be understood stays."""
    stays = {"unreadable", *DIFFERENT}
    return found.only(step.id for step in steps if step.verdict not in stays)


def since(before: V1Service, after: V1Service, steps: Iterable[InstancePlan]) -> list[str]:
    """What happened to a service of v1 since it was verified; `steps` are about `after`. What is
    gone by now is no matter."""
    told: list[str] = []
    known = set(before.ids)
    for step in steps:
        id = step.id
        if step.verdict in ("unreadable", "surplus"):
            continue
        if id not in known:
            told.append(f"{step.service} {id} came")
        elif after.hashes.get(id, {}) not in ({}, before.hashes.get(id, {})):
            told.append(f"{step.service} {id} was registered again, or changed")
        elif after.scores.get(id) not in (None, before.scores.get(id)):
            told.append(f"{step.service} {id} gave a sign of life")
    return told


def write(path: Path, verified: Verified) -> None:
    """Raises `MigrationError` where it cannot be written."""
    lines = (
        _Line(
            found.service,
            {id: dict(told) for id, told in found.hashes.items() if told is not None},
            sorted(found.members),
            dict(found.scores),
        )
        for found in verified.services.values()
    )
    listing.write(path, verified.header, lines)


def read(path: Path) -> Verified:
    """Raises `MigrationError` where it is not there, or no such file."""
    header, lines = listing.read(path, Header, _Line, format=_FORMAT)
    services = {
        line.service: V1Service(line.service, line.hashes, frozenset(line.members), line.scores)
        for line in lines
    }
    return Verified(header, services)
