"""What can be said of many instances at once."""

from __future__ import annotations

import datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring import Instance
from mooring.cli.commands.instances import record, without_secrets
from mooring.messages import joined
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
MOMENT = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, datetime.UTC)


def at(port: int, *, status: Status | None = None, **fields: object) -> Instance:
    return Instance("a", "h", port, status=status or Status(), **fields)  # type: ignore[arg-type]


def telling(port: int, **metrics: JSON) -> Instance:
    return at(port, status=Status(metrics=metrics))


@given(st.lists(FINITE, min_size=1, max_size=200))
def test_an_aggregate_is_in_order_and_within_what_it_is_of(values: list[float]):
    told = aggregate(values)
    assert told.count == len(values)
    assert (told.min, told.max) == (min(values), max(values))
    assert told.min <= told.p50 <= told.p90 <= told.p99 <= told.max
    assert told.min <= told.avg <= told.max
    assert {told.p50, told.p90, told.p99} <= set(values)


@given(
    st.lists(FINITE, min_size=1, max_size=200),
    st.floats(min_value=0.01, max_value=1.0, allow_nan=False),
)
def test_a_percentile_is_the_lowest_that_so_many_do_not_exceed(values: list[float], share: float):
    ordered = sorted(values)
    found = percentile(ordered, share)
    needed = share * len(ordered)
    assert sum(value <= found for value in ordered) >= needed - 1e-9
    assert sum(value < found for value in ordered) < max(needed, 1) + 1e-9


@given(FINITE, st.integers(min_value=1, max_value=50))
def test_of_equal_values_all_is_that_value(value: float, count: int):
    told = aggregate([value] * count)
    assert {told.avg, told.min, told.max, told.p50, told.p90, told.p99} == {value}


def test_percentiles_of_a_hundred_are_what_one_expects():
    told = aggregate(range(1, 101))
    assert (told.p50, told.p90, told.p99, told.avg) == (50, 90, 99, 50.5)


def test_metrics_are_named_by_their_path_and_what_is_no_number_is_left_out():
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


def test_each_metric_is_aggregated_over_those_who_tell_it():
    told = aggregates(
        [telling(1, cpu={"load": 1}), telling(2, cpu={"load": 3}), telling(3, disk={"free": 9})]
    )
    assert list(told) == ["cpu.load", "disk.free"]
    assert (told["cpu.load"].avg, told["cpu.load"].count, told["disk.free"].count) == (2, 2, 1)


def test_a_rate_of_nothing_is_nothing():
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
        (at(1), Observation(check_failure="refused"), "check failing: refused"),
        (at(1, weight=0), Observation(), "its weight is 0"),
    ],
)
def test_what_is_wrong_with_an_instance_is_told_in_words(
    instance: Instance, observed: Observation, reason: str
):
    assert joined(reasons(instance, observed)) == reason


def test_who_fails_its_check_is_not_healthy_whatever_it_says():
    assert healthy(at(1), Observation())
    assert not healthy(at(1), Observation(check_failure="refused"))


@pytest.mark.parametrize("state", ["up", "draining", "down"])
def test_who_may_be_called_is_active(state: State):
    one = at(1, status=Status(state=state))
    assert count_health({one.id: one}, {}) == HealthCounts(1, 1, 1, int(state == "up"))


def test_who_is_late_disabled_or_without_weight_is_not_active():
    some = [at(1), at(2), at(3, enabled=False), at(4, weight=0)]
    told = count_health(
        {each.id: each for each in some}, {some[1].id: Observation(silence=99, late=True)}
    )
    assert told == HealthCounts(1, 4, 3, 1)


def test_a_silent_instance_is_shown_so_and_is_not_healthy():
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
    refused = Observation(unchecked="its address is link-local")
    detail = instance_detail(at(1), refused)
    assert detail.healthy
    assert detail.check == CheckResult("not_checked", "its address is link-local")
    assert reasons(at(1), refused) == []
    assert count_health({"a": at(1)}, {"a": refused}) == HealthCounts(1, 1, 1, 1)


def test_the_shape_of_health():
    told = msgspec.json.decode(
        encode(health([HealthCounts(1, 3, 2, 0), HealthCounts(1, 1, 1, 1)], MOMENT))
    )
    assert told == {
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
    summary = service_summary("a", {one.id: one, two.id: two}, seen, changed=MOMENT)
    instances = (instance_detail(one, seen[one.id]),)
    detail = ServiceDetail(**msgspec.structs.asdict(summary), instances=instances)
    told = msgspec.json.decode(encode(detail))
    instance = told.pop("instances")
    assert told == {
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
            "check": {"result": "passing", "reason": ""},
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


def test_what_is_not_known_is_null():
    told = msgspec.json.decode(encode(instance_metrics(at(1))))
    assert told == {
        "instanceId": "h:1",
        "serviceName": "a",
        "metrics": {},
        "lastMetadataUpdate": None,
        "lastHeartbeat": None,
        "heartbeatDelay": None,
    }


def test_metrics_of_a_service_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(summary_module, "MAX_PATHS", 3)
    told = aggregates([telling(port, **{f"n{port}": 1, "all": port}) for port in range(1, 9)])
    assert set(told) == {"n1", "all", "n2"}
    assert told["all"].count == 8
