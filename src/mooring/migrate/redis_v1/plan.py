"""What is to be done, as data: for each instance of v1, how v2 stands to it. Pure.

A plan predicts. What is written is decided once more, by the script that writes it, from what is in
Redis at that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.migrate.redis_v1.format import (
    INCARNATION,
    Record,
    has_address,
    milliseconds,
    registered,
    understood,
)
from mooring.registry.redis.layout import FLAT

Verdict: TypeAlias = Literal[
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

IN_WORDS: Mapping[Verdict, str] = {
    "missing": "v2 does not have it",
    "differs": "v2 has it with other details",
    "behind": "v2 has an older heartbeat",
    "half": "v2 has not all of its tiers",
    "equal": "v2 has the same",
    "own": "a process that speaks v2 has this place: it counts",
    "expired": "no heartbeat for so long that v2 would take it out",
    "removed": "an operator took it out of v2",
    "bridged": "it comes from v2, through a bridge",
    "remnant": "part of a registration that v1's readers do not see",
    "surplus": "v2 has a copy of what v1 no longer has",
    "stranded": "v1's readers call it, and v2 cannot have it",
    "unreadable": "it cannot be understood, and is left alone",
}

WRITTEN: frozenset[Verdict] = frozenset({"missing", "differs", "behind", "half"})
"""What a copy changes."""
DIFFERENT: frozenset[Verdict] = WRITTEN | {"surplus", "stranded"}
"""What keeps v1 from being given up."""

GRACE = 10_000
"""Ms for which a heartbeat of v1 may be on its way to v2."""

_TIMES = {"heartbeat", "registrationTime", "lastMetadataUpdate"}


@dataclass(frozen=True, slots=True)
class V1Service:
    """A service in v1."""

    service: str
    hashes: Mapping[str, Mapping[str, str] | None] = field(default_factory=dict)
    """By id; None: the key is no hash."""
    members: frozenset[str] = frozenset()
    scores: Mapping[str, float] = field(default_factory=dict)
    """As they are: in ms or in s."""

    @property
    def ids(self) -> list[str]:
        return sorted({*self.hashes, *self.members, *self.scores})

    def only(self, ids: Iterable[str]) -> V1Service:
        """The same, of these alone."""
        chosen = set(ids)
        return V1Service(
            self.service,
            {id: told for id, told in self.hashes.items() if id in chosen},
            self.members & chosen,
            {id: score for id, score in self.scores.items() if id in chosen},
        )

    def heartbeat(self, id: str, record: Record, now: int) -> int:
        """When it was last heard, in ms; never later than now, whatever its clock says."""
        told = milliseconds(self.scores.get(id))
        return min(int(told or record.registered), now)

    def alive(self, id: str, since: int) -> bool:
        """Whether v1's readers find it, can call it, and it was heard after a time in ms."""
        told = self.hashes.get(id)
        if not told or id not in self.members or not has_address(told):
            return False
        return (milliseconds(self.scores.get(id)) or registered(told)) > since


@dataclass(frozen=True, slots=True)
class V2Service:
    """The same service in v2."""

    now: int
    records: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    """When an operator took out a copy, by id."""
    listed: bool | None = False
    """Whether tier 1 names the service; None: it does not answer."""
    spoilt: frozenset[str] = frozenset()
    """The ids whose key is no hash."""

    def own(self, id: str, timeout: int) -> bool:
        """Whether a process that speaks v2 is there, and alive, or one that stays though it is
        silent."""
        held = self.records.get(id)
        return (
            held is not None
            and held.get("incarnation") != INCARNATION
            and (self.scores.get(id, 0) > self.now - timeout or held.get("ephemeral") == "false")
        )


@dataclass(frozen=True, slots=True)
class Difference:
    field: str
    v1: str
    v2: str

    def __str__(self) -> str:
        return f"{self.field} {quoted(self.v1)} is {quoted(self.v2)} in v2"


@dataclass(frozen=True, slots=True)
class InstancePlan:
    service: str
    id: str
    """Empty: it concerns the service, or a key."""
    verdict: Verdict
    why: str = ""
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    heard: int = 0
    """When it was last heard in v1, in ms."""

    def __str__(self) -> str:
        told = [self.why or IN_WORDS[self.verdict], *map(str, self.differences), *self.notes]
        return "; ".join(told)


def compared(found: V1Service, held: V2Service, *, timeout: int, limit: int) -> list[InstancePlan]:
    """How v2 stands to each instance of a service. `timeout` is in ms, `limit` in bytes of
    metadata."""
    steps = [_step(found, held, id, timeout, limit) for id in found.ids]
    known = set(found.ids)
    steps += [
        InstancePlan(found.service, id, "surplus")
        for id, told in sorted(held.records.items())
        if id not in known
        and told.get("incarnation") == INCARNATION
        and held.scores.get(id, 0) > held.now - timeout
    ]
    return steps


def stranded(found: V1Service, now: int, *, timeout: int, why: str) -> list[InstancePlan]:
    """Those who live in a service that v2 cannot have."""
    alive = [id for id in found.ids if found.alive(id, now - timeout)]
    return [InstancePlan(found.service, id, "stranded", why) for id in alive]


def _step(found: V1Service, held: V2Service, id: str, timeout: int, limit: int) -> InstancePlan:
    def step(verdict: Verdict, why: str = "", *differences: Difference) -> InstancePlan:
        return InstancePlan(found.service, id, verdict, why, differences, notes, heard)

    def out_of_reach(why: str) -> InstancePlan:
        return step("stranded" if found.alive(id, held.now - timeout) else "unreadable", why)

    notes: tuple[str, ...] = ()
    heard = 0
    if not _is_text(id):
        return out_of_reach("its id is no text")
    told = found.hashes.get(id, {})
    if told is None:
        return step("unreadable", "its key is no hash")
    if not told or id not in found.members:
        return step("remnant", _remnant(bool(told), id in found.members))
    try:
        record = understood(found.service, id, told, limit=limit)
    except InvalidRequest as error:
        return out_of_reach(str(error))
    notes = record.notes
    if record.bridged:
        return step("bridged")
    if id in held.spoilt:
        return out_of_reach("its key in v2 is no hash: look what it is")
    if held.own(id, timeout):
        return step("own")
    heard = found.heartbeat(id, record, held.now)
    if heard <= held.now - timeout:
        return step("expired", "" if heard else "it was never heard")
    if id in held.removed and not started_anew(record, heard, held.removed[id]):
        return step("removed")
    if half := _half(held, id):
        return step("missing" if len(half) == 2 else "half", "; ".join(half))
    if differences := different(record.fields, held.records[id]):
        return step("differs", "", *differences)
    if not held.listed:
        return step("half", "tier 1 does not name the service")
    return step("behind" if heard > held.scores[id] else "equal")


def _is_text(id: str) -> bool:
    try:
        return bool(id.encode())
    except UnicodeEncodeError:
        return False


def _remnant(hash: bool, member: bool) -> str:
    if member:
        return "v1's set names it, and it has no hash"
    return "it has a hash, and v1's set does not name it" if hash else "a heartbeat alone"


def _half(held: V2Service, id: str) -> list[str]:
    return [
        text
        for there, text in (
            (id in held.records, "v2 has no details of it"),
            (id in held.scores, "v2 has no heartbeat of it"),
        )
        if not there
    ]


def started_anew(record: Record, heard: int, removed: int) -> bool:
    """Whether a process of v1 began after an operator took its place out. Its `timestamp` tells,
    where heartbeats do not move that: so it must have been heard after it registered."""
    return record.registered > removed and heard >= record.registered + 1000


def different(wanted: Mapping[str, str], held: Mapping[str, str]) -> tuple[Difference, ...]:
    """Where a record of v2 is not what it should be."""
    names = sorted({*wanted, *held} - _TIMES)
    found = [
        Difference(name, wanted.get(name, ""), held.get(name, ""))
        for name in names
        if wanted.get(name) != held.get(name)
    ]
    # What is flattened says the same once more.
    plain = [each for each in found if not each.field.startswith(FLAT)]
    return tuple(plain or found)


def pardoned(step: InstancePlan, now: int) -> InstancePlan:
    """The same, without the difference that a heartbeat of just now makes."""
    if step.verdict == "behind" and step.heard > now - GRACE:
        return replace(step, verdict="equal")
    return step


def counted(steps: Iterable[InstancePlan]) -> dict[Verdict, int]:
    """How many of each, in the order of `IN_WORDS`."""
    found = [step.verdict for step in steps]
    return {verdict: found.count(verdict) for verdict in IN_WORDS if verdict in found}
