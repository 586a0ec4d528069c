"""Names of groups and services, and addresses: what is refused, and which rule the error names."""

from __future__ import annotations

import difflib
import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mooring import addresses, names
from mooring.errors import InvalidName, InvalidRequest
from mooring.names import (
    LONGEST,
    check_name,
    check_part,
    closest,
    is_service,
    join_service,
    nearest,
    split_service,
)


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


def test_a_service_of_the_default_group_is_shown_without_its_group():
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
        ("..", "refers to a folder"),
        ("./a", "refers to a folder"),
        (" a", "starts or ends with a space"),
        ("a\n", "control character"),
        ("a\x00b", "control character"),
        ("a\ud800", "control character"),
        ("x" * 513, "longer than 512 characters"),
        (f"{'x' * 513}/a", "longer than 512 characters"),
        ("\n" * 60_000, "too long"),
    ],
)
def test_the_error_for_a_bad_name_states_the_rule(service: str, rule: str):
    with pytest.raises(InvalidName, match=rule):
        split_service(service)


@pytest.mark.parametrize("name", ["a:b", "a b", "a\u2003b"])
def test_some_names_forbid_colons_and_spaces(name: str):
    with pytest.raises(InvalidName, match="colon or a space"):
        check_part("domain", name)


def test_a_name_that_is_not_a_string_is_refused():
    with pytest.raises(InvalidName, match="must be text, not 5"):
        split_service(5)  # type: ignore[arg-type]


def test_every_character_is_classified_correctly():
    for number in range(sys.maxunicode + 1):
        letter = chr(number)
        control = unicodedata.category(letter) in ("Cc", "Cs")
        assert bool(names._CONTROL.search(letter)) == control, number
        spaced = letter == ":" or letter.isspace()
        assert bool(names._COLON_OR_SPACE.search(letter)) == spaced, number


def test_a_name_can_be_as_long_as_the_limit():
    group, name = "\U0001f600" * LONGEST, "x" * LONGEST
    assert split_service(f"{group}/{name}") == (group, name)
    assert join_service(group, name) == f"{group}/{name}"


def test_long_names_are_neither_cached_nor_quoted_in_full():
    names._split_cached.cache_clear()
    for length in (300, 600, 60_000):
        is_service("x" * length)
    assert names._split_cached.cache_info().currsize == 0
    with pytest.raises(InvalidName) as refused:
        check_name("group", "x" * 60_000)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("name", "known", "suggestion"),
    [
        ("order", ["orders", "stock"], "orders"),
        ("Common/Aut", ["orders", "Common/Auth", "Common/Audit"], "Common/Auth"),
        ("10.0.0.1:81", ["10.0.0.1:80", "10.0.0.2:80"], "10.0.0.1:80"),
        ("rorders", ["orders"], "orders"),
        ("ab", ["ba"], ""),
        ("x", [], ""),
        ("", ["x"], ""),
        ("x" * 65, ["x" * 64], ""),
        ("service-77", [f"service-{n}" for n in range(77)], "service-7"),
        ("10.0.0.9:8080", [f"10.0.{n // 250}.{n % 250}:8080" for n in range(3000)], ""),
        ("ordrs", [*(f"other{n:05d}" for n in range(3000)), "orders"], "orders"),
    ],
)
def test_the_closest_name_is_suggested(name: str, known: list[str], suggestion: str):
    assert closest(name, known) == suggestion


def test_few_names_are_compared_at_length(monkeypatch: pytest.MonkeyPatch):
    compared: list[int] = []
    real = difflib.get_close_matches

    def counted(word: str, few: list[str], n: int, cutoff: float) -> list[str]:
        compared.append(len(few))
        return real(word, few, n=n, cutoff=cutoff)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    closest("ba" * 30, ["ab" * 27 + f"{n:06d}" for n in range(150)])
    closest("ba" * 30_000, ["ab" * 30_000 for _ in range(400)])
    assert compared
    assert max(compared) <= 6
    assert len(nearest("x" * 100_000, ["a", "b"])) < 100


@given(st.text(max_size=30), st.lists(st.text(max_size=30), max_size=20))
@example("abcd", ["bcde"])
def test_the_suggestion_is_one_of_the_known_names(name: str, known: list[str]):
    assert closest(name, known) in ("", *known)
    if name and name in known:
        assert closest(name, known) == name


@pytest.mark.parametrize("address", ["10.0.0.1:80", "[::1]:8080", "api.example.com:65535", "a:1"])
def test_an_address_is_split_and_joined(address: str):
    assert addresses.join(*addresses.split(address)) == address


@given(st.ip_addresses(), st.integers(1, 65535))
def test_every_ip_address_survives(ip: object, port: int):
    if str(ip) in ("0.0.0.0", "::", "::ffff:0:0"):
        return
    assert addresses.split(addresses.join(str(ip), port)) == (str(ip), port)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("10.0.0.1", "not an address"),
        ("::1:80", "not an address"),
        ("[10.0.0.1]:80", "not an address"),
        ("10.0.0.1:", "not an address"),
        ("10.0.0.1:²", "not an address"),
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
def test_a_bad_address_is_refused(address: str, message: str):
    with pytest.raises(InvalidRequest, match=message):
        addresses.split(address)


def test_this_machine_has_an_address():
    addresses.check_host(addresses.reachable_host())
