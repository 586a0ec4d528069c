"""What is wrong with the fleet, the worst first."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

import msgspec

from mooring.errors import StoreError
from mooring.messages import TEXTS, Parameter, message, parameters
from mooring.model import Instance, Time, now
from mooring.names import split_service
from mooring.server.http.response import shown
from mooring.server.live.history import EventKind, TimelineEvent
from mooring.server.live.summary import UNOBSERVED, Observed, active
from mooring.store import Status, Store
from mooring.tasks import Tasks

Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
"""The worst first."""

ProblemKind = Literal[
    "stale",
    "store_alarm",
    "no_instances",
    "none_callable",
    "brake",
    "unhealthy",
    "silent",
    "check_failing",
    "draining",
    "absent",
    "disabled",
    "emptied",
]
KINDS: Mapping[ProblemKind, Severity] = {
    "stale": "critical",
    "store_alarm": "critical",
    "no_instances": "critical",
    "none_callable": "critical",
    "brake": "critical",
    "unhealthy": "warning",
    "silent": "warning",
    "check_failing": "warning",
    "draining": "warning",
    "absent": "warning",
    "disabled": "info",
    "emptied": "info",
}
"""How bad each is; among equals, the order is the rank."""

_RANK = {kind: rank for rank, kind in enumerate(KINDS)}
_NAMED = 3
"""So many instances are named; the rest is counted."""


class Problem(msgspec.Struct, frozen=True):
    key: str
    """The same for as long as the problem lasts, whatever its numbers."""
    severity: Severity
    kind: ProblemKind
    service: str
    """Empty where it is about everything."""
    id: str
    """The instance, where it is about one alone."""
    since: str | None
    text: str
    """What is wrong, for a person; it does not change with the time alone."""
    hint: str
    """What to do about it."""
    params: dict[str, Parameter] = {}
    """What the text is made of, for a text in another language."""


@dataclass(frozen=True, slots=True)
class GracePeriods:
    """How long things may be as they are, in seconds."""

    draining: float = 600.0
    emptied: float = 3600.0
    """One that lost its last instance longer ago is less bad: it was rather given up. Of one whose
    last instance left in order, no word is said after that."""


class ServiceState(Protocol):
    """A service, as the fleet knows it."""

    @property
    def name(self) -> str: ...
    @property
    def instances(self) -> Mapping[str, Instance]: ...
    @property
    def changed(self) -> Time: ...
    @property
    def emptied(self) -> Time | None: ...
    @property
    def lost(self) -> bool: ...
    @property
    def absent(self) -> bool: ...
    @property
    def since(self) -> Time: ...


class FleetState(Protocol):
    """What of the fleet is looked at."""

    @property
    def stale(self) -> bool: ...
    @property
    def error(self) -> str: ...
    def names(self) -> Sequence[str]: ...
    def service(self, name: str, /) -> ServiceState | None: ...
    def observed(self, service: str, /) -> Mapping[str, Observed]: ...
    def brake(self, service: str, /) -> str: ...
    def timeline(self, service: str, /) -> Sequence[TimelineEvent]: ...


def problems(
    fleet: FleetState,
    now: Time,
    *,
    grace: GracePeriods | None = None,
    stale_since: Time | None = None,
    alarms: Sequence[str] = (),
    alarms_since: Time | None = None,
) -> list[Problem]:
    """Everything that is wrong, the worst first. `alarms` are those of the store."""
    grace = grace or GracePeriods()
    found: list[Problem] = []
    if fleet.stale:
        found.append(_stale(fleet.error, stale_since))
    if alarms:
        found.append(_store_alarm("; ".join(alarms), alarms_since))
    for name in fleet.names():
        known = fleet.service(name)
        if known is not None:
            found += service_problems(fleet, known, now, grace)
    return sorted(found, key=_rank)


def visible_problems(told: Iterable[Problem], sees: Callable[[str], bool]) -> list[Problem]:
    """Those that somebody may see; what is about everything is for all."""
    return [each for each in told if not each.service or sees(each.service)]


def _rank(problem: Problem) -> tuple[int, int, str, str]:
    severity = SEVERITIES.index(problem.severity)
    return severity, _RANK[problem.kind], *split_service(problem.service or "-")


def service_problems(
    fleet: FleetState, known: ServiceState, now: Time, grace: GracePeriods
) -> Iterator[Problem]:
    """What is wrong with one service. Of what an instance has, the worst counts alone: one that is
    unhealthy is no news for being silent too."""
    name, instances = known.name, known.instances
    moments = _EventTimes(fleet, name)
    if words := fleet.brake(name):
        since = moments.of("", "brake")
        yield _problem("brake", name, since=since, params={"detail": words})
    if not instances:
        if known.emptied is not None:
            yield from _empty(known, known.emptied, now, grace)
        elif known.absent:
            yield _problem("absent", name, since=known.since)
        return
    observed = fleet.observed(name)
    pairs = [(each, observed.get(id, UNOBSERVED)) for id, each in instances.items()]
    if not any(active(*pair) for pair in pairs):
        yield _none_callable(known)
    seen = _InstanceProblems()
    for pair in pairs:
        _look(seen, *pair, moments, now, grace)
    yield from seen.told(name, len(instances))


@dataclass(slots=True)
class _InstanceProblems:
    """The instances of a service by what is wrong with them."""

    by_kind: dict[ProblemKind, list[tuple[str, Time | None, str]]] = field(default_factory=dict)

    def add(self, kind: ProblemKind, id: str, since: Time | None, detail: str = "") -> None:
        self.by_kind.setdefault(kind, []).append((id, since, detail))

    def told(self, service: str, total: int) -> Iterator[Problem]:
        for kind in sorted(self.by_kind, key=_RANK.__getitem__):
            yield _instance_problem(kind, service, self.by_kind[kind], total)


class _EventTimes:
    """When things last happened to the instances of a service. Looked up only if asked for: most
    services are well."""

    def __init__(self, fleet: FleetState, service: str) -> None:
        self._fleet, self._service = fleet, service
        self._found: dict[tuple[str, EventKind], Time] | None = None

    def of(self, id: str, kind: EventKind) -> Time | None:
        if self._found is None:
            told = self._fleet.timeline(self._service)
            self._found = {(event.id, event.kind): event.time for event in told}
        return self._found.get((id, kind))


def _look(
    seen: _InstanceProblems,
    instance: Instance,
    observed: Observed,
    moments: _EventTimes,
    now: Time,
    grace: GracePeriods,
) -> None:
    id, status = instance.id, instance.status
    if not status.healthy:
        seen.add("unhealthy", id, moments.of(id, "health"))
    elif observed.late:
        seen.add("silent", id, observed.last_heartbeat)
    elif observed.check_failure:
        seen.add("check_failing", id, moments.of(id, "check"), observed.check_failure)
    elif status.state == "draining":
        since = moments.of(id, "state")
        if since is not None and (now - since).total_seconds() > grace.draining:
            seen.add("draining", id, since)
    elif not instance.enabled:
        seen.add("disabled", id, moments.of(id, "enabled"))


def _stale(error: str, since: Time | None) -> Problem:
    return _problem("stale", "", since=since, params={"error": error or "no answer"})


def _store_alarm(alarm: str, since: Time | None) -> Problem:
    return _problem("store_alarm", "", since=since, params={"alarm": alarm})


def _empty(known: ServiceState, since: Time, now: Time, grace: GracePeriods) -> Iterator[Problem]:
    long_ago = (now - since).total_seconds() > grace.emptied
    if known.lost:
        problem = _problem("no_instances", known.name, since=since)
        yield msgspec.structs.replace(problem, severity="warning") if long_ago else problem
    elif not long_ago:
        yield _problem("emptied", known.name, since=since)


def _none_callable(known: ServiceState) -> Problem:
    return _problem("none_callable", known.name, params={"total": len(known.instances)})


def _instance_problem(
    kind: ProblemKind, service: str, which: Sequence[tuple[str, Time | None, str]], total: int
) -> Problem:
    ids = [id for id, _, _ in which]
    moments = [since for _, since, _ in which if since is not None]
    return _problem(
        kind,
        service,
        id=ids[0] if len(which) == 1 else "",
        since=min(moments, default=None),
        params={
            "count": len(which),
            "total": total,
            "ids": [*ids[:_NAMED], *(["…"] if len(ids) > _NAMED else [])],
            "detail": which[0][2],
        },
    )


def _problem(
    kind: ProblemKind,
    service: str,
    *,
    id: str = "",
    since: Time | None = None,
    params: dict[str, Parameter] | None = None,
) -> Problem:
    every = {"service": service, **(params or {})}
    text = _text(f"problem_{kind}_one" if id else f"problem_{kind}", every)
    hint = _text(f"hint_{kind}", every)
    key, begun = f"{kind}:{service}", shown(since)
    return Problem(key, KINDS[kind], kind, service, id, begun, text, hint, params or {})


def _text(kind: str, params: Mapping[str, Parameter]) -> str:
    return message(kind, **{name: params[name] for name in parameters(TEXTS[kind])}).text


log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two looks."""


class StoreAlarms:
    """Asks the store for its alarms while it is entered. If the store is away, the last ones
    stay."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.raised: Sequence[str] = ()
        """What is wrong, in words."""
        self.since: Time | None = None
        """When the first of them was seen."""
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), name="alarms of the store")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()

    async def _run(self) -> None:
        while True:
            try:
                self._tell(await self._store.status())
            except StoreError as error:
                log.debug("the alarms of the store cannot be read: %s", error)
            await asyncio.sleep(EVERY)

    def _tell(self, status: Status) -> None:
        if not any(member.latency is not None for member in status.members):
            return  # no member answered
        if status.alarms and not self.raised:
            self.since = now()
            log.error("the store %s raised an alarm: %s", self._store.url, "; ".join(status.alarms))
        elif self.raised and not status.alarms:
            self.since = None
            log.info("the store %s has no alarm any more", self._store.url)
        self.raised = status.alarms


AT_MOST_EVERY = 1.0
"""Seconds: it goes over every instance."""


class CurrentProblems:
    """The problems of a fleet. One for the API, the stream, metrics and the webhook."""

    def __init__(
        self,
        fleet: FleetState,
        grace: GracePeriods | None = None,
        *,
        alarms: StoreAlarms | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet, self._grace, self._clock = fleet, grace or GracePeriods(), clock
        self._alarms = alarms
        self.looked_at = float("-inf")
        """When the problems were last found out, by the clock."""
        self._stale_since: Time | None = None
        self._found: list[Problem] = []

    def problems(self) -> list[Problem]:
        """The worst first, at most a second old."""
        moment = self._clock()
        if moment - self.looked_at >= AT_MOST_EVERY:
            self.looked_at = moment
            self._found = self._look()
        return self._found

    def _look(self) -> list[Problem]:
        here = now()
        if not self._fleet.stale:
            self._stale_since = None
        elif self._stale_since is None:
            self._stale_since = here
        return problems(
            self._fleet,
            here,
            grace=self._grace,
            stale_since=self._stale_since,
            alarms=() if self._alarms is None else self._alarms.raised,
            alarms_since=None if self._alarms is None else self._alarms.since,
        )
