"""Routing by the raw path: only the exact spelling of a path matches."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.server.api import all_endpoints
from mooring.server.api.endpoint import ApiCall, ApiEndpoint
from mooring.server.auth.authorization import OPEN
from mooring.server.http.response import HTTPError, Response
from mooring.server.http.routing import LONGEST, Router, decode_segment


async def nothing(_: ApiCall) -> Response:
    return Response()


def endpoint(method: str, path: str) -> ApiEndpoint:
    return ApiEndpoint(method, path, OPEN, nothing, path)


def router(endpoints: Iterable[ApiEndpoint]) -> Router[ApiEndpoint]:
    return Router((route.method, route.path, route) for route in endpoints)


TABLE = (
    endpoint("GET", "/"),
    endpoint("GET", "/admin/services"),
    endpoint("GET", "/admin/services/{service}"),
    endpoint("DELETE", "/admin/services/{service}"),
    endpoint("GET", "/admin/services/{service}/instances/{instance}"),
)
ROUTER = router(TABLE)

# The characters that `mooring.names` forbids, and no more: every valid name must be routable.
printable = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1)


def quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


@given(printable, printable)
def test_a_parameter_is_one_segment_decoded_once(service: str, instance: str):
    path = f"/admin/services/{quoted(service)}/instances/{quoted(instance)}"
    matched, parameters = ROUTER.match("GET", path.encode())
    assert matched.path == "/admin/services/{service}/instances/{instance}"
    assert parameters == {"service": service, "instance": instance}


@given(st.binary().map(lambda path: b"/" + path))
def test_any_bytes_are_matched_or_refused(path: bytes):
    matched, status = None, 200
    parameters: dict[str, str] = {}
    try:
        matched, parameters = ROUTER.match("GET", path)
    except HTTPError as refused:
        status = refused.status
    assert status in (200, 400, 404, 405)
    if matched is not None:
        again = matched.path.format(**{k: quoted(v) for k, v in parameters.items()})
        assert urllib.parse.unquote_to_bytes(path) == urllib.parse.unquote_to_bytes(again)
        assert path.count(b"/") == matched.path.count("/")


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"admin/services",
        b"//admin/services",
        b"/admin//services",
        b"/admin/services/",
        b"/ADMIN/services",
        b"/%61dmin/services",
        b"/admin%2Fservices",
        b"/admin/services;x=1",
        b"/admin/./services",
        b"/x/../admin/services",
        b"/admin/services/a/b",
        b"/admin/services/a/instances",
        b"/admin/services/a/instances/",
        b"/admin\\services",
        b"*",
    ],
)
def test_no_other_spelling_of_a_path_matches(path: bytes):
    with pytest.raises(HTTPError) as refused:
        ROUTER.match("GET", path)
    assert refused.value.status == 404


@pytest.mark.parametrize("segment", [b"%", b"%4", b"%zz", b"%ff", b"%00", b"a%0Ab", b"%C2%85"])
def test_a_segment_that_is_not_utf_8_is_refused(segment: bytes):
    with pytest.raises(HTTPError) as refused:
        ROUTER.match("GET", b"/admin/services/" + segment)
    assert refused.value.status == 400


@pytest.mark.parametrize("letter", [b"x", b"%41", b"%F0%9F%98%80"])
def test_a_segment_longer_than_a_name_is_refused(letter: bytes):
    assert len(decode_segment(letter * LONGEST)) == LONGEST
    for more in (1, 100_000):
        with pytest.raises(HTTPError) as refused:
            decode_segment(letter * (LONGEST + more))
        assert (refused.value.status, refused.value.code) == (400, "bad_path")


def test_a_percent_is_decoded_once():
    assert decode_segment(b"a%252Fb") == "a%2Fb"


def test_an_unknown_method_is_refused_with_the_allowed_ones():
    with pytest.raises(HTTPError) as refused:
        ROUTER.match("PATCH", b"/admin/services/a")
    assert refused.value.status == 405
    assert refused.value.headers["Allow"] == "DELETE, GET, HEAD"
    assert ROUTER.match("HEAD", b"/")[0].method == "GET"


def test_a_duplicate_route_is_refused():
    with pytest.raises(ValueError, match="twice"):
        router([*TABLE, endpoint("GET", "/")])


def test_every_endpoint_is_matched_by_its_path():
    endpoints = all_endpoints()
    table = router(endpoints)
    for endpoint_ in endpoints:
        given = {name: f"a/{name}" for name in endpoint_.parameters}
        path = endpoint_.path.format(**{name: quoted(value) for name, value in given.items()})
        matched = table.match(endpoint_.method, path.encode())
        assert matched == (endpoint_, given)
