"""Requests and responses: query parsing, refusals, and the format of errors and lists."""

from __future__ import annotations

import datetime
from typing import Annotated

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mooring import errors
from mooring.server.api.endpoint import http_error, tenant_id
from mooring.server.http.request import MAX_DEPTH, PageQuery, depth, paginate, parse_query
from mooring.server.http.response import (
    HTTPError,
    digest,
    error_response,
    etag_matches,
    rfc3339,
)


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    most: Annotated[int, msgspec.Meta(ge=1)] = 5
    all: bool = False


def test_a_query_is_parsed():
    assert parse_query(Parameters, b"") == Parameters()
    assert parse_query(Parameters, b"name=a%2Fb&most=7&all=true") == Parameters(
        name="a/b", most=7, all=True
    )
    assert parse_query(None, b"") is None


@pytest.mark.parametrize(
    "query",
    [
        b"other=1",
        b"name=a&name=b",
        b"most=0",
        b"most=x",
        b"most=",
        b"all=perhaps",
        b"name",
        b"name=%ff",
        b"name=\xff",
        b"&".join(b"x=1" for _ in range(60)),
    ],
)
def test_an_unknown_query_parameter_is_refused(query: bytes):
    with pytest.raises(HTTPError) as refused:
        parse_query(Parameters, query)
    assert refused.value.status == 400


@given(st.binary())
def test_any_query_is_parsed_or_refused(query: bytes):
    try:
        parse_query(Parameters, query)
    except HTTPError as refused:
        status = refused.status
    else:
        status = 200
    assert status in (200, 400)


@pytest.mark.parametrize("text", ["", "-1", "x", "1.0", "²", "１", "9" * 19])
def test_an_invalid_tenant_id_is_refused(text: str):
    with pytest.raises(HTTPError):
        tenant_id(text)


def every_error() -> list[type[errors.MooringError]]:
    kinds = [errors.MooringError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return kinds


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_of_ours_has_a_status(kind: type[errors.MooringError]):
    error = kind.__new__(kind)
    errors.MooringError.__init__(error, "what happened")
    refused = http_error(error)
    assert 400 <= refused.status < 600
    assert refused.status != 500
    assert refused.code
    body = msgspec.json.decode(error_response(refused).body())
    assert body["error"]["code"] == refused.code
    assert body["error"]["message"] == "what happened"


@given(st.lists(st.text(min_size=1), unique=True), st.integers(min_value=1, max_value=7))
def test_pages_contain_everything_once_and_in_order(names: list[str], limit: int):
    names.sort()
    seen: list[str] = []
    page = PageQuery(limit=limit)
    while True:
        some, headers = paginate(names, page, str, path="/list")
        assert headers["X-Total-Count"] == str(len(names))
        assert len(some) <= limit
        seen += some
        if "Link" not in headers:
            break
        assert headers["Link"].endswith('; rel="next"')
        page = PageQuery(limit=limit, after=some[-1])
    assert seen == names


@pytest.mark.parametrize(
    ("header", "same"),
    [
        ('"abc"', True),
        ('W/"abc"', True),
        ('"x", W/"abc"', True),
        ("*", True),
        ('"x"', False),
        ("", False),
        ("abc", False),
    ],
)
def test_an_etag_is_compared_weakly(header: str, same: bool):
    assert etag_matches(header, '"abc"') is same
    assert etag_matches(header, 'W/"abc"') is same


def test_other_bytes_have_another_etag():
    assert digest(b"a") == digest(b"a") != digest(b"b")


def test_moments_are_in_utc_with_milliseconds():
    zone = datetime.timezone(datetime.timedelta(hours=8))
    moment = datetime.datetime(2026, 1, 1, 8, 0, 0, 123456, zone)
    assert rfc3339(moment) == "2026-01-01T00:00:00.123Z"
    assert rfc3339(None) is None


def nested(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(nested, value.values()), default=0)
    return 1 + max(map(nested, value), default=0) if isinstance(value, list) else 0


anything = st.recursive(
    st.none() | st.text(alphabet='[]{}"\\a'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[{"\\'), inner),
)


@given(anything, st.integers(min_value=0, max_value=2 * MAX_DEPTH))
def test_the_depth_of_a_body_is_measured(value: object, around: int):
    for _ in range(around):
        value = [[], value]
    assert (depth(msgspec.json.encode(value)) > MAX_DEPTH) is (nested(value) > MAX_DEPTH)


@given(st.binary())
@example(b'"""["]')
def test_the_depth_of_any_body_is_known(body: bytes):
    assert depth(body * 100) >= 0
