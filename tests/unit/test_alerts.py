"""What is news: what lasts, what is over, and nothing twice."""

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


def test_a_problem_is_told_once_it_has_lasted():
    state = AlertState(after=30)
    assert not state.update([A], 0)
    assert not state.update([A], 29)
    notice = state.update([A], 30)
    assert notice.firing == (A,)
    state.mark_sent(notice)
    assert not state.update([A], 1000)


def test_one_that_comes_and_goes_is_not_told():
    state = AlertState(after=30)
    for second in range(0, 600, 20):
        assert not state.update([A] if second % 40 else [], second)


def test_it_is_over_once_it_has_been_gone():
    state = AlertState(after=30)
    state.update([A], 0)
    state.mark_sent(state.update([A], 30))
    assert not state.update([], 31)
    assert not state.update([A], 50)  # back again: it never was over
    assert not state.update([], 60)
    notice = state.update([], 90)
    assert notice.resolved == (A,)
    state.mark_sent(notice)
    assert not state.update([], 200)


def test_what_could_not_be_told_is_due_again_as_it_is_then():
    state = AlertState(after=30)
    state.update([A], 0)
    assert state.update([A], 30).firing == (A,)
    worse = problem("a", "worse")
    assert state.update([worse, B], 60).firing == (worse,)
    assert state.update([B], 90).firing == (B,)  # it went before anybody heard of it


@given(some.lists(some.sets(some.sampled_from("abc")), max_size=30), some.integers(0, 3))
def test_who_hears_everything_knows_what_holds(states: list[set[str]], after: int):
    state, heard = AlertState(after=after), set[str]()
    states += [states[-1] if states else set()] * (after + 1)
    for second, names in enumerate(states):
        notice = state.update(map(problem, sorted(names)), second)
        fired = {each.service for each in notice.firing}
        over = {each.service for each in notice.resolved}
        assert not fired & heard
        assert over <= heard
        heard = heard - over | fired
        state.mark_sent(notice)
    assert heard == states[-1]


def test_the_webhook_is_never_shown_whole():
    settings = parse_alerts(
        {"webhook": "https://hooks.example/T0/B0/secret?key=secret", "after": "5s"}
    )
    assert settings.where == "https://hooks.example/…"
    assert "secret" not in repr(settings)
    assert settings.after == 5.0


@pytest.mark.parametrize(
    ("told", "said"),
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
def test_settings_that_make_no_sense_are_refused(told: dict[str, object], said: str):
    with pytest.raises(InvalidRequest, match=said):
        parse_alerts(told)


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
    told = {"webhook": webhook, "token_file": str(token)}
    if safe:
        assert parse_alerts(told).token_file == str(token)
    else:
        with pytest.raises(InvalidRequest, match="without TLS"):
            parse_alerts(told)
    assert parse_alerts({"webhook": webhook}).webhook == webhook
