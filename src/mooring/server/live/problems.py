"""The problems of the fleet, the worst first, and the alarms of the store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

import msgspec

from mooring.errors import StoreError
from mooring.messages import TEXTS, Message, Parameter, combined, joined, message, parameters
from mooring.model import Instance, Time, now
from mooring.names import split_service
from mooring.server.http.response import rfc3339
from mooring.server.live.services import KnownService
from mooring.server.live.state import Fleet
from mooring.server.live.summary import Observation, active
from mooring.server.live.timeline import EventKind
from mooring.store import Store, StoreStatus
from mooring.tasks import Tasks

log = logging.getLogger(__name__)

Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
"""Ordered from the worst."""

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
"""Ordered from the worst within each severity."""

_RANK = {kind: rank for rank, kind in enumerate(KINDS)}
_MAX_NAMED = 3
"""Instances that a text names."""


class FleetProblem(msgspec.Struct, frozen=True):
    key: str
    """Stays the same while the problem lasts."""
    severity: Severity
    kind: ProblemKind
    service: str
    """Empty if it concerns the whole fleet."""
    id: str
    """The instance, if only one is affected."""
    since: str | None
    text: str
    """In English. It does not change with time alone."""
    hint: str
    """What to do about it."""
    params: dict[str, Parameter] = {}
    """The parameters of the text, for translations."""


@dataclass(frozen=True, slots=True)
class GracePeriods:
    """Seconds."""

    draining: float = 600.0
    """An instance that drains for longer is a problem."""
    emptied: float = 3600.0
    """After this, a service whose last instance was lost is only a warning, since it was probably
    abandoned, and one whose last instance deregistered is not reported."""


def problems(
    fleet: Fleet,
    now: Time,
    *,
    grace: GracePeriods | None = None,
    stale_since: Time | None = None,
    alarms: Sequence[Message] = (),
    alarms_since: Time | None = None,
) -> list[FleetProblem]:
    """All problems, the worst first. `alarms` are those of the store."""
    grace = grace or GracePeriods()
    result: list[FleetProblem] = []
    if fleet.stale:
        result.append(_problem("stale", "", since=stale_since, params={"error": fleet.error}))
    if alarms:
        alarm = combined(alarms)
        result.append(_problem("store_alarm", "", since=alarms_since, params={"alarm": alarm}))
    for known in fleet.services():
        result += service_problems(fleet, known, now, grace)
    return sorted(result, key=_rank)


def visible_problems(
    problems: Iterable[FleetProblem], sees: Callable[[str], bool]
) -> list[FleetProblem]:
    """The problems of the services that a caller may see, and those of the whole fleet."""
    return [problem for problem in problems if not problem.service or sees(problem.service)]


def _rank(problem: FleetProblem) -> tuple[int, int, str, str]:
    severity = SEVERITIES.index(problem.severity)
    return severity, _RANK[problem.kind], *split_service(problem.service or "-")


def service_problems(
    fleet: Fleet, known: KnownService, now: Time, grace: GracePeriods
) -> Iterator[FleetProblem]:
    """The problems of one service. Each instance counts only for its worst problem."""
    name, instances = known.name, known.instances
    if brake := fleet.brake(name):
        since = _event_times(fleet, name).get(("", "brake"))
        yield _problem("brake", name, since=since, params={"detail": brake})
    if not instances:
        if known.emptied is not None:
            yield from _empty(known, known.emptied, now, grace)
        elif known.absent:
            yield _problem("absent", name, since=known.since)
        return
    pairs = list(known.observed_instances())
    if not any(active(*pair) for pair in pairs):
        yield _problem("none_callable", name, params={"total": len(instances)})
    yield from _instance_problems(fleet, name, pairs, now, grace)


def _instance_problems(
    fleet: Fleet,
    service: str,
    pairs: Sequence[tuple[Instance, Observation]],
    now: Time,
    grace: GracePeriods,
) -> Iterator[FleetProblem]:
    worst = [(kind, *pair) for pair in pairs if (kind := _worst_kind(*pair)) is not None]
    times = _event_times(fleet, service) if worst else {}
    affected: dict[ProblemKind, list[_Affected]] = {}
    for kind, instance, seen in worst:
        silent = kind == "silent"
        since = seen.last_heartbeat if silent else times.get((instance.id, _STARTED_BY[kind]))
        if kind == "draining" and (since is None or _seconds(since, now) <= grace.draining):
            continue
        detail = seen.check_failure if kind == "check_failing" else None
        affected.setdefault(kind, []).append((instance.id, since, detail))
    for kind in sorted(affected, key=_RANK.__getitem__):
        yield _instance_problem(kind, service, affected[kind], len(pairs))


_Affected: TypeAlias = tuple[str, Time | None, Message | None]
"""The id of an instance, since when it has a problem, and the failure of its check."""

_STARTED_BY: Mapping[ProblemKind, EventKind] = {
    "unhealthy": "health",
    "check_failing": "check",
    "draining": "state",
    "disabled": "enabled",
}
"""The kind of event at which the problem of an instance starts."""


def _event_times(fleet: Fleet, service: str) -> dict[tuple[str, EventKind], Time]:
    """The times of the last events of each kind, by instance."""
    return {(event.id, event.kind): event.time for event in fleet.timeline(service)}


def _worst_kind(instance: Instance, observed: Observation) -> ProblemKind | None:
    if not instance.status.healthy:
        return "unhealthy"
    if observed.late:
        return "silent"
    if observed.check_failure:
        return "check_failing"
    if instance.status.state == "draining":
        return "draining"
    return None if instance.enabled else "disabled"


def _empty(
    known: KnownService, since: Time, now: Time, grace: GracePeriods
) -> Iterator[FleetProblem]:
    long_ago = _seconds(since, now) > grace.emptied
    if known.lost:
        problem = _problem("no_instances", known.name, since=since)
        yield msgspec.structs.replace(problem, severity="warning") if long_ago else problem
    elif not long_ago:
        yield _problem("emptied", known.name, since=since)


def _seconds(since: Time, now: Time) -> float:
    return (now - since).total_seconds()


def _instance_problem(
    kind: ProblemKind, service: str, affected: Sequence[_Affected], total: int
) -> FleetProblem:
    ids = [id for id, _, _ in affected]
    times = [since for _, since, _ in affected if since is not None]
    return _problem(
        kind,
        service,
        id=ids[0] if len(ids) == 1 else "",
        since=min(times, default=None),
        params={
            "count": len(ids),
            "total": total,
            "ids": [*ids[:_MAX_NAMED], *(["…"] if len(ids) > _MAX_NAMED else [])],
            "detail": affected[0][2],
        },
    )


def _problem(
    kind: ProblemKind,
    service: str,
    *,
    id: str = "",
    since: Time | None = None,
    params: dict[str, Parameter] | None = None,
) -> FleetProblem:
    params = params or {}
    with_service = {"service": service, **params}
    return FleetProblem(
        key=f"{kind}:{service}",
        severity=KINDS[kind],
        kind=kind,
        service=service,
        id=id,
        since=rfc3339(since),
        text=_text(f"problem_{kind}_one" if id else f"problem_{kind}", with_service),
        hint=_text(f"hint_{kind}", with_service),
        params=params,
    )


def _text(kind: str, params: Mapping[str, Parameter]) -> str:
    return message(kind, **{name: params[name] for name in parameters(TEXTS[kind])}).text


EVERY = 5.0
"""Seconds between two reads of the store's alarms."""


class StoreAlarms:
    """Polls the alarms of the store while it is entered. If the store does not answer, the last
    alarms stay."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.raised: Sequence[Message] = ()
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
                self._update(await self._store.status())
            except StoreError as error:
                log.debug("the alarms of the store cannot be read: %s", error)
            await asyncio.sleep(EVERY)

    def _update(self, status: StoreStatus) -> None:
        if not any(member.latency is not None for member in status.members):
            return  # no member answered
        if status.alarms and not self.raised:
            self.since = now()
            log.error("the store %s raised an alarm: %s", self._store.url, joined(status.alarms))
        elif self.raised and not status.alarms:
            self.since = None
            log.info("the store %s has cleared its alarms", self._store.url)
        self.raised = status.alarms


_REUSE = 1.0
"""Seconds for which a result is reused, because each takes a pass over all instances."""


class CurrentProblems:
    """The problems of a fleet, shared by the API, the event stream, metrics and alerts."""

    def __init__(
        self,
        fleet: Fleet,
        grace: GracePeriods | None = None,
        *,
        alarms: StoreAlarms | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet, self._grace, self._clock = fleet, grace or GracePeriods(), clock
        self._alarms = alarms
        self.updated_at = float("-inf")
        """When the problems were last determined, by the clock."""
        self._stale_since: Time | None = None
        self._problems: list[FleetProblem] = []

    def problems(self) -> list[FleetProblem]:
        """The worst first, at most a second old."""
        moment = self._clock()
        if moment - self.updated_at >= _REUSE:
            self.updated_at = moment
            self._problems = self._determine()
        return self._problems

    def _determine(self) -> list[FleetProblem]:
        moment = now()
        if not self._fleet.stale:
            self._stale_since = None
        elif self._stale_since is None:
            self._stale_since = moment
        return problems(
            self._fleet,
            moment,
            grace=self._grace,
            stale_since=self._stale_since,
            alarms=() if self._alarms is None else self._alarms.raised,
            alarms_since=None if self._alarms is None else self._alarms.since,
        )
