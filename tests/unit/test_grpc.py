"""What a gRPC channel is asked for, and what is on the wire of the health service."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidName, InvalidRequest
from mooring.grpc.blocking.methods import never_left
from mooring.grpc.health import Health, Status, _threads, decoded, encoded
from mooring.grpc.options import SERVER_OPTIONS, check_health, link_options, target_of
from mooring.grpc.statuses import verdict
from mooring.grpc.target import Repeatable, check_policy, check_tries, service_of
from mooring.model import Instance
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
    ("target", "told"),
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
def test_a_malformed_target_is_told_what_is_right(target, told):
    with pytest.raises(InvalidRequest, match=told):
        service_of(target)


@pytest.mark.parametrize("name", ["", "a/b/c", "info", "a//b", " echo", "a\nb", "..", "/echo"])
def test_a_service_against_the_grammar_is_refused(name):
    with pytest.raises(InvalidName, match="the target"):
        service_of(f"etcdv3:///{name}")


def test_an_unknown_policy_is_told_the_nearest():
    with pytest.raises(InvalidRequest, match="did you mean 'round_robin'"):
        check_policy("roundrobin")


def test_methods_are_named_one_by_one_or_by_service():
    repeatable = Repeatable(["/echo.Echo/Say", "mail.Mail"])
    assert "/echo.Echo/Say" in repeatable
    assert "/echo.Echo/Count" not in repeatable
    assert "/mail.Mail/Read" in repeatable
    assert "/mail.Mailer/Read" not in repeatable


@pytest.mark.parametrize("wrong", ["", "/", "echo.Echo/", "a/b/c", " echo.Echo/Say", 3, "//Say"])
def test_what_is_no_method_cannot_be_repeated(wrong):
    with pytest.raises(InvalidRequest, match=r"package\.Service/Method"):
        Repeatable([wrong])


def test_one_method_alone_is_still_a_list():
    with pytest.raises(InvalidRequest, match=r"retry=\['echo\.Echo/Say'\]"):
        Repeatable("echo.Echo/Say")


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3"])
def test_tries_are_counted_from_one(wrong):
    with pytest.raises(InvalidRequest, match="1 or more"):
        check_tries(wrong)


@pytest.mark.parametrize(
    ("instance", "target"),
    [
        (Instance("echo", "10.0.0.1", 80), "ipv4:10.0.0.1:80"),
        (Instance("echo", "10.0.0.1", 80, ports={"grpc": 90}), "ipv4:10.0.0.1:90"),
        (Instance("echo", "fd00::1", 80), "ipv6:[fd00::1]:80"),
        (Instance("echo", "mail.example", 80), "dns:///mail.example:80"),
    ],
)
def test_an_instance_is_found_by_its_address(instance, target):
    assert target_of(instance) == target


def test_the_callers_options_come_first_and_win():
    given_options = [("grpc.use_local_subchannel_pool", 0), ("grpc.service_config", "{}")]
    options = link_options(given_options, True)
    assert dict(reversed(options))["grpc.use_local_subchannel_pool"] == 0
    assert [value for name, value in options if name == "grpc.service_config"] == ["{}"]


def test_a_service_config_of_ones_own_says_itself_whose_health_is_asked_for():
    check_health([("grpc.service_config", "{}")], True)
    with pytest.raises(InvalidRequest, match="exclude each other"):
        check_health([("grpc.service_config", "{}")], "echo")
    with pytest.raises(InvalidRequest, match="True, False or a service"):
        check_health([], 3)  # type: ignore[arg-type]


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
def test_only_who_cannot_be_reached_is_blamed(code, well):
    assert verdict(code) is well


@given(st.text())
def test_requests_for_health_are_understood(service):
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


def test_health_is_told_at_once_and_at_each_change():
    health, told = Health({"mail": False}), list[Status | None]()
    end = health.listen("mail", told.append)
    health.set("mail", True)
    health.set("mail", True)
    health.leave()
    health.set("mail", True)  # too late
    assert told == [Status.NOT_SERVING, Status.SERVING, Status.NOT_SERVING]
    assert health.status("") is Status.NOT_SERVING
    end()
    end()
    health.end()
    health.listen("mail", told.append)
    assert told[3:] == [Status.NOT_SERVING, None]
    assert health.status("other") is Status.SERVICE_UNKNOWN
    assert encoded(Status.NOT_SERVING) == b"\x08\x02"


def test_a_length_without_end_is_no_request():
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
def test_only_a_call_that_was_never_sent_is_begun_again(details: str, unsent: bool):
    assert never_left(_Ended(grpc.StatusCode.UNAVAILABLE, details)) is unsent
    assert not never_left(_Ended(grpc.StatusCode.INTERNAL, details))
    assert not never_left(grpc.RpcError())


def test_telling_one_who_watches_waits_for_nobody_who_leaves():
    """gRPC's send may wait for the thread that tells that another call is over."""
    health, over = Health(), threading.Event()
    handlers = _threads(health)
    leaving: list[Callable[[], None]] = []
    told: list[Status | None] = []

    class Context:
        def add_callback(self, end: Callable[[], None]) -> bool:
            leaving.append(end)
            return True

    def send(status: Status | None) -> None:
        assert over.wait(20)
        told.append(status)

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
    health.leave()
    health.end()
    until(lambda: told == [Status.SERVING, Status.NOT_SERVING, None])
