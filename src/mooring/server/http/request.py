"""A request, as a handler sees it: who asks, for what, with everything checked."""

from __future__ import annotations

import itertools
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from mooring.formatting import quoted
from mooring.server.auth.authorization import Principal
from mooring.server.http.response import Refused
from mooring.server.http.routing import Endpoint
from mooring.validation_errors import in_words

if TYPE_CHECKING:
    from mooring.server.dependencies import Parts

NOBODY = Principal("nobody", "viewer", frozenset(), frozenset())
"""Who asks for what is open to all, and did not say who it is."""


DEEPEST = 64
"""Objects and lists of a body within one another."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # also one without an end, to be linear
_TURNS = bytes.maketrans(b"[{]}", b"\2\2\0\0")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


@dataclass(slots=True)
class Call:
    parts: Parts
    request: Request
    endpoint: Endpoint
    path: Mapping[str, str]
    """The parameters of the path."""
    principal: Principal = NOBODY
    query: Any = None
    """What the endpoint's `query` says, filled."""
    body: Any = None
    """What the endpoint's `body` says, filled."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What the audit shall say beside who asked for what: a reason, what it was before."""

    @property
    def client(self) -> str:
        """The address of who asks."""
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
        raise Refused(400, "bad_request", f"{quoted(text, 40)} is no tenant's id: it is a number")
    return int(text)


def parse_query(endpoint: Endpoint, query: bytes) -> Any:
    """What a query says. Raises `Refused` (400) for what is not asked for here, is said twice, or
    cannot be."""
    try:
        told = urllib.parse.parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=50,
        )
    except ValueError as error:
        raise Refused(400, "bad_query", f"the query cannot be read: {error}") from error
    fields = dict(told)
    if len(fields) != len(told):
        raise Refused(400, "bad_query", "a parameter of the query is said twice")
    if endpoint.query is None:
        if fields:
            raise Refused(400, "bad_query", f"unknown query parameter {quoted(next(iter(fields)))}")
        return None
    names = endpoint.query.__struct_encode_fields__
    for name in fields:
        if name not in names:
            known = ", ".join(names)
            raise Refused(
                400, "bad_query", f"unknown query parameter {quoted(name)}: known are {known}"
            )
    try:
        return msgspec.convert(fields, endpoint.query, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(400, "bad_query", in_words(error, "the query")) from error


async def read_body(endpoint: Endpoint, request: Request, *, most: int) -> Any:
    """The body of a request. Raises `Refused` for one that is too large (413), does not call itself
    JSON (415), or is not what is asked for here (400)."""
    received = bytearray()
    try:
        async for chunk in request.stream():
            received += chunk
            if len(received) > most:
                raise Refused(413, "too_large", f"the body is over the limit of {most} bytes")
    except ClientDisconnect:
        raise Refused(400, "bad_request", "the request body was truncated") from None
    if endpoint.body is None:
        if bytes(received).strip() not in (b"", b"{}"):
            raise Refused(400, "bad_request", "this takes no body")
        return None
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Refused(415, "bad_media", "the body must be JSON: Content-Type: application/json")
    if (found := depth(received)) > DEEPEST:
        raise Refused(
            400, "bad_request", f"the body nests {found} deep: at most {DEEPEST} are taken"
        )
    try:
        return msgspec.json.decode(bytes(received), type=endpoint.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "bad_request", in_words(error, "the body")) from error


def depth(body: bytes | bytearray) -> int:
    """How deep a text of JSON nests; where it has fewer brackets than may nest, just how many it
    has. What is read as it stands, deep down in a call, may be more than can be written there."""
    opened = body.count(b"[") + body.count(b"{")
    if opened <= DEEPEST:
        return opened
    brackets = _STRING.sub(b"", body).translate(_TURNS, _NO_BRACKETS)
    return max(itertools.accumulate(map((-1).__add__, brackets), initial=0))


T = TypeVar("T")

LIMIT = 1000
"""What a page has at the most, and where nothing is said."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Query parameters of a list; add filters by making a subclass."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT)] = LIMIT
    after: Annotated[str, msgspec.Meta(max_length=1000)] = ""


def cut(
    items: Iterable[T], page: Page, name: Callable[[T], str], *, path: str
) -> tuple[Sequence[T], dict[str, str]]:
    """One page of items that are in the order of their names, and the headers that tell of the
    rest. `path` is the list's own."""
    everything = list(items)
    rest = [item for item in everything if name(item) > page.after] if page.after else everything
    some = rest[: page.limit]
    headers = {"X-Total-Count": str(len(everything))}
    if len(rest) > len(some):
        query = {**_told(page), "limit": str(page.limit), "after": name(some[-1])}
        headers["Link"] = f'<{path}?{urllib.parse.urlencode(query)}>; rel="next"'
    return some, headers


def _told(page: Page) -> Mapping[str, str]:
    """The filters of a query, as they were asked for."""
    return {
        field.name: str(value).lower() if isinstance(value, bool) else str(value)
        for field in msgspec.structs.fields(page)
        if (value := getattr(page, field.name)) != field.default
    }
