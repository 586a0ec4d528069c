"""What happened, in words; so much of it as fits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from mooring.messages import Message, message
from mooring.model import Instance, State, Time
from mooring.server.live.exit_reason import Departure

Kind = Literal[
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

MOST = 50_000
"""Events of all services together, or about so many."""
MOST_OF_ONE = 500
_LEAST_OF_ONE = 50


@dataclass(frozen=True, slots=True)
class Event:
    time: Time
    service: str
    """Empty where it concerns everything."""
    id: str
    """Empty where it concerns the service."""
    kind: Kind
    message: Message

    @property
    def text(self) -> str:
        return self.message.text


class Timeline:
    """The newest events of each service."""

    def __init__(self) -> None:
        self._events: dict[str, deque[Event]] = {}

    def add(self, event: Event) -> None:
        events = self._events.setdefault(event.service, deque())
        events.append(event)
        most = min(max(MOST // len(self._events), _LEAST_OF_ONE), MOST_OF_ONE)
        while len(events) > most:
            events.popleft()

    def of(self, service: str, id: str = "") -> list[Event]:
        """Those of a service, or of one of its instances, the newest last."""
        return [event for event in self._events.get(service, ()) if not id or event.id == id]

    def forget(self, service: str) -> None:
        self._events.pop(service, None)


def events_of(
    before: Instance | None, after: Instance | None, how: Departure | None = None
) -> Iterator[tuple[Kind, Message]]:
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


def _shortcomings(instance: Instance) -> Iterator[tuple[Kind, Message]]:
    if instance.status.state != "up":
        yield "state", message(STATES[instance.status.state])
    if not instance.status.healthy:
        yield "health", message("unhealthy")
    if not instance.enabled:
        yield "enabled", message("disabled")


STATES: Mapping[State, str] = {"up": "came_up", "draining": "is_draining", "down": "is_down"}
"""The kind of message of each state."""

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
