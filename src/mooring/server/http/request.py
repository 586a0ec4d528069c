"""Parsing of queries and JSON bodies, and paging of lists."""

from __future__ import annotations

import itertools
import re
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from mooring.messages import message
from mooring.messages.validation import rejection
from mooring.server.http.response import HTTPError

MAX_DEPTH = 64
"""Maximum nesting depth of a request body."""
# Also matches a string without its closing quote, which keeps the match linear.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\2\2\0\0")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def parse_query(kind: type[msgspec.Struct] | None, query: bytes) -> Any:
    """The parameters of a query as a struct of this kind; with None, the query must be empty.
    Raises `HTTPError` (400) for unknown, repeated or invalid parameters."""
    try:
        pairs = urllib.parse.parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=50,
        )
    except ValueError as error:
        raise HTTPError(400, "bad_query", "query_malformed", error=error) from error
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise HTTPError(400, "bad_query", "query_repeated")
    known = () if kind is None else kind.__struct_encode_fields__
    for name in fields:
        if name not in known:
            raise HTTPError(400, "bad_query", "query_unknown", name=name, known=known)
    if kind is None:
        return None
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise HTTPError(400, "bad_query", rejection(error, message("the_query"))) from error


async def read_body(kind: Any, request: Request, *, limit: int) -> Any:
    """The body, parsed from JSON as this type; with None, the body must be empty. Raises
    `HTTPError` if it exceeds `limit` bytes (413), is not declared as JSON (415) or is invalid
    (400)."""
    received = bytearray()
    try:
        async for chunk in request.stream():
            received += chunk
            if len(received) > limit:
                raise HTTPError(413, "too_large", "body_too_large", limit=limit)
    except ClientDisconnect:
        raise HTTPError(400, "bad_request", "body_truncated") from None
    if kind is None:
        if bytes(received).strip() not in (b"", b"{}"):
            raise HTTPError(400, "bad_request", "body_not_expected")
        return None
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise HTTPError(415, "bad_media", "body_not_json")
    if (nesting := depth(received)) > MAX_DEPTH:
        raise HTTPError(
            400,
            "bad_request",
            "body_too_deep",
            depth=nesting,
            limit=MAX_DEPTH,
        )
    try:
        return msgspec.json.decode(bytes(received), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPError(400, "bad_request", rejection(error, message("the_body"))) from error


def depth(body: bytes | bytearray) -> int:
    """The nesting depth of JSON text, or just the number of opening brackets if that is within the
    limit. The limit keeps what was parsed encodable: encoding recurses."""
    opened = body.count(b"[") + body.count(b"{")
    if opened <= MAX_DEPTH:
        return opened
    brackets = _STRING.sub(b"", body).translate(_STEPS, _NO_BRACKETS)
    return max(itertools.accumulate(map((-1).__add__, brackets), initial=0))


T = TypeVar("T")

MAX_PAGE = 1000
"""Default and maximum size of a page."""


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query parameters of a list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE
    after: Annotated[str, msgspec.Meta(max_length=1000)] = ""


def paginate(
    items: Iterable[T], page: PageQuery, name: Callable[[T], str], *, path: str
) -> tuple[Sequence[T], dict[str, str]]:
    """One page of items, which are sorted by name, and headers with the total and the next page.
    `path` is the path of the list."""
    everything = list(items)
    rest = [item for item in everything if name(item) > page.after] if page.after else everything
    shown = rest[: page.limit]
    headers = {"X-Total-Count": str(len(everything))}
    if len(rest) > len(shown):
        headers["Link"] = next_link(page, name(shown[-1]), path=path)
    return shown, headers


def next_link(page: PageQuery, after: str, *, path: str) -> str:
    """The `Link` header of a page that ends with the item `after`."""
    filters = {
        field.name: str(value).lower() if isinstance(value, bool) else str(value)
        for field in msgspec.structs.fields(page)
        if (value := getattr(page, field.name)) != field.default
    }
    query = {**filters, "limit": str(page.limit), "after": after}
    return f'<{path}?{urllib.parse.urlencode(query)}>; rel="next"'
