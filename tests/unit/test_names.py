"""Names of groups and services, and addresses: what is refused, and which rule the error names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring import addresses
from mooring.errors import InvalidName, InvalidRequest
from mooring.names import check_part, join_service, split_service


@pytest.mark.parametrize(
    ("service", "parts"),
    [
        ("Common/VerifyCodeService", ("Common", "VerifyCodeService")),
        ("echo", ("default", "echo")),
        ("default/echo", ("default", "echo")),
        ("验证码/服务 一", ("验证码", "服务 一")),
        ("a:b", ("default", "a:b")),
    ],
)
def test_a_service_is_a_name_in_a_group(service: str, parts: tuple[str, str]):
    assert split_service(service) == parts


def test_a_service_of_the_default_group_is_shown_bare():
    assert join_service(*split_service("default/echo")) == "echo"
    assert join_service(*split_service("Common/echo")) == "Common/echo"


@pytest.mark.parametrize(
    ("service", "rule"),
    [
        ("", "is empty"),
        ("/echo", "is empty"),
        ("Common/", "is empty"),
        ("a/b/c", "two slashes"),
        ("Common/info", "reserved"),
        ("info", "reserved"),
        ("..", "means a folder"),
        ("./a", "means a folder"),
        (" a", "starts or ends with a space"),
        ("a\n", "control character"),
        ("a\x00b", "control character"),
        ("a\ud800", "control character"),
    ],
)
def test_a_bad_name_is_refused_and_the_rule_named(service: str, rule: str):
    with pytest.raises(InvalidName, match=rule):
        split_service(service)


@pytest.mark.parametrize("name", ["a:b", "a b", "a\u2003b"])
def test_some_places_forbid_colons_and_spaces(name: str):
    with pytest.raises(InvalidName, match="colon or a space"):
        check_part("domain", name)


def test_a_name_that_is_no_text_is_refused():
    with pytest.raises(InvalidName, match="must be text, not int"):
        split_service(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["10.0.0.1:80", "[::1]:8080", "api.example.com:65535", "a:1"])
def test_an_address_is_split_and_joined(address: str):
    assert addresses.join(*addresses.split(address)) == address


@given(st.ip_addresses(), st.integers(1, 65535))
def test_every_ip_address_survives(ip: object, port: int):
    if str(ip) in ("0.0.0.0", "::"):
        return
    assert addresses.split(addresses.join(str(ip), port)) == (str(ip), port)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("10.0.0.1", "no address"),
        ("::1:80", "no address"),
        ("[10.0.0.1]:80", "no address"),
        ("10.0.0.1:", "no address"),
        ("10.0.0.1:²", "no address"),
        ("10.0.0.1:0", "not between 1 and 65535"),
        ("10.0.0.1:65536", "not between 1 and 65535"),
        ("0.0.0.0:80", "every address"),
        ("[::]:80", "every address"),
        ("a b:80", "neither an IP address nor a host name"),
        ("-a:80", "neither"),
        ("10.0.0:80", "looks like an IP address"),
        (":80", "must be an IP address or a host name"),
    ],
)
def test_a_bad_address_is_refused(address: str, says: str):
    with pytest.raises(InvalidRequest, match=says):
        addresses.split(address)


def test_this_machine_has_an_address():
    addresses.check_host(addresses.reachable_host())
