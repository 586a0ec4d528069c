"""What a bridge has to do for a service, from both versions of it. Pure.

Nothing goes round in circles: what came from v1 has an incarnation of its own in v2 and is never
mirrored, and what was mirrored has a mark in v1 and is never copied.

A heartbeat of v1 is a time on somebody's clock. Once a service is known, a heartbeat that is not
what it was is a sign of life of just now, whatever that clock says; one that is as it was is none.
So who stops ages in v2 and expires there, also where its clock is an hour ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mooring.errors import InvalidRequest
from mooring.migrate.redis_v1.format import (
    INCARNATION,
    Record,
    counts_in_seconds,
    is_bridged,
    mirrored,
    understood,
)
from mooring.migrate.redis_v1.plan import V1Service, V2Service, different, started_anew
from mooring.model import Config
from mooring.registry.redis import layout as fields
from mooring.registry.redis.reader import with_config

V1_TIMEOUT = 90_000
"""Ms without a heartbeat after which v1 itself drops an instance: older ones are not mirrored."""


class SeenHeartbeat(NamedTuple):
    """The last that was seen of an instance of v1."""

    score: float | None
    heard: int
    """When that was, in ms on the server's clock."""
    owned: int = 0
    """When a process that speaks v2 was last seen in the same place. Once that one has left, an
    older sign of life of v1 does not bring the place back."""


@dataclass(slots=True)
class BridgePlan:
    bring: dict[str, tuple[Record, int]] = field(default_factory=dict)
    """To be written into v2, with the last heartbeat."""
    deregister: list[str] = field(default_factory=list)
    """To be taken out of v2: v1 took it out."""
    mirror: dict[str, dict[str, str]] = field(default_factory=dict)
    """To be written into v1."""
    beats: dict[str, float] = field(default_factory=dict)
    """Heartbeats for v1, in its unit."""
    withdraw: list[str] = field(default_factory=list)
    """To be taken out of v1: v2 took it out."""
    seen: dict[str, SeenHeartbeat] = field(default_factory=dict)
    """For the next time."""
    problems: list[str] = field(default_factory=list)
    """What was left alone, and why."""


def plan_bridge(
    found: V1Service,
    held: V2Service,
    config: Mapping[str, Config],
    before: Mapping[str, SeenHeartbeat],
    *,
    timeout: int,
    limit: int,
) -> BridgePlan:
    """`before` is what the last look left in `seen`; `timeout` is v2's, in ms."""
    due = BridgePlan()
    registered = {id for id in found.members if found.hashes.get(id)}
    for id in sorted(registered):
        if is_bridged(found.hashes[id] or {}):
            continue
        try:
            record = understood(found.service, id, found.hashes[id] or {}, limit=limit)
        except InvalidRequest as error:
            due.problems.append(f"{id}, of v1, {error}")  # what v2 has of it expires
            continue
        seen = _seen(found, record, before.get(id), held.now)
        due.seen[id] = seen._replace(owned=held.now) if held.own(id, timeout) else seen
        _to_v2(due, found, held, record, timeout)
    due.deregister = [
        id
        for id in sorted(before.keys() - registered)
        if held.records.get(id, {}).get("incarnation") == INCARNATION
    ]
    _to_v1(due, found, held, config)
    return due


def _seen(
    found: V1Service, record: Record, before: SeenHeartbeat | None, now: int
) -> SeenHeartbeat:
    id = record.instance.id
    score = found.scores.get(id)
    if before is None:
        return SeenHeartbeat(score, found.heartbeat(id, record, now))
    return before if score == before.score else before._replace(score=score, heard=now)


def _to_v2(
    due: BridgePlan, found: V1Service, held: V2Service, record: Record, timeout: int
) -> None:
    id = record.instance.id
    heard, owned = due.seen[id].heard, due.seen[id].owned
    if heard <= max(held.now - timeout, owned):
        return
    if id in held.spoilt:
        due.problems.append(f"{id}: its key in v2 is no hash: look what it is")
        return
    if id in held.removed and not started_anew(record, heard, held.removed[id]):
        if record.registered <= held.removed[id]:  # else it may have started anew: beats will tell
            due.withdraw.append(id)
        return
    current = (
        id in held.records
        and held.listed is not False
        and held.scores.get(id, 0) >= heard
        and not different(record.fields, held.records[id])
    )
    if not current:
        due.bring[id] = (record, heard)


def _to_v1(
    due: BridgePlan, found: V1Service, held: V2Service, config: Mapping[str, Config]
) -> None:
    in_seconds = counts_in_seconds(found.scores.values())
    alive = {
        id
        for id in held.records
        if held.own(id, V1_TIMEOUT) and held.scores.get(id, 0) > held.now - V1_TIMEOUT
    }
    for id in sorted(alive):
        told, own = found.hashes.get(id, {}), held.records[id]
        if told is None or not _may_write(due, found, own, id):
            continue
        try:
            instance = with_config(fields.decode(found.service, id, own), config)
        except InvalidRequest as error:
            due.problems.append(f"{id}, of v2, {error}")  # its own readers leave it out, too
            continue
        wanted = mirrored(instance, _registered(own), in_seconds=in_seconds)
        if told != wanted or id not in found.members:
            due.mirror[id] = wanted
        score = held.scores[id] // 1000 if in_seconds else held.scores[id]
        if found.scores.get(id) != score:
            due.beats[id] = score
    due.withdraw += [
        id
        for id, told in sorted(found.hashes.items())
        if told and is_bridged(told) and id not in alive
    ]


def _may_write(due: BridgePlan, found: V1Service, own: Mapping[str, str], id: str) -> bool:
    """Whether a place in v1 is free, or the bridge's, or of a process that was silent since one
    that speaks v2 took it over."""
    told = found.hashes.get(id) or {}
    if not told or is_bridged(told):
        return True
    return id in due.seen and due.seen[id].heard < _registered(own)


def _registered(own: Mapping[str, str]) -> int:
    told = own.get("registrationTime", "")
    return int(told) if told.isdecimal() else 0
