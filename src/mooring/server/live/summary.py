"""Services and instances as the API returns them, with aggregates. Pure.

Rates are from 0 to 1, and 0 without instances: then no call succeeds. Delays and response times are
in milliseconds, null if unknown. Times are UTC with milliseconds.
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from mooring.masking import masked_fields
from mooring.messages import Message, joined, message
from mooring.model import JSON, Instance, State, Time
from mooring.registry.json_values import config_fields
from mooring.server.http.response import rfc3339


class HealthSummary(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The health of everything that the caller may see, or of one service."""

    total_services: int
    total_instances: int
    healthy_instances: int
    """Healthy according to themselves and to active checks, and not silent."""
    active_instances: int
    """Healthy, enabled, up and with a weight above 0."""
    healthy_rate: float
    timestamp: str


class Aggregate(msgspec.Struct, frozen=True, gc=False):
    """One metric of several instances. A percentile is the value of one of them: p90 is the
    lowest value that at least 90% of the instances do not exceed."""

    avg: float
    min: float
    max: float
    count: int
    p50: float
    p90: float
    p99: float


class AbnormalInstance(msgspec.Struct, frozen=True, rename="camel", gc=False):
    instance_id: str
    reason: str
    """The English texts of `reasons`, joined by semicolons."""
    reasons: tuple[Message, ...]


class ServiceSummary(msgspec.Struct, frozen=True, rename="camel", kw_only=True, gc=False):
    service_name: str
    total_instances: int
    healthy_instances: int
    enabled_instances: int
    aggregated_metrics: dict[str, Aggregate]
    """By path: `memory.usagePercent`."""
    last_update_time: str | None
    """When this server last saw a change."""
    healthy_rate: float
    enabled_rate: float
    avg_heartbeat_delay: float | None
    avg_response_time: float | None
    """From active checks."""
    abnormal_instances: tuple[AbnormalInstance, ...]


class CheckResult(msgspec.Struct, frozen=True, gc=False):
    result: Literal["passing", "failing", "not_checked"]
    reason: str
    """Why the check fails or was skipped, in English."""
    message: Message | None
    """The reason as data."""


DisplayState = Literal[State, "silent"]

STATE_MESSAGES: Mapping[State, str] = {
    "up": "came_up",
    "draining": "is_draining",
    "down": "is_down",
}
"""The kind of message of each state."""


class InstanceDetail(msgspec.Struct, frozen=True, rename="camel", kw_only=True, gc=False):
    instance_id: str
    service_name: str
    host: str
    port: int
    protocol: str
    version: str
    zone: str
    weight: float
    enabled: bool
    healthy: bool
    """According to itself and to active checks, and not silent."""
    state: DisplayState
    """As registered; `silent` if its heartbeats stopped."""
    check: CheckResult | None
    """The last active check; null if there was none."""
    ephemeral: bool
    metadata: dict[str, str]
    ports: dict[str, int]
    config: dict[str, Any]
    """The operator overrides of it and of its service."""
    registration_time: str | None
    last_heartbeat: str | None
    last_metadata_update: str | None
    metrics: dict[str, Any]
    heartbeat_delay: float | None
    """Since its last heartbeat or lease renewal."""


class ServiceDetail(ServiceSummary, frozen=True, rename="camel", kw_only=True, gc=False):
    instances: tuple[InstanceDetail, ...]


class InstanceMetrics(msgspec.Struct, frozen=True, rename="camel", kw_only=True, gc=False):
    instance_id: str
    service_name: str
    metrics: dict[str, Any]
    last_metadata_update: str | None
    """When the instance last reported metrics."""
    last_heartbeat: str | None
    heartbeat_delay: float | None


@dataclass(frozen=True, slots=True)
class Observation:
    """What this server observed of an instance, beyond what is registered."""

    silence: float | None = None
    """Seconds since its last heartbeat, at `sampled`."""
    sampled: Time | None = None
    late: bool = False
    """It has been silent for longer than its heartbeat interval allows, or is missing."""
    missing: bool = False
    """The registry no longer lists it, but has not reported its removal."""
    response_time: float | None = None
    """Of the last active check, in milliseconds."""
    check_failure: Message | None = None
    """Why the active check fails; None if it does not."""
    unchecked: Message | None = None
    """Why the active check was skipped, which is not a failure."""

    @property
    def heartbeat_delay(self) -> float | None:
        return None if self.silence is None else round(self.silence * 1000, 1)

    @property
    def last_heartbeat(self) -> Time | None:
        if self.silence is None or self.sampled is None:
            return None
        return self.sampled - datetime.timedelta(seconds=self.silence)

    def aged(self, moment: Time) -> float | None:
        """Seconds since its last heartbeat, provided that there was none since `sampled`."""
        last = self.last_heartbeat
        return None if last is None else max((moment - last).total_seconds(), 0.0)


NOT_OBSERVED = Observation()

MAX_METRICS = 200
"""Metrics of one instance that are used."""
_MAX_DEPTH = 8
MAX_PATHS = 1000
"""Metrics of one service that are aggregated."""


def in_utc(reported: Time | None) -> Time | None:
    """A time that an instance reported, in UTC; None if it is out of range."""
    if reported is None:
        return None
    try:
        return reported.astimezone(datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return None


def rate(part: int, total: int) -> float:
    return round(part / total, 4) if total else 0.0


def healthy(instance: Instance, observed: Observation) -> bool:
    """Whether an instance is healthy; one whose heartbeats stopped is not, whatever it reported."""
    return instance.status.healthy and not observed.check_failure and not observed.late


def active(instance: Instance, observed: Observation) -> bool:
    """Whether an instance is healthy and in rotation."""
    return (
        healthy(instance, observed)
        and instance.enabled
        and instance.status.state == "up"
        and instance.weight > 0
    )


def display_state(instance: Instance, observed: Observation) -> DisplayState:
    return "silent" if observed.late else instance.status.state


def check_result(observed: Observation) -> CheckResult | None:
    if observed.unchecked:
        return CheckResult("not_checked", observed.unchecked.text, observed.unchecked)
    if observed.check_failure:
        return CheckResult("failing", observed.check_failure.text, observed.check_failure)
    return None if observed.response_time is None else CheckResult("passing", "", None)


def check_message(observed: Observation) -> Message:
    if observed.unchecked:
        return message("check_skipped", detail=observed.unchecked)
    if observed.check_failure:
        return message("check_failing", detail=observed.check_failure)
    return message("check_passing")


def heartbeat_message(observed: Observation) -> Message:
    if observed.missing:
        return message("missing")
    if observed.late:
        return message("heartbeat_late", seconds=round(observed.silence or 0))
    return message("heartbeat_resumed")


def reasons(instance: Instance, observed: Observation) -> list[Message]:
    """What is wrong with an instance."""
    result = []
    if observed.check_failure:
        result.append(check_message(observed))
    if not instance.status.healthy:
        result.append(message("unhealthy"))
    if observed.missing or observed.late:
        result.append(heartbeat_message(observed))
    if instance.status.state != "up":
        result.append(message(STATE_MESSAGES[instance.status.state]))
    if not instance.enabled:
        by_operator = instance.config.enabled is False
        result.append(message("disabled_by_operator" if by_operator else "disabled_by_itself"))
    if not instance.weight:
        result.append(message("no_weight"))
    return result


def numbers(metrics: Mapping[str, JSON]) -> Iterator[tuple[str, float]]:
    """The finite numbers of a tree by path: `memory.usagePercent`. Limited in number and depth."""
    return itertools.islice(_numbers(metrics, "", _MAX_DEPTH), MAX_METRICS)


def _numbers(metrics: Mapping[str, JSON], path: str, depth: int) -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int | float):
            try:
                number = float(value)
            except OverflowError:
                continue
            if math.isfinite(number):
                yield f"{path}{name}", number
        elif depth and isinstance(value, Mapping):
            yield from _numbers(value, f"{path}{name}.", depth - 1)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The lowest of some sorted values that at least this share of them does not exceed."""
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def aggregate(values: Iterable[float]) -> Aggregate:
    """Needs at least one value."""
    ordered = sorted(values)
    count, least, most = len(ordered), ordered[0], ordered[-1]
    try:
        average = math.fsum(ordered) / count
    except OverflowError:
        average = sum(value / count for value in ordered)
    return Aggregate(
        avg=min(max(average, least), most),
        min=least,
        max=most,
        count=count,
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
    )


def aggregates(instances: Iterable[Instance]) -> dict[str, Aggregate]:
    """The metrics of some instances, aggregated by path and sorted; at most `MAX_PATHS`."""
    values: dict[str, list[float]] = {}
    for instance in instances:
        for path, value in numbers(instance.status.metrics):
            if path in values:
                values[path].append(value)
            elif len(values) < MAX_PATHS:
                values[path] = [value]
    return {path: aggregate(values[path]) for path in sorted(values)}


def average(values: Iterable[float | None]) -> float | None:
    """The average of the known values."""
    known = [value for value in values if value is not None]
    return round(math.fsum(known) / len(known), 1) if known else None


def masked_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata of an instance, sorted, with secrets masked."""
    return {name: str(value) for name, value in _masked(metadata).items()}


def _masked(fields: Mapping[str, JSON]) -> dict[str, JSON]:
    """Fields by name, sorted, with secrets masked."""
    return masked_fields(dict(sorted(fields.items())))


def instance_detail(instance: Instance, observed: Observation = NOT_OBSERVED) -> InstanceDetail:
    status = instance.status
    return InstanceDetail(
        instance_id=instance.id,
        service_name=instance.service,
        host=instance.host,
        port=instance.port,
        protocol=instance.protocol,
        version=instance.version,
        zone=instance.zone,
        weight=float(instance.weight),
        enabled=instance.enabled,
        healthy=healthy(instance, observed),
        state=display_state(instance, observed),
        check=check_result(observed),
        ephemeral=instance.ephemeral,
        metadata=masked_metadata(instance.metadata),
        ports=dict(sorted(instance.ports.items())),
        config=_masked(config_fields(instance.config)),
        registration_time=rfc3339(in_utc(status.registered_at)),
        last_heartbeat=rfc3339(observed.last_heartbeat),
        last_metadata_update=rfc3339(in_utc(status.updated_at)),
        metrics=_masked(status.metrics),
        heartbeat_delay=observed.heartbeat_delay,
    )


def instance_metrics(instance: Instance, observed: Observation = NOT_OBSERVED) -> InstanceMetrics:
    return InstanceMetrics(
        instance_id=instance.id,
        service_name=instance.service,
        metrics=_masked(instance.status.metrics),
        last_metadata_update=rfc3339(in_utc(instance.status.updated_at)),
        last_heartbeat=rfc3339(observed.last_heartbeat),
        heartbeat_delay=observed.heartbeat_delay,
    )


def service_summary(
    name: str,
    instances: Mapping[str, Instance],
    observed: Mapping[str, Observation],
    *,
    changed: Time | None,
    metrics: dict[str, Aggregate],
) -> ServiceSummary:
    """`metrics` are the aggregates of the instances."""
    ordered = [instances[id] for id in sorted(instances)]
    pairs = [(instance, observed.get(instance.id, NOT_OBSERVED)) for instance in ordered]
    healthy_count = sum(healthy(*pair) for pair in pairs)
    enabled_count = sum(instance.enabled for instance in ordered)
    return ServiceSummary(
        service_name=name,
        total_instances=len(ordered),
        healthy_instances=healthy_count,
        enabled_instances=enabled_count,
        aggregated_metrics=metrics,
        last_update_time=rfc3339(changed),
        healthy_rate=rate(healthy_count, len(ordered)),
        enabled_rate=rate(enabled_count, len(ordered)),
        avg_heartbeat_delay=average(seen.heartbeat_delay for _, seen in pairs),
        avg_response_time=average(seen.response_time for _, seen in pairs),
        abnormal_instances=tuple(
            AbnormalInstance(instance.id, joined(why), tuple(why))
            for instance, seen in pairs
            if (why := reasons(instance, seen))
        ),
    )


@dataclass(frozen=True, slots=True)
class HealthCounts:
    services: int = 0
    instances: int = 0
    healthy: int = 0
    active: int = 0

    def __add__(self, other: HealthCounts) -> HealthCounts:
        return HealthCounts(
            self.services + other.services,
            self.instances + other.instances,
            self.healthy + other.healthy,
            self.active + other.active,
        )


def count_health(
    instances: Mapping[str, Instance], observed: Mapping[str, Observation]
) -> HealthCounts:
    """The counts of one service."""
    pairs = [(instance, observed.get(id, NOT_OBSERVED)) for id, instance in instances.items()]
    return HealthCounts(
        services=1,
        instances=len(pairs),
        healthy=sum(healthy(*pair) for pair in pairs),
        active=sum(active(*pair) for pair in pairs),
    )


def health(services: Iterable[HealthCounts], at: Time) -> HealthSummary:
    """The health of all these services together."""
    total = sum(services, start=HealthCounts())
    return HealthSummary(
        total_services=total.services,
        total_instances=total.instances,
        healthy_instances=total.healthy,
        active_instances=total.active,
        healthy_rate=rate(total.healthy, total.instances),
        timestamp=rfc3339(at),
    )
