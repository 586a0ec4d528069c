"""What happened, in words; so much of it as fits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from mooring.model import Instance, Time
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
    text: str


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


def told(
    before: Instance | None, after: Instance | None, how: Departure | None = None
) -> Iterator[tuple[Kind, str]]:
    """What a change of an instance means, in words; `how` it went, where it is gone. Metrics come
    and go without a word."""
    if before is None or after is None:
        if after is not None:
            yield "added", f"registered at {after.address}, version {_short(after.version)}"
            yield from _shortcomings(after)
        elif before is not None:
            yield "removed", f"gone: {_DEPARTURES[how or 'lost']}"
        return
    if before.incarnation != after.incarnation:
        yield "restarted", "its process started anew"
    if before.address != after.address:
        yield "restarted", f"moved from {before.address} to {after.address}"
    if before.version != after.version:
        yield "version", f"version {_short(before.version)} → {_short(after.version)}"
    if before.status.state != after.status.state:
        yield "state", f"{before.status.state} → {after.status.state}"
    if before.status.healthy != after.status.healthy:
        yield "health", "healthy again" if after.status.healthy else "unhealthy by its own account"
    if before.enabled != after.enabled:
        yield "enabled", _enabled(after)
    if before.weight != after.weight:
        yield "weight", f"weight {before.weight:g} → {after.weight:g}"
    if before.zone != after.zone or before.ports != after.ports:
        yield "metadata", "its zone or its ports changed"
    if names := _differing(before.metadata, after.metadata):
        yield "metadata", f"metadata changed: {', '.join(names)}"


def _shortcomings(instance: Instance) -> Iterator[tuple[Kind, str]]:
    if instance.status.state != "up":
        yield "state", f"is {instance.status.state}"
    if not instance.status.healthy:
        yield "health", "unhealthy by its own account"
    if not instance.enabled:
        yield "enabled", _enabled(instance)


def _enabled(instance: Instance) -> str:
    return "enabled: it may be called" if instance.enabled else "disabled: it is not called"


_DEPARTURES: Mapping[Departure, str] = {
    "drained": "it had drained",
    "down": "it had said that it is down",
    "left": "it left in order",
    "taken_out": "it was taken out",
    "lost": "without a word, so it is taken for lost",
}


_SHOWN = 5
_LONG = 80


def _short(text: str) -> str:
    """What an instance says may be long."""
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"


def _differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = sorted({*before, *after})
    changed = [name for name in names if before.get(name) != after.get(name)]
    rest = len(changed) - _SHOWN
    return [*map(_short, changed[:_SHOWN])] + ([f"and {rest} more"] if rest > 0 else [])
