"""The recent history of the fleet, in bounded memory: events, departures and metric samples."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from msgspec.structs import replace

from mooring.messages import Message, message
from mooring.model import Instance, Time
from mooring.server.live.summary import STATE_MESSAGES, moment, numbers

InstanceKey: TypeAlias = tuple[str, str]
"""A service and the id of an instance."""

Departure = Literal["drained", "down", "left", "removed", "lost"]

EXPECTED = 10.0
"""Seconds within which an announced removal takes place."""
_RECENT = 4.5
"""Seconds since the last heartbeat within which an instance whose interval is unknown cannot have
expired: the shortest timeout of any layout is five seconds."""
_RECENT_REPORT = 2.0
"""The same since its last report, which does not renew a lease."""
_ROUNDING = 1.2
"""Seconds by which a store may be wrong about a renewal."""
_INTERVALS = 1.8
"""Instances renew after a third of their timeout. So this multiple of the longest interval is below
the timeout, even if the interval was rounded up."""
_SAFE_SHARE = 0.6
"""The share of the timeout within which an instance cannot have expired. It is below 2/3, because a
report may arrive up to a third of the timeout after the renewal."""
_MAX_INTERVALS = 12


@dataclass(slots=True)
class _Liveness:
    reported: float = float("-inf")
    """When a report of the instance was last seen."""
    heartbeat: float | None = None
    """When it last sent a heartbeat, according to the registry."""
    silence: float = 0.0
    """How long it had been silent when it was last sampled."""
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_INTERVALS))
    """How long it was silent before each heartbeat."""
    ttl: float | None = None
    expected: tuple[float, Departure] | None = None

    @property
    def longest_interval(self) -> float:
        """The second longest interval, since the longest may be an outlier; 0 if none is known."""
        return max(sorted(self.intervals)[-2:-1] or self.intervals, default=0.0)

    def is_recent(self, moment: float) -> bool:
        """Whether the last heartbeat is so recent that the instance cannot have expired."""
        if self.ttl is not None:
            heartbeat = self.reported if self.heartbeat is None else self.heartbeat
            return moment - max(heartbeat, self.reported) < _SAFE_SHARE * self.ttl
        longest = self.longest_interval
        if moment - self.reported < max(_RECENT_REPORT, longest):
            return True
        if self.heartbeat is None:
            return False
        return moment - self.heartbeat < (_INTERVALS * longest if longest else _RECENT)


class LivenessSignals:
    """The signs of life of all registered instances, from which it follows why one left. Times are
    from a monotonic clock."""

    def __init__(self) -> None:
        self._instances: dict[InstanceKey, _Liveness] = {}

    def _of(self, key: InstanceKey) -> _Liveness:
        return self._instances.setdefault(key, _Liveness())

    def reported(self, key: InstanceKey, moment: float) -> None:
        """The instance registered or reported a status."""
        self._of(key).reported = moment

    def sampled(self, key: InstanceKey, silence: float, moment: float) -> None:
        """The registry returned how long the instance has been silent."""
        known, heartbeat = self._of(key), moment - silence
        if known.heartbeat is not None and heartbeat - known.heartbeat > _ROUNDING:
            known.intervals.append(known.silence)
        known.heartbeat, known.silence = heartbeat, silence

    def set_ttl(self, key: InstanceKey, seconds: float) -> None:
        self._of(key).ttl = seconds

    def expect_departure(self, key: InstanceKey, how: Departure | None, moment: float) -> None:
        """The instance is about to be removed; None: its removal failed."""
        self._of(key).expected = None if how is None else (moment, how)

    def classify_departure(self, key: InstanceKey, before: Instance, moment: float) -> Departure:
        """Why an instance left, which is forgotten with this call."""
        known = self._instances.pop(key, None) or _Liveness()
        if known.expected is not None and moment - known.expected[0] <= EXPECTED:
            return known.expected[1]  # even if it is draining: it was drained for its removal
        if before.status.state == "draining":
            return "drained"
        if before.status.state == "down":
            return "down"
        return "left" if known.is_recent(moment) else "lost"


EventKind = Literal[
    "added",
    "removed",
    "restarted",
    "state",
    "health",
    "enabled",
    "weight",
    "version",
    "metadata",
    "late",
    "check",
    "brake",
    "action",
    "emptied",
    "stale",
]

MAX_EVENTS = 50_000
"""The approximate limit for all services together."""
MAX_SERVICE_EVENTS = 500
MIN_SERVICE_EVENTS = 50


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    time: Time
    service: str
    """Empty if it concerns the whole fleet."""
    id: str
    """Empty if it concerns the whole service."""
    kind: EventKind
    message: Message

    @property
    def text(self) -> str:
        return self.message.text


class Timeline:
    """The newest events of each service."""

    def __init__(self) -> None:
        self._events: dict[str, deque[TimelineEvent]] = {}

    def add(self, event: TimelineEvent) -> None:
        events = self._events.setdefault(event.service, deque())
        events.append(event)
        share = max(MAX_EVENTS // len(self._events), MIN_SERVICE_EVENTS)
        while len(events) > min(share, MAX_SERVICE_EVENTS):
            events.popleft()

    def of(self, service: str, id: str = "") -> list[TimelineEvent]:
        """The events of a service, or of one of its instances, oldest first."""
        return [event for event in self._events.get(service, ()) if not id or event.id == id]

    def forget(self, service: str) -> None:
        self._events.pop(service, None)


def events_of(
    before: Instance | None, after: Instance | None, how: Departure | None = None
) -> Iterator[tuple[EventKind, Message]]:
    """The events that describe a change of an instance; `how` it left, if it did. A change of
    metrics alone is not an event."""
    if after is None:
        yield "removed", message(_DEPARTURES[how or "lost"])
        return
    if before is None:
        version = _shortened(after.version)
        yield "added", message("registered", address=after.address, version=version)
        usable = replace(after.status, state="up", healthy=True)
        yield from _usability_changes(replace(after, status=usable, enabled=True), after)
        return
    if before.incarnation != after.incarnation:
        yield "restarted", message("restarted")
    if before.address != after.address:
        yield "restarted", message("moved", before=before.address, after=after.address)
    if before.version != after.version:
        old, new = _shortened(before.version), _shortened(after.version)
        yield "version", message("version_changed", before=old, after=new)
    yield from _usability_changes(before, after)
    if before.weight != after.weight:
        old_weight, new_weight = float(before.weight), float(after.weight)
        yield "weight", message("weight_changed", before=old_weight, after=new_weight)
    if before.zone != after.zone or before.ports != after.ports:
        yield "metadata", message("zone_or_ports_changed")
    if names := _differing(before.metadata, after.metadata):
        yield "metadata", message("metadata_changed", names=names)


def _usability_changes(before: Instance, after: Instance) -> Iterator[tuple[EventKind, Message]]:
    if before.status.state != after.status.state:
        yield "state", message(STATE_MESSAGES[after.status.state])
    if before.status.healthy != after.status.healthy:
        yield "health", message("healthy_again" if after.status.healthy else "unhealthy")
    if before.enabled != after.enabled:
        yield "enabled", message("enabled" if after.enabled else "disabled")


_DEPARTURES: Mapping[Departure, str] = {
    "drained": "gone_drained",
    "down": "gone_down",
    "left": "gone_left",
    "removed": "gone_removed",
    "lost": "gone_lost",
}

_MAX_NAMES = 5
_MAX_LENGTH = 80


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"


def _differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = sorted({*before, *after})
    changed = [name for name in names if before.get(name) != after.get(name)]
    more = ["…"] if len(changed) > _MAX_NAMES else []
    return [*map(_shortened, changed[:_MAX_NAMES]), *more]


MAX_SAMPLES = 200_000
"""The approximate limit for all instances together."""
MAX_INSTANCE_SAMPLES = 240
MIN_INSTANCE_SAMPLES = 20
_MAX_GONE = 500
"""Instances that left and whose samples are kept."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    time: Time
    metrics: Mapping[str, float]
    """Numbers by path: `memory.usagePercent`."""


@dataclass(frozen=True, slots=True)
class _PackedSample:
    time: Time
    paths: tuple[str, ...]
    """Shared by all samples with the same paths."""
    values: array[float]


class MetricHistory:
    """Recent metric samples of each instance, for charts."""

    def __init__(self) -> None:
        self._samples: dict[InstanceKey, deque[_PackedSample]] = {}
        self._gone: OrderedDict[InstanceKey, deque[_PackedSample]] = OrderedDict()
        self._paths: dict[tuple[str, ...], tuple[str, ...]] = {}

    def add(self, key: InstanceKey, instance: Instance, time: Time) -> None:
        """Add the metrics that an instance reports now."""
        metrics = dict(numbers(instance.status.metrics))
        if not metrics:
            return
        samples = self._samples.get(key)
        if samples is None:
            samples = self._samples[key] = self._gone.pop(key, deque())
        if len(self._paths) > 10_000:  # some instance invents new names all the time
            self._paths.clear()
        names = tuple(metrics)
        paths = self._paths.setdefault(names, names)
        time = moment(instance.status.updated_at) or time
        samples.append(_PackedSample(time, paths, array("d", metrics.values())))
        share = max(MAX_SAMPLES // len(self._samples), MIN_INSTANCE_SAMPLES)
        while len(samples) > min(share, MAX_INSTANCE_SAMPLES):
            samples.popleft()

    def leave(self, key: InstanceKey) -> None:
        """Move the samples of an instance that left to those that are dropped first."""
        samples = self._samples.pop(key, None)
        if samples is not None:
            self._gone[key] = samples
            while len(self._gone) > _MAX_GONE:
                self._gone.popitem(last=False)

    def of(self, key: InstanceKey) -> list[MetricSample]:
        """Oldest first."""
        samples = self._samples.get(key) or self._gone.get(key) or ()
        return [
            MetricSample(sample.time, dict(zip(sample.paths, sample.values, strict=True)))
            for sample in samples
        ]
