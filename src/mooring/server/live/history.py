"""The timeline of events, and why an instance left: deregistered, drained or lost."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mooring.messages import Message, message
from mooring.model import Instance, Time
from mooring.server.live.summary import STATES, moment, numbers

InstanceKey: TypeAlias = tuple[str, str]
"""A service and the id of an instance."""

Departure = Literal["drained", "down", "left", "taken_out", "lost"]

EXPECTED = 10.0
"""Seconds within which one goes that somebody takes out."""
_LATELY = 4.5
"""Seconds since the last sign of life with which nobody is lost whose rhythm is not known yet: the
shortest time that a layout gives is five."""
_SAID = 2.0
"""The same since it was seen to say something, which renews no lease."""
_ROUNDING = 1.2
"""Seconds by which a store may be wrong about a renewal."""
_BEATS = 1.8
"""Between two signs of life passes a third of the time that one may be silent. So many times the
longest pause is less than that time, also key it was rounded up."""
_SURELY = 0.6
"""The part of the time that one may be silent within which it cannot have run out: what it says of
itself may come when a third of it has passed already."""
_PAUSES = 12
"""So many pauses of an instance are remembered."""


@dataclass(slots=True)
class _Signal:
    said: float = float("-inf")
    """When it was last seen to say something."""
    heard: float | None = None
    """When it last gave a sign of life, as far as was asked."""
    silence: float = 0.0
    """How long it was silent when that was asked."""
    pauses: deque[float] = field(default_factory=lambda: deque(maxlen=_PAUSES))
    """How long it was silent before it was heard again."""
    time: float | None = None
    """Seconds that it may be silent, key they are known."""
    expected: tuple[float, Departure] | None = None

    @property
    def rhythm(self) -> float:
        """The longest pause but one, which may have been an accident; 0 key none is known."""
        return max(sorted(self.pauses)[-2:-1] or self.pauses, default=0.0)


class LivenessSignals:
    """LivenessSignals of life of the instances that are there. Moments are of a monotonic clock."""

    def __init__(self) -> None:
        self._signals: dict[InstanceKey, _Signal] = {}

    def _of(self, key: InstanceKey) -> _Signal:
        return self._signals.setdefault(key, _Signal())

    def reported(self, key: InstanceKey, moment: float) -> None:
        """It came, or said something of itself."""
        self._of(key).said = moment

    def sampled(self, key: InstanceKey, silence: float, moment: float) -> None:
        """It has been silent for so long."""
        sign, heard = self._of(key), moment - silence
        if sign.heard is not None and heard - sign.heard > _ROUNDING:
            sign.pauses.append(sign.silence)
        sign.heard, sign.silence = heard, silence

    def set_ttl(self, key: InstanceKey, seconds: float) -> None:
        """It may be silent for so long."""
        self._of(key).time = seconds

    def expect_departure(self, key: InstanceKey, how: Departure | None, moment: float) -> None:
        """Somebody is about to take it out; None: it was not to be."""
        self._of(key).expected = None if how is None else (moment, how)

    def classify_departure(self, key: InstanceKey, before: Instance, moment: float) -> Departure:
        """How it went; nothing is known of it any more."""
        sign = self._signals.pop(key, None) or _Signal()
        if sign.expected is not None and moment - sign.expected[0] <= EXPECTED:
            return sign.expected[1]  # it is marked as draining for that
        if before.status.state == "draining":
            return "drained"
        if before.status.state == "down":
            return "down"
        return "left" if _is_recent(sign, moment) else "lost"


def _is_recent(sign: _Signal, moment: float) -> bool:
    """Whether its last sign of life is so near that its time cannot have run out."""
    if sign.time is not None:
        heard = sign.said if sign.heard is None else max(sign.heard, sign.said)
        return moment - heard < _SURELY * sign.time
    rhythm = sign.rhythm
    if moment - sign.said < max(_SAID, rhythm):
        return True
    if sign.heard is None:
        return False
    return moment - sign.heard < (_BEATS * rhythm if rhythm else _LATELY)


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
"""Events of all services together, or about so many."""
MAX_SERVICE_EVENTS = 500
MIN_SERVICE_EVENTS = 50


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    time: Time
    service: str
    """Empty key it concerns everything."""
    id: str
    """Empty key it concerns the service."""
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
        most = min(max(MAX_EVENTS // len(self._events), MIN_SERVICE_EVENTS), MAX_SERVICE_EVENTS)
        while len(events) > most:
            events.popleft()

    def of(self, service: str, id: str = "") -> list[TimelineEvent]:
        """Those of a service, or of one of its instances, the newest last."""
        return [event for event in self._events.get(service, ()) if not id or event.id == id]

    def forget(self, service: str) -> None:
        self._events.pop(service, None)


def events_of(
    before: Instance | None, after: Instance | None, how: Departure | None = None
) -> Iterator[tuple[EventKind, Message]]:
    """The events that a change of an instance means; `how` it went, if it is gone. A change of
    metrics alone is not an event."""
    if before is None or after is None:
        if after is not None:
            version = _short(after.version)
            yield "added", message("registered", address=after.address, version=version)
            yield from _shortcomings(after)
        elif before is not None:
            yield "removed", message(_DEPARTURES[how or "lost"])
        return
    if before.incarnation != after.incarnation:
        yield "restarted", message("restarted")
    if before.address != after.address:
        yield "restarted", message("moved", before=before.address, after=after.address)
    if before.version != after.version:
        old, new = _short(before.version), _short(after.version)
        yield "version", message("version_changed", before=old, after=new)
    if before.status.state != after.status.state:
        yield "state", message(STATES[after.status.state])
    if before.status.healthy != after.status.healthy:
        yield "health", message("healthy_again" if after.status.healthy else "unhealthy")
    if before.enabled != after.enabled:
        yield "enabled", message("enabled" if after.enabled else "disabled")
    if before.weight != after.weight:
        old_weight, new_weight = float(before.weight), float(after.weight)
        yield "weight", message("weight_changed", before=old_weight, after=new_weight)
    if before.zone != after.zone or before.ports != after.ports:
        yield "metadata", message("zone_or_ports_changed")
    if names := _differing(before.metadata, after.metadata):
        yield "metadata", message("metadata_changed", names=names)


def _shortcomings(instance: Instance) -> Iterator[tuple[EventKind, Message]]:
    if instance.status.state != "up":
        yield "state", message(STATES[instance.status.state])
    if not instance.status.healthy:
        yield "health", message("unhealthy")
    if not instance.enabled:
        yield "enabled", message("disabled")


_DEPARTURES: Mapping[Departure, str] = {
    "drained": "gone_drained",
    "down": "gone_down",
    "left": "gone_left",
    "taken_out": "gone_removed",
    "lost": "gone_lost",
}


_SHOWN = 5
_LONG = 80


def _short(text: str) -> str:
    """What an instance says may be long."""
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"


def _differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = sorted({*before, *after})
    changed = [name for name in names if before.get(name) != after.get(name)]
    return [*map(_short, changed[:_SHOWN]), *(["…"] if len(changed) > _SHOWN else [])]


MAX_SAMPLES = 200_000
"""Samples of all instances together, or about so many."""
MAX_INSTANCE_SAMPLES = 240
MIN_INSTANCE_SAMPLES = 20
_GONE = 500
"""Instances that are gone, of which it is still shown how they were."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    time: Time
    metrics: Mapping[str, float]
    """Numbers by path: `memory.usagePercent`."""


class _Packed:
    """A sample in little space: its paths are shared with others."""

    __slots__ = ("paths", "time", "values")

    def __init__(self, time: Time, paths: tuple[str, ...], values: array[float]) -> None:
        self.time, self.paths, self.values = time, paths, values


class MetricHistory:
    def __init__(self) -> None:
        self._samples: dict[InstanceKey, deque[_Packed]] = {}
        self._gone: OrderedDict[InstanceKey, deque[_Packed]] = OrderedDict()
        self._paths: dict[tuple[str, ...], tuple[str, ...]] = {}

    def add(self, key: InstanceKey, instance: Instance, time: Time) -> None:
        """What an instance tells of itself now."""
        found = dict(numbers(instance.status.metrics))
        if not found:
            return
        samples = self._samples.get(key)
        if samples is None:
            samples = self._samples[key] = self._gone.pop(key, deque())
        names = tuple(found)
        if len(self._paths) > 10_000:  # somebody makes up names
            self._paths.clear()
        paths = self._paths.setdefault(names, names)
        samples.append(
            _Packed(moment(instance.status.updated_at) or time, paths, array("d", found.values()))
        )
        most = min(
            max(MAX_SAMPLES // len(self._samples), MIN_INSTANCE_SAMPLES), MAX_INSTANCE_SAMPLES
        )
        while len(samples) > most:
            samples.popleft()

    def leave(self, key: InstanceKey) -> None:
        """An instance is gone: what is known of it is kept for a while."""
        samples = self._samples.pop(key, None)
        if samples is not None:
            self._gone[key] = samples
            while len(self._gone) > _GONE:
                self._gone.popitem(last=False)

    def of(self, key: InstanceKey) -> list[MetricSample]:
        """The newest last."""
        samples = self._samples.get(key) or self._gone.get(key) or ()
        return [
            MetricSample(each.time, dict(zip(each.paths, each.values, strict=True)))
            for each in samples
        ]
