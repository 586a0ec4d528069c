"""The recent events and metric samples of the fleet, in bounded memory."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from mooring.messages import Message, message
from mooring.model import Instance, Time
from mooring.registry.contract import InstanceKey
from mooring.server.live.departures import Departure
from mooring.server.live.summary import STATE_MESSAGES, in_utc, numbers

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
    paths: tuple[str, ...]
    """Shared by all samples with the same paths."""
    values: array[float]

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers by path: `memory.usagePercent`."""
        return dict(zip(self.paths, self.values, strict=True))


class MetricHistory:
    """Recent metric samples of each instance, for charts."""

    def __init__(self) -> None:
        self._samples: dict[InstanceKey, deque[MetricSample]] = {}
        self._gone: OrderedDict[InstanceKey, deque[MetricSample]] = OrderedDict()
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
        time = in_utc(instance.status.updated_at) or time
        samples.append(MetricSample(time, paths, array("d", metrics.values())))
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
        return list(self._samples.get(key) or self._gone.get(key) or ())
