"""The settings of active health checks, and the checker of each protocol."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest
from mooring.server.health_checks import checkers as choosing
from mooring.server.health_checks.checkers import Outcome, Target, load_checkers
from mooring.server.settings import CheckSettings, is_path, parse_checks


def test_checks_are_off_by_default():
    assert not CheckSettings().enabled
    assert parse_checks(None) == parse_checks({}) == CheckSettings()


def test_durations_have_units():
    settings = parse_checks({"enabled": True, "interval": "1m30s", "timeout": "250ms"})
    assert (settings.interval, settings.timeout) == (90.0, 0.25)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"intervall": "1s"}, "unknown setting checks.intervall, did you mean 'interval'"),
        ({"interval": 10}, "checks.interval"),
        ({"interval": "0s"}, "checks.interval"),
        ({"budget": 0}, "checks.budget"),
        ({"failures": 0}, "checks.failures"),
        ({"path": "up"}, "checks.path: 'up' is not a valid path"),
        ({"paths": {"orders": "//a"}}, "checks.paths.orders: '//a' is not a valid path"),
        ({"networks": ["10.0.0.1/8"]}, "checks.networks: '10.0.0.1/8' is not a network"),
        ({"networks": ["here"]}, "checks.networks: 'here' is not a network"),
        ({"ca": "/nowhere/ca.pem"}, "checks.ca: /nowhere/ca.pem does not exist"),
        ({"services": "orders"}, "checks.services"),
        ([], "checks must hold settings"),
    ],
)
def test_an_invalid_setting_is_explained(settings: object, message: str):
    with pytest.raises(InvalidRequest, match=message.replace(".", r"\.")):
        parse_checks(settings)


def test_services_are_selected_by_name_or_pattern():
    settings = parse_checks({"services": ["orders", "shop/*"]})
    assert settings.checks("orders")
    assert settings.checks("shop/basket")
    assert not settings.checks("orders2")
    assert not settings.checks("other/orders")
    assert CheckSettings().checks("any/thing")


@given(st.text(max_size=250))
def test_a_path_is_valid_in_a_request_line(text: str):
    if is_path(text):
        line = f"GET {text} HTTP/1.1".encode("ascii")
        assert len(line.split()) == 3
        assert text.startswith("/")
        assert not text.startswith("//")
        assert len(text) <= 200


class Own:
    async def check(self, target: Target, *, timeout: float) -> Outcome:
        return Outcome(True, 1.0)


def test_each_protocol_of_the_contract_has_a_checker_but_udp():
    checkers = load_checkers()
    assert sorted(checkers) == ["grpc", "grpcs", "http", "https", "tcp", "ws", "wss"]
    assert checkers.get("udp") is None
    assert checkers.get("redis") is None


def test_a_protocol_can_share_the_checker_of_another_or_have_none():
    checkers = load_checkers({"redis": "tcp", "grpc": "none"})
    assert checkers.get("redis") is checkers.get("tcp")
    assert checkers.get("grpc") is None


def test_off_without_quotes_means_no_checker():
    assert parse_checks({"protocols": {"grpc": False}}).protocols == {"grpc": "none"}


def test_an_unknown_checker_is_named():
    with pytest.raises(
        InvalidRequest, match=r"checks.protocols.redis: no checker 'htttp', did you"
    ):
        load_checkers({"redis": "htttp"})


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """A package with one entry point, as pip installs it."""
    info = folder / "probing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: probing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{choosing.GROUP}]\n{line}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_a_package_can_provide_a_checker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, monkeypatch, f"redis = {__name__}:Own")
    checkers = load_checkers({"valkey": "redis"})
    assert type(checkers.get("redis")).__name__ == "Own"
    assert checkers.get("valkey") is checkers.get("redis")


def test_a_checker_that_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, monkeypatch, "redis = nowhere.at_all:Own")
    with pytest.raises(InvalidRequest, match=r"health checker 'redis' of the entry point nowhere"):
        load_checkers()
