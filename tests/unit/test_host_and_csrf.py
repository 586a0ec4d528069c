"""Requests from pages of other origins are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from mooring.server.api.endpoint import ANONYMOUS
from mooring.server.auth.authorization import Principal
from mooring.server.auth.host_and_csrf import Origins, parse_host
from mooring.server.http.response import HTTPError

ORIGINS = Origins(["192.0.2.1", "Mooring.Example.com"])
SESSION = Principal("ann", "admin", token="t", session="s")
BEARER = Principal("ann", "admin", token="t")


def request(
    *hosts: str,
    scheme: str = "http",
    server: tuple[str, int] = ("10.0.0.9", 7480),
    **headers: str | list[str],
) -> Request:
    lists = {name: [value] if isinstance(value, str) else value for name, value in headers.items()}
    lists["host"] = list(hosts)
    pairs = [
        (name.replace("_", "-").encode(), value.encode("latin-1"))
        for name, values in lists.items()
        for value in values
    ]
    return Request(
        {
            "type": "http",
            "method": "POST",
            "path": "/",
            "query_string": b"",
            "scheme": scheme,
            "server": server,
            "headers": pairs,
        }
    )


def page(**headers: str | list[str]) -> Request:
    return request("127.0.0.1:7480", **headers)  # type: ignore[arg-type]


def status(check: object, *arguments: object) -> int:
    try:
        check(*arguments)  # type: ignore[operator]
    except HTTPError as refused:
        return refused.status
    return 200


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:7480",
        "localhost",
        "LOCALHOST:1",
        "localhost.:7480",
        "[::1]:7480",
        "[0:0:0:0:0:0:0:1]",
        "192.0.2.1:7480",
        "mooring.example.com",
        "10.0.0.9:7480",
    ],
)
def test_the_servers_own_hosts_are_accepted(host: str):
    assert status(ORIGINS.check_host, request(host)) == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":7480",
        "evil.example",
        "evil.example:7480",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1@evil.example",
        "127.0.0.1:80:80",
        "127.0.0.1:x",
        "127.0.0.1:",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "10.0.0.8",
        "localhost/evil",
        "localhost evil",
        "localhost,evil",
        "localhost#evil.example",
        "[::2]",
        "[localhost",
        "lôcalhost",
    ],
)
def test_other_hosts_are_misdirected(host: str):
    assert status(ORIGINS.check_host, request(host)) == 421


def test_two_hosts_and_no_host_are_refused():
    assert status(ORIGINS.check_host, request("localhost", "evil.example")) == 421
    assert status(ORIGINS.check_host, request()) == 421


@given(st.text(alphabet=st.characters(max_codepoint=255)))
def test_any_host_is_read_or_refused(text: str):
    assert status(ORIGINS.check_host, request(text)) in (200, 421)
    place = parse_host(text)
    assert place is None or place.host


@pytest.mark.parametrize("principal", [SESSION, BEARER, ANONYMOUS])
@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "http://127.0.0.1",
        "http://127.0.0.1:7481",
        "http://localhost:7480",
        "http://127.0.0.1:7480.evil.example",
        "http://127.0.0.1:7480@evil.example",
        "http://evil.example/http://127.0.0.1:7480",
        "ftp://127.0.0.1:7480",
        "127.0.0.1:7480",
        "//127.0.0.1:7480",
    ],
)
def test_a_foreign_page_cannot_write(origin: str, principal: Principal):
    assert status(ORIGINS.check_origin, page(origin=origin), principal) == 403


@pytest.mark.parametrize("principal", [SESSION, BEARER, ANONYMOUS])
def test_the_servers_own_page_can_write(principal: Principal):
    assert status(ORIGINS.check_origin, page(origin="http://127.0.0.1:7480"), principal) == 200
    twice = page(origin=["http://127.0.0.1:7480", "http://evil.example"])
    assert status(ORIGINS.check_origin, twice, principal) == 403


def test_without_an_origin_only_a_bearer_token_can_write():
    assert status(ORIGINS.check_origin, page(), BEARER) == 200
    assert status(ORIGINS.check_origin, page(), SESSION) == 403
    assert status(ORIGINS.check_origin, page(), ANONYMOUS) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_cross_site_requests_are_foreign(site: str):
    assert status(ORIGINS.check_origin, page(sec_fetch_site=site), BEARER) == 403
    ours = page(origin="http://127.0.0.1:7480", sec_fetch_site=site)
    assert status(ORIGINS.check_origin, ours, SESSION) == 403


def test_a_proxy_can_add_tls_but_not_remove_it():
    behind = request("mooring.example.com", origin="https://mooring.example.com")
    assert status(ORIGINS.check_origin, behind, SESSION) == 200
    plain = request("mooring.example.com", scheme="https", origin="http://mooring.example.com")
    assert status(ORIGINS.check_origin, plain, SESSION) == 403


@pytest.mark.parametrize(
    ("media", "answered"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("text/plain; application/json", 415),
    ],
)
def test_a_session_sends_only_json(media: str, answered: int):
    asked = page(origin="http://127.0.0.1:7480", content_type=media)
    assert status(ORIGINS.check_origin, asked, SESSION) == answered
