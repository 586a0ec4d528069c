"""Routing by the raw path: what is not in the table does not exist, however it is written."""

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
    return Router((each.method, each.path, each) for each in endpoints)


TABLE = (
    endpoint("GET", "/"),
    endpoint("GET", "/admin/services"),
    endpoint("GET", "/admin/services/{service}"),
    endpoint("DELETE", "/admin/services/{service}"),
    endpoint("GET", "/admin/services/{service}/instances/{instance}"),
)
ROUTER = router(TABLE)

# What `mooring.names` forbids in names, and no more: what has a name can be asked for.
printable = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1)


def quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


@given(printable, printable)
def test_a_parameter_is_one_segment_decoded_once(service: str, instance: str):
    path = f"/admin/services/{quoted(service)}/instances/{quoted(instance)}"
    found, parameters = ROUTER.match("GET", path.encode())
    assert found.path == "/admin/services/{service}/instances/{instance}"
    assert parameters == {"service": service, "instance": instance}


@given(st.binary().map(lambda path: b"/" + path))
def test_any_bytes_are_matched_or_refused(path: bytes):
    found, status = None, 200
    parameters: dict[str, str] = {}
    try:
        found, parameters = ROUTER.match("GET", path)
    except HTTPError as refused:
        status = refused.status
    assert status in (200, 400, 404, 405)
    if found is not None:
        again = found.path.format(**{k: quoted(v) for k, v in parameters.items()})
        assert urllib.parse.unquote_to_bytes(path) == urllib.parse.unquote_to_bytes(again)
        assert path.count(b"/") == found.path.count("/")


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
def test_no_other_way_of_writing_it_is_it(path: bytes):
    with pytest.raises(HTTPError) as refused:
        ROUTER.match("GET", path)
    assert refused.value.status == 404


@pytest.mark.parametrize("segment", [b"%", b"%4", b"%zz", b"%ff", b"%00", b"a%0Ab", b"%C2%85"])
def test_what_is_no_text_is_refused(segment: bytes):
    with pytest.raises(HTTPError) as refused:
        ROUTER.match("GET", b"/admin/services/" + segment)
    assert refused.value.status == 400


@pytest.mark.parametrize("letter", [b"x", b"%41", b"%F0%9F%98%80"])
def test_what_is_too_long_for_a_name_is_refused(letter: bytes):
    assert len(decode_segment(letter * LONGEST)) == LONGEST
    for more in (1, 100_000):
        with pytest.raises(HTTPError) as refused:
            decode_segment(letter * (LONGEST + more))
        assert (refused.value.status, refused.value.code) == (400, "bad_path")


def test_a_percent_is_decoded_once():
    assert decode_segment(b"a%252Fb") == "a%2Fb"


def test_a_method_that_is_not_there_says_which_are():
    with pytest.raises(HTTPError) as refused:
        ROUTER.match("PATCH", b"/admin/services/a")
    assert refused.value.status == 405
    assert refused.value.headers["Allow"] == "DELETE, GET, HEAD"
    assert ROUTER.match("HEAD", b"/")[0].method == "GET"


def test_the_same_twice_is_refused():
    with pytest.raises(ValueError, match="twice"):
        router([*TABLE, endpoint("GET", "/")])


def test_every_endpoint_is_found_by_its_path():
    endpoints = all_endpoints()
    table = router(endpoints)
    for each in endpoints:
        given = {name: f"a/{name}" for name in each.parameters}
        path = each.path.format(**{name: quoted(value) for name, value in given.items()})
        found = table.match(each.method, path.encode())
        assert found == (each, given)
