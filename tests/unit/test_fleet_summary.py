"""Summaries over many instances."""

from __future__ import annotations

import datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring import Instance
from mooring.cli.commands.instances import record, without_secrets
from mooring.messages import joined, message
from mooring.model import JSON, Config, State, Status, applied
from mooring.server.http.response import encode
from mooring.server.live import summary as summary_module
from mooring.server.live.summary import (
    CheckResult,
    HealthCounts,
    Observation,
    ServiceDetail,
    aggregate,
    aggregates,
    count_health,
    health,
    healthy,
    instance_detail,
    instance_metrics,
    numbers,
    percentile,
    rate,
    reasons,
    service_summary,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=64)
REFUSED = message("probe_refused")
LINK_LOCAL = message("address_refused", problem=message("target_link_local"))
MOMENT = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, datetime.UTC)


def at(port: int, *, status: Status | None = None, **fields: object) -> Instance:
    return Instance("a", "h", port, status=status or Status(), **fields)  # type: ignore[arg-type]


def telling(port: int, **metrics: JSON) -> Instance:
    return at(port, status=Status(metrics=metrics))


@given(st.lists(FINITE, min_size=1, max_size=200))
def test_aggregates_are_ordered_and_within_the_range_of_their_values(values: list[float]):
    stats = aggregate(values)
    assert stats.count == len(values)
    assert (stats.min, stats.max) == (min(values), max(values))
    assert stats.min <= stats.p50 <= stats.p90 <= stats.p99 <= stats.max
    assert stats.min <= stats.avg <= stats.max
    assert {stats.p50, stats.p90, stats.p99} <= set(values)


@given(
    st.lists(FINITE, min_size=1, max_size=200),
    st.floats(min_value=0.01, max_value=1.0, allow_nan=False),
)
def test_a_percentile_is_the_lowest_value_that_covers_its_share(values: list[float], share: float):
    ordered = sorted(values)
    result = percentile(ordered, share)
    needed = share * len(ordered)
    assert sum(value <= result for value in ordered) >= needed - 1e-9
    assert sum(value < result for value in ordered) < max(needed, 1) + 1e-9


@given(FINITE, st.integers(min_value=1, max_value=50))
def test_aggregates_of_equal_values_are_that_value(value: float, count: int):
    stats = aggregate([value] * count)
    assert {stats.avg, stats.min, stats.max, stats.p50, stats.p90, stats.p99} == {value}


def test_percentiles_of_a_hundred_values():
    stats = aggregate(range(1, 101))
    assert (stats.p50, stats.p90, stats.p99, stats.avg) == (50, 90, 99, 50.5)


def test_metrics_are_named_by_path_and_non_numbers_are_omitted():
    tree: dict[str, JSON] = {
        "memory": {"usagePercent": 41.5, "kind": "rss", "deep": {"er": 1}},
        "up": True,
        "none": None,
        "list": [1, 2],
        "nan": float("nan"),
        "huge": 10**400,
        "count": 3,
    }
    assert dict(numbers(tree)) == {"memory.usagePercent": 41.5, "memory.deep.er": 1, "count": 3}


def test_a_metric_is_aggregated_over_the_instances_that_report_it():
    by_path = aggregates(
        [telling(1, cpu={"load": 1}), telling(2, cpu={"load": 3}), telling(3, disk={"free": 9})]
    )
    assert list(by_path) == ["cpu.load", "disk.free"]
    assert (by_path["cpu.load"].avg, by_path["cpu.load"].count, by_path["disk.free"].count) == (
        2,
        2,
        1,
    )


def test_a_rate_of_nothing_is_zero():
    assert rate(0, 0) == 0
    assert rate(1, 3) == 0.3333
    assert rate(2, 2) == 1


@pytest.mark.parametrize(
    ("instance", "observed", "reason"),
    [
        (at(1), Observation(), ""),
        (at(1, status=Status(healthy=False)), Observation(), "it reports itself unhealthy"),
        (at(1, status=Status(state="draining")), Observation(), "it is draining"),
        (at(1, enabled=False), Observation(), "disabled by the instance itself"),
        (applied(at(1, config=Config(enabled=False))), Observation(), "disabled by an operator"),
        (at(1), Observation(silence=42, late=True), "heartbeat late: silent for 42 s"),
        (at(1), Observation(check_failure=REFUSED), "check failing: it refused the connection"),
        (at(1, weight=0), Observation(), "its weight is 0"),
    ],
)
def test_problems_of_an_instance_are_explained(
    instance: Instance, observed: Observation, reason: str
):
    assert joined(reasons(instance, observed)) == reason


def test_an_instance_that_fails_its_check_is_unhealthy_despite_its_own_report():
    assert healthy(at(1), Observation())
    assert not healthy(at(1), Observation(check_failure=REFUSED))


@pytest.mark.parametrize("state", ["up", "draining", "down"])
def test_callable_instances_are_active(state: State):
    one = at(1, status=Status(state=state))
    assert count_health({one.id: one}, {}) == HealthCounts(1, 1, 1, int(state == "up"))


def test_late_disabled_or_weightless_instances_are_not_active():
    some = [at(1), at(2), at(3, enabled=False), at(4, weight=0)]
    counts = count_health(
        {instance.id: instance for instance in some},
        {some[1].id: Observation(silence=99, late=True)},
    )
    assert counts == HealthCounts(1, 4, 3, 1)


def test_a_silent_instance_is_shown_as_silent_and_unhealthy():
    silent = Observation(silence=99, late=True)
    detail = instance_detail(at(1), silent)
    assert (detail.state, detail.healthy) == ("silent", False)
    assert count_health({"a": at(1)}, {"a": silent}) == HealthCounts(1, 1, 0, 0)


def test_a_private_key_in_metrics_is_masked():
    pem = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"
    one = at(1, status=Status(metrics={"tls": {"bundle": pem, "days": 3}}))
    assert "MIIE" not in encode(instance_detail(one)).decode()
    assert "MIIE" not in encode(instance_metrics(one)).decode()


def test_a_private_key_whose_lines_are_fields_is_masked():
    pem = {"a": "-----BEGIN PRIVATE KEY-----", "b": "MIIE", "c": "-----END PRIVATE KEY-----"}
    config = Config(metadata=pem, values={**pem, "list": [*pem.values()]})
    one = at(1, status=Status(metrics={**pem}), metadata=pem, config=config)
    assert "MIIE" not in encode(instance_detail(one)).decode()
    assert "MIIE" not in encode(instance_metrics(one)).decode()
    assert "MIIE" not in str(record(without_secrets(one)))


def test_an_instance_that_is_not_checked_is_healthy():
    refused = Observation(unchecked=LINK_LOCAL)
    detail = instance_detail(at(1), refused)
    assert detail.healthy
    assert detail.check == CheckResult("not_checked", "its address is link-local", LINK_LOCAL)
    assert reasons(at(1), refused) == []
    assert count_health({"a": at(1)}, {"a": refused}) == HealthCounts(1, 1, 1, 1)


def test_the_shape_of_health():
    shown = msgspec.json.decode(
        encode(health([HealthCounts(1, 3, 2, 0), HealthCounts(1, 1, 1, 1)], MOMENT))
    )
    assert shown == {
        "totalServices": 2,
        "totalInstances": 4,
        "healthyInstances": 3,
        "activeInstances": 1,
        "healthyRate": 0.75,
        "timestamp": "2024-05-06T07:08:09.123Z",
    }


def test_the_shape_of_a_service_and_of_its_instances():
    one = at(
        1,
        status=Status(registered_at=MOMENT, updated_at=MOMENT, metrics={"cpu": {"load": 2}}),
        metadata={"b": "2", "a": "1"},
        ports={"http": 8080},
        version="1.2.3",
        zone="z",
        config=Config(weight=2.0, values={"color": "blue"}),
    )
    two = at(2, status=Status(healthy=False))
    seen = {one.id: Observation(silence=1.5, sampled=MOMENT, response_time=12.5)}
    metrics = aggregates([one, two])
    instances = {one.id: one, two.id: two}
    summary = service_summary("a", instances, seen, changed=MOMENT, metrics=metrics)
    details = (instance_detail(one, seen[one.id]),)
    detail = ServiceDetail(**msgspec.structs.asdict(summary), instances=details)
    shown = msgspec.json.decode(encode(detail))
    instance = shown.pop("instances")
    assert shown == {
        "serviceName": "a",
        "totalInstances": 2,
        "healthyInstances": 1,
        "enabledInstances": 2,
        "aggregatedMetrics": {
            "cpu.load": {
                **{"avg": 2.0, "min": 2.0, "max": 2.0, "count": 1},
                **{"p50": 2.0, "p90": 2.0, "p99": 2.0},
            }
        },
        "lastUpdateTime": "2024-05-06T07:08:09.123Z",
        "healthyRate": 0.5,
        "enabledRate": 1.0,
        "avgHeartbeatDelay": 1500.0,
        "avgResponseTime": 12.5,
        "abnormalInstances": [
            {
                "instanceId": "h:2",
                "reason": "it reports itself unhealthy",
                "reasons": [
                    {"kind": "unhealthy", "params": {}, "text": "it reports itself unhealthy"}
                ],
            }
        ],
    }
    assert instance == [
        {
            "instanceId": "h:1",
            "serviceName": "a",
            "host": "h",
            "port": 1,
            "protocol": "tcp",
            "version": "1.2.3",
            "zone": "z",
            "weight": 1.0,
            "enabled": True,
            "healthy": True,
            "state": "up",
            "check": {"result": "passing", "reason": "", "message": None},
            "ephemeral": True,
            "metadata": {"a": "1", "b": "2"},
            "ports": {"http": 8080},
            "config": {"color": "blue", "weight": 2.0},
            "registrationTime": "2024-05-06T07:08:09.123Z",
            "lastHeartbeat": "2024-05-06T07:08:07.623Z",
            "lastMetadataUpdate": "2024-05-06T07:08:09.123Z",
            "metrics": {"cpu": {"load": 2}},
            "heartbeatDelay": 1500.0,
        }
    ]


def test_unknown_values_are_null():
    shown = msgspec.json.decode(encode(instance_metrics(at(1))))
    assert shown == {
        "instanceId": "h:1",
        "serviceName": "a",
        "metrics": {},
        "lastMetadataUpdate": None,
        "lastHeartbeat": None,
        "heartbeatDelay": None,
    }


def test_metrics_of_a_service_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(summary_module, "MAX_PATHS", 3)
    by_path = aggregates([telling(port, **{f"n{port}": 1, "all": port}) for port in range(1, 9)])
    assert set(by_path) == {"n1", "all", "n2"}
    assert by_path["all"].count == 8
