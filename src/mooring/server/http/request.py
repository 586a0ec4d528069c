"""Requests as handlers see them: authenticated, with path, query and body parsed; and paging."""

from __future__ import annotations

import itertools
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from mooring.formatting import in_words, quoted
from mooring.server.auth.authorization import Principal
from mooring.server.http.response import HTTPError
from mooring.server.http.routing import ApiRoute

if TYPE_CHECKING:
    from mooring.server.context import ServerContext

NOBODY = Principal("nobody", "viewer", frozenset(), frozenset())
"""The principal of requests without credentials to open endpoints."""


DEEPEST = 64
"""Nesting depth of a request body."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # also one without an end, to be linear
_TURNS = bytes.maketrans(b"[{]}", b"\2\2\0\0")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


@dataclass(slots=True)
class ApiCall:
    server: ServerContext
    request: Request
    endpoint: ApiRoute
    path: Mapping[str, str]
    """The parameters of the path."""
    principal: Principal = NOBODY
    query: Any = None
    """The parsed query, of the type `endpoint.query`."""
    body: Any = None
    """The parsed body, of the type `endpoint.body`."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Extra fields of the audit entry: a reason, the previous value."""

    @property
    def client(self) -> str:
        """The address of the client."""
        return self.request.client.host if self.request.client else ""

    @property
    def service(self) -> str:
        return self.path["service"]

    @property
    def tenant(self) -> int:
        return tenant_id(self.path["tenant"])

    @property
    def here(self) -> str:
        """The path as it was sent."""
        raw_path: bytes = self.request.scope["raw_path"]
        return raw_path.decode("ascii", "replace")


def tenant_id(text: str) -> int:
    digits = text.isascii() and text.isdecimal() and len(text) < 20
    if not digits or int(text) >= 2**63:
        raise HTTPError(
            400, "bad_request", f"{quoted(text, 40)} is not a tenant id: expected a number"
        )
    return int(text)


def parse_query(endpoint: ApiRoute, query: bytes) -> Any:
    """Parse the query. Raises `HTTPError` (400) for unknown, repeated or invalid parameters."""
    try:
        pairs = urllib.parse.parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=50,
        )
    except ValueError as error:
        raise HTTPError(400, "bad_query", f"invalid query string: {error}") from error
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise HTTPError(400, "bad_query", "a query parameter is given twice")
    if endpoint.query is None:
        if fields:
            raise HTTPError(
                400, "bad_query", f"unknown query parameter {quoted(next(iter(fields)))}"
            )
        return None
    names = endpoint.query.__struct_encode_fields__
    for name in fields:
        if name not in names:
            known = ", ".join(names)
            raise HTTPError(
                400, "bad_query", f"unknown query parameter {quoted(name)}: known are {known}"
            )
    try:
        return msgspec.convert(fields, endpoint.query, strict=False)
    except msgspec.ValidationError as error:
        raise HTTPError(400, "bad_query", in_words(error, "the query")) from error


async def read_body(endpoint: ApiRoute, request: Request, *, most: int) -> Any:
    """Read and parse the body. Raises `HTTPError` if it is too large (413), not declared as JSON
    (415) or invalid (400)."""
    received = bytearray()
    try:
        async for chunk in request.stream():
            received += chunk
            if len(received) > most:
                raise HTTPError(413, "too_large", f"the body is over the limit of {most} bytes")
    except ClientDisconnect:
        raise HTTPError(400, "bad_request", "the request body was truncated") from None
    if endpoint.body is None:
        if bytes(received).strip() not in (b"", b"{}"):
            raise HTTPError(400, "bad_request", "this endpoint takes no body")
        return None
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise HTTPError(415, "bad_media", "the body must be JSON: Content-Type: application/json")
    if (nesting := depth(received)) > DEEPEST:
        raise HTTPError(
            400, "bad_request", f"the body is nested {nesting} levels deep: the limit is {DEEPEST}"
        )
    try:
        return msgspec.json.decode(bytes(received), type=endpoint.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPError(400, "bad_request", in_words(error, "the body")) from error


def depth(body: bytes | bytearray) -> int:
    """The nesting depth of JSON text, or just the number of opening brackets if that is within the
    limit. The limit keeps what was parsed encodable: encoding recurses."""
    opened = body.count(b"[") + body.count(b"{")
    if opened <= DEEPEST:
        return opened
    brackets = _STRING.sub(b"", body).translate(_TURNS, _NO_BRACKETS)
    return max(itertools.accumulate(map((-1).__add__, brackets), initial=0))


T = TypeVar("T")

LIMIT = 1000
"""Default and maximum size of a page."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Query parameters of a list. Subclasses add filters."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT)] = LIMIT
    after: Annotated[str, msgspec.Meta(max_length=1000)] = ""


def cut(
    items: Iterable[T], page: Page, name: Callable[[T], str], *, path: str
) -> tuple[Sequence[T], dict[str, str]]:
    """One page of items, which are sorted by name, and headers with the total and the next page.
    `path` is the path of the list."""
    everything = list(items)
    rest = [item for item in everything if name(item) > page.after] if page.after else everything
    some = rest[: page.limit]
    headers = {"X-Total-Count": str(len(everything))}
    if len(rest) > len(some):
        query = {**_filters(page), "limit": str(page.limit), "after": name(some[-1])}
        headers["Link"] = f'<{path}?{urllib.parse.urlencode(query)}>; rel="next"'
    return some, headers


def _filters(page: Page) -> Mapping[str, str]:
    """The filters of a query that differ from their defaults."""
    return {
        field.name: str(value).lower() if isinstance(value, bool) else str(value)
        for field in msgspec.structs.fields(page)
        if (value := getattr(page, field.name)) != field.default
    }
