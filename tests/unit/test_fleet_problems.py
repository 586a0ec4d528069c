"""Problems of the fleet: the worst first, with stable keys."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from mooring.messages import TEXTS, Message, message
from mooring.model import Instance, Status, Time
from mooring.registry.evictions import Brake
from mooring.server.http.response import rfc3339
from mooring.server.live.problems import (
    KINDS,
    FleetProblem,
    GracePeriods,
    problems,
    visible_problems,
)
from mooring.server.live.services import KnownService
from mooring.server.live.state import Fleet
from mooring.server.live.summary import Observation
from mooring.server.live.timeline import TimelineEvent

NOW = datetime.datetime(2026, 3, 1, 3, 0, tzinfo=datetime.UTC)


def ago(seconds: float) -> Time:
    return NOW - datetime.timedelta(seconds=seconds)


def service(
    name: str,
    instances: dict[str, Instance] | None = None,
    *,
    emptied: Time | None = None,
    lost: bool = True,
    absent: bool = False,
    since: Time = NOW,
) -> KnownService:
    known = KnownService(name, since=since, changed=NOW, version=1)
    known.instances.update(instances or {})
    known.emptied, known.lost, known.absent = emptied, lost, absent
    return known


@dataclass
class Seen:
    """A fleet as plain data."""

    known: dict[str, KnownService] = field(default_factory=dict)
    stale: bool = False
    error: str = ""
    observed: dict[str, dict[str, Observation]] = field(default_factory=dict)
    brakes: dict[str, Message] = field(default_factory=dict)
    events: dict[str, list[TimelineEvent]] = field(default_factory=dict)

    def services(self) -> Sequence[KnownService]:
        for name, observed in self.observed.items():
            self.known[name].observations.update(observed)
        return [self.known[name] for name in sorted(self.known)]

    def brake(self, service: str) -> Message | None:
        return self.brakes.get(service)

    def timeline(self, service: str) -> Sequence[TimelineEvent]:
        return self.events.get(service, [])


def having(name: str, *statuses: Status, **changes: Any) -> KnownService:
    instances = [
        Instance(name, "10.0.0.1", 80 + number, status=status, **changes)
        for number, status in enumerate(statuses)
    ]
    return service(name, {instance.id: instance for instance in instances})


def of(*services: KnownService, **named: Any) -> Fleet:
    return cast(Fleet, Seen({known.name: known for known in services}, **named))


def only(all_problems: list[FleetProblem]) -> FleetProblem:
    (problem,) = all_problems
    return problem


HEALTHY = Status()
UNHEALTHY = Status(healthy=False)


def test_a_healthy_service_has_no_problem():
    assert problems(of(having("orders", HEALTHY, HEALTHY)), NOW) == []


def test_a_registry_that_cannot_be_read_comes_first():
    seen = of(having("orders", UNHEALTHY), stale=True, error="connection refused")
    first, *rest = problems(seen, NOW, stale_since=ago(60))
    assert (first.kind, first.severity, first.service) == ("stale", "critical", "")
    assert "connection refused" in first.text
    assert first.since == rfc3339(ago(60))
    assert [problem.kind for problem in rest] == ["none_callable", "unhealthy"]


def test_a_service_that_was_empty_at_the_start_may_have_failed():
    absent = service("orders", absent=True, since=ago(90))
    problem = only(problems(of(absent, service("just described")), NOW))
    assert (problem.kind, problem.severity, problem.since) == (
        "absent",
        "warning",
        rfc3339(ago(90)),
    )
    assert problem.text == "orders has no instance, and had none when this server started"
    absent.emptied = ago(10)
    assert only(problems(of(absent), NOW)).kind == "no_instances"


def test_a_service_that_lost_its_last_instance_has_none():
    problem = only(problems(of(service("orders", emptied=ago(90))), NOW))
    assert (problem.kind, problem.severity) == ("no_instances", "critical")
    assert problem.since == rfc3339(ago(90))
    assert problem.text == "orders has no instance: the last one was lost"
    assert "Forget" in problem.hint


def test_a_service_whose_last_instance_left_in_order_is_a_note_for_an_hour():
    seen = of(service("orders", emptied=ago(90), lost=False), having("x", HEALTHY, HEALTHY))
    note = only(problems(seen, NOW))
    assert (note.kind, note.severity, note.since) == ("emptied", "info", rfc3339(ago(90)))
    assert note.text == "orders has no instance: the last one deregistered"
    assert problems(seen, NOW + datetime.timedelta(hours=1)) == []


def test_a_deregistered_service_is_less_severe_with_the_same_key():
    lost = only(problems(of(service("orders", emptied=ago(60))), NOW))
    seen = of(service("orders", emptied=ago(7200)), having("x", HEALTHY, UNHEALTHY), stale=True)
    _, given_up, _ = problems(seen, NOW)
    assert (given_up.severity, given_up.key) == ("warning", lost.key)


def test_a_service_that_never_had_an_instance_is_no_problem():
    assert problems(of(service("described-only")), NOW) == []


def test_a_service_without_callable_instances_is_a_problem():
    seen = of(having("orders", HEALTHY, HEALTHY, enabled=False))
    none, disabled = problems(seen, NOW)
    assert (none.kind, disabled.kind) == ("none_callable", "disabled")
    assert none.text == "orders: none of its registered instances (2) is healthy and in rotation"
    assert "callers try" in none.hint
    assert "`mooring explain orders`" in none.hint


def test_a_brake_is_a_problem_of_its_own():
    since = ago(30)
    seen = of(
        having("orders", HEALTHY),
        brakes={"orders": Brake(9, 10, 0, 0).message},
        events={"orders": [TimelineEvent(since, "orders", "", "brake", message("brake_off"))]},
    )
    problem = only(problems(seen, NOW))
    assert (problem.kind, problem.since) == ("brake", rfc3339(since))
    assert problem.text.startswith("orders: the brake is engaged and pauses eviction: 9 of 10")
    assert "mooring brake release orders" in problem.hint


def test_one_unhealthy_instance_is_named():
    event = TimelineEvent(ago(5), "orders", "10.0.0.1:81", "health", message("unhealthy"))
    problem = only(
        problems(of(having("orders", HEALTHY, UNHEALTHY), events={"orders": [event]}), NOW)
    )
    assert problem.id == "10.0.0.1:81"
    assert problem.text == "orders: 10.0.0.1:81 reports itself unhealthy"
    assert problem.since == rfc3339(ago(5))
    assert problem.params["count"] == 1


def test_several_are_counted_and_the_first_named():
    problem = only(problems(of(having("orders", HEALTHY, *[UNHEALTHY] * 5)), NOW))
    assert problem.id == ""
    assert "5 of 6 instances report themselves unhealthy" in problem.text
    assert "10.0.0.1:81, 10.0.0.1:82, 10.0.0.1:83, …" in problem.text


def test_an_instance_appears_in_one_problem_only():
    service = having("orders", HEALTHY, Status(state="draining", healthy=False))
    seen = of(service, observed={"orders": {"10.0.0.1:81": Observation(late=True)}})
    assert [problem.kind for problem in problems(seen, NOW)] == ["unhealthy"]


def test_late_heartbeats_and_failing_checks_are_different_problems():
    seen = of(
        having("orders", HEALTHY, HEALTHY, HEALTHY),
        observed={
            "orders": {
                "10.0.0.1:80": Observation(silence=60.0, sampled=NOW, late=True),
                "10.0.0.1:81": Observation(check_failure=message("probe_refused")),
            }
        },
    )
    silent, failing = problems(seen, NOW)
    assert (silent.kind, silent.id, silent.since) == ("silent", "10.0.0.1:80", rfc3339(ago(60)))
    assert failing.text.endswith("fails its health check: it refused the connection")


@pytest.mark.parametrize(("seconds", "kinds"), [(599, []), (601, ["draining"])])
def test_draining_is_a_problem_only_if_it_does_not_end(seconds: float, kinds: list[str]):
    began = TimelineEvent(ago(seconds), "orders", "10.0.0.1:81", "state", message("is_draining"))
    service = having("orders", HEALTHY, Status(state="draining"))
    seen = of(service, events={"orders": [began]})
    assert [problem.kind for problem in problems(seen, NOW, grace=GracePeriods(600.0))] == kinds


def test_problems_are_sorted_by_severity_and_service():
    seen = of(
        having("b/one", HEALTHY, UNHEALTHY),
        having("a/two", HEALTHY, UNHEALTHY),
        service("z", emptied=NOW),
        having("orders", HEALTHY),
        brakes={"orders": Brake(9, 10, 0, 0).message},
    )
    assert [problem.key for problem in problems(seen, NOW)] == [
        "no_instances:z",
        "brake:orders",
        "unhealthy:a/two",
        "unhealthy:b/one",
    ]


def test_a_problem_keeps_its_key_when_its_numbers_change():
    one = only(problems(of(having("orders", HEALTHY, UNHEALTHY)), NOW))
    two = only(problems(of(having("orders", HEALTHY, UNHEALTHY, UNHEALTHY)), NOW))
    assert one.key == two.key
    assert one.text != two.text


def test_the_text_does_not_change_with_time_alone():
    later = NOW + datetime.timedelta(minutes=30)
    began = TimelineEvent(ago(5000), "orders", "10.0.0.1:80", "state", message("is_draining"))
    late = Observation(silence=60.0, sampled=NOW, late=True)
    seen = of(
        having("orders", Status(state="draining"), HEALTHY),
        service("gone", emptied=ago(10)),
        observed={"orders": {"10.0.0.1:81": late}},
        events={"orders": [began]},
    )
    texts = [problem.text for problem in problems(seen, NOW)]
    assert [problem.text for problem in problems(seen, later)] == texts
    assert len(texts) == 4


def test_problems_of_the_store_are_visible_to_all_and_of_services_in_scope_only():
    seen = of(having("a/x", HEALTHY, UNHEALTHY), having("b/y", HEALTHY, UNHEALTHY), stale=True)
    visible = visible_problems(problems(seen, NOW), lambda service: service.startswith("a/"))
    assert [problem.key for problem in visible] == ["stale:", "unhealthy:a/x"]


def test_every_kind_has_a_severity_and_a_hint():
    assert {f"hint_{kind}" for kind in KINDS} == {
        kind for kind in TEXTS if kind.startswith("hint_")
    }


def test_problems_can_be_written_as_json():
    found_problems = problems(of(having("orders", UNHEALTHY), stale=True), NOW, stale_since=NOW)
    first = msgspec.json.decode(msgspec.json.encode(found_problems))[0]
    assert first["since"] == "2026-03-01T03:00:00.000Z"
    assert set(first) >= {"key", "severity", "kind", "text", "hint", "params", "service", "id"}
