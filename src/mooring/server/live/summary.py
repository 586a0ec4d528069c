"""Services and instances as the API shows them, and what can be said of many at once. Pure.

Rates are from 0 to 1. A rate of nothing is 0: where nobody is, nobody answers. Delays and response
times are in milliseconds, null where they are not known; moments are UTC with milliseconds.
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
from mooring.model import JSON, Config, Instance, State, Time
from mooring.server.http.response import shown


class HealthSummary(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Of everything that the caller may see, or of one service."""

    total_services: int
    total_instances: int
    healthy_instances: int
    """Healthy by their own account and by active checks, and not silent."""
    active_instances: int
    """Those that callers call: healthy, enabled, up and with a weight."""
    healthy_rate: float
    timestamp: str


class Aggregate(msgspec.Struct, frozen=True, gc=False):
    """One metric of several instances. A percentile is the value of one of them: the lowest that
    so many percent do not exceed."""

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
    """In English; several are joined by a semicolon."""
    reasons: tuple[Message, ...]
    """The same as data."""


class ServiceSummary(msgspec.Struct, frozen=True, rename="camel", kw_only=True, gc=False):
    service_name: str
    total_instances: int
    healthy_instances: int
    enabled_instances: int
    aggregated_metrics: dict[str, Aggregate]
    """By path: `memory.usagePercent`."""
    last_update_time: str | None
    """When something about it last changed, as this server saw it."""
    healthy_rate: float
    enabled_rate: float
    avg_heartbeat_delay: float | None
    avg_response_time: float | None
    """Of active checks; null without them."""
    abnormal_instances: tuple[AbnormalInstance, ...]


class CheckResult(msgspec.Struct, frozen=True, gc=False):
    result: Literal["passing", "failing", "not_checked"]
    reason: str
    """Why it fails or is not checked."""


ShownState = Literal[State, "silent"]

STATES: Mapping[State, str] = {"up": "came_up", "draining": "is_draining", "down": "is_down"}
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
    """By its own account and by active checks, and not silent."""
    state: ShownState
    """As registered; `silent` if its heartbeats stopped."""
    check: CheckResult | None
    """The last active check; null if none was made."""
    ephemeral: bool
    metadata: dict[str, str]
    ports: dict[str, int]
    config: dict[str, Any]
    """The operator's word on it and on its service."""
    registration_time: str | None
    last_heartbeat: str | None
    last_metadata_update: str | None
    metrics: dict[str, Any]
    heartbeat_delay: float | None
    """Since its last sign of life: a heartbeat, or the renewal of its lease."""


class ServiceDetail(ServiceSummary, frozen=True, rename="camel", kw_only=True, gc=False):
    instances: tuple[InstanceDetail, ...]


class InstanceMetrics(msgspec.Struct, frozen=True, rename="camel", kw_only=True, gc=False):
    instance_id: str
    service_name: str
    metrics: dict[str, Any]
    last_metadata_update: str | None
    """When the metrics were last told."""
    last_heartbeat: str | None
    heartbeat_delay: float | None


@dataclass(frozen=True, slots=True)
class Observed:
    """What is known of an instance beside what is registered."""

    silence: float | None = None
    """Seconds since its last sign of life, at `sampled`."""
    sampled: Time | None = None
    late: bool = False
    """It has been silent for longer than it should, or is missing."""
    missing: bool = False
    """It is shown for a while though the registry has it no longer, and nobody took it out."""
    response_time: float | None = None
    """Of an active check, in ms."""
    check_failure: str = ""
    """Why the active check fails; empty if it does not."""
    unchecked: str = ""
    """Why the active check was not made. That is no failure."""

    @property
    def heartbeat_delay(self) -> float | None:
        return None if self.silence is None else round(self.silence * 1000, 1)

    @property
    def last_heartbeat(self) -> Time | None:
        if self.silence is None or self.sampled is None:
            return None
        return self.sampled - datetime.timedelta(seconds=self.silence)

    def aged(self, moment: Time) -> float | None:
        """Seconds since its last sign of life, if it gave none since it was sampled."""
        last = self.last_heartbeat
        return None if last is None else max((moment - last).total_seconds(), 0.0)


UNOBSERVED = Observed()

NUMBERS = 200
"""Metrics of one instance that are reckoned with at the most, and how deep they may lie."""
_DEEP = 8
PATHS = 1000
"""Metrics of one service that are aggregated at the most."""


def moment(told: Time | None) -> Time | None:
    """What an instance says about time, in UTC; None where it is no moment that there can be."""
    if told is None:
        return None
    try:
        return told.astimezone(datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return None


def rate(some: int, of: int) -> float:
    """Some of so many, from 0 to 1; 0 of nothing."""
    return round(some / of, 4) if of else 0.0


def healthy(instance: Instance, observed: Observed) -> bool:
    """An instance whose heartbeats stopped is not healthy, whatever it said before."""
    return instance.status.healthy and not observed.check_failure and not observed.late


def active(instance: Instance, observed: Observed) -> bool:
    """Whether callers call it."""
    return (
        healthy(instance, observed)
        and instance.enabled
        and instance.status.state == "up"
        and instance.weight > 0
    )


def state_shown(instance: Instance, observed: Observed) -> ShownState:
    return "silent" if observed.late else instance.status.state


def check_shown(observed: Observed) -> CheckResult | None:
    if observed.unchecked:
        return CheckResult("not_checked", observed.unchecked)
    if observed.check_failure:
        return CheckResult("failing", observed.check_failure)
    return None if observed.response_time is None else CheckResult("passing", "")


def reasons(instance: Instance, observed: Observed) -> list[Message]:
    """What is wrong with an instance; empty if nothing is."""
    found = []
    if observed.check_failure:
        found.append(message("check_failing", detail=observed.check_failure))
    if not instance.status.healthy:
        found.append(message("unhealthy"))
    if observed.missing:
        found.append(message("missing"))
    elif observed.late:
        found.append(message("heartbeat_late", seconds=round(observed.silence or 0)))
    if instance.status.state != "up":
        found.append(message(STATES[instance.status.state]))
    if not instance.enabled:
        by_operator = instance.config.enabled is False
        found.append(message("disabled_by_operator" if by_operator else "disabled_by_itself"))
    if not instance.weight:
        found.append(message("no_weight"))
    return found


def numbers(metrics: Mapping[str, JSON]) -> Iterator[tuple[str, float]]:
    """Every number of a tree by its path: `memory.usagePercent`. What is no number, or none that
    can be reckoned with, is left out, and so is what is too much."""
    return itertools.islice(_numbers(metrics, "", _DEEP), NUMBERS)


def _numbers(metrics: Mapping[str, JSON], path: str, deep: int) -> Iterator[tuple[str, float]]:
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
        elif deep and isinstance(value, Mapping):
            yield from _numbers(value, f"{path}{name}.", deep - 1)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in order: the lowest that at least this share of them does not exceed."""
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def aggregate(values: Iterable[float]) -> Aggregate:
    """Of one value at least."""
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
    """Each metric of these instances, by its path, in order; of those that are too many the
    first."""
    found: dict[str, list[float]] = {}
    for instance in instances:
        for path, value in numbers(instance.status.metrics):
            if path in found:
                found[path].append(value)
            elif len(found) < PATHS:
                found[path] = [value]
    return {path: aggregate(found[path]) for path in sorted(found)}


def average(values: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return round(math.fsum(known) / len(known), 1) if known else None


def config_shown(config: Config) -> dict[str, JSON]:
    """What an operator said, without what was not said, and without its secrets."""
    told: dict[str, JSON] = dict(config.values)
    if config.weight is not None:
        told["weight"] = config.weight
    if config.enabled is not None:
        told["enabled"] = config.enabled
    if config.zone is not None:
        told["zone"] = config.zone
    if config.metadata:
        told["metadata"] = dict(config.metadata)
    return masked_fields(dict(sorted(told.items())))


def metadata_shown(metadata: Mapping[str, str]) -> dict[str, str]:
    """What an instance says of itself, without its secrets."""
    return {name: str(value) for name, value in metrics_shown(metadata).items()}


def metrics_shown(metrics: Mapping[str, JSON]) -> dict[str, JSON]:
    return masked_fields(dict(sorted(metrics.items())))


def instance_detail(instance: Instance, observed: Observed = UNOBSERVED) -> InstanceDetail:
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
        state=state_shown(instance, observed),
        check=check_shown(observed),
        ephemeral=instance.ephemeral,
        metadata=metadata_shown(instance.metadata),
        ports=dict(sorted(instance.ports.items())),
        config=config_shown(instance.config),
        registration_time=shown(moment(status.registered_at)),
        last_heartbeat=shown(observed.last_heartbeat),
        last_metadata_update=shown(moment(status.updated_at)),
        metrics=metrics_shown(status.metrics),
        heartbeat_delay=observed.heartbeat_delay,
    )


def instance_metrics(instance: Instance, observed: Observed = UNOBSERVED) -> InstanceMetrics:
    return InstanceMetrics(
        instance_id=instance.id,
        service_name=instance.service,
        metrics=metrics_shown(instance.status.metrics),
        last_metadata_update=shown(moment(instance.status.updated_at)),
        last_heartbeat=shown(observed.last_heartbeat),
        heartbeat_delay=observed.heartbeat_delay,
    )


def service_summary(
    name: str,
    instances: Mapping[str, Instance],
    observed: Mapping[str, Observed],
    *,
    changed: Time | None,
    metrics: dict[str, Aggregate] | None = None,
) -> ServiceSummary:
    """`metrics`, where they were aggregated before."""
    ordered = [instances[id] for id in sorted(instances)]
    seen = [(each, observed.get(each.id, UNOBSERVED)) for each in ordered]
    well = sum(healthy(*pair) for pair in seen)
    enabled = sum(each.enabled for each in ordered)
    return ServiceSummary(
        service_name=name,
        total_instances=len(ordered),
        healthy_instances=well,
        enabled_instances=enabled,
        aggregated_metrics=aggregates(ordered) if metrics is None else metrics,
        last_update_time=shown(changed),
        healthy_rate=rate(well, len(ordered)),
        enabled_rate=rate(enabled, len(ordered)),
        avg_heartbeat_delay=average(each.heartbeat_delay for _, each in seen),
        avg_response_time=average(each.response_time for _, each in seen),
        abnormal_instances=tuple(
            AbnormalInstance(instance.id, joined(why), tuple(why))
            for instance, each in seen
            if (why := reasons(instance, each))
        ),
    )


def service_detail(summary: ServiceSummary, instances: Iterable[InstanceDetail]) -> ServiceDetail:
    return ServiceDetail(**msgspec.structs.asdict(summary), instances=tuple(instances))


@dataclass(frozen=True, slots=True)
class HealthCounts:
    """What health is reckoned from."""

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
    instances: Mapping[str, Instance], observed: Mapping[str, Observed]
) -> HealthCounts:
    """Of one service."""
    seen = [(each, observed.get(id, UNOBSERVED)) for id, each in instances.items()]
    return HealthCounts(
        1,
        len(seen),
        sum(healthy(*pair) for pair in seen),
        sum(active(*pair) for pair in seen),
    )


def health(told: HealthCounts, at: Time) -> HealthSummary:
    return HealthSummary(
        total_services=told.services,
        total_instances=told.instances,
        healthy_instances=told.healthy,
        active_instances=told.active,
        healthy_rate=rate(told.healthy, told.instances),
        timestamp=shown(at) or "",
    )
