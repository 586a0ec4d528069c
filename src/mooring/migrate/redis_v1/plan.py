"""What a copy has to do for a service, given its state in both versions. Pure.

A plan of a copy is a prediction: the script that writes an instance decides again, from the state
of Redis at that moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.migrate.redis_v1.format import (
    INCARNATION,
    V1Record,
    V1Service,
    parse_record,
)
from mooring.registry.redis import layout

InstanceVerdict: TypeAlias = Literal[
    "missing",
    "differs",
    "behind",
    "half",
    "equal",
    "own",
    "expired",
    "removed",
    "bridged",
    "remnant",
    "surplus",
    "stranded",
    "unreadable",
]

REASONS: Mapping[InstanceVerdict, str] = {
    "missing": "v2 does not have it",
    "differs": "v2 has it with other details",
    "behind": "v2 has an older heartbeat",
    "half": "v2 does not have all of its tiers",
    "equal": "v2 has the same",
    "own": "a v2 process has registered this instance, and takes precedence",
    "expired": "its last heartbeat is so old that v2 would evict it",
    "removed": "an operator deregistered it in v2",
    "bridged": "it comes from v2, through a bridge",
    "remnant": "part of a registration, invisible to v1 readers",
    "surplus": "v2 has a copy of an instance that v1 no longer has",
    "stranded": "v1 readers call it, but v2 cannot represent it",
    "unreadable": "it cannot be parsed, and is left alone",
}

WRITTEN: frozenset[InstanceVerdict] = frozenset({"missing", "differs", "behind", "half"})
"""A copy writes these."""
DIFFERENT: frozenset[InstanceVerdict] = WRITTEN | {"surplus", "stranded"}
"""These prevent the deletion of v1."""

DELAY = 10_000
"""Ms for which a v1 heartbeat may be missing in v2."""

_TIMES = {"heartbeat", "registrationTime", "lastMetadataUpdate"}
NOT_A_HASH = "its key in v2 is not a hash: check what it contains"


@dataclass(frozen=True, slots=True)
class V2Service:
    now: int
    records: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    """When an operator deregistered a copy, by id."""
    listed: bool | None = False
    """Whether tier 1 lists the service; None if it is unavailable."""
    wrong_type: frozenset[str] = frozenset()
    """The ids whose key is not a hash."""

    def owns(self, id: str, timeout: int) -> bool:
        """Whether a v2 process has registered this instance and is alive or not ephemeral."""
        record = self.records.get(id)
        return (
            record is not None
            and record.get("incarnation") != INCARNATION
            and (self.has_beaten(id, timeout) or record.get("ephemeral") == "false")
        )

    def alive(self, timeout: int) -> set[str]:
        """The instances that a v2 process keeps alive."""
        return {
            id for id in self.records if self.owns(id, timeout) and self.has_beaten(id, timeout)
        }

    def has_beaten(self, id: str, timeout: int) -> bool:
        """Whether the last heartbeat is younger than the timeout, in ms."""
        return self.scores.get(id, 0) > self.now - timeout


@dataclass(frozen=True, slots=True)
class FieldDifference:
    field: str
    v1: str
    v2: str

    def __str__(self) -> str:
        return f"{self.field} {quoted(self.v1)} is {quoted(self.v2)} in v2"


@dataclass(frozen=True, slots=True)
class InstancePlan:
    service: str
    id: str
    """Empty if it concerns the service, or a key."""
    verdict: InstanceVerdict
    why: str = ""
    differences: tuple[FieldDifference, ...] = ()
    notes: tuple[str, ...] = ()
    heartbeat: int = 0
    """The last heartbeat in v1, in ms."""

    def __str__(self) -> str:
        reason = self.why or REASONS[self.verdict]
        return "; ".join([reason, *map(str, self.differences), *self.notes])


def compare(v1: V1Service, v2: V2Service, *, timeout: int, limit: int) -> list[InstancePlan]:
    """`timeout` is in ms, `limit` in bytes of metadata."""
    steps = [_compare_instance(v1, v2, id, timeout, limit) for id in v1.ids]
    known = set(v1.ids)
    steps += [
        InstancePlan(v1.service, id, "surplus")
        for id, record in sorted(v2.records.items())
        if id not in known
        and record.get("incarnation") == INCARNATION
        and v2.has_beaten(id, timeout)
    ]
    return steps


def stranded(v1: V1Service, now: int, *, timeout: int, why: str) -> list[InstancePlan]:
    """The live instances of a service that v2 cannot represent."""
    alive = [id for id in v1.ids if v1.is_alive(id, now - timeout)]
    return [InstancePlan(v1.service, id, "stranded", why) for id in alive]


def _compare_instance(
    v1: V1Service, v2: V2Service, id: str, timeout: int, limit: int
) -> InstancePlan:
    oldest = v2.now - timeout
    try:
        record = _parse_instance(v1, id, limit)
    except InvalidRequest as error:
        return InstancePlan(v1.service, id, _unrepresentable(v1, id, oldest), str(error))
    if record is None:
        why = _remnant(bool(v1.hashes.get(id)), id in v1.members)
        return InstancePlan(v1.service, id, "remnant", why)
    heartbeat = v1.heartbeat(id, record, v2.now)
    step = InstancePlan(v1.service, id, "equal", notes=record.notes, heartbeat=heartbeat)
    if record.bridged:
        return replace(step, verdict="bridged")
    if id in v2.wrong_type:
        return replace(step, verdict=_unrepresentable(v1, id, oldest), why=NOT_A_HASH)
    if v2.owns(id, timeout):
        return replace(step, verdict="own")
    if heartbeat <= oldest:
        why = "" if heartbeat else "it has never sent a heartbeat"
        return replace(step, verdict="expired", why=why)
    if id in v2.removed and not restarted(record, heartbeat, v2.removed[id]):
        return replace(step, verdict="removed")
    return _compare_tiers(step, record, v2)


def _parse_instance(v1: V1Service, id: str, limit: int) -> V1Record | None:
    """None for an incomplete instance. Raises `InvalidRequest` for one that v2 cannot represent."""
    try:
        id.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("its id is not UTF-8") from None
    fields = v1.hashes.get(id, {})
    if fields is None:
        raise InvalidRequest("its key is not a hash")
    if not fields or id not in v1.members:
        return None
    return parse_record(v1.service, id, fields, limit=limit)


def _unrepresentable(v1: V1Service, id: str, since: int) -> InstanceVerdict:
    return "stranded" if v1.is_alive(id, since) else "unreadable"


def _compare_tiers(step: InstancePlan, record: V1Record, v2: V2Service) -> InstancePlan:
    if missing := _missing_tiers(v2, step.id):
        verdict: InstanceVerdict = "missing" if len(missing) == 2 else "half"
        return replace(step, verdict=verdict, why="; ".join(missing))
    if changed := differences(record.fields, v2.records[step.id]):
        return replace(step, verdict="differs", differences=changed)
    if not v2.listed:
        return replace(step, verdict="half", why="tier 1 does not list the service")
    return replace(step, verdict="behind") if step.heartbeat > v2.scores[step.id] else step


def _remnant(hash: bool, member: bool) -> str:
    if member:
        return "it is in v1's set, but has no hash"
    return "it has a hash, but is not in v1's set" if hash else "only a heartbeat"


def _missing_tiers(v2: V2Service, id: str) -> list[str]:
    missing = [] if id in v2.records else ["v2 has no details of it"]
    return missing if id in v2.scores else [*missing, "v2 has no heartbeat of it"]


def restarted(record: V1Record, heartbeat: int, removed: int) -> bool:
    """Whether the v1 process started after an operator deregistered the instance. Its `timestamp`
    shows that, unless heartbeats update it; so a heartbeat after the registration is required."""
    return record.registered > removed and heartbeat >= record.registered + 1000


def differences(
    wanted: Mapping[str, str], actual: Mapping[str, str]
) -> tuple[FieldDifference, ...]:
    """The fields of a v2 record that differ from the wanted ones."""
    changed = [
        FieldDifference(name, wanted.get(name, ""), actual.get(name, ""))
        for name in sorted({*wanted, *actual} - _TIMES)
        if wanted.get(name) != actual.get(name)
    ]
    # Flattened fields only repeat others.
    plain = [difference for difference in changed if not difference.field.startswith(layout.FLAT)]
    return tuple(plain or changed)


def tolerate_delay(step: InstancePlan, now: int) -> InstancePlan:
    """The step without a difference that a very recent heartbeat explains."""
    if step.verdict == "behind" and step.heartbeat > now - DELAY:
        return replace(step, verdict="equal")
    return step
