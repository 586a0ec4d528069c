"""The timeline: events in words, bounded in number."""

from __future__ import annotations

import msgspec
import pytest

from mooring import Instance
from mooring.messages import message
from mooring.model import Status, now
from mooring.server.live import timeline as timelines
from mooring.server.live.timeline import MetricHistory, Timeline, TimelineEvent, events_of

ONE = Instance("a", "h", 1, incarnation="x")


def changed(**fields: object) -> Instance:
    return msgspec.structs.replace(ONE, **fields)


@pytest.mark.parametrize(
    ("after", "kind", "text"),
    [
        (changed(incarnation="y"), "restarted", "its process restarted"),
        (changed(version="2.0.0"), "version", "version 0.0.0 → 2.0.0"),
        (changed(status=Status(state="draining")), "state", "it is draining"),
        (changed(status=Status(healthy=False)), "health", "it reports itself unhealthy"),
        (changed(enabled=False), "enabled", "disabled: callers do not call it"),
        (changed(weight=2.5), "weight", "weight 1 → 2.5"),
        (changed(metadata={"k": "v"}), "metadata", "metadata changed: k"),
        (changed(zone="z"), "metadata", "its zone or ports changed"),
    ],
)
def test_a_change_is_described_in_both_directions(after: Instance, kind: str, text: str):
    assert [(event, message.text) for event, message in events_of(ONE, after)] == [(kind, text)]
    assert [event for event, _ in events_of(after, ONE)] == [kind]


def test_coming_and_going_are_events_of():
    assert [kind for kind, _ in events_of(None, ONE)] == ["added"]
    assert [kind for kind, _ in events_of(None, changed(enabled=False))] == ["added", "enabled"]
    assert [kind for kind, _ in events_of(ONE, None)] == ["removed"]


def test_metrics_come_without_a_word():
    assert list(events_of(ONE, changed(status=Status(metrics={"cpu": {"load": 1}})))) == []


def event(service: str, id: str = "h:1") -> TimelineEvent:
    return TimelineEvent(now(), service, id, "added", message("came_up"))


def test_the_newest_events_of_a_service_are_kept():
    timeline = Timeline()
    for number in range(timelines.MAX_SERVICE_EVENTS + 10):
        timeline.add(event("a", f"h:{number}"))
    kept = timeline.of("a")
    assert len(kept) == timelines.MAX_SERVICE_EVENTS
    assert kept[-1].id == f"h:{timelines.MAX_SERVICE_EVENTS + 9}"
    assert timeline.of("a", kept[0].id) == [kept[0]]
    assert timeline.of("b") == []


def test_many_services_have_less_room_each(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timelines, "MAX_EVENTS", 1000)
    timeline = Timeline()
    for _ in range(100):
        for number in range(15):
            timeline.add(event(f"s{number}"))
    assert sum(len(timeline.of(f"s{number}")) for number in range(15)) <= 1000


def measured(load: float) -> Instance:
    return changed(status=Status(metrics={"cpu": {"load": load}, "name": "x"}))


def test_samples_are_numbers_by_path_the_newest_last():
    history = MetricHistory()
    for load in range(3):
        history.add(("a", "h:1"), measured(load), now())
    assert [sample.metrics for sample in history.of(("a", "h:1"))] == [
        {"cpu.load": 0},
        {"cpu.load": 1},
        {"cpu.load": 2},
    ]


def test_samples_are_bounded_also_where_there_are_many_instances(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timelines, "MAX_SAMPLES", 1000)
    history = MetricHistory()
    for load in range(timelines.MAX_INSTANCE_SAMPLES + 50):
        for number in range(20):
            history.add(("a", f"h:{number}"), measured(load), now())
    assert sum(len(history.of(("a", f"h:{number}"))) for number in range(20)) <= 1000


def test_the_history_of_a_removed_instance_is_kept_and_continued_when_it_returns(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(timelines, "_MAX_GONE", 2)
    history = MetricHistory()
    for number in range(3):
        history.add(("a", f"h:{number}"), measured(number), now())
        history.leave(("a", f"h:{number}"))
    assert history.of(("a", "h:0")) == []
    history.add(("a", "h:2"), measured(7), now())
    assert [sample.metrics["cpu.load"] for sample in history.of(("a", "h:2"))] == [2, 7]
