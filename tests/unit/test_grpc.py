"""Targets and options of gRPC channels, and the wire format of the health service."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.discovery.exclusion import Selector
from mooring.discovery.rotation import Rotation
from mooring.errors import InvalidName, InvalidRequest
from mooring.grpc import aio
from mooring.grpc.health import Health, ServingStatus, _blocking_handlers, decoded, encoded
from mooring.grpc.methods import Repeatable, verdict, was_not_sent
from mooring.grpc.options import (
    SERVER_OPTIONS,
    authority,
    merged,
    service_of,
    subchannel_options,
    target_of,
)
from mooring.grpc.resolver import in_turn
from mooring.model import Instance, Status
from tests.waiting import until


@pytest.mark.parametrize(
    ("target", "service"),
    [
        ("etcdv3:///echo", "echo"),
        ("mooring:///echo", "echo"),
        ("etcdv3:///Common/VerifyCodeService", "Common/VerifyCodeService"),
        ("etcdv3:///Common%2FVerifyCodeService", "Common/VerifyCodeService"),
    ],
)
def test_a_target_names_a_service(target, service):
    assert service_of(target) == service


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "must begin with etcdv3:///"),
        ("echo", "must begin with etcdv3:///"),
        ("dns:///echo", "must begin with etcdv3:///"),
        ("etcdv3:echo", "Write 'etcdv3:///echo'"),
        ("etcdv3://echo", "Write 'etcdv3:///echo'"),
        ("etcdv3://127.0.0.1:2379/echo", "the registry is that of the hub"),
        (None, "must be text"),
    ],
)
def test_the_error_for_a_malformed_target_shows_a_valid_one(target, message):
    with pytest.raises(InvalidRequest, match=message):
        service_of(target)


@pytest.mark.parametrize("name", ["", "a/b/c", "info", "a//b", " echo", "a\nb", "..", "/echo"])
def test_an_invalid_service_name_is_refused(name):
    with pytest.raises(InvalidName, match="the target"):
        service_of(f"etcdv3:///{name}")


@pytest.mark.parametrize(("healthy", "remote"), [(10, 0), (7, 0), (5, 2), (1, 6), (0, 10)])
def test_a_blocking_channel_uses_as_many_remote_instances_as_calls_spill_over(healthy, remote):
    rotation = Rotation("echo", policy="round_robin", selector=Selector(zone="a"))
    for port in range(1, 21):
        status = Status(healthy=port <= healthy or port > 10)
        zone = "a" if port <= 10 else "b"
        rotation.put(Instance("echo", "10.0.0.1", port, zone=zone, status=status), 0.0, first=True)
    chosen = [member.instance.port for member in in_turn(rotation, b"salt")]
    assert [port for port in chosen if port <= 10] == list(range(1, healthy + 1))
    assert len(chosen) == healthy + remote
    again = [member.instance.port for member in in_turn(rotation, b"salt")]
    assert chosen == again


def test_the_error_for_an_unknown_policy_names_the_nearest():
    with pytest.raises(InvalidRequest, match="did you mean 'round_robin'"):
        aio.channel("etcdv3:///echo", hub="memory://", policy="roundrobin")


def test_methods_are_named_one_by_one_or_by_service():
    repeatable = Repeatable(["/echo.Echo/Say", "mail.Mail"], 3)
    assert "/echo.Echo/Say" in repeatable
    assert "/echo.Echo/Count" not in repeatable
    assert "/mail.Mail/Read" in repeatable
    assert "/mail.Mailer/Read" not in repeatable


@pytest.mark.parametrize("wrong", ["", "/", "echo.Echo/", "a/b/c", " echo.Echo/Say", 3, "//Say"])
def test_only_methods_can_be_repeatable(wrong):
    with pytest.raises(InvalidRequest, match=r"package\.Service/Method"):
        Repeatable([wrong], 3)


def test_one_method_alone_is_still_a_list():
    with pytest.raises(InvalidRequest, match=r"retry=\['echo\.Echo/Say'\]"):
        Repeatable("echo.Echo/Say", 3)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3"])
def test_tries_are_counted_from_one(wrong):
    with pytest.raises(InvalidRequest, match="1 or more"):
        Repeatable([], wrong)


@pytest.mark.parametrize(
    ("instance", "target"),
    [
        (Instance("echo", "10.0.0.1", 80), "ipv4:10.0.0.1:80"),
        (Instance("echo", "10.0.0.1", 80, ports={"grpc": 90}), "ipv4:10.0.0.1:90"),
        (Instance("echo", "fd00::1", 80), "ipv6:[fd00::1]:80"),
        (Instance("echo", "mail.example", 80), "dns:///mail.example:80"),
    ],
)
def test_an_instance_is_looked_up_by_its_address(instance, target):
    assert target_of(instance) == target


def test_the_options_of_the_caller_take_precedence():
    options = subchannel_options([("grpc.use_local_subchannel_pool", 0)], True)
    assert dict(reversed(options))["grpc.use_local_subchannel_pool"] == 0


IN_TURN: list[Any] = [{"round_robin": {}}]


def config_of(config: object, *arguments: Any) -> dict[str, Any]:
    given_options = [("grpc.service_config", json.dumps(config)), ("grpc.service_config", "not it")]
    merged_config: dict[str, Any] = json.loads(merged(given_options, *arguments))
    return merged_config


def test_the_service_config_of_the_caller_is_completed():
    theirs = {
        "methodConfig": [{"name": [{}], "timeout": "1s"}],
        "retryThrottling": {"maxTokens": 1},
    }
    ours = {"loadBalancingConfig": IN_TURN, "healthCheckConfig": {"serviceName": "echo"}}
    assert config_of(theirs, "echo") == {**theirs, **ours}
    (first, *_) = subchannel_options([("grpc.service_config", json.dumps(theirs))], "echo")
    assert json.loads(first[1]) == {**theirs, **ours}


def test_settings_in_the_service_config_of_the_caller_take_precedence():
    theirs = {"loadBalancingPolicy": "pick_first", "healthCheckConfig": {"serviceName": "mine"}}
    assert config_of(theirs, True) == theirs
    other: dict[str, Any] = {"loadBalancingConfig": [{"pick_first": {}}]}
    assert config_of(other, False) == other


def test_retries_keep_what_the_caller_set_for_the_method():
    theirs = [
        {"name": [{}], "timeout": "1s"},
        {"name": [{"service": "a.A"}, {"service": "b.B", "method": "Get"}], "timeout": "2s"},
    ]
    repeatable = Repeatable(["a.A/Get", "b.B", "c.C/Get"], 2)
    config = config_of({"methodConfig": theirs}, False, repeatable)
    assert config["retryThrottling"]["maxTokens"] == 100
    methods = {
        (name.get("service", ""), name.get("method", "")): (
            entry["timeout"],
            entry.get("retryPolicy", {}).get("maxAttempts"),
        )
        for entry in config["methodConfig"]
        for name in entry["name"]
    }
    assert methods == {
        ("", ""): ("1s", None),
        ("a.A", ""): ("2s", None),
        ("a.A", "Get"): ("2s", 2),
        ("b.B", ""): ("1s", 2),
        ("b.B", "Get"): ("2s", 2),
        ("c.C", "Get"): ("1s", 2),
    }


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ({"healthCheckConfig": {}}, ["echo"], "has a healthCheckConfig"),
        ([], [True], "must be a JSON object"),
        ({"methodConfig": {}}, [True], "a list of objects"),
        ({"methodConfig": [{"name": ["a"]}]}, [True, Repeatable(["a.A"], 2)], "is an object"),
        (
            {"methodConfig": [{"name": [{"service": "a.A"}], "retryPolicy": {}}]},
            [True, Repeatable(["a.A"], 2)],
            "has a retryPolicy",
        ),
        ({}, [3], "True, False or the name of a service"),
    ],
)
def test_a_service_config_that_contradicts_the_arguments_is_refused(
    config: object, arguments: list[Any], message: str
):
    with pytest.raises(InvalidRequest, match=message):
        config_of(config, *arguments)
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        merged([("grpc.service_config", "{")], True)


@pytest.mark.parametrize(
    ("service", "written"),
    [("echo", "echo"), ("Common/Mail", "Common%2FMail"), ("邮", "%E9%82%AE")],
)
def test_the_authority_is_the_service(service: str, written: str):
    assert authority(service) == (("grpc.default_authority", written),)


def test_servers_have_an_option_only_once():
    assert len(dict(SERVER_OPTIONS)) == len(SERVER_OPTIONS)


@pytest.mark.parametrize(
    ("code", "well"),
    [
        (grpc.StatusCode.OK, True),
        (grpc.StatusCode.NOT_FOUND, True),
        (grpc.StatusCode.INTERNAL, True),
        (grpc.StatusCode.UNAVAILABLE, False),
        (grpc.StatusCode.DEADLINE_EXCEEDED, False),
        (grpc.StatusCode.CANCELLED, None),
        (None, None),
    ],
)
def test_only_unreachable_instances_count_as_failed(code, well):
    assert verdict(code) is well


@given(st.text())
def test_health_requests_are_parsed(service):
    name = service.encode()
    size, left = b"", len(name)
    while left > 0x7F:
        size, left = size + bytes([left & 0x7F | 0x80]), left >> 7
    written = b"\x0a" + size + bytes([left]) + name
    assert decoded(written) == service


@pytest.mark.parametrize("wrong", [b"\x08\x01", b"\x0a\x05a", b"\x0a", b"\x0a\x01ab"])
def test_other_requests_are_refused(wrong):
    with pytest.raises(InvalidRequest):
        decoded(wrong)


def test_health_is_sent_at_once_and_at_each_change():
    health, statuses = Health({"mail": False}), list[ServingStatus | None]()
    end = health.listen("mail", statuses.append)
    health.set("mail", True)
    health.set("mail", True)
    health.end()
    health.set("mail", True)  # too late
    assert statuses == [
        ServingStatus.NOT_SERVING,
        ServingStatus.SERVING,
        ServingStatus.NOT_SERVING,
        None,
    ]
    assert health.status("") is ServingStatus.NOT_SERVING
    end()
    end()
    health.listen("mail", statuses.append)
    assert statuses[4:] == [ServingStatus.NOT_SERVING, None]
    assert health.status("other") is ServingStatus.SERVICE_UNKNOWN
    assert encoded(ServingStatus.NOT_SERVING) == b"\x08\x02"


def test_an_endless_length_is_not_a_request():
    with pytest.raises(InvalidRequest):
        decoded(b"\n" + b"\xff" * 4_000_000)


class _Ended(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self.code, self.details = lambda: code, lambda: details


@pytest.mark.parametrize(
    ("details", "unsent"),
    [
        ("failed to connect to all addresses; last error: UNKNOWN: …: refused", True),
        ("connections to all backends failing; last error: UNKNOWN: …: refused", True),
        ("Socket closed", False),
        ("the server's own words", False),
    ],
)
def test_only_a_call_that_was_never_sent_is_retried(details: str, unsent: bool):
    assert was_not_sent(_Ended(grpc.StatusCode.UNAVAILABLE, details)) is unsent
    assert not was_not_sent(_Ended(grpc.StatusCode.INTERNAL, details))
    assert not was_not_sent(grpc.RpcError())


def test_sending_health_does_not_wait_for_a_leaving_watcher():
    """gRPC's send may wait for the thread that reports the end of another call."""
    health, over = Health(), threading.Event()
    handlers = _blocking_handlers(health)
    leaving: list[Callable[[], None]] = []
    statuses: list[ServingStatus | None] = []

    class Context:
        def add_callback(self, end: Callable[[], None]) -> bool:
            leaving.append(end)
            return True

    def send(status: ServingStatus | None) -> None:
        assert over.wait(20)
        statuses.append(status)

    def leave() -> None:
        leaving[0]()
        over.set()

    watch = handlers["Watch"].unary_stream
    watch("", Context(), lambda _: None)
    watch("", Context(), send)
    ending = threading.Thread(target=leave, daemon=True)
    ending.start()
    ending.join(20)
    assert over.is_set()
    health.end()
    until(lambda: statuses == [ServingStatus.SERVING, ServingStatus.NOT_SERVING, None])
