"""Why an instance is gone: it drained, left, was removed, or its heartbeats stopped."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from mooring.model import Instance
from mooring.registry.contract import InstanceKey

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

    def is_recent(self, moment: float) -> bool:
        """Whether the last heartbeat is so recent that the instance cannot have expired."""
        if self.ttl is not None:
            heartbeat = self.reported if self.heartbeat is None else self.heartbeat
            return moment - max(heartbeat, self.reported) < _SAFE_SHARE * self.ttl
        # The second longest interval, since the longest may be an outlier; 0 if none is known.
        longest = max(sorted(self.intervals)[-2:-1] or self.intervals, default=0.0)
        if moment - self.reported < max(_RECENT_REPORT, longest):
            return True
        if self.heartbeat is None:
            return False
        return moment - self.heartbeat < (_INTERVALS * longest if longest else _RECENT)


class LivenessSignals:
    """The heartbeats and states of all registered instances, which show why one left. Times are
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
