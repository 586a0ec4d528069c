"""For Prometheus: `/metrics`, and `/prometheus/targets` for service discovery."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated

import msgspec
from prometheus_client import REGISTRY, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from mooring import __version__
from mooring.addresses import join
from mooring.model import Instance
from mooring.names import split_service
from mooring.server.auth.authorization import READING
from mooring.server.context import ServerContext
from mooring.server.http.request import ApiCall
from mooring.server.http.response import HTTPError, Response
from mooring.server.http.routing import ApiRoute
from mooring.server.live.problems import SEVERITIES, visible_problems
from mooring.server.live.state import Fleet
from mooring.server.live.summary import UNOBSERVED, Observed, metadata_shown, percentile

REQUESTS = Counter(
    "mooring_http_requests",
    "Requests that were answered",
    ["method", "route", "status"],
)
"""By the route's template, never by its path: that would be one for each instance."""

LATENCY = Histogram(
    "mooring_http_request_duration_seconds",
    "From a request's head to its answer's",
    ["route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)

RESETS = Counter("mooring_sse_resets", "Words of the stream that say: read everything anew")

NOTICES = Counter("mooring_alert_notices", "What was told to the webhook", ["outcome"])
"""`sent` or `failed`."""

NOWHERE = "none"
"""The route of a request that means nothing here."""


def answered(method: str, route: str, status: int, seconds: float) -> None:
    """A request was answered."""
    known = method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE") else "other"
    REQUESTS.labels(known, route or NOWHERE, str(status)).inc()
    LATENCY.labels(route or NOWHERE).observe(seconds)


STATES = ("up", "unhealthy", "silent", "failing", "draining", "down", "disabled")
"""An instance is in one of them, so that their sum is all of them."""
SHARES = (0.5, 0.99, 1.0)
"""The percentiles that are exposed. Only summaries may have a label `quantile`."""
LONGEST = 1024
"""Characters of a label; what is longer is left out."""

Sees = Callable[[str], bool]


def state_of(instance: Instance, observed: Observed) -> str:
    """The one state that counts: the first that is true, of what is wrong."""
    if not instance.status.healthy:
        return "unhealthy"
    if observed.late:
        return "silent"
    if observed.check_failure:
        return "failing"
    if instance.status.state != "up":
        return instance.status.state
    return "up" if instance.enabled else "disabled"


class Exposed(Collector):
    """What is told to one scraper: everything of this process, and the fleet as far as it may see
    it."""

    def __init__(self, server: ServerContext, sees: Sees) -> None:
        self._server, self._sees = server, sees

    def collect(self) -> Iterator[Metric]:
        for metric in REGISTRY.collect():
            metric.samples = [s for s in metric.samples if self._may(s.labels)]
            yield metric
        yield from of_server(self._server)
        fleet = self._server.fleet
        yield from of_fleet(fleet, [name for name in fleet.names() if self._sees(name)])
        yield from self._problems()

    def _may(self, labels: Mapping[str, str]) -> bool:
        service = labels.get("service")
        return service is None or self._sees(service)

    def _problems(self) -> Iterator[Metric]:
        outlook = self._server.outlook
        told = [] if outlook is None else visible_problems(outlook.problems(), self._sees)
        family = GaugeMetricFamily("mooring_problems", "What is wrong now", labels=["severity"])
        for severity in SEVERITIES:
            count = sum(each.severity == severity for each in told)
            family.add_metric([severity], count)
        yield family
        services = GaugeMetricFamily(
            "mooring_service_problem",
            "1 for each kind of thing that is wrong with a service, while it is",
            labels=["service", "kind", "severity"],
        )
        for each in told:
            if each.service:
                services.add_metric([each.service, each.kind, each.severity], 1)
        yield services


def of_server(server: ServerContext) -> Iterator[Metric]:
    build = GaugeMetricFamily("mooring_build_info", "Which Mooring this is", labels=["version"])
    build.add_metric([__version__], 1)
    yield build
    clients = 0 if server.stream is None else server.stream.clients
    yield GaugeMetricFamily(
        "mooring_sse_clients", "Clients that follow the live stream", value=clients
    )
    if server.alarms is not None:
        yield GaugeMetricFamily(
            "mooring_store_alarm",
            "1 while the store has an alarm, such as NOSPACE, and may refuse writes",
            value=int(bool(server.alarms.raised)),
        )
    yield CounterMetricFamily(
        "mooring_audit_failures", "Entries that the audit lost", value=server.audit.failures
    )


def of_fleet(fleet: Fleet, names: Iterable[str]) -> Iterator[Metric]:
    """What is registered, by service."""
    count = 0
    instances = GaugeMetricFamily(
        "mooring_instances", "Instances by their state", labels=["service", "state"]
    )
    delays = GaugeMetricFamily(
        "mooring_heartbeat_delay_seconds",
        "Time since the last heartbeat of each instance; the percentile 100 is the longest",
        labels=["service", "percentile"],
    )
    brakes = GaugeMetricFamily(
        "mooring_brake", "1 while so many fell silent that none is taken out", labels=["service"]
    )
    for name in names:
        known = fleet.service(name)
        if known is None:
            continue
        count += 1
        counts, silences = _looked_at(known.instances, fleet.observed(name))
        # None of one that has no instances, unless it lost them: that would ring the alarm.
        for state in STATES if known.instances or known.lost else ():
            instances.add_metric([name, state], counts[state])
        for share in SHARES if silences else ():
            delays.add_metric([name, f"{share:.0%}".rstrip("%")], percentile(silences, share))
        brakes.add_metric([name], int(bool(fleet.brake(name))))
    yield GaugeMetricFamily("mooring_services", "Services that are known", value=count)
    yield instances
    yield delays
    yield brakes
    yield GaugeMetricFamily(
        "mooring_fleet_stale",
        "1 while the registry cannot be read, and all of this may be old",
        value=int(fleet.stale),
    )


def _looked_at(
    instances: Mapping[str, Instance], observed: Mapping[str, Observed]
) -> tuple[dict[str, int], list[float]]:
    counts, silences = dict.fromkeys(STATES, 0), []
    for id, instance in instances.items():
        seen = observed.get(id, UNOBSERVED)
        counts[state_of(instance, seen)] += 1
        if seen.silence is not None:
            silences.append(seen.silence)
    return counts, sorted(silences)


async def _metrics(call: ApiCall) -> Response:
    call.server.fleet  # noqa: B018 - raises while there is none
    exposed = Exposed(call.server, call.principal.sees_service)
    accepted = call.request.headers.get("accept", "")
    if openmetrics_wanted(accepted):
        body = openmetrics.generate_latest(exposed)  # type: ignore[no-untyped-call]
        return Response(body, media=openmetrics.CONTENT_TYPE_LATEST)
    return Response(generate_latest(exposed), media=CONTENT_TYPE_PLAIN_0_0_4)


def openmetrics_wanted(accepted: str) -> bool:
    """Whether an `Accept` names OpenMetrics. Which version and with which weight does not matter:
    what is sent is the oldest of them, which all that speak it read."""
    named = (each.partition(";")[0].strip().lower() for each in accepted.split(","))
    return "application/openmetrics-text" in named


class Targets(msgspec.Struct, frozen=True):
    """What Prometheus calls a target group."""

    targets: list[str]
    labels: dict[str, str]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    group: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    service: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    port: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The name of a port, of those that have it, or a number; by default the main one."""


def targets(fleet: Fleet, names: Iterable[str], port: str = "") -> list[Targets]:
    """The instances of some services, in order. `port` is the name of one of theirs, or a number:
    by default their main one."""
    found: list[Targets] = []
    for name in names:
        known = fleet.service(name)
        instances = {} if known is None else known.instances
        told = (_target(instances[id], port) for id in sorted(instances))
        found += [target for target in told if target is not None]
    return found


def _target(instance: Instance, port: str) -> Targets | None:
    number = instance.port if not port else instance.ports.get(port)
    if port.isascii() and port.isdecimal():
        number = int(port)
    if not instance.host or not number:
        return None
    return Targets([join(instance.host, number)], labels(instance))


def labels(instance: Instance) -> dict[str, str]:
    """What is said of a target. Everything begins with `__meta_mooring_`: nothing that somebody
    registers can take the place of a label of Prometheus' own."""
    group, name = split_service(instance.service)
    told = {
        "service": instance.service,
        "group": group,
        "name": name,
        "id": instance.id,
        "zone": instance.zone,
        "version": instance.version,
        "protocol": instance.protocol,
        "state": instance.status.state,
        "healthy": str(instance.status.healthy).lower(),
        "enabled": str(instance.enabled).lower(),
    }
    for key, value in metadata_shown(instance.metadata).items():
        told.setdefault(f"metadata_{label_name(key)}", value)
    return {
        f"__meta_mooring_{name}": value
        for name, value in told.items()
        if len(name) <= LONGEST and len(value) <= LONGEST
    }


def label_name(text: str) -> str:
    """A text as a part of a label's name: what cannot be in one becomes an underscore."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


async def _targets(call: ApiCall) -> Response:
    wanted: Wanted = call.query
    fleet = call.server.fleet
    if not fleet.loaded:
        # An empty list would make Prometheus forget all of them; an error leaves it as it is.
        raise HTTPError(503, "unavailable", f"the registry has not been read yet: {fleet.error}")
    port = wanted.port
    if port.isascii() and port.isdecimal() and not 0 < int(port) < 65536:
        raise HTTPError(400, "bad_query", f"{port[:10]} is no port: it is 1 to 65535, or a name")
    names = [
        name
        for name in fleet.names()
        if call.principal.sees_service(name)
        and (not wanted.group or split_service(name)[0] == wanted.group)
        and (not wanted.service or name == wanted.service)
    ]
    return Response(targets(fleet, names, port))


ENDPOINTS = (
    ApiRoute(
        "GET",
        "/metrics",
        READING,
        _metrics,
        "Metrics for Prometheus",
        answers={200: None},
        media="text/plain",
    ),
    ApiRoute(
        "GET",
        "/prometheus/targets",
        READING,
        _targets,
        "List scrape targets for Prometheus' http_sd_configs",
        query=Wanted,
        answers={200: list[Targets]},
    ),
)
