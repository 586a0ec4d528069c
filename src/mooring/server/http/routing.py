"""Which endpoint a request means, by its raw path.

A parameter is one segment as it was sent, decoded once: `Common%2FAuth` is one service, and no
encoding of a fixed part means that part. What is not in the table does not exist.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from mooring.server.auth.authorization import Need
from mooring.server.http.response import HTTPError, Response

if TYPE_CHECKING:
    from mooring.server.http.request import ApiCall

Handler = Callable[["ApiCall"], Awaitable[Response]]

SAFE = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class ApiRoute:
    method: str
    path: str
    """Segments with parameters in braces, `/services/{service}/health`; each is one segment."""
    needs: Need
    """Who may; there is no endpoint that does not say."""
    handler: Handler
    summary: str
    """One line for OpenAPI."""
    body: Any = None
    """The type of a JSON body; None: there is none."""
    query: Any = None
    """A `msgspec.Struct` of the query's parameters; None: there are none."""
    answers: Mapping[int, Any] = field(default_factory=dict)
    """What may be answered beside errors: the type by status; None: no JSON."""
    fails: tuple[int, ...] = ()
    """Errors that only this one can answer with, beside those of its access and its input."""
    media: str = "application/json"
    """Of what it answers."""
    acts: bool | None = None
    """Whether it is written into the audit; by default what may change something."""
    parameters: tuple[str, ...] = field(init=False)
    """The names in the path."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", tuple(re.findall(r"{(\w+)}", self.path)))

    @property
    def audited(self) -> bool:
        return self.method not in SAFE if self.acts is None else self.acts


LONGEST = 2000
"""Characters of a parameter; names of groups and services, and two with a slash, are shorter."""
_DIGITS = b"0123456789abcdefABCDEF"
_HEX = {bytes(two): bytes.fromhex(bytes(two).decode()) for two in product(_DIGITS, repeat=2)}


class Match(NamedTuple):
    endpoint: ApiRoute
    parameters: dict[str, str]


class _Node:
    __slots__ = ("endpoints", "fixed", "free")

    def __init__(self) -> None:
        self.fixed: dict[bytes, _Node] = {}
        self.free: _Node | None = None
        self.endpoints: dict[str, ApiRoute] = {}


class Router:
    def __init__(self, endpoints: Iterable[ApiRoute]) -> None:
        self._root = _Node()
        for endpoint in endpoints:
            self._add(endpoint)

    def _add(self, endpoint: ApiRoute) -> None:
        node = self._root
        for segment in endpoint.path.encode().split(b"/")[1:]:
            if segment.startswith(b"{"):
                node.free = node.free or _Node()
                node = node.free
            else:
                node = node.fixed.setdefault(segment, _Node())
        if endpoint.method in node.endpoints:
            raise ValueError(f"{endpoint.method} {endpoint.path} is there twice")
        node.endpoints[endpoint.method] = endpoint

    def match(self, method: str, raw_path: bytes) -> Match:
        """Raises `HTTPError`: nothing is at this path (404), or nothing of this method (405)."""
        node: _Node | None = self._root
        values: list[bytes] = []
        for segment in raw_path.split(b"/")[1:]:
            assert node is not None
            found = node.fixed.get(segment)
            if found is None:
                found = node.free
                values.append(segment)
            node = found
            if node is None:
                raise _nothing(raw_path)
        if node is None or not node.endpoints or not raw_path.startswith(b"/"):
            raise _nothing(raw_path)
        endpoint = node.endpoints.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            raise _no_method(method, raw_path, node.endpoints)
        named = zip(endpoint.parameters, map(decoded, values), strict=True)
        return Match(endpoint, dict(named))


def decoded(segment: bytes) -> str:
    """A segment of a path as it is meant. Raises `HTTPError` (400) for what is no text, or too long
    for any name: it would be looked at letter by letter."""
    if not segment:
        raise HTTPError(404, "not_found", "a part of the path is empty")
    if len(segment) > 3 * 4 * LONGEST:  # each of them four bytes, and each byte written as %XX
        raise _too_long()
    if b"%" not in segment:
        parts = [segment]
    else:
        first, *rest = segment.split(b"%")
        parts = [first]
        for part in rest:
            byte = _HEX.get(part[:2])
            if byte is None:
                raise HTTPError(400, "bad_path", "the path has a % that begins no two hex digits")
            parts += (byte, part[2:])
    try:
        text = b"".join(parts).decode()
    except UnicodeDecodeError:
        raise HTTPError(400, "bad_path", "the path is no text in UTF-8") from None
    if len(text) > LONGEST:
        raise _too_long()
    if not text.isprintable() and any(unicodedata.category(each) == "Cc" for each in text):
        raise HTTPError(400, "bad_path", "the path has a control character")
    return text


def _too_long() -> HTTPError:
    return HTTPError(400, "bad_path", f"a part of the path is over {LONGEST} characters")


def _nothing(raw_path: bytes) -> HTTPError:
    shown = raw_path.decode("ascii", "backslashreplace")[:200]
    return HTTPError(
        404,
        "not_found",
        f"there is nothing at {shown}: see /admin/openapi.json. A service with a group is one "
        "segment, its slash written %2F",
    )


def _no_method(method: str, raw_path: bytes, there: Mapping[str, ApiRoute]) -> HTTPError:
    allowed = ", ".join(sorted({*there, *(["HEAD"] if "GET" in there else [])}))
    return HTTPError(
        405, "bad_method", f"this takes {allowed}, not {method[:20]}", headers={"Allow": allowed}
    )
