"""When an instance sends a heartbeat, and when it publishes its metrics with it.

Pure: the caller passes the time in and does the I/O.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Mapping

from mooring.errors import InvalidRequest
from mooring.settings.registry import Policy, Threshold, canonical


class Decision(enum.StrEnum):
    """What to send now. The values are the modes of the heartbeat script."""

    NO_UPDATE = "no_update"
    """Nothing is due."""
    HEARTBEAT_ONLY = "heartbeat_only"
    """A heartbeat without metrics."""
    METADATA_UPDATE = "metadata_update"
    """The metrics, which count as a heartbeat."""


class Beats:
    """The heartbeats of one instance: what it published last, and what it has to send next.

    The caller decides, begins, sends and reports the result:

        decision = beats.decide(now, metrics)
        beats.began()
        ...
        beats.sent(now, decision, metrics)  # or beats.failed()

    `now` is monotonic time in seconds. While a send is in flight, `decide` returns `NO_UPDATE`.
    Changes are measured against the metrics that were last *published*, not last collected, so that
    a slow drift is published once it adds up. The first decision is a metadata update. After a
    failure the same decision is due at once; the caller pauses between retries. Metrics must not
    be mutated after they were passed in: the same object is assumed to hold the same values.

    `renewed`: the registry learns by other means that the instance lives, so that a heartbeat is
    due only with the metrics. `seed` determines the jitter. The instances of one process share a
    seed, so that those that started together send together, in one call.
    """

    def __init__(self, policy: Policy, *, renewed: bool = False, seed: int = 0) -> None:
        self.policy = policy
        self._seed, self._draws = seed, 0
        self._crowded = False
        """Whether a send failed: other instances may have failed and retry at the same time."""
        rarely = renewed and policy.immediate
        self._beat_every = policy.metadata_interval if rarely else policy.heartbeat_interval
        self.pending: bool = False
        """Whether a send is in flight."""
        self._published: Mapping[str, object] | None = None
        self._unchanged: Mapping[str, object] | None = None
        """The last metrics object without a significant difference to the published ones."""
        self._has_metrics = self._published_any = False
        self._beat_due = self._metadata_due = -math.inf

    def decide(self, now: float, metrics: Mapping[str, object]) -> Decision:
        """What to send now. Changes nothing."""
        if self.pending:
            return Decision.NO_UPDATE
        if self._published is None:
            return Decision.METADATA_UPDATE
        # That all metrics disappeared has to be published, too.
        self._has_metrics = self._published_any or has_values(metrics)
        beat_due = now >= self._beat_due
        if self._has_metrics and now >= self._metadata_due:
            return Decision.METADATA_UPDATE
        if (beat_due or self.policy.immediate) and self.changed(metrics):
            return Decision.METADATA_UPDATE
        return Decision.HEARTBEAT_ONLY if beat_due else Decision.NO_UPDATE

    def changed(self, metrics: Mapping[str, object]) -> tuple[str, ...]:
        """The paths that differ significantly from what was last published."""
        if metrics is self._unchanged:
            return ()
        paths = changes(self._published or {}, metrics, self.policy.thresholds)
        if not paths:
            self._unchanged = metrics
        return paths

    def began(self) -> None:
        """A send begins. Raises `InvalidRequest` if another is in flight."""
        if self.pending:
            raise InvalidRequest(
                "a heartbeat is in flight: call sent() or failed() before the next one begins"
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
        """The send succeeded. `now` is the time of sending: a slow reply does not stretch the
        interval.

        `metrics` are those that were sent, even if there are newer ones. A registration counts as a
        metadata update. `crowded`: other instances may have sent at the same time, as after a
        restart of the registry. In this case, and after a failure, the next heartbeat is due at a
        random time within the whole interval.
        """
        self.pending = False
        if decision is Decision.NO_UPDATE:
            return
        crowded, self._crowded = crowded or self._crowded, False
        self._beat_due = now + self._beat_every * self._share(anywhere=crowded)
        if decision is Decision.METADATA_UPDATE:
            self._metadata_due = now + self.policy.metadata_interval * self._share()
            self._published = self._unchanged = metrics
            self._has_metrics = self._published_any = has_values(metrics)

    def failed(self) -> None:
        """The send failed, or its outcome is unknown: nothing counts as published."""
        self.pending, self._crowded = False, True

    def _share(self, *, anywhere: bool = False) -> float:
        """The share of an interval after which the next send is due."""
        if not self.policy.jitter:
            return 1.0
        self._draws += 1
        drawn = random.Random(f"{self._seed} {self._draws}").random()
        return drawn if anywhere else 1.0 - self.policy.jitter * drawn

    def next_due(self, now: float) -> float:
        """Seconds until a send is due if the metrics do not change.

        0 if one is due already; infinite while a send is in flight. Call `decide` again when there
        are new metrics: they can make a send due earlier.
        """
        if self.pending:
            return math.inf
        due = min(self._beat_due, self._metadata_due) if self._has_metrics else self._beat_due
        return max(due - now, 0.0)


def flatten(metrics: Mapping[str, object]) -> dict[str, object]:
    """Nested mappings as dotted paths: `{"memory": {"free": 1}}` is `{"memory.free": 1}`."""
    flat: dict[str, object] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}.{path}": leaf for path, leaf in flatten(value).items()})
        else:
            flat[str(name)] = value
    return flat


def has_values(metrics: Mapping[str, object]) -> bool:
    """Whether it holds anything other than empty mappings."""
    return any(
        has_values(value) if isinstance(value, Mapping) else True for value in metrics.values()
    )


def changes(
    old: Mapping[str, object], new: Mapping[str, object], thresholds: Mapping[str, Threshold]
) -> tuple[str, ...]:
    """The paths, sorted, in which `new` differs significantly from `old`.

    Only paths with a threshold are compared. The threshold of a branch (`memory`) applies to
    everything below it that has none of its own. A value that appears or disappears is significant;
    None is the same as no value, and NaN is equal to itself.
    """
    rules = {canonical(path): threshold for path, threshold in thresholds.items()}
    before, after = _by_canonical_path(old), _by_canonical_path(new)
    return tuple(
        path
        for path in sorted(before.keys() | after.keys())
        if (rule := _rule(path, rules)) is not None
        and significant(before.get(path), after.get(path), rule)
    )


def significant(old: object, new: object, threshold: Threshold) -> bool:
    """Whether a value that was `old` and is `new` changed by more than the threshold."""
    if old == new or (_is_nan(old) and _is_nan(new)):
        return False
    before, after = _number(old), _number(new)
    if threshold.type == "any" or before is None or after is None:
        return True
    change = abs(after - before)
    if threshold.type == "absolute":
        return change > threshold.threshold
    return before == 0 or change / abs(before) * 100 > threshold.threshold


def _by_canonical_path(metrics: Mapping[str, object]) -> dict[str, object]:
    return {canonical(path): value for path, value in flatten(metrics).items()}


def _rule(path: str, rules: Mapping[str, Threshold]) -> Threshold | None:
    """The rule of the path, or of the nearest branch above it."""
    while path not in rules:
        path, dot, _ = path.rpartition(".")
        if not dot:
            return None
    return rules[path]


def _number(value: object) -> float | None:
    """The value as a finite number; None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an int beyond all floats
        return None
    return number if math.isfinite(number) else None


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
