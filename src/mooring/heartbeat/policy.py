"""When an instance beats, and when it tells its metrics with the beat. No clock and no I/O here."""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Mapping

from mooring.errors import InvalidRequest
from mooring.heartbeat.thresholds import changes, has_values
from mooring.settings.registry import Policy


class Decision(enum.StrEnum):
    """What to send now. The values are the modes of the heartbeat script."""

    NO_UPDATE = "no_update"
    HEARTBEAT_ONLY = "heartbeat_only"
    METADATA_UPDATE = "metadata_update"
    """The metrics, and the beat with them."""


class Beats:
    """What one instance has sent, and so what it has to send next.

    A caller decides, begins, sends, and says how that went:

        decision = beats.decide(now, metrics)
        beats.began()
        ...
        beats.sent(now, decision, metrics)  # or beats.failed()

    `now` is monotonic and in seconds. While a send is under way nothing else is decided. Changes
    are measured against the metrics that were last *published*, not last seen, so that a slow
    drift is told once it adds up. The first decision is a metadata update; one that failed is
    decided again at once, and the pause between tries is the caller's. Metrics are not changed
    once they were handed over: the same object is taken for the same values.

    `renewed`: signs of life are given by other means, so that a beat is due with the metrics only.
    `seed` chooses the jitter. The instances of one process share a seed: those that started
    together beat together, and their beats go out in one call.
    """

    __slots__ = (
        "_anything",
        "_beat_due",
        "_beat_every",
        "_crowded",
        "_draws",
        "_metadata_due",
        "_published",
        "_seed",
        "_told_any",
        "_weighed",
        "pending",
        "policy",
    )

    def __init__(self, policy: Policy, *, renewed: bool = False, seed: int = 0) -> None:
        self.policy = policy
        self._seed, self._draws = seed, 0
        self._crowded = False
        """A send failed: others may have failed, and arrived, in the same moment."""
        rarely = renewed and policy.immediate
        self._beat_every = policy.metadata_interval if rarely else policy.heartbeat_interval
        self.pending = False
        """A send is under way."""
        self._published: Mapping[str, object] | None = None
        self._weighed: Mapping[str, object] | None = None
        """Metrics that are known not to differ from those published: the very object."""
        self._anything = self._told_any = False
        self._beat_due = self._metadata_due = -math.inf

    def decide(self, now: float, metrics: Mapping[str, object]) -> Decision:
        """What to send now. Sends nothing and begins nothing."""
        if self.pending:
            return Decision.NO_UPDATE
        if self._published is None:
            return Decision.METADATA_UPDATE
        # To have had metrics and to have none is something to tell, too.
        self._anything = self._told_any or has_values(metrics)
        beat_due = now >= self._beat_due
        if self._anything and now >= self._metadata_due:
            return Decision.METADATA_UPDATE
        if (beat_due or self.policy.immediate) and self.changed(metrics):
            return Decision.METADATA_UPDATE
        return Decision.HEARTBEAT_ONLY if beat_due else Decision.NO_UPDATE

    def changed(self, metrics: Mapping[str, object]) -> tuple[str, ...]:
        """The paths that differ significantly from what was last published."""
        if metrics is self._weighed:
            return ()
        found = changes(self._published or {}, metrics, self.policy.thresholds)
        if not found:
            self._weighed = metrics
        return found

    def began(self) -> None:
        """A send begins. Raises `InvalidRequest` where another is under way."""
        if self.pending:
            raise InvalidRequest(
                "a heartbeat is under way: wait until it was sent or failed before the next"
            )
        self.pending = True

    def sent(
        self,
        now: float,
        decision: Decision,
        metrics: Mapping[str, object],
        *,
        crowded: bool = False,
    ) -> None:
        """It arrived. `now` is when it was sent: a slow reply does not stretch the interval.

        `metrics` are those that were sent, though there be newer ones. To register counts as a
        metadata update. `crowded`: others may have sent in the same moment, as after a restart of
        the registry. Then, and after a failure, the next beat comes at a random moment of the whole
        interval.
        """
        self.pending = False
        if decision is Decision.NO_UPDATE:
            return
        crowded, self._crowded = crowded or self._crowded, False
        self._beat_due = now + self._beat_every * self._share(anywhere=crowded)
        if decision is Decision.METADATA_UPDATE:
            self._metadata_due = now + self.policy.metadata_interval * self._share()
            self._published = self._weighed = metrics
            self._anything = self._told_any = has_values(metrics)

    def failed(self) -> None:
        """It did not arrive, or nobody knows: nothing counts as published."""
        self.pending, self._crowded = False, True

    def _share(self, *, anywhere: bool = False) -> float:
        """The share of an interval after which the next send is due."""
        if not self.policy.jitter:
            return 1.0
        self._draws += 1
        drawn = random.Random(f"{self._seed} {self._draws}").random()
        return drawn if anywhere else 1.0 - self.policy.jitter * drawn

    def next_due(self, now: float) -> float:
        """Seconds until something is due if the metrics stay as they were last decided upon.

        0 where something is due already; infinite while a send is under way, since only its end
        makes anything due. New metrics can make it sooner: decide again when they come.
        """
        if self.pending:
            return math.inf
        due = min(self._beat_due, self._metadata_due) if self._anything else self._beat_due
        return max(due - now, 0.0)
