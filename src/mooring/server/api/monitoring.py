"""Monitoring: the probes `/healthz` and `/readyz`, and Prometheus: metrics and scrape targets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec
from prometheus_client import REGISTRY, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from mooring import __version__
from mooring.addresses import join
from mooring.model import Instance
from mooring.names import split_service
from mooring.server.api.endpoint import ApiCall, EndpointList
from mooring.server.api.registry import loaded_fleet
from mooring.server.auth.authorization import OPEN, READING
from mooring.server.context import ServerContext
from mooring.server.http.response import HTTPError, Response
from mooring.server.live.problems import SEVERITIES, visible_problems
from mooring.server.live.services import KnownService
from mooring.server.live.state import Fleet
from mooring.server.live.summary import Observation, masked_metadata, percentile

endpoints = EndpointList()

_TEXT = "text/plain; charset=utf-8"
_UNCACHED = {"Cache-Control": "no-store"}


@endpoints.add("GET", "/healthz", OPEN, answers={200: None}, media=_TEXT)
async def healthz(_: ApiCall) -> Response:
    """Liveness probe."""
    return Response(b"ok\n", headers=_UNCACHED, media=_TEXT)


@endpoints.add("GET", "/readyz", OPEN, answers={200: None, 503: None}, media=_TEXT)
async def readyz(call: ApiCall) -> Response:
    """Readiness probe: the store and the registry can be read."""
    if problems := await call.server.readiness.problems():
        body = "".join(f"{problem}\n" for problem in problems)
        return Response(body.encode(), 503, headers=_UNCACHED, media=_TEXT)
    # Ready even if the store rejects writes: reads continue, and every server has the same store.
    alarms = call.server.alarms
    body = "ok, but the store has an alarm\n" if alarms and alarms.raised else "ok\n"
    return Response(body.encode(), headers=_UNCACHED, media=_TEXT)


STATES = ("up", "unhealthy", "silent", "failing", "draining", "down", "disabled")
"""Each instance is in exactly one of these states."""
SHARES = (0.5, 0.99, 1.0)
"""The exposed percentiles. Only summaries may have a label `quantile`."""
MAX_LABEL = 1024
"""Maximum characters of a label; longer ones are omitted."""


def state_of(instance: Instance, observed: Observation) -> str:
    """The state of an instance: the first of its problems, if it has any."""
    if not instance.status.healthy:
        return "unhealthy"
    if observed.late:
        return "silent"
    if observed.check_failure:
        return "failing"
    if instance.status.state != "up":
        return instance.status.state
    return "up" if instance.enabled else "disabled"


class ScopedCollector(Collector):
    """The metrics for one scraper: all of this process, and those of the services it may access."""

    def __init__(self, server: ServerContext, sees: Callable[[str], bool]) -> None:
        self._server, self._fleet, self._sees = server, server.fleet, sees

    def collect(self) -> Iterator[Metric]:
        for metric in REGISTRY.collect():
            metric.samples = [s for s in metric.samples if self._includes(s.labels)]
            yield metric
        yield from server_metrics(self._server)
        yield from fleet_metrics(self._fleet, self._fleet.services(self._sees))
        yield from self._problem_metrics()

    def _includes(self, labels: Mapping[str, str]) -> bool:
        service = labels.get("service")
        return service is None or self._sees(service)

    def _problem_metrics(self) -> Iterator[Metric]:
        problems = visible_problems(self._server.problems.problems(), self._sees)
        counts = GaugeMetricFamily("mooring_problems", "Current problems", labels=["severity"])
        for severity in SEVERITIES:
            counts.add_metric([severity], sum(p.severity == severity for p in problems))
        yield counts
        services = GaugeMetricFamily(
            "mooring_service_problem",
            "1 for each current problem of a service",
            labels=["service", "kind", "severity"],
        )
        for problem in problems:
            if problem.service:
                services.add_metric([problem.service, problem.kind, problem.severity], 1)
        yield services


def server_metrics(server: ServerContext) -> Iterator[Metric]:
    build = GaugeMetricFamily("mooring_build_info", "The version of Mooring", labels=["version"])
    build.add_metric([__version__], 1)
    yield build
    yield GaugeMetricFamily(
        "mooring_sse_clients", "Clients of the live stream", value=server.stream.clients
    )
    if server.alarms is not None:
        yield GaugeMetricFamily(
            "mooring_store_alarm",
            "1 while the store has an alarm, such as NOSPACE, and may reject writes",
            value=int(bool(server.alarms.raised)),
        )
    yield CounterMetricFamily(
        "mooring_audit_failures", "Audit entries that were lost", value=server.audit.failures
    )


def fleet_metrics(fleet: Fleet, services: Sequence[KnownService]) -> Iterator[Metric]:
    """The metrics of these services."""
    instances = GaugeMetricFamily(
        "mooring_instances", "Instances by state", labels=["service", "state"]
    )
    delays = GaugeMetricFamily(
        "mooring_heartbeat_delay_seconds",
        "Time since the last heartbeat of each instance; the percentile 100 is the longest",
        labels=["service", "percentile"],
    )
    brakes = GaugeMetricFamily(
        "mooring_brake_engaged", "1 while the brake is engaged", labels=["service"]
    )
    for known in services:
        pairs = list(known.observed_instances())
        counts = Counter(state_of(*pair) for pair in pairs)
        silences = sorted(seen.silence for _, seen in pairs if seen.silence is not None)
        # No states for a service that is empty on purpose: alerts on `up == 0` would fire.
        for state in STATES if known.instances or known.lost else ():
            instances.add_metric([known.name, state], counts[state])
        for share in SHARES if silences else ():
            delays.add_metric([known.name, f"{share:.0%}".rstrip("%")], percentile(silences, share))
        brakes.add_metric([known.name], int(bool(fleet.brake(known.name))))
    yield GaugeMetricFamily("mooring_services", "Known services", value=len(services))
    yield instances
    yield delays
    yield brakes
    yield GaugeMetricFamily(
        "mooring_fleet_stale",
        "1 while the registry cannot be read and the metrics may be outdated",
        value=int(fleet.stale),
    )


@endpoints.add("GET", "/metrics", READING, answers={200: None}, media="text/plain")
async def metrics(call: ApiCall) -> Response:
    """Metrics for Prometheus."""
    collector = ScopedCollector(call.server, call.principal.sees_service)
    # The version and weight of OpenMetrics do not matter: the response uses the oldest version,
    # which every client can read.
    accepted = call.request.headers.get("accept", "").lower().split(",")
    if "application/openmetrics-text" in (item.partition(";")[0].strip() for item in accepted):
        body = openmetrics.generate_latest(collector)  # type: ignore[no-untyped-call]
        return Response(body, media=openmetrics.CONTENT_TYPE_LATEST)
    return Response(generate_latest(collector), media=CONTENT_TYPE_PLAIN_0_0_4)


class TargetGroup(msgspec.Struct, frozen=True):
    """A target group of Prometheus, with one target."""

    targets: list[str]
    labels: dict[str, str]


class TargetsQuery(msgspec.Struct, frozen=True, kw_only=True):
    group: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    service: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    port: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The name of an additional port, or a number; by default the main port."""


def _target(instance: Instance, port: str) -> TargetGroup | None:
    """The target for an instance; None if it does not have the port."""
    number = instance.port if not port else instance.ports.get(port)
    if port.isascii() and port.isdecimal():
        number = int(port)
    if not instance.host or not number:
        return None
    return TargetGroup([join(instance.host, number)], labels(instance))


def labels(instance: Instance) -> dict[str, str]:
    """The labels of a target. The prefix `__meta_mooring_` keeps registered metadata from replacing
    labels of Prometheus itself."""
    group, name = split_service(instance.service)
    values = {
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
    for key, value in masked_metadata(instance.metadata).items():
        values.setdefault(f"metadata_{label_name(key)}", value)
    return {
        f"__meta_mooring_{name}": value
        for name, value in values.items()
        if len(name) <= MAX_LABEL and len(value) <= MAX_LABEL
    }


def label_name(text: str) -> str:
    """A text as part of a label name: invalid characters become underscores."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


@endpoints.add(
    "GET", "/prometheus/targets", READING, query=TargetsQuery, answers={200: list[TargetGroup]}
)
async def scrape_targets(call: ApiCall) -> Response:
    """List scrape targets for Prometheus' http_sd_configs."""
    query: TargetsQuery = call.query
    # An empty list would make Prometheus drop all targets; after an error it keeps them.
    services = loaded_fleet(call).services(call.principal.sees_service)
    port = query.port
    if port.isascii() and port.isdecimal() and not 0 < int(port) < 65536:
        raise HTTPError(400, "bad_query", "scrape_port_invalid", port=port)
    targets = [
        _target(known.instances[id], port)
        for known in services
        if query.group in ("", split_service(known.name)[0]) and query.service in ("", known.name)
        for id in sorted(known.instances)
    ]
    return Response([target for target in targets if target is not None])
