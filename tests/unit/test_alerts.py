"""Alerts fire for problems that last, resolve once, and are never sent twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from mooring.errors import InvalidRequest
from mooring.server.alerts import AlertState
from mooring.server.live.problems import FleetProblem
from mooring.server.settings import parse_alerts


def problem(name: str, text: str = "") -> FleetProblem:
    return FleetProblem(f"unhealthy:{name}", "warning", "unhealthy", name, "", None, text, "")


A, B = problem("a"), problem("b")


def test_a_problem_fires_once_it_has_lasted():
    state = AlertState(after=30)
    assert not state.update([A], 0)
    assert not state.update([A], 29)
    notice = state.update([A], 30)
    assert notice.firing == (A,)
    state.mark_sent(notice)
    assert not state.update([A], 1000)


def test_a_short_problem_does_not_fire():
    state = AlertState(after=30)
    for second in range(0, 600, 20):
        assert not state.update([A] if second % 40 else [], second)


def test_a_problem_resolves_after_it_has_been_absent():
    state = AlertState(after=30)
    state.update([A], 0)
    state.mark_sent(state.update([A], 30))
    assert not state.update([], 31)
    assert not state.update([A], 50)  # back again: it was never resolved
    assert not state.update([], 60)
    notice = state.update([], 90)
    assert notice.resolved == (A,)
    state.mark_sent(notice)
    assert not state.update([], 200)


def test_an_unsent_notice_is_due_again_with_the_state_of_that_time():
    state = AlertState(after=30)
    state.update([A], 0)
    assert state.update([A], 30).firing == (A,)
    worse = problem("a", "worse")
    assert state.update([worse, B], 60).firing == (worse,)
    assert state.update([B], 90).firing == (B,)  # it ended before a notice was sent


@given(some.lists(some.sets(some.sampled_from("abc")), max_size=30), some.integers(0, 3))
def test_a_receiver_of_every_notice_knows_the_current_problems(states: list[set[str]], after: int):
    state, known = AlertState(after=after), set[str]()
    states += [states[-1] if states else set()] * (after + 1)
    for second, names in enumerate(states):
        notice = state.update(map(problem, sorted(names)), second)
        fired = {event.service for event in notice.firing}
        over = {event.service for event in notice.resolved}
        assert not fired & known
        assert over <= known
        known = known - over | fired
        state.mark_sent(notice)
    assert known == states[-1]


def test_the_webhook_url_is_never_shown_in_full():
    settings = parse_alerts(
        {"webhook": "https://hooks.example/T0/B0/secret?key=secret", "after": "5s"}
    )
    assert settings.where == "https://hooks.example/…"
    assert "secret" not in repr(settings)
    assert settings.after == 5.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"webhok": "https://x"}, "did you mean 'webhook'"),
        ({"webhook": "ftp://x/y"}, "URL"),
        ({"webhook": "https://"}, "URL"),
        ({"webhook": "https://x:99999/"}, "URL"),
        ({"webhook": "https://user:pass@x/"}, "token_file"),
        ({"webhook": "https://x/a b"}, "character"),
        ({"after": 30}, "duration"),
        ({"severity": "fatal"}, "alerts.severity"),
        ({"ca": "/nowhere"}, "requires alerts.webhook"),
        ({"webhook": "https://x/", "token_file": "/nowhere"}, "/nowhere does not exist"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object], message: str):
    with pytest.raises(InvalidRequest, match=message):
        parse_alerts(settings)


@pytest.mark.parametrize(
    ("webhook", "safe"),
    [
        ("https://hooks.example/", True),
        ("http://127.0.0.1:9093/", True),
        ("http://[::1]:9093/", True),
        ("http://localhost/", True),
        ("http://hooks.example/", False),
        ("http://10.0.0.1/", False),
        ("http://localhost.example/", False),
    ],
)
def test_a_token_is_sent_to_no_other_machine_without_tls(webhook: str, safe: bool, tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("hunter2")
    settings = {"webhook": webhook, "token_file": str(token)}
    if safe:
        assert parse_alerts(settings).token_file == str(token)
    else:
        with pytest.raises(InvalidRequest, match="without TLS"):
            parse_alerts(settings)
    assert parse_alerts({"webhook": webhook}).webhook == webhook
